"""Whether variants in the prompt pay: what the second prompts show, and figures of known rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from stage_toys import FAST, SLOW, TASKS

from benchmarks.generator import read_replies
from benchmarks.rounds import PROMPTS, sample_second, summarise
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_compile.runtime.target import HOST
from cudal1_trainer.scores.scorebook import drop_torn_line
from cudal1_trainer.tasks.heldout import HeldOutProgram

WRONG, NOTHING = ("wrong", None), ("right", None)


class Echo:
    """Replies with the prompt."""

    name, budget_tokens = "echo:1", 100_000

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        return [[prompt] * n for prompt in prompts]


def test_the_second_prompts_show_what_their_way_chooses_and_a_cut_run_goes_on(tmp_path: Path) -> None:
    programs = [HeldOutProgram("task", str(i), "", text) for i, text in enumerate(TASKS[:2])]
    variants = {"0": [Exemplar(SLOW, 1.2), Exemplar(FAST, 1.25), Exemplar(FAST + "\n", 2.4)], "1": []}
    shown: dict[str, list[set[float]]] = {}
    for way in ("again", "random", "buckets"):
        path = tmp_path / f"replies.{way}.jsonl"
        sample_second(Echo(), programs[:1], variants, way, HOST.facts(), 4, tmp_path)
        with path.open("a") as stream:
            stream.write('{"fingerprint": "1", "rep')
        drop_torn_line(path)
        sample_second(Echo(), programs, variants, way, HOST.facts(), 4, tmp_path)
        found = read_replies(path)
        assert [len(replies) for replies in found.values()] == [4, 4]
        assert not any("\nvariant " in reply for reply in found["1"])
        prompts = found["0"][:: 4 // PROMPTS]
        shown[way] = [{e.speedup for e in variants["0"] if f"variant {e.speedup:.2f}x" in p} for p in prompts]
    assert shown["again"] == [set(), set()]
    assert all(len(pair) == 2 for pair in shown["random"])
    assert all(pair in ({1.2, 2.4}, {1.25, 2.4}) for pair in shown["buckets"])  # 1.2 and 1.25 share one


def test_a_way_is_worth_what_it_adds_to_the_first_round() -> None:
    def row(name: str, **runs: list[tuple[str, float | None]]) -> dict[str, Any]:
        return {"fingerprint": name, "runs": runs}

    def right(speed: float) -> list[tuple[str, float | None]]:
        return [("right", speed), NOTHING]

    rows = [
        row("a", first=right(2.0), again=right(2.0), random=right(1.0), buckets=right(4.0)),
        row("b", first=[WRONG, WRONG], again=[WRONG, WRONG], random=right(0.5), buckets=right(4.0)),
        row("c", first=[("undecided", None)], again=right(9.0), random=right(9.0), buckets=right(9.0)),
    ]
    summary, n, intervals, detail = summarise(rows)
    found = {w["way"]: w for w in summary["ways"]}
    assert n == 2 and list(found) == ["first", "again", "random", "buckets"]
    assert [w["right_1"] for w in found.values()] == [0.5, 0.5, 1.0, 1.0]
    assert [w["speedup"] for w in found.values()] == pytest.approx([math.sqrt(2)] * 3 + [4.0])
    assert [w["faster"] for w in found.values()] == [0.0, 0.0, 0.5, 1.0]  # b's slow kernel is one where none was
    assert detail["paired"]["buckets against again"][0] == pytest.approx(math.sqrt(8))
    assert set(detail["left_out"]) == {"c"} and intervals["buckets"] == pytest.approx((4.0, 4.0))
    with pytest.raises(ValueError, match="none of 1 programs"):
        summarise(rows[2:])
