"""The corpus: reproducible, never a held-out program, every length covered; variants come back by name."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from slow_cases import slow_but

from cudal1_compile.codegen.edits import MOST_DRAWN
from cudal1_compile.codegen.replies import complete, schedule_lines
from cudal1_compile.codegen.stages.schedule import parse_schedule, print_schedule
from cudal1_compile.generate.prompt import find_region
from cudal1_compile.kernel.candidate import parse_candidate, parse_reply
from cudal1_fx_passes.program.canonical import canonicalise, shape_agnostic_fingerprint
from cudal1_fx_passes.program.text import print_program
from cudal1_trainer.data.corpus import CorpusMaker, Source, heldout_batches, texts_for_tokenizer
from cudal1_trainer.data.scored import (
    ScoredPrograms,
    _line,
    parse_scored,
    print_scored,
    read_scored,
    write_again,
    write_scored,
)
from cudal1_trainer.model.tokenizer import codec_of, load_tokenizer, save_tokenizer, train_tokenizer
from cudal1_trainer.recipe import DataRecipe, Recipe, TokenizerRecipe, TrainRecipe
from cudal1_trainer.scores.fit_prior import is_current
from cudal1_trainer.scores.scorebook import (
    ScoreBook,
    TaskScore,
    VariantScore,
    print_score,
    read_scores,
    score_files,
)
from cudal1_trainer.tasks import structure
from cudal1_trainer.tasks.heldout import (
    FIRST_SEED,
    HeldOut,
    build_heldout,
    hold_out,
    read_heldout,
    renew,
    write_heldout,
)
from cudal1_trainer.tasks.variants import canonical_key, make_task, write_variant, write_variants

DATA = Path(__file__).parents[2] / "trainer" / "data"
RECIPE = Recipe(
    "test",
    tokenizer=TokenizerRecipe(vocab=600, programs=20),
    data=DataRecipe(chunk_tokens=8000, max_tokens=2048),
    train=TrainRecipe(tokens_per_step=4096),
)
NONE = hold_out(())


def _score(seed: int, rng: random.Random) -> TaskScore:
    program = make_task(seed)
    scores = [VariantScore(v.name, v.digest, rng.uniform(1, 20)) for v in write_variants(program, 8)]
    return TaskScore(seed, print_program(program), 30.0, tuple(scores))


@pytest.fixture(scope="module")
def book() -> ScoreBook:
    rng = random.Random(11)
    return ScoreBook(
        "target sm_90a, 132 SMs, 227 KB shared a block, 50 MB L2", tuple(_score(i, rng) for i in range(30))
    )


def scored_of(book: ScoreBook, heldout: HeldOut) -> ScoredPrograms:
    lines = [_line(task, heldout) for task in book.tasks]
    return ScoredPrograms(book.facts, tuple(line for line in lines if line is not None))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_heldout(build_heldout(None, 10), directory / "heldout.json")
    texts = texts_for_tokenizer(RECIPE, directory)
    save_tokenizer(train_tokenizer(texts, 600), directory / "tokenizer")
    return directory


@pytest.mark.parametrize("seed", range(12))
def test_tasks_are_canonical_and_reproducible(seed: int) -> None:
    program = make_task(seed)
    assert canonicalise(program) == program == make_task(seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_variant_comes_back_from_its_name(seed: int) -> None:
    program = make_task(seed)
    found = write_variants(program, 12)
    assert found
    assert len({v.digest for v in found}) == len(found)
    for variant in found:
        schedule = parse_schedule(variant.name)
        assert print_schedule(schedule) == variant.name
        again = write_variant(program, schedule)
        assert again is not None and again.reply.code == variant.reply.code


def test_held_out_programs_are_never_drawn(book: ScoreBook) -> None:
    """Holds out what would be drawn, then draws again: it must be gone, by text and by structure."""
    free = Source(RECIPE.data, NONE)
    drawn = [p for i in range(20) for p, _ in free.draw(random.Random(i))]
    held = _hold([canonical_key(p) for p in drawn], [shape_agnostic_fingerprint(p) for p in drawn], drawn)
    again = Source(RECIPE.data, held, scored_of(book, held))
    found = [p for i in range(20) for p, _ in again.draw(random.Random(i))]
    keys = {shape_agnostic_fingerprint(p) for p in drawn}
    assert found
    assert not [p for p in found if shape_agnostic_fingerprint(p) in keys or canonical_key(p) in held.fingerprints]


def _hold(fingerprints: list[str], relatives: list[str], programs: list[object]) -> HeldOut:
    return HeldOut((), frozenset(fingerprints), frozenset(relatives), frozenset())


@pytest.mark.parametrize("share", slow_but([6], [6, 1]))
def test_the_shipped_held_out_set_is_in_todays_canonical_form(share: int) -> None:
    """One in so many of its programs."""
    heldout = read_heldout(DATA / "heldout.json")
    renewed = renew(replace(heldout, programs=heldout.programs[::share]))
    assert renewed.programs == heldout.programs[::share]
    assert renewed.fingerprints <= heldout.fingerprints and renewed.relatives <= heldout.relatives
    assert share > 1 or renewed == heldout


def test_half_of_the_shipped_held_out_set_is_of_models() -> None:
    heldout = read_heldout(DATA / "heldout.json")
    assert len(heldout.programs) >= 400
    assert sum(p.seed is None for p in heldout.programs) * 2 >= 400


ROWS = """region v1
dims d0=64 d1=256
in0 f32[d0,d1]
t0 f32[d0] = sum(in0) over d1
out0 f32[d0] = t0"""
BOTH = """region v1
dims d0=64 d1=256
in0 f32[d0,d1]
t0 f32[d0] = sum(in0) over d1
t1 f32[d1] = sum(in0) over d0
out0 f32[d0] = t0
out1 f32[d1] = t1"""


def test_structures_of_several_stages_are_drawn_more_often() -> None:
    recipe = replace(RECIPE.data, structures=1.0, several=3.0, varied=0.0)
    source = Source(recipe, NONE, structures=(ROWS, BOTH))
    rng = random.Random(3)
    drawn = [len(source.program(rng).outputs) for _ in range(200)]
    assert 130 <= drawn.count(2) <= 170


def test_held_out_tasks_have_seeds_of_their_own(data: Path) -> None:
    heldout = read_heldout(data / "heldout.json")
    assert [p for p in heldout.programs if p.seed is None or p.seed < FIRST_SEED] == []
    assert len({structure(p.program) for p in heldout.programs}) == len(heldout.programs)
    assert all(p.program == make_task(p.seed or 0) for p in heldout.programs)


def test_a_chunk_depends_on_its_number_only(data: Path) -> None:
    maker = CorpusMaker(RECIPE, data)
    first, other = maker(3), maker(4)
    again = CorpusMaker(RECIPE, data)(3)
    assert [b.tokens.tolist() for b in first] == [b.tokens.tolist() for b in again]
    assert [b.tokens.tolist() for b in first] != [b.tokens.tolist() for b in other]
    assert sum(int(b.spans[:, 1].sum()) for b in first) >= 0.8 * RECIPE.data.chunk_tokens


def test_replies_to_one_program_are_never_in_one_batch(data: Path) -> None:
    recipe = replace(RECIPE, data=replace(RECIPE.data, variants_per_task=4, chunk_tokens=32000))
    decode = codec_of(load_tokenizer(data / "tokenizer")).decode
    seen: Counter[str] = Counter()
    for batch in CorpusMaker(recipe, data)(0):
        rows = zip(batch.tokens, batch.spans, strict=True)
        programs = [find_region(decode(row[: spans[0]].tolist())) for row, spans in rows]
        assert len(set(programs)) == len(programs)
        seen.update(programs)
    assert max(seen.values()) > 1  # the chunk holds several all the same


def test_with_scores_at_least_thirty_percent_are_contrastive(book: ScoreBook) -> None:
    source = Source(RECIPE.data, NONE, scored_of(book, NONE))
    rng = random.Random(2)
    kinds = Counter(pair.kind for _ in range(150) for _, pair in source.draw(rng))
    assert 0.3 <= kinds["contrastive"] / sum(kinds.values()) <= 0.46
    assert kinds["scored"] > 10


def test_contrastive_targets_are_measured_faster_than_what_is_shown(book: ScoreBook) -> None:
    source = Source(replace(RECIPE.data, contrastive=1.0), NONE, scored_of(book, NONE))
    times = {}
    for task in book.tasks:
        program = make_task(task.seed)
        for item in task.variants:
            variant = write_variant(program, parse_schedule(item.name))
            assert variant is not None
            times[print_program(program), schedule_lines(variant.reply.design)] = item.us or 0.0
    rng = random.Random(9)
    seen = 0
    for _ in range(40):
        for program, pair in source.draw(rng):
            text = print_program(program)
            shown = [block.partition("\n")[2].strip() for block in pair.prompt.split("\nvariant ")[1:]]
            target = parse_reply(pair.reply).design
            assert all(times[text, target] < times[text, design] for design in shown)
            seen += len(shown) > 1
    assert seen > 20


def test_scores_of_code_that_has_changed_are_not_used(book: ScoreBook) -> None:
    score = book.tasks[0]
    stale = replace(score, variants=tuple(replace(v, digest="0" * 20) for v in score.variants))
    assert write_again(score, NONE) is not None
    assert write_again(stale, NONE) is None


def test_what_was_measured_for_the_bundled_model_is_still_what_templates_write() -> None:
    """A digest that is computed otherwise makes every measured program useless, without a word."""
    data = Path(__file__).parents[2] / "trainer" / "data"
    measured = read_scores(score_files(data))
    assert measured is not None and is_current(data)
    some = random.Random(3).sample(measured.tasks, 25)
    assert sum(write_again(score, NONE) is not None for score in some) >= 20


def test_pairs_read_back_as_prompt_and_reply(book: ScoreBook) -> None:
    source = Source(RECIPE.data, NONE, scored_of(book, NONE))
    rng = random.Random(4)
    for _ in range(20):
        for program, pair in source.draw(rng):
            assert find_region(pair.prompt) == program
            reply = parse_reply(pair.reply)
            assert not reply.code and parse_candidate(complete(program, reply).code, program)


@pytest.mark.parametrize("most", slow_but([32], [32, 64]))
def test_every_length_is_drawn(most: int) -> None:
    missing = set(range(1, most + 1))
    for seed in range(2500):  # 830 are enough today
        missing.discard(len(make_task(seed).ops))
        if not missing:
            break
    assert not missing


def test_the_held_out_loss_has_batches(data: Path) -> None:
    batches = heldout_batches(RECIPE, data)
    assert 5 <= sum(len(b.spans) for b in batches) <= 10


def test_the_data_folder_names_no_machine() -> None:
    for item in json.loads((DATA / "heldout.json").read_text())["programs"]:
        assert set(item) == {"source", "fingerprint", "relative", "text", "seed"}


@pytest.mark.usefixtures("forks")
def test_measured_programs_are_written_out_once(book: ScoreBook, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    lines = [json.dumps({"facts": book.facts}), *(print_score(t) for t in book.tasks)]
    (folder / "scores.test.jsonl").write_text("\n".join(lines) + "\n")
    path = write_scored(folder, tmp_path / "scored.jsonl.xz", 2)
    assert path is not None
    found = read_scored(path)
    assert found is not None and found == scored_of(book, read_heldout(folder / "heldout.json"))
    one = parse_scored(found.lines[0])
    assert parse_scored(print_scored(one, print_program(one.program))) == one
    batches = CorpusMaker(RECIPE, folder, path)(0)
    assert sum(len(b.spans) for b in batches) >= 3


def test_without_scores_nothing_is_written(data: Path, tmp_path: Path) -> None:
    assert write_scored(data, tmp_path / "scored.jsonl.xz", 1) is None
    assert read_scored(None) is None


def test_a_template_that_stumbles_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(program: object, schedule: object) -> None:
        raise KeyError("t0")

    monkeypatch.setattr("cudal1_compile.codegen.templates.write_reply", stumble)
    assert Source(RECIPE.data, NONE).draw(random.Random(1)) == []
    assert write_variants(make_task(1), 2) == []
    assert "KeyError('t0')" in caplog.text


def test_replies_may_carry_random_edits_that_lead_to_other_code() -> None:
    plain, edited = DataRecipe(structures=0.0), DataRecipe(structures=0.0, edited=1.0)
    found = [p for seed in range(12) for p in Source(edited, NONE).draw(random.Random(seed))]
    replies = [(program, parse_reply(pair.reply)) for program, pair in found]
    carrying = [(program, reply) for program, reply in replies if reply.edits]
    assert len(carrying) > 0.8 * len(replies) > 8
    for program, reply in carrying:
        assert 1 <= len(reply.edits.splitlines()) <= MOST_DRAWN
        assert complete(program, reply).code != complete(program, replace(reply, edits="")).code
    assert not any(parse_reply(p.reply).edits for _, p in Source(plain, NONE).draw(random.Random(1)))
