"""The bundled generator on a tiny model of the shipped form: loading, replying, and what can be wrong with it."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import generate_models
import pytest
import torch
from generate_models import ROWS, make_checkpoint
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from cudal1_compile.codegen.prior.regression import load_prior
from cudal1_compile.codegen.ranking import ranked
from cudal1_compile.codegen.replies import as_design, complete, design_of
from cudal1_compile.codegen.templates import Schedule, variants, write_reply
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.draws import LEGAL
from cudal1_compile.generate.errors import GeneratorError, ModelMissing
from cudal1_compile.generate.factory import make_generator
from cudal1_compile.generate.fast_llama import Sample
from cudal1_compile.generate.model_files import MODEL_DIR
from cudal1_compile.generate.prompt import STAGES_TOKENS, build_prompt, shown_variants
from cudal1_compile.generate.tokens import load_codec
from cudal1_compile.generate.transformers_local import TransformersGenerator
from cudal1_compile.kernel.candidate import Exemplar, parse_reply, print_reply
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

GPU_FACTS = "target sm_90a, 132 SMs, 227 KB shared a block, 50 MB L2"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(generate_models, "PART_BYTES", 40_000)
    make_checkpoint(tmp_path / "model")
    return tmp_path / "model"


def open_generator(directory: Path, **changes: Any) -> BundledGenerator:
    return BundledGenerator(BundledConfig(directory, dtype=torch.float32, **changes))


def test_the_model_lies_in_small_parts_and_transformers_loads_the_directory(directory: Path) -> None:
    parts = sorted(p.name for p in directory.glob("model-*.safetensors"))
    assert len(parts) > 1
    assert parts[0] == f"model-00001-of-{len(parts):05d}.safetensors"
    assert all(p.stat().st_size < 60_000 for p in directory.glob("*.safetensors"))
    model = LlamaForCausalLM.from_pretrained(str(directory), local_files_only=True)
    assert model.config.head_dim == 8


def test_replies_are_those_of_transformers_where_greedy(directory: Path) -> None:
    generator = open_generator(directory)
    prompt = "region v1\ndims d0=32\n"
    [[first, second, third]] = generator.propose([prompt], 3, seed=1)
    model: Any = LlamaForCausalLM.from_pretrained(str(directory), dtype=torch.float32)
    ids = torch.tensor([generator.codec.encode_prompt(prompt)])
    room = model.config.max_position_embeddings - ids.shape[1]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=room, do_sample=False)
    assert first == generator.codec.decode(out[0, ids.shape[1] :].tolist())
    assert len({first, second, third}) == 3
    assert generator.propose([prompt], 3, seed=1) == [[first, second, third]]
    assert generator.propose([prompt], 3, seed=2)[0][1:] != [second, third]
    assert all("<eos>" not in r and "<pad>" not in r for r in (first, second, third))


def test_prompts_keep_their_order_and_equal_replies_count_once(directory: Path) -> None:
    generator = open_generator(directory, temperature=0.0)
    prompts = ["dims d0=64", "region v1", "region v1\ndims"]
    together = generator.propose(prompts, 2, seed=0)
    assert [len(found) for found in together] == [1, 1, 1]
    for prompt, found in zip(prompts, together, strict=True):
        [alone] = generator.propose([prompt], 2, seed=0)
        # this model ends no reply: the longest prompt says where all are cut, within a character too
        assert all(a.startswith(b[:-4]) for a, b in zip(alone, found, strict=True))


def test_budget_counts_in_its_own_tokens_and_leaves_room_for_stages(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, positions=1024)
    generator = open_generator(tmp_path)
    assert generator.budget_tokens == 1024 - 48 - 2 - STAGES_TOKENS
    assert generator.count_tokens("dims d0=32 d1=64") < 16
    with pytest.raises(GeneratorError, match="leaves room for"):
        generator.propose(["# " * 1000], 1, 0)


def test_the_model_is_asked_once_and_each_design_is_one_reply(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = open_generator(directory, draws=2)
    monkeypatch.setattr(generator, "codec", load_codec(str(MODEL_DIR / "tokenizer.json")))
    generator._positions = 4096
    program = parse_program(ROWS)
    replies = [r for s in variants(program)[:2] if (r := write_reply(program, s)) is not None]
    first, second = (print_reply(as_design(r)) for r in replies)
    near = second.replace("block 256", "block 250")
    drawn = [first, near, second, first, first, first, "no reply", second]
    calls: list[int] = []

    def sample(rows: list[list[int]], *_: Any) -> list[Sample]:
        calls.append(len(rows))
        return [Sample(generator.codec.encode_reply(text)[:-1], True) for text in drawn]

    monkeypatch.setattr(generator.sampler, "sample_until", sample)
    prompt = build_prompt("facts", print_program(program), (), 4096, len, designs=True)
    [found] = generator.propose([prompt], 4, seed=0)
    assert found == [first, second] and calls == [8]
    assert [complete(program, parse_reply(text)).code for text in found] == [r.code for r in replies]
    drawn[:] = ["no reply", *["## Code"] * 7]
    assert generator.propose([prompt], 4, seed=0) == [["no reply", "## Code"]]


@pytest.mark.parametrize("distinct", [False, True])
def test_designs_are_drawn_without_replacement_until_none_is_left(tmp_path: Path, distinct: bool) -> None:
    make_checkpoint(tmp_path, positions=6000)
    generator = open_generator(tmp_path, distinct=distinct)
    program = parse_program(ROWS)
    every = [r for s in variants(program, LEGAL) if (r := write_reply(program, s)) is not None]
    exemplars = [] if distinct else [Exemplar(every[5].code, 1.25, every[5].design)]
    tried, edited = {e.code for e in exemplars}, 0
    for number in range(20):
        prompt = build_prompt("facts", print_program(program), exemplars, 6000, len, designs=True)
        [texts] = generator.propose([prompt], 8, seed=number)
        assert texts == generator.propose([prompt], 8, seed=number)[0] and len(texts) == 8
        replies = [complete(program, parse_reply(text)) for text in texts]
        assert not tried & {r.code for r in replies} and len({r.code for r in replies}) == 8
        best = max((e.speedup for e in exemplars), default=0.0)
        assert all(r.analysis.startswith(f"Fastest so far: {best:.2f}x with ") for r in replies if best)
        tried |= {r.code for r in replies}
        exemplars += [Exemplar(r.code, 1.2 - i / 1000, design_of(r)) for i, r in enumerate(replies)]
        if edited := sum(bool(r.edits) for r in replies):
            break
    assert edited and tried >= {r.code for r in every}, "edits come once there is nothing else"


def test_what_has_no_designs_to_draw_from_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path, positions=2048)
    generator = open_generator(tmp_path)
    shown = [Exemplar("__global__ void f0() {}", 1.5, "grouped.\nstage 0: block, vector 4, block 256")]
    prompt = build_prompt("facts", print_program(parse_program(ROWS)), shown, 2048, len, designs=True)
    start = time.monotonic()
    assert generator.propose_until([prompt], 8, 0, start - 1.0) == [[]]
    monkeypatch.setattr("cudal1_compile.generate.draws.variants", lambda program, most: [])
    sampled: list[int] = []

    def sample(rows: list[list[int]], *_: Any) -> list[Sample]:
        sampled.append(len(rows))
        return [Sample([5, 6, 7], True) for _ in rows]

    monkeypatch.setattr(generator.sampler, "sample_until", sample)
    others = [prompt, "region v1", prompt]
    assert [len(found) for found in generator.propose(others, 2, seed=0)] == [1, 1, 1] and sampled == [24]


def test_a_prompt_tells_the_variants_that_it_shows() -> None:
    shown = [
        Exemplar("__global__ void f0() {}", 0.94, "by hand"),
        Exemplar("", 1.5, "grouped.\nstage 0: block, vector 4, block 256\nedit f0: unroll 8"),
    ]
    prompt = build_prompt("facts", print_program(parse_program(ROWS)), shown, 4096, len, designs=True)
    first, second = shown_variants(prompt)
    assert (first.code.strip(), first.speedup, first.design) == (shown[0].code, 0.94, "")
    assert second == shown[1] and shown_variants("region v1\n") == []


def test_the_prior_answers_what_a_gpu_asks_first_and_the_model_what_shows_variants(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[int] = []
    config = BundledConfig(directory, dtype=torch.float32, prior_first=True)
    generator = BundledGenerator(config, prepare=lambda: prepared.append(1))
    asked: list[str] = []

    def sampled(prompts: list[str], n: int, *_: Any) -> list[list[str]]:
        asked.extend(prompts)
        return [["the model's"] * n for _ in prompts]

    monkeypatch.setattr(generator, "_propose", sampled)
    program, prior = parse_program(ROWS), load_prior()
    assert prior is not None
    text = print_program(program)
    expected = [reply.code for _, reply in islice(ranked(program, prior), 3)]
    first = build_prompt(GPU_FACTS, text, (), 4096, len)
    [found] = generator.propose([first], 3, seed=0)
    assert [parse_reply(reply).code for reply in found] == expected and len(expected) == 3
    assert "number 2 of those" in parse_reply(found[1]).analysis and not asked and not prepared
    later = build_prompt(GPU_FACTS, text, [Exemplar(expected[0], 1.0, "grouped.")], 40_960, len)
    others = [later, build_prompt(HOST.facts(), text, (), 4096, len), f"{GPU_FACTS}\nregion v1\nout nothing"]
    assert generator.propose([others[0], first, *others[1:]], 3, seed=0)[1] == found
    assert asked == others and prepared == [1]
    asked.clear()
    generator.propose_until([first], 3, 0, time.monotonic() - 1.0)
    assert asked == [first], "what nobody answers in time is the sampler's to leave out"
    monkeypatch.setattr(generator, "config", replace(config, prior_first=False))
    assert generator.propose([first], 2, seed=0) == [["the model's"] * 2]


def test_a_program_that_templates_misread_has_no_ranking(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(program: Program) -> list[Schedule]:
        raise KeyError("an axis")

    monkeypatch.setattr("cudal1_compile.codegen.ranking.variants", stumble)
    prior = load_prior()
    assert prior is not None and list(ranked(parse_program(ROWS), prior)) == []
    assert "no variants: KeyError('an axis')" in caplog.text


def test_the_deadline_leaves_unfinished_replies_out(directory: Path) -> None:
    generator = open_generator(directory, draws=1)  # 32 rows: 128 take longer than this on a busy machine
    start = time.monotonic()
    found = generator.propose_until(["region v1"] * 4, 8, 0, start + 0.01)
    assert time.monotonic() - start < 2.0
    assert len(found) == 4
    assert sum(map(len, found)) < 32


def test_the_name_is_the_digest_of_the_files(directory: Path) -> None:
    name = open_generator(directory).name
    assert name == open_generator(directory).name
    path = directory / "generation_config.json"
    config = directory / "config.json"
    path.write_text(path.read_text())
    config.write_text(config.read_text() + "\n")
    assert open_generator(directory).name != name


def test_a_missing_part_is_named(directory: Path) -> None:
    part = sorted(directory.glob("model-*.safetensors"))[1]
    part.unlink()
    with pytest.raises(ModelMissing, match=f"{part.name} is missing.*make retrain"):
        open_generator(directory)


def test_an_absent_model_is_named_with_all_its_files(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"config\.json, tokenizer\.json, model\.safetensors are missing"):
        open_generator(tmp_path / "nowhere")


@pytest.mark.parametrize("damage", ["cut", "index", "json", "rows", "tokens"])
def test_a_damaged_model_is_a_generator_error(directory: Path, damage: str) -> None:
    if damage == "cut":
        part = sorted(directory.glob("model-*.safetensors"))[0]
        part.write_bytes(part.read_bytes()[:1000])
        with pytest.raises(GeneratorError, match="cannot be loaded"):
            open_generator(directory)
    elif damage == "index":
        (directory / "model.safetensors.index.json").write_text("{")
        with pytest.raises(GeneratorError, match="not an index"):
            open_generator(directory)
    elif damage == "json":
        (directory / "tokenizer.json").write_text("{")
        with pytest.raises(GeneratorError, match=r"tokenizer\.json cannot be read"):
            open_generator(directory)
    elif damage == "rows":
        path = directory / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.add_tokens([f"more{i}" for i in range(4096)])
        tokenizer.save(str(path))
        with pytest.raises(GeneratorError, match=r"ids, the model \d+ rows: put those of one model there"):
            open_generator(directory)
    else:
        path = directory / "tokenizer.json"
        path.write_text(path.read_text().replace('"<sep>"', '"<other>"'))
        with pytest.raises(ValueError, match="ids of <pad>, <bos>, <sep>, <eos>"):
            open_generator(directory)


def test_the_factory_finds_the_right_kind(directory: Path, tmp_path: Path) -> None:
    own, bundled = make_generator(str(directory)), make_generator("bundled")
    assert isinstance(own, BundledGenerator) and not own.config.prior_first, "whoever names a model means it"
    assert isinstance(bundled, BundledGenerator) and bundled.config.prior_first
    make_checkpoint(tmp_path / "other", chat=True)
    path = tmp_path / "other" / "tokenizer.json"
    path.write_text(path.read_text().replace('"<sep>"', '"<other>"'))
    assert isinstance(make_generator(str(tmp_path / "other")), TransformersGenerator)
    (tmp_path / "empty").mkdir()
    with pytest.raises(GeneratorError, match=r"config\.json"):
        make_generator(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="'bundeld': expected 'bundled'"):
        make_generator("bundeld")
    with pytest.raises(ValueError, match="URL#model=NAME"):
        make_generator("http://localhost:1/v1")
