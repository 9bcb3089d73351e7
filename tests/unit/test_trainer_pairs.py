"""Pairs and the score file: what is shown agrees with what was measured; files survive a torn end."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal1_compile.codegen.replies import as_design, schedule_lines
from cudal1_compile.kernel.candidate import Reply, parse_reply
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.pairs import Measured, choose_shown, contrastive_pair, plain_pair
from cudal1_trainer.scores.scorebook import TaskScore, VariantScore, pack, print_score, read_scores

TEXT = "region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = exp(in0)\nout0 f32[d0] = t0\n"
REGION = parse_program(TEXT)
FACTS = "target sm_90a, 132 SMs, 227 KB shared a block, 50 MB L2"


def _reply(i: int) -> Reply:
    code = f"// launch: k{i}<<<1, 64>>>(in0, out0)\n__global__ void k{i}(const f32* in0, f32* out0 DIMS) {{}}\n"
    return Reply("One pass.", f"pointwise.\nstage 0: exact, vector 1, block {i + 1}\nf0: out0=t0", code)


def _measured(times: list[float]) -> list[Measured]:
    return [Measured(_reply(i), us) for i, us in enumerate(times)]


def test_a_plain_pair_is_the_prompt_of_round_one() -> None:
    pair = plain_pair(FACTS, REGION, _reply(0))
    assert pair.prompt == f"{FACTS}\n{TEXT}stages\nstage 0: exact\n"
    assert parse_reply(pair.reply) == as_design(_reply(0))


@given(st.lists(st.floats(1.0, 1e4), min_size=2, max_size=12), st.integers(0, 2**32))
def test_the_target_is_strictly_faster_and_the_text_agrees(times: list[float], seed: int) -> None:
    found = choose_shown(_measured(times), 1.05, 8, random.Random(seed))
    if found is None:
        assert max(times) < min(times) * 1.05
        return
    shown, target = found
    assert 1 <= len({s.reply.design for s in shown}) == len(shown) <= 8
    assert all(s.us >= target.us * 1.05 for s in shown)
    pair = contrastive_pair(FACTS, REGION, shown, target, baseline_us=1000.0)
    printed = [float(x) for x in re.findall(r"^variant ([\d.]+)x$", pair.prompt, re.M)]
    assert printed == sorted(printed) and len(printed) == len(shown)
    designs = re.findall(r"^variant [\d.]+x\n(.*\nstage 0.*)$", pair.prompt, re.M)
    assert sorted(designs) == sorted(schedule_lines(s.reply.design) for s in shown)
    said = [float(x) for x in re.findall(r"([\d.]+)x with", parse_reply(pair.reply).analysis)]
    assert said == printed[::-1][:2]
    assert parse_reply(pair.reply).design == schedule_lines(target.reply.design)


def test_a_target_that_is_not_faster_is_refused() -> None:
    slow, fast = _measured([2.0, 1.0])
    with pytest.raises(ValueError, match="not less"):
        contrastive_pair(FACTS, REGION, [fast], slow, 1.0)


def test_as_many_variants_are_shown_as_any_number_up_to_the_most() -> None:
    rng = random.Random(5)
    found = [choose_shown(_measured([1.0, 2.0, 3.0, 4.0]), 1.05, 3, rng) for _ in range(300)]
    assert {len(f[0]) for f in found if f is not None} == {1, 2, 3}


def _book(path: Path, count: int) -> list[TaskScore]:
    scores = [
        TaskScore(
            i, f"f{i}", 10.0 + i, (VariantScore("row/0", "ab", 1.5), VariantScore("row/1", "cd", None, "wrong: x"))
        )
        for i in range(count)
    ]
    lines = ['{"facts": "F", "versions": {}}', *(print_score(s) for s in scores)]
    path.write_text("\n".join(lines) + "\n")
    return scores


def test_a_score_file_reads_back(tmp_path: Path) -> None:
    scores = _book(tmp_path / "scores.jsonl", 5)
    book = read_scores([tmp_path / "scores.jsonl"])
    assert book is not None
    assert (book.facts, list(book.tasks)) == ("F", scores)
    assert [v.name for v in book.tasks[0].right] == ["row/0"]


def test_a_torn_last_line_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    scores = _book(path, 5)
    path.write_bytes(path.read_bytes()[:-9])
    book = read_scores([path])
    assert book is not None and list(book.tasks) == scores[:4]


def test_parts_hold_everything_and_the_facts(tmp_path: Path) -> None:
    scores = _book(tmp_path / "scores.jsonl", 200)
    parts = pack(tmp_path / "scores.jsonl", tmp_path / "packed", part_bytes=2000)
    assert len(parts) > 3
    book = read_scores(parts)
    assert book is not None and list(book.tasks) == scores
    assert pack(tmp_path / "scores.jsonl", tmp_path / "again", 2000)[0].read_bytes() == parts[0].read_bytes()


def test_scores_of_two_gpus_do_not_mix(tmp_path: Path) -> None:
    _book(tmp_path / "a.jsonl", 1)
    (tmp_path / "b.jsonl").write_text('{"facts": "other GPU"}\n')
    with pytest.raises(ValueError, match="other GPU"):
        read_scores([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
