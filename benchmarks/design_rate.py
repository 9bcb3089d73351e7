"""How many designs a second the bundled model writes: prompts full of variants, eight draws of each.

    python -m benchmarks.design_rate --model MODEL --out OUT                 on a GPU
    python -m benchmarks.design_rate --model MODEL --out OUT --device cpu    on one core

Programs of rlval.jsonl, one after the other; each prompt shows so many of its templates' variants, with made-up
speedups, that it has --tokens at most. summary: designs a second of sampling, prefill included, and as drawn
in use (without replacement, lowered, written out), the medians of --rounds, and the mean lengths.
"""

from __future__ import annotations

import argparse
import random
import time
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks.families import FamilyProgram, read_families
from benchmarks.result_file import write_result
from benchmarks.rlval_cut import COUNTS, RLVAL
from cudal1_compile.codegen.prior.regression import Prior, load_prior
from cudal1_compile.codegen.ranking import ranked
from cudal1_compile.codegen.replies import design_of
from cudal1_compile.generate.bundled import WHOLE_TOKENS, BundledConfig, BundledGenerator
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_compile.runtime.target import detect_target
from cudal1_fx_passes.program.text import parse_program

SAMPLES = 8
SHOWN = 64


def full_prompt(program: FamilyProgram, prior: Prior, generator: BundledGenerator, facts: str, tokens: int) -> str:
    """With as many variants as there are and fit."""
    found = islice(ranked(parse_program(program.text), prior), SHOWN)
    shown = [Exemplar(reply.code, 1.5 - i / SHOWN, design_of(reply)) for i, (_, reply) in enumerate(found)]
    return build_prompt(facts, program.text, shown, tokens, generator.count_tokens, designs=True)


def measure(generator: BundledGenerator, prompts: list[str], rounds: int) -> dict[str, Any]:
    sampled, written, lengths = [], [], list[int]()
    rows = [ids for p in prompts for ids in [generator.codec.encode_prompt(p)] * SAMPLES]
    warm = [generator.temperature] * len(rows)
    for seed in range(rounds + 1):  # the first one captures
        begin = time.perf_counter()
        found = generator.sampler.sample_until(rows, WHOLE_TOKENS, warm, seed, None)
        sampled.append(len(rows) / (time.perf_counter() - begin))
        lengths += [len(s.ids) for s in found]
        begin = time.perf_counter()
        drawn = generator.propose(prompts, SAMPLES, seed)
        written.append(sum(map(len, drawn)) / (time.perf_counter() - begin))
    return {
        "designs_per_s": median(sampled[1:]),
        "designs_per_s_written": median(written[1:]),
        "prompts": len(prompts),
        "samples": SAMPLES,
        "prompt_tokens": fmean([float(len(ids)) for ids in rows]),
        "reply_tokens": fmean(map(float, lengths)),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How many designs a second the bundled model writes.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--prompts", type=int, help="at once; 128 on a GPU, 4 on a core")
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args(argv)
    a.out.mkdir(parents=True, exist_ok=True)
    if a.device == "cpu":
        torch.set_num_threads(1)
    generator = BundledGenerator(BundledConfig(a.model, a.device, greedy_first=False, draws=1))
    prior = load_prior()
    assert prior is not None
    programs = list(read_families(RLVAL, tuple(COUNTS)))
    random.Random(0).shuffle(programs)
    facts = detect_target(torch.device(a.device)).facts()
    some = programs[: a.prompts or (128 if a.device == "cuda" else 4)]
    prompts = [full_prompt(p, prior, generator, facts, a.tokens) for p in some]
    summary = measure(generator, prompts, a.rounds) | {"device": a.device, "model": generator.name}
    print(write_result(a.out, "design_rate", summary, len(prompts), {}, {}, False), summary)


if __name__ == "__main__":
    main()
