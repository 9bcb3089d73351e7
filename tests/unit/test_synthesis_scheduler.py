"""Slow builds before the judge: they hold up neither other regions nor, for long, their own one's decision."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from synthesis_clock import Clock
from synthesis_doubles import GPU, ScriptedGenerator, ScriptedJudge, program, reply

from cudal1_cache import Store
from cudal1_compile.judge.verdict import Verdict
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.outcome import Unfinished, Won
from cudal1_compile.synthesis.rounds import synthesize_all
from cudal1_compile.synthesis.scheduler import HELD_UP_S
from cudal1_fx_passes.program.canonical import fingerprint
from cudal1_fx_passes.program.ir import Program

EXAM_S = 1.0


class Building(ScriptedJudge):
    """Candidates of some names are built so many seconds after they were submitted first."""

    def __init__(self, clock: Clock, seconds: dict[str, float]) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds
        self.due_s: dict[str, float] = {}
        self.building: list[tuple[str, Future[Verdict], tuple[Program, str]]] = []

    def submit_quick(self, tasks: Sequence[tuple[Program, str]]) -> list[Future[Verdict]]:
        return [self._submit(task) for task in tasks]

    def _submit(self, task: tuple[Program, str]) -> Future[Verdict]:
        name = next((n for n in self.seconds if n in task[1]), "")
        if not name or self.clock() >= self.due_s.setdefault(name, self.clock() + self.seconds[name]):
            return super().submit_quick([task])[0]
        self.building.append((name, Future(), task))
        return self.building[-1][1]

    def examine(self, program: Program, code: str) -> Verdict:
        self.clock.spend(EXAM_S)
        return super().examine(program, code)

    def wait(self, futures: Sequence[Future[Verdict]], limit_s: float) -> None:
        if self._urgent or self._waiting:
            super().wait(futures, limit_s)
            return
        self.clock.spend(limit_s)
        for name, future, task in self.building:
            if self.clock() >= self.due_s[name] and not future.done():
                (verdict,) = self.judge_tasks([task])
                future.set_result(verdict)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


def test_the_fastest_is_examined_without_a_slow_build_and_that_is_when_it_is_there(clock: Clock) -> None:
    judge, begin = Building(clock, {"good_150": 2 * HELD_UP_S + 1}), clock()
    generator = ScriptedGenerator([["good_130", "good_150", "wrong_1"]])
    budget = Budget(seconds=60, rounds=1, samples_per_round=3)
    (outcome,) = synthesize_all([program()], generator, judge, Store.memory(), budget)
    assert judge.examined == ["good_130", "good_150"]
    assert isinstance(outcome.result, Won) and outcome.result.entry.speedup == 1.5
    assert clock() - begin < 4 * HELD_UP_S


def test_a_slow_build_does_not_hold_up_the_next_round(clock: Clock) -> None:
    judge = Building(clock, {"good_150": 100.0})
    generator = ScriptedGenerator([["good_130", "good_150"], ["good_140"]])
    budget = Budget(seconds=40, rounds=2, samples_per_round=2, prompts_per_round=1)
    store, begin = Store.memory(), clock()
    (outcome,) = synthesize_all([program()], generator, judge, store, budget)
    assert len(generator.calls) == 2 and judge.examined == ["good_130", "good_140"]
    assert outcome.entry is not None and outcome.entry.speedup == 1.4
    assert clock() - begin < 40
    rows = store.attempts(fingerprint(program()), GPU.key)
    assert [a.stage for a in rows if "good_150" in a.code] == ["deferred"]  # for another call


def test_a_region_with_nothing_but_a_slow_build_is_unfinished_and_the_others_win(clock: Clock) -> None:
    judge = Building(clock, {"good_150": 100.0})

    def script(call: int, prompts: Sequence[str], n: int) -> list[list[str]]:
        return [[reply("good_150" if "d0=64" in p else "good_120")] for p in prompts]

    budget = Budget(seconds=30, rounds=1, samples_per_round=1)
    programs = [program(64), program(32), program(16)]
    slow, *others = synthesize_all(programs, ScriptedGenerator(script), judge, Store.memory(), budget)
    assert isinstance(slow.result, Unfinished)
    assert all(isinstance(o.result, Won) for o in others)


def test_near_the_end_of_the_time_less_is_waited_for(clock: Clock) -> None:
    judge = Building(clock, {"good_150": 100.0})
    budget = Budget(seconds=0.9 * HELD_UP_S, rounds=1, samples_per_round=2)
    generator = ScriptedGenerator([["good_130", "good_150"]])
    (outcome,) = synthesize_all([program()], generator, judge, Store.memory(), budget)
    assert isinstance(outcome.result, Won) and judge.examined == ["good_130"]


def test_a_judge_whose_workers_start_slowly_is_waited_for(clock: Clock) -> None:
    """Nothing is in hand and nothing has come for long, but it has not said anything yet either."""
    judge = Building(clock, {"good_130": 4 * HELD_UP_S, "good_120": 4 * HELD_UP_S})
    budget = Budget(seconds=60, rounds=1, samples_per_round=2)
    generator = ScriptedGenerator([["good_130", "good_120"]])
    (outcome,) = synthesize_all([program()], generator, judge, Store.memory(), budget)
    assert isinstance(outcome.result, Won) and len(judge.building) == 2


def test_what_the_judge_has_in_hand_at_the_end_of_the_time_is_stored(clock: Clock) -> None:
    judge, store = ScriptedJudge(), Store.memory()
    judge.before = lambda name: clock.spend(3.0)
    names = ["wrong_1", "wrong_2", "wrong_3"]
    budget = Budget(seconds=5, rounds=1, samples_per_round=3)
    (outcome,) = synthesize_all([program()], ScriptedGenerator([names]), judge, store, budget)
    assert outcome.result == Unfinished("the time budget ended")
    stages = [a.stage for a in store.attempts(fingerprint(program()), GPU.key)]
    assert sorted(stages) == ["deferred", "verify", "verify"]


class Halfway(ScriptedJudge):
    """Gives its answers one at a time."""

    def wait(self, futures: Sequence[Future[Verdict]], limit_s: float) -> None:
        assert not any(f.done() for f in futures), "that is no wait"
        super().wait(futures, limit_s)


def test_what_has_come_already_is_not_waited_for() -> None:
    judge, budget = Halfway(), Budget(seconds=60, rounds=1, samples_per_round=2)
    generator = ScriptedGenerator([["fake_130", "good_120"]])
    (outcome,) = synthesize_all([program()], generator, judge, Store.memory(), budget)
    assert isinstance(outcome.result, Won) and judge.examined == ["fake_130", "good_120"]
