"""The referee: a judge that hangs or dies costs one code, not the run; gains that stand out are measured twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

import pytest

from cudal1_compile.judge.verdict import Accepted, HostCost, Proof, Rejected, Timed, Timing, Verdict
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program
from cudal1_trainer.data.pairs import H100
from cudal1_trainer.scores.outcome import conclude
from cudal1_trainer.scores.referee import Group, Referee, Ruling

pytestmark = pytest.mark.usefixtures("forks")

OTHER = "region v1\ndims d0=16\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n"
TEXT = "region v1\ndims d0=8\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n"


def _cost(ratio: float) -> Accepted:
    return Accepted(Proof("host", "exact", (), 0, None, HostCost(1.0, ratio)))


def _timing(speedup: str) -> Timing:
    return Timing(1.0, float(speedup), None, float(speedup), 0.0, 9, True)


def _quick(script: str) -> Verdict:
    return Rejected("verify", "wrong on the rough case") if script == "wrong" else Timed(_timing(script))


def _examined(script: str) -> Verdict:
    """`no` is refused; an empty script was not to be examined."""
    assert script
    return (
        Rejected("verify", "wrong") if script == "no" else Accepted(Proof("cuda", "exact", (), 0, _timing(script)))
    )


class ScriptedJudge:
    """A code is its own script: hang, die, or the score that it gets (`/second` where it is looked at again)."""

    spent_s: ClassVar = {"trial": 2.0}

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        return [self._judge(code) for _, code in tasks]

    def finalists(self, program: Program, codes: Sequence[str]) -> list[Verdict]:
        return [_cost(float(code.partition("/")[2] or code)) for code in codes]

    def time_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        return [_quick(code.partition("/")[0]) for _, code in tasks]

    def examine_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        return [_examined(code.partition("/")[2]) for _, code in tasks]

    def _judge(self, code: str) -> Verdict:
        if code == "hang":
            time.sleep(600)
        if code == "die":
            os._exit(1)
        return _cost(float(code.partition("/")[0]))


def _fail() -> ScriptedJudge:
    os._exit(1)


def _referee(setup: object = ScriptedJudge, silence_s: float = 3.0) -> Referee:
    return Referee(HOST, partial(setup), silence_s)  # type: ignore[arg-type]


def _scores(found: dict[tuple[str, str], Ruling | None]) -> dict[str, float | None]:
    return {code: None if r is None else r.score for (_, code), r in found.items()}


@pytest.fixture(scope="module")
def referee() -> Iterator[Referee]:
    with _referee() as found:
        yield found


def test_a_hang_costs_its_own_code_only(referee: Referee) -> None:
    referee.submit(0, [Group(TEXT, ("hang",), None), Group(TEXT, (), None)])
    referee.submit(1, [Group(TEXT, ("1.1", "1.5"), None)])
    assert _scores(referee.result(0)) == {"hang": None}
    assert _scores(referee.result(1)) == {"1.1": 1.1, "1.5": 1.5}
    assert referee.lost == 1 and referee.spent_s == ScriptedJudge.spent_s


@pytest.mark.slow
def test_a_code_that_kills_the_judge_is_found_among_others() -> None:
    with _referee() as referee:
        referee.submit(0, [Group(TEXT, ("1.5", "die", "1.25"), None), Group(OTHER, ("2.0",), 2.0)])
        assert _scores(referee.result(0)) == {"1.5": 1.5, "die": None, "1.25": 1.25, "2.0": 2.0}
        assert referee.lost == 1


def test_gains_that_stand_out_are_measured_again_and_must_agree(referee: Referee) -> None:
    referee.submit(2, [Group(TEXT, ("1.5", "3.1/3.0", "4.0/1.0", "2.9/1.0"), 1.5)])
    found = referee.result(2)
    assert _scores(found) == {"1.5": 1.5, "3.1/3.0": 3.0, "4.0/1.0": 0.0, "2.9/1.0": 2.9}
    doubted = found[TEXT, "4.0/1.0"]
    assert doubted is not None and isinstance(doubted.second, Rejected) and doubted.second.stage == "time"
    referee.submit(4, [Group(TEXT, ("1.5/1.1", "1.4/1.0"), 1.5, frozenset({"1.5/1.1"}))])  # like a known hack
    assert _scores(referee.result(4)) == {"1.5/1.1": 0.0, "1.4/1.0": 1.4}
    referee.submit(3, [Group(TEXT, ("5.0", "5.1", "5.2", "11/1.0"), None)])  # nothing known: the group's median
    assert _scores(referee.result(3)) == {"5.0": 5.0, "5.1": 5.1, "5.2": 5.2, "11/1.0": 0.0}


def test_of_what_is_timed_first_a_new_best_is_proven_the_fastest_first(referee: Referee) -> None:
    codes = ("0.9", "wrong", "1.8/no", "1.7/1.6", "1.55")
    like_a_hack = Group(OTHER, ("1.2", "1.1/1.0"), 1.4, frozenset({"1.1/1.0"}), timed_first=True)
    referee.submit(5, [Group(TEXT, codes, 1.5, timed_first=True), like_a_hack])
    found = referee.result(5)
    assert _scores(found) == {"0.9": 0.9, "wrong": 0.0, "1.8/no": 0.0, "1.7/1.6": 1.6, "1.55": 1.55} | {
        "1.2": 1.2,
        "1.1/1.0": 1.0,
    }
    kinds = {code: conclude(ruling, H100).kind for (_, code), ruling in found.items()}
    assert kinds["wrong"] == kinds["1.8/no"] == "wrong" and kinds["1.7/1.6"] == kinds["1.2"] == "right"
    referee.submit(6, [Group(TEXT, ("2.0/no", "1.9/1.9"), None, timed_first=True)])
    assert _scores(referee.result(6)) == {"2.0/no": 0.0, "1.9/1.9": 1.9}, "nothing known: the first best is proven"


@pytest.mark.slow
def test_a_judge_that_cannot_start_is_told() -> None:
    with (
        _referee(_fail) as referee,
        pytest.raises(RuntimeError, match="while starting|before its first candidate"),
    ):
        referee.submit(0, [Group(TEXT, ("1.5",), None)])
        referee.result(0)
