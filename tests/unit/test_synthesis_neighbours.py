"""Regions that another process works on: left alone, awaited within the budget, taken over."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from synthesis_clock import Clock
from synthesis_doubles import GPU, ScriptedGenerator, ScriptedJudge, program, reply

from cudal1_cache import Attempt, Entry, Store, new_trust
from cudal1_cache.leases import Lease, Leases
from cudal1_compile.judge.verdict import Accepted, Proof, Timing
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.outcome import Outcome, Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.progress import Event, Waiting, describe
from cudal1_compile.synthesis.rounds import synthesize_all
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint

OURS, THEIRS = program(16), program(32)
NAME = fingerprint(canonicalise(THEIRS))
BUDGET = Budget(seconds=60, rounds=1, samples_per_round=1)


class Neighbour:
    """Holds THEIRS; what it does next happens while the others wait."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.store = Store.open(folder, new_trust())
        lease = Leases(folder).take(NAME, GPU.key)
        assert isinstance(lease, Lease)
        self.lease = lease
        self.acts: Callable[[], object] = lambda: None
        self.events: list[Event] = []
        monkeypatch.setattr("time.monotonic", self.clock)
        monkeypatch.setattr("time.sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.acts()
        self.clock.spend(seconds)

    def stores(self, entry: Entry) -> None:
        self.acts = lambda: self.store.put_entry(entry)

    def others(
        self, generator: ScriptedGenerator, judge: ScriptedJudge | None = None, budget: Budget = BUDGET
    ) -> list[Outcome]:
        return synthesize_all(
            [THEIRS, OURS],
            generator,
            judge or ScriptedJudge(),
            self.store,
            budget,
            self.events.append,
            found=lambda name: self.store.find_entry(name, GPU.key),
        )


@pytest.fixture()
def neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Neighbour:
    return Neighbour(tmp_path, monkeypatch)


def generator() -> ScriptedGenerator:
    return ScriptedGenerator([["good_130"]])


def asked(generator: ScriptedGenerator) -> list[str]:
    return ["theirs" if "d0=32" in prompt else "ours" for prompt in generator.prompts]


def test_a_kernel_that_another_process_writes_is_awaited_and_found(neighbour: Neighbour) -> None:
    begin = neighbour.clock()
    neighbour.stores(Entry("theirs", NAME, GPU.key, "kernel", speedup=1.7))
    made = generator()
    theirs, ours = neighbour.others(made)
    assert isinstance(ours.result, Won) and isinstance(theirs.result, Won)
    assert theirs.result.entry.entry_id == "theirs" and theirs.proposed == 0
    assert asked(made) == ["ours"]
    (waiting,) = [e for e in neighbour.events if isinstance(e, Waiting)]
    assert describe(waiting, "cuda").startswith(
        "cudal1: regions that another process writes kernels for: 1; waiting"
    )
    assert neighbour.clock() - begin < 1.0  # though the lease itself is still held


def test_so_is_that_none_wins(neighbour: Neighbour) -> None:
    neighbour.stores(Entry("theirs", NAME, GPU.key, "unprofitable"))
    theirs, _ = neighbour.others(generator())
    assert isinstance(theirs.result, Unprofitable) and theirs.result.entry.entry_id == "theirs"


def test_what_is_held_to_the_end_of_the_budget_is_unfinished_and_tells_who_has_it(neighbour: Neighbour) -> None:
    begin = neighbour.clock()
    made = generator()
    theirs, ours = neighbour.others(made)
    assert isinstance(ours.result, Won) and asked(made) == ["ours"]
    assert theirs.result == Unfinished("another thread of this process is writing its kernel")
    assert neighbour.clock() - begin == pytest.approx(BUDGET.seconds)


def test_another_processs_number_is_named(neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    monkeypatch.setattr("os.getpid", lambda: pid + 1)
    theirs, _ = neighbour.others(generator())
    assert theirs.result == Unfinished(f"another process (pid {pid}) is writing its kernel")


def test_a_region_that_is_let_go_without_an_answer_is_taken_over_with_what_was_tried(neighbour: Neighbour) -> None:
    def let_go() -> None:
        code = Attempt(NAME, GPU.key, "0" * 64, "g", "m", "p", "", "", "x", "verify", "out0 is wrong")
        neighbour.store.add_attempts([code])
        neighbour.lease.release()

    neighbour.acts = let_go
    made = generator()
    theirs, ours = neighbour.others(made)
    assert isinstance(theirs.result, Won) and isinstance(ours.result, Won)
    assert asked(made) == ["ours", "theirs"]
    assert theirs.attempts == 2  # what was stored since this process began is known


def test_what_was_answered_since_the_lookup_is_not_asked_for(neighbour: Neighbour) -> None:
    neighbour.lease.release()
    neighbour.store.put_entry(Entry("theirs", NAME, GPU.key, "kernel", speedup=1.7))
    made = generator()
    theirs, _ = neighbour.others(made)
    assert isinstance(theirs.result, Won) and asked(made) == ["ours"]


def test_nothing_is_held_afterwards(neighbour: Neighbour, tmp_path: Path) -> None:
    neighbour.lease.release()
    neighbour.others(generator())
    assert list((tmp_path / "leases").iterdir()) == []


def test_a_region_is_held_for_a_round_and_what_others_make_of_it_then_counts(neighbour: Neighbour) -> None:
    neighbour.lease.release()
    leases = Leases(neighbour.store.path.parent if neighbour.store.path else None)
    free: list[tuple[bool, bool]] = []

    def is_free(name: str) -> bool:
        lease = leases.take(name, GPU.key)
        if isinstance(lease, Lease):
            lease.release()
        return isinstance(lease, Lease)

    def script(call: int, prompts: Sequence[str], n: int) -> list[list[str]]:
        free.append((is_free(NAME), is_free(fingerprint(canonicalise(OURS)))))
        if call == 1:
            neighbour.store.put_entry(Entry("theirs", NAME, GPU.key, "kernel", speedup=1.7))
        return [[reply(f"wrong_{call}")] for _ in prompts]

    made = ScriptedGenerator(script)
    budget = replace(BUDGET, rounds=2, regions_at_once=1)
    theirs, ours = neighbour.others(made, budget=budget)
    assert asked(made) == ["theirs", "ours", "ours"]
    assert free == [(False, True), (True, False), (True, False)]
    assert isinstance(ours.result, Unprofitable)
    assert isinstance(theirs.result, Won) and theirs.result.entry.entry_id == "theirs" and theirs.proposed == 1


def test_a_winners_further_rounds_are_its_own(neighbour: Neighbour) -> None:
    neighbour.lease.release()
    made = ScriptedGenerator([["good_130"], ["good_130"], ["good_150"]])
    theirs, _ = neighbour.others(made, budget=replace(BUDGET, rounds=2, regions_at_once=1))
    assert isinstance(theirs.result, Won) and theirs.result.entry.speedup == pytest.approx(1.5)


def test_what_is_at_its_floor_is_not_waited_for(neighbour: Neighbour) -> None:
    judge = ScriptedJudge()
    timing = Timing(10.0, 10.0, 10.0, 1.0, 1.0, 70, final=True, floor_us=9.8, floor_share=0.97)
    judge.baseline = Accepted(Proof(GPU.key, "exact", (), 1, timing, None, (("torch", "test"),)))
    outcomes = neighbour.others(made := generator(), judge)
    assert all(isinstance(o.result, Unprofitable) and o.result.entry.status == "at_floor" for o in outcomes)
    assert not asked(made) and not any(isinstance(e, Waiting) for e in neighbour.events)


def test_what_others_made_of_regions_that_there_was_no_time_for_is_found(neighbour: Neighbour) -> None:
    neighbour.lease.release()

    def script(call: int, prompts: Sequence[str], n: int) -> list[list[str]]:
        ours = fingerprint(canonicalise(OURS))
        neighbour.store.put_entry(Entry("by another", ours, GPU.key, "kernel", speedup=1.7))
        neighbour.clock.spend(BUDGET.seconds - 1)
        return [[reply("good_130")] for _ in prompts]

    made = ScriptedGenerator(script)
    _, ours = neighbour.others(made, budget=replace(BUDGET, regions_at_once=1))
    assert asked(made) == ["theirs"]
    assert isinstance(ours.result, Won) and ours.result.entry.entry_id == "by another"
