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
from generate_models import ROWS, make_checkpoint, make_tokenizer
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from cudal1_compile.codegen.prior.regression import load_prior
from cudal1_compile.codegen.ranking import ranked
from cudal1_compile.codegen.replies import as_design, complete
from cudal1_compile.codegen.templates import Schedule, variants, write_reply
from cudal1_compile.generate.bundled import (
    DESIGN_TOKENS,
    OUTLINE,
    REPAIRED_CHARACTERS,
    BundledConfig,
    BundledGenerator,
    _fitted,
    find_code_token,
)
from cudal1_compile.generate.errors import GeneratorError, ModelMissing
from cudal1_compile.generate.factory import make_generator
from cudal1_compile.generate.fast_llama import Sample
from cudal1_compile.generate.model_files import MODEL_DIR
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.generate.tokens import Codec, load_codec
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


def as_asked(
    rows: list[list[int]],
    room: int,
    warm: list[float],
    seed: int,
    end: None,
    begun: Any = (),
    stop: int | None = None,
) -> tuple[list[list[int]], int, list[float], Any, int | None]:
    """What a sampler's double looks at."""
    return rows, room, warm, begun, stop


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


def test_prompts_keep_their_order_and_get_n_replies_each(directory: Path) -> None:
    generator = open_generator(directory, temperature=0.0)
    prompts = ["dims d0=64", "region v1", "region v1\ndims"]
    together = generator.propose(prompts, 2, seed=0)
    assert [len(found) for found in together] == [2, 2, 2]
    for prompt, found in zip(prompts, together, strict=True):
        [alone] = generator.propose([prompt], 2, seed=0)
        # this model ends no reply: the longest prompt says where all are cut, within a character too
        assert all(a.startswith(b[:-4]) for a, b in zip(alone, found, strict=True))


def test_budget_counts_in_its_own_tokens(directory: Path) -> None:
    generator = open_generator(directory)
    assert generator.budget_tokens == 256 - 48 - 2
    assert generator.count_tokens("dims d0=32 d1=64") < 16
    with pytest.raises(GeneratorError, match="leaves room for"):
        generator.propose(["# " * 250], 1, 0)


def test_sampling_cools_down_at_the_token_that_opens_the_code(directory: Path) -> None:
    cooling = open_generator(directory, code_temperature=0.3).sampler.cooling
    assert cooling is not None and cooling.temperature == 0.3
    codec = load_codec(str(MODEL_DIR / "tokenizer.json"))
    ids = codec.encode_reply("## Algorithm Design\nrows.\n## Code\n```cuda\n// launch: f0<<<1, 32>>>(in0)\n```\n")
    token = find_code_token(codec)
    assert token is not None and ids.count(token) == 1
    assert codec.decode(ids[: ids.index(token) + 1]).endswith("rows.\n## Code\n```cuda")


def test_code_is_written_again_where_its_plan_does_not_hold(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reply's value stands before its load; the second one's does not; the third has no code."""
    generator = open_generator(directory, draws=1)
    text = "## Algorithm Design\nf0: out0=t0 t0=a0\nf0> {}\n## Code\n```cuda\nold\n```\n"
    first, second = (generator.codec.encode_reply(text.format(o)) for o in ("t0 a0 out0", "a0 t0 out0"))
    code = generator.codec.encode_reply("\nnew\n```\n")
    asked: list[tuple[list[str], list[float]]] = []

    def sample(*arguments: Any) -> list[Sample]:
        rows, room, warm, begun, stop = as_asked(*arguments)
        assert max(map(len, rows)) + room == 256
        if stop is not None:  # designs, up to their code
            return [
                Sample(ids[: ids.index(stop) + 1] if stop in ids else ids, True) for ids in (first, second, [7])
            ]
        asked.append(([generator.codec.decode(ids) for ids in rows], warm))
        return [Sample(ids, True) for ids in ((first, second, [7]) if len(asked) == 1 else (code,))]

    monkeypatch.setattr(generator.sampler, "sample_until", sample)
    [replies] = generator.propose(["region v1"], 3, seed=0)
    repaired = text.format("a0 t0 out0")
    assert replies == [repaired.replace("old", "new"), repaired, generator.codec.decode([7])]
    assert asked[1] == ([f"region v1{repaired.partition('```cuda')[0]}```cuda"], [0.0])  # the first is greedy


def test_replies_begin_with_different_designs_as_far_as_there_are(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The greedy one first, then the most frequent; again from the front where the draws had no others."""
    generator = open_generator(directory, draws=2)
    text = "stage 0 along d0=32: {}\nf0: out0=t0"
    drawn = {"region v1": [*"abbccc", "no outline", "a"], "dims d0": [*"zzyzzzzz"]}
    asked: list[tuple[list[str], list[float], list[list[int]]]] = []

    def sample(*arguments: Any) -> list[Sample]:
        rows, room, warm, begun, stop = as_asked(*arguments)
        if stop is not None:
            return [Sample(list(ids), True) for ids in begun]
        asked.append(([generator.codec.decode(ids) for ids in rows], warm, begun))
        if len(asked) == 1:
            assert room == DESIGN_TOKENS
            names = [name for names in drawn.values() for name in names]
            heads = [name if " " in name else text.format(name) for name in names]
            return [Sample(generator.codec.encode_reply(head)[:-1], False) for head in heads]
        return [Sample([*ids, *generator.codec.encode_reply("rest")], True) for ids in begun]

    monkeypatch.setattr(generator.sampler, "sample_until", sample)
    found = generator.propose(list(drawn), 4, seed=0)
    heads = [text.format(name).partition("\nf0: ")[0] for name in "acbzyzy"]
    assert found == [[*(h + "rest" for h in heads[:3]), "rest"], [h + "rest" for h in heads[3:]]]
    assert asked[0][:2] == (["region v1"] * 8 + ["dims d0"] * 8, [0.0, *[0.8] * 7] * 2)
    assert asked[1][:2] == (["region v1"] * 4 + ["dims d0"] * 4, [0.0, *[0.8] * 3] * 2)


@pytest.mark.parametrize("stage", ["block 256", "block 1024, registers", "tile 64x32x32, near", "splits 8"])
def test_what_a_reply_begins_with_is_spelled_as_in_the_whole(stage: str) -> None:
    """The shipped tokenizer has one token of a line's break and the next line's letter."""
    codec = load_codec(str(MODEL_DIR / "tokenizer.json"))
    text = f"## Algorithm Design\nrows.\nstage 0 along d0=32: tile, vector 1, {stage}{OUTLINE}out0=t0\n"
    whole, head = codec.encode_reply(text), text.partition(OUTLINE)[0]
    begun = codec.encode_reply(head)[:-1]
    assert whole[: len(begun)] == begun
    broken = codec.encode_reply(head + "\n")[:-1]
    assert whole[: len(broken)] != broken


def test_one_reply_is_not_begun_by_another(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    generator = open_generator(directory)
    monkeypatch.setattr(generator.sampler, "sample_until", lambda *a: calls.append(a) or [Sample([7], True)])
    generator.propose(["region v1"], 1, seed=0)
    assert [call[5] for call in calls] == [[[]], [[7]]]


def test_the_code_of_a_design_that_can_be_lowered_is_codegens(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Designs that no rule allows have no reply, where there are others; nothing is sampled behind them."""
    generator = open_generator(directory, draws=2)
    monkeypatch.setattr(generator, "codec", load_codec(str(MODEL_DIR / "tokenizer.json")))
    generator._positions = 4096
    program = parse_program(ROWS)
    replies = [r for s in variants(program)[:3] if (r := write_reply(program, s)) is not None]
    texts = [print_reply(r).partition(OUTLINE)[0] for r in replies]
    wrong = texts[0].replace("block ", "block 3")
    heads = [texts[0], texts[1], texts[1], wrong, wrong, wrong, texts[2], texts[0]]
    calls: list[int] = []

    def sample(rows: list[list[int]], *_: Any) -> list[Sample]:
        calls.append(len(rows))
        return [Sample(generator.codec.encode_reply(head + OUTLINE)[:-1], False) for head in heads]

    monkeypatch.setattr(generator.sampler, "sample_until", sample)
    [found] = generator.propose([f"facts\n{print_program(program)}"], 4, seed=0)
    assert [parse_reply(text) for text in found] == [replies[0], replies[1], replies[2]]
    assert calls == [8]


def test_a_model_of_designs_is_asked_once_and_repeats_none_that_its_prompt_shows(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = open_generator(directory, draws=2)
    monkeypatch.setattr(generator, "codec", load_codec(str(MODEL_DIR / "tokenizer.json")))
    monkeypatch.setattr(generator, "reads_designs", True)
    generator._positions = 4096
    program = parse_program(ROWS)
    replies = [r for s in variants(program)[:3] if (r := write_reply(program, s)) is not None]
    first, second, shown = (print_reply(as_design(r)) for r in replies)
    near = second.replace("block 256", "block 250")
    drawn = [first, near, second, shown, shown, shown, "no reply", second]
    calls: list[int] = []

    def sample(rows: list[list[int]], *_: Any) -> list[Sample]:
        calls.append(len(rows))
        return [Sample(generator.codec.encode_reply(text)[:-1], True) for text in drawn]

    monkeypatch.setattr(generator.sampler, "sample_until", sample)
    exemplars = [Exemplar(r.code, 1.0, r.design) for r in replies[2:]]
    prompt = build_prompt("facts", print_program(program), exemplars, 4096, len, designs=True)
    assert "```" not in prompt and as_design(replies[2]).design in prompt
    [found] = generator.propose([prompt], 4, seed=0)
    assert found == [first, second] and calls == [8]
    assert [complete(program, parse_reply(text)).code for text in found] == [r.code for r in replies[:2]]
    drawn[:] = ["no reply", *["## Code"] * 7]
    assert generator.propose([prompt], 4, seed=0) == [["no reply", "## Code"]]


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


def test_a_tokenizer_that_splits_the_word_cuda_does_not_cool() -> None:
    assert find_code_token(Codec(make_tokenizer(["no such word"]).backend_tokenizer)) is None


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


def test_what_is_too_long_to_be_repaired_stays_as_it_is() -> None:
    sums = "const float w1 = maximum(p1, a1);\n p2 = p2 * expf(a1 - w1);\n"
    assert "+ expf(a1 - w1)" in _fitted(sums, "")
    assert _fitted(sums + " " * REPAIRED_CHARACTERS, "") == sums + " " * REPAIRED_CHARACTERS
