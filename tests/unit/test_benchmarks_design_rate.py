"""The rate of designs: prompts are as full as they may be, and every draw counts."""

from __future__ import annotations

from pathlib import Path

from stage_toys import make_bundle

from benchmarks.design_rate import SAMPLES, full_prompt, measure
from benchmarks.families import FamilyProgram
from cudal1_compile.codegen.prior.regression import load_prior
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.runtime.target import HOST

TEXT = "region v1\ndims d0=4096 d1=1024\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"


def test_prompts_are_full_and_every_draw_counts(tmp_path: Path) -> None:
    generator, prior = BundledGenerator(BundledConfig(make_bundle(tmp_path), draws=1)), load_prior()
    assert prior is not None
    program = FamilyProgram("reduction", "rows", "inference", "4096x1024", TEXT)
    full = full_prompt(program, prior, generator, HOST.facts(), 10_000)
    least = generator.count_tokens(full.partition("variant ")[0])
    empty, half = (full_prompt(program, prior, generator, HOST.facts(), n) for n in (least, least + 200))
    assert empty.count("variant ") == 0 < half.count("variant ") < full.count("variant ")
    assert generator.count_tokens(half) <= least + 200
    found = measure(generator, [half, empty], 1)
    assert found["prompts"] == 2 and found["samples"] == SAMPLES and 0 < found["reply_tokens"] < 320
    assert 0 < found["designs_per_s_written"] <= found["designs_per_s"] * 1.5
