"""Who is asked, judged and measured when, on a clock that the doubles move with the delays of a real GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest
from synthesis_clock import Clock, SlowGenerator, SlowJudge
from synthesis_doubles import GPU, ScriptedGenerator, ScriptedJudge, program, reply

from cudal1_cache import Store
from cudal1_cache.rows import RegionText
from cudal1_compile.generate.exemplars import ExemplarConfig
from cudal1_compile.generate.protocol import PROMPTS_AT_ONCE, prompts_at_once
from cudal1_compile.judge.verdict import Accepted, Proof, Timing, Verdict
from cudal1_compile.synthesis import rounds
from cudal1_compile.synthesis.budget import Budget, Timer
from cudal1_compile.synthesis.outcome import Outcome, Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.progress import Asking, Event, Examining
from cudal1_compile.synthesis.rounds import synthesize, synthesize_all
from cudal1_compile.synthesis.scheduler import EvaluationScheduler
from cudal1_compile.synthesis.task import IMPROVES, RegionTask
from cudal1_fx_passes.program.canonical import fingerprint
from cudal1_fx_passes.program.ir import Program


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


class Run:
    """Regions of 1000, 999, ... rows, the first the most valuable."""

    def __init__(self, clock: Clock, regions: int, budget: Budget) -> None:
        self.generator, self.judge = SlowGenerator(clock), SlowJudge(clock)
        self.store, self.events = Store.memory(), list[Event]()
        self.programs = [program(1000 - i) for i in range(regions)]
        self.outcomes = synthesize_all(
            self.programs, self.generator, self.judge, self.store, budget, self.events.append
        )

    def best_final(self, outcome: Outcome) -> float:
        """The best score of a region's candidates, 0 where none is right."""
        rows = self.store.attempts(outcome.fingerprint, GPU.key)
        return max((a.speedup or 0.0 for a in rows if a.stage in ("accepted", "timed")), default=0.0)


@pytest.mark.slow  # 124 regions; what it rests on has tests of few regions below
def test_each_region_that_can_win_has_won_when_the_time_is_over(clock: Clock) -> None:
    start = clock()
    run = Run(clock, 124, Budget(seconds=143))
    assert clock() - start < 143 + 2
    won = [o for o in run.outcomes if isinstance(o.result, Won)]
    able = [o for o in run.outcomes if run.best_final(o) > 1.02]
    assert len(won) >= 38  # 26 where regions were worked on four or eight at a time
    # but what was timed in the last second may wait for its proof
    assert len({o.fingerprint for o in able} - {o.fingerprint for o in won}) <= 1
    assert run.generator.sampled_s < 0.2 * 143
    # the first round of all comes before the second of any
    first, second, *others = run.generator.asked
    assert first == [1000 - i for i in range(96)] and second == [1000 - i for i in range(96, 124)]
    assert others and others[0][0] == 1000
    rounds = [e.round for e in run.events if isinstance(e, Asking)]
    assert rounds == sorted(rounds)


def test_many_regions_get_a_part_of_a_first_round_each(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: 140 of 419 regions win in 177 s where 102 do with whole rounds; with time for all as many do."""
    monkeypatch.setattr(rounds, "MANY", 3)
    most, many, few = (Run(clock, n, Budget(seconds=200, samples_per_round=3, rounds=2)) for n in (8, 4, 3))
    assert [r.generator.samples[0] for r in (most, many, few)] == [1, 2, 3]
    # a contrastive round is whole, of two prompts or one
    assert set(many.generator.samples[1:]) | set(few.generator.samples[1:]) <= {1, 2, 3}
    assert sum(many.generator.samples[1:]) >= 3 <= sum(few.generator.samples[1:])


def test_valuable_regions_are_measured_before_others_are_judged(clock: Clock) -> None:
    run = Run(clock, 40, Budget(seconds=12))
    measured = [e.region for e in run.events if isinstance(e, Examining) and (e.best or 0.0) >= IMPROVES]
    assert measured == sorted(measured) and measured
    judged = {o.fingerprint for o in run.outcomes if o.judged}
    assert judged == {fingerprint(p) for p in run.programs[: len(judged)]}
    assert any(isinstance(o.result, Won) for o in run.outcomes)
    left = [o for o in run.outcomes if not o.judged]
    assert left and all(isinstance(o.result, Unfinished) for o in left)
    # the replies that nobody judged are not lost: the next call begins with them
    silent = ScriptedGenerator([["wrong_1"]])
    one_round = Budget(seconds=200, rounds=1)
    synthesize_all(run.programs, silent, SlowJudge(clock), run.store, one_round)
    assert all(not any(a.stage == "deferred" for a in run.store.attempts(o.fingerprint, GPU.key)) for o in left)


def test_what_an_earlier_call_left_open_waits_for_more_valuable_regions(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backward's products are known once its forward has kernels, and are most of a training step."""
    monkeypatch.setattr(rounds, "MANY", 60)  # half a round is none, and would be asked for again
    run = Run(clock, 60, Budget(seconds=12, regions_at_once=60))
    left = [p for p, o in zip(run.programs, run.outcomes, strict=True) if not o.judged]
    called, regions = len(run.generator.asked), [left[0], program(2000), program(1999), *left[1:]]
    values = [float(-i) for i in range(len(regions))]
    outcomes = synthesize_all(regions, run.generator, run.judge, run.store, Budget(seconds=6), values=values)
    assert run.generator.asked[called] == [2000, 1999]  # the others have replies
    judged = [bool(o.judged) for o in outcomes]
    assert judged[:3] == [True] * 3 and judged == sorted(judged, reverse=True) and not all(judged)


def test_a_winner_is_improved_only_by_what_beats_it() -> None:
    judge, store = ScriptedJudge(), Store.memory()
    generator = ScriptedGenerator([["good_120", "good_119"], ["good_121", "good_118"], ["good_140"]])
    budget = Budget(seconds=60, rounds=3, samples_per_round=2, prompts_per_round=1)
    outcome = synthesize(program(), generator, judge, store, budget)
    assert judge.examined == ["good_120", "good_140"]
    assert outcome.entry is not None and outcome.entry.speedup == 1.4
    assert store.find_entry(outcome.fingerprint, GPU.key) == outcome.entry


def test_what_lost_its_long_measurement_is_not_measured_again_by_a_later_call(clock: Clock) -> None:
    judge, store = SlowJudge(clock), Store.memory()
    one = Budget(seconds=60, rounds=1, samples_per_round=1)
    first = synthesize(program(), ScriptedGenerator([["good_97"]]), judge, store, one)
    assert isinstance(first.result, Unprofitable) and judge.examined == ["good_97"]
    two = replace(one, rounds=3, prompts_per_round=1)
    later = synthesize(program(), ScriptedGenerator([["good_90"], ["good_120"]]), judge, store, two)
    assert judge.examined == ["good_97", "good_120"]  # nor what is behind the faster baseline, known by then
    assert isinstance(later.result, Won)


@pytest.mark.parametrize("proof", [None, "{", "[]", '{"timing": {"final": true}}'])
def test_a_winner_whose_entry_is_gone_may_win_again_whatever_its_proof_is(clock: Clock, proof: str | None) -> None:
    judge, store, lost = SlowJudge(clock), Store.memory(), Store.memory()
    budget = Budget(seconds=60, rounds=1, samples_per_round=1)
    won = synthesize(program(), ScriptedGenerator([["good_120"]]), judge, store, budget)
    rows = store.attempts(won.fingerprint, GPU.key)
    lost.add_regions(RegionText(won.fingerprint, "", ""))
    lost.add_attempts(rows if proof is None else [replace(a, proof_json=proof) for a in rows])
    assert isinstance(synthesize(program(), ScriptedGenerator([]), judge, lost, budget).result, Won)


def test_once_inductor_is_timed_all_scores_are_over_it(clock: Clock) -> None:
    judge, store = SlowJudge(clock), Store.memory()
    names = ["good_92", "good_60"]  # of Inductor; four times that of aten
    generator = ScriptedGenerator([names, ["good_97"], ["good_92"]])
    budget = Budget(seconds=60, rounds=3, samples_per_round=2, prompts_per_round=1)
    outcome = synthesize(program(), generator, judge, store, budget)
    assert judge.examined == ["good_97"]  # the rest cannot win, and that is known
    scores = {round(a.speedup or 0, 2) for a in store.attempts(outcome.fingerprint, GPU.key)}
    assert scores == {0.6, 0.92, 0.97}
    assert isinstance(outcome.result, Unprofitable)
    assert "3.68x" not in "".join(generator.prompts)


def test_regions_that_are_beaten_by_far_have_no_later_round(clock: Clock) -> None:
    asked: list[list[str]] = []

    def script(call: int, prompts: list[str], n: int) -> list[list[str]]:
        sizes = [p.split("d0=")[1].split()[0] for p in prompts]
        asked.append(sizes)
        return [
            [reply(f"good_{50 + i}" if size == "64" else f"good_{110 + i}") for i in range(4)] for size in sizes
        ]

    budget = Budget(seconds=60, rounds=2, samples_per_round=4, prompts_per_round=1, regions_at_once=1)
    programs = [program(64), program(32), program(16)]
    synthesize_all(programs, ScriptedGenerator(script), SlowJudge(clock), Store.memory(), budget)  # type: ignore[arg-type]
    assert asked == [["64"], ["32"], ["16"], ["32"], ["16"]]


def test_a_busy_device_leaves_the_other_rounds_to_a_region() -> None:
    judge = ScriptedJudge()
    generator = ScriptedGenerator([["late_150"], ["good_160"]])
    budget = Budget(seconds=60, rounds=2, samples_per_round=1, prompts_per_round=1)
    outcome = synthesize(program(), generator, judge, Store.memory(), budget)
    assert judge.examined == ["late_150", "good_160"]
    assert outcome.entry is not None and "good_160" in outcome.entry.code


def test_a_generator_says_how_many_prompts_it_likes(clock: Clock) -> None:
    assert prompts_at_once(SlowGenerator(clock)) == 96
    assert prompts_at_once(ScriptedGenerator([])) == PROMPTS_AT_ONCE


def test_no_more_regions_are_asked_for_than_the_judge_comes_to(clock: Clock) -> None:
    """The most valuable ones first: with all at once the judge waited 8 of 14 s for replies that it never saw."""
    short, long = (Run(clock, 90, Budget(seconds=seconds, rounds=1)) for seconds in (10, 100))
    first = short.generator.asked[0]
    assert first == [1000 - i for i in range(len(first))] and 8 <= len(first) <= 30
    assert len(long.generator.asked[0]) == 90


def test_while_no_worker_is_up_the_most_valuable_regions_are_asked_for(clock: Clock) -> None:
    generator, judge = SlowGenerator(clock), SlowJudge(clock)
    judge.workers = 0
    asked: list[tuple[int, int]] = []  # baselines and calls of the generator, when candidates were timed first
    judge.before = lambda name: asked.append((len(judge.compared), len(generator.asked)))
    programs = [program(1000 - i) for i in range(30)]
    outcomes = synthesize_all(programs, generator, judge, Store.memory(), Budget(seconds=60, rounds=1))
    assert generator.asked[0] == [1000 - i for i in range(rounds.AT_FIRST)]
    assert sorted(generator.asked[0] + generator.asked[1]) == sorted(1000 - i for i in range(30))
    assert asked[0][0] >= 30 and asked[0][1] == 1, "their times come before the others' proposals"
    assert all(o.judged for o in outcomes)


@pytest.mark.parametrize(("inductor_us", "sure"), [(16.0, [True, False]), (9.0, [False, False])])
def test_who_is_faster_beyond_its_error_is_proven_without_a_closer_look(
    inductor_us: float, sure: list[bool]
) -> None:
    """Where it was timed beside the baseline that counts."""
    judge, asked = ScriptedJudge(), list[bool]()
    timing = Timing(10.0, 10.0, inductor_us, 1.0, 1.0, 70, final=True, floor_us=5.0, floor_share=0.49)
    judge.baseline = Accepted(Proof(GPU.key, "exact", (), 1, timing, None, (("torch", "test"),)))
    examine = judge.submit_exam

    def note(wanted: Program, code: str, is_sure: bool) -> Future[Verdict]:
        asked.append(is_sure)
        return examine(wanted, code, is_sure)

    judge.submit_exam = note  # type: ignore[method-assign]
    for name in ("good_130", "good_101"):
        budget = Budget(seconds=60, rounds=1, samples_per_round=1)
        synthesize(program(), ScriptedGenerator([[name]]), judge, Store.memory(), budget)
    assert asked == sure[: len(asked)] and asked


def test_what_hardly_wins_is_examined_once_all_regions_are_timed() -> None:
    """On a Llama stack four examinations of 0.99x to 1.01x had over a quarter of the judge."""
    names = {"64": "good_101", "32": "good_130", "16": "good_60"}

    def script(call: int, prompts: list[str], n: int) -> list[list[str]]:
        return [[reply(names[p.split("d0=")[1].split()[0]])] for p in prompts]

    judge, budget = ScriptedJudge(), Budget(seconds=60, rounds=1, samples_per_round=1)
    programs = [program(64), program(32), program(16)]
    synthesize_all(programs, ScriptedGenerator(script), judge, Store.memory(), budget)  # type: ignore[arg-type]
    assert judge.examined == ["good_130", "good_101"]


@pytest.mark.parametrize(("workers", "compared"), [(1, [40]), (4, [40, 30, 20])])
def test_what_has_no_candidates_yet_is_compared_by_idle_workers(workers: int, compared: list[int]) -> None:
    """It may be at its floor, but what has candidates comes first."""
    judge, first = ScriptedJudge(), list[int]()
    judge.workers = workers

    def before(name: str) -> None:
        first.extend([] if first else [rows for rows, inductor in judge.compared if inductor])

    judge.before = before
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, regions_at_once=1)
    programs = [program(rows) for rows in (40, 30, 20)]
    outcomes = synthesize_all(programs, ScriptedGenerator([["good_120"]]), judge, Store.memory(), budget)
    assert first == compared and all(isinstance(o.result, Won) for o in outcomes)
    assert sorted(rows for rows, inductor in judge.compared if inductor) == [20, 30, 40], "each once"


class Beside(ScriptedGenerator):
    gives_way = True


class Late(Beside):
    """All its calls but the first end once a candidate was timed."""

    def __init__(self, judge: ScriptedJudge) -> None:
        super().__init__([["good_120"]])
        self.timed = threading.Event()
        judge.before = lambda name: self.timed.set()

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        found = super().propose(prompts, n, seed)
        assert len(self.calls) == 1 or self.timed.wait(20.0)
        return found


@pytest.mark.parametrize("kind", [Beside, ScriptedGenerator])
def test_aten_is_timed_while_a_sampler_that_gives_way_is_asked(kind: type[ScriptedGenerator]) -> None:
    """Else before anybody is asked."""
    judge, asked = ScriptedJudge(), list[list[tuple[int, bool]]]()

    def script(call: int, prompts: list[str], n: int) -> list[list[str]]:
        assert call or bool(judge.compared) != (kind is Beside)
        judge.go_on()
        asked.append(list(judge.compared))
        return [[reply("good_120")] for _ in prompts]

    generator = kind(script)
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, regions_at_once=1)
    outcomes = synthesize_all([program(40), program(30)], generator, judge, Store.memory(), budget)
    first = [(40, False), (30, False)]
    assert asked[0] == first and all(isinstance(o.result, Won) for o in outcomes)
    assert judge.compared == [*first, (40, True), (30, True)], "each once"


def test_more_is_proposed_while_the_judge_is_at_work() -> None:
    """The second call of the generator ends once a candidate of the first was timed."""
    judge = ScriptedJudge()
    generator = Late(judge)
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, regions_at_once=1)
    programs = [program(rows) for rows in (40, 30, 20)]
    outcomes = synthesize_all(programs, generator, judge, Store.memory(), budget)
    assert len(generator.calls) == 3 and all(isinstance(o.result, Won) for o in outcomes)


def test_the_next_region_is_the_one_that_may_gain_most_by_the_times_that_came_since() -> None:
    """Two are asked for before aten is timed; then the smallest region, which turns out to be the slowest."""

    class Judge(ScriptedJudge):
        def baselines(self, program: Program, inductor: bool) -> Verdict:
            found = super().baselines(program, inductor)
            assert isinstance(found, Accepted) and found.proof.timing is not None
            times = 100.0 if program.axes[0].size == 10 else 1.0
            timing = found.proof.timing
            timing = replace(timing, aten_us=times * timing.aten_us, candidate_us=times * timing.candidate_us)
            return Accepted(replace(found.proof, timing=timing))

    judge = Judge()
    generator = Late(judge)
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, regions_at_once=1)
    synthesize_all([program(rows) for rows in (40, 30, 20, 10)], generator, judge, Store.memory(), budget)
    assert [next(r for r in (40, 30, 20, 10) if f"d0={r} " in p) for p in generator.prompts] == [40, 30, 10, 20]


def test_nobody_is_asked_for_more_while_the_judge_is_at_many_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "BACKLOG", 2)
    judge, generator = ScriptedJudge(), Beside([["good_120"]])
    judged: list[int] = []  # candidates, when the generator was asked
    propose = generator.propose

    def note(prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        judged.append(len(judge.judged))
        return propose(prompts, n, seed)

    generator.propose = note  # type: ignore[method-assign]
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, regions_at_once=3)
    programs = [program(rows) for rows in (60, 50, 40, 30, 20, 10)]
    outcomes = synthesize_all(programs, generator, judge, Store.memory(), budget)
    assert judged[0] == 0 and judged[1] >= 2 and all(isinstance(o.result, Won) for o in outcomes)


def test_inductor_is_timed_where_a_candidate_may_win_over_aten() -> None:
    """What loses to aten loses to the faster one: it is compared once nothing else is to be done."""
    judge, order = ScriptedJudge(), list[str | bool]()
    judge.before = order.append
    compare = judge.submit_baselines

    def note(wanted: Program, inductor: bool) -> Future[Verdict]:
        order.append(inductor)
        return compare(wanted, inductor)

    judge.submit_baselines = note  # type: ignore[method-assign]
    for name, inductors in (("good_130", 1), ("slow_80", 2)):
        order.clear()
        budget = Budget(seconds=60, rounds=1, samples_per_round=2)
        generator = ScriptedGenerator([[name, "slow_70"]])
        synthesize(program(), generator, judge, Store.memory(), budget)
        assert order.index(True) == order.index(name) + inductors


def test_what_loses_to_aten_is_unprofitable_before_inductor_is_timed() -> None:
    """And no further round is asked for."""
    judge, generator = ScriptedJudge(), ScriptedGenerator([["slow_80", "slow_70"]])
    compare, wait, never = judge.submit_baselines, judge.wait, Future[Verdict]()
    judge.submit_baselines = lambda wanted, inductor: never if inductor else compare(wanted, False)  # type: ignore[method-assign]
    judge.wait = lambda futures, limit_s: time.sleep(limit_s) if futures == [never] else wait(futures, limit_s)  # type: ignore[method-assign]
    budget = Budget(seconds=1, rounds=3, samples_per_round=2)
    outcome = synthesize(program(), generator, judge, Store.memory(), budget)
    assert isinstance(outcome.result, Unprofitable) and len(generator.calls) == 1


def test_in_the_end_all_are_compared() -> None:
    """There is no time for proposals any more, but for baselines."""
    judge = ScriptedJudge()
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, reserve=0.0)
    tasks = [
        RegionTask(program(rows), ScriptedGenerator([]), GPU, Store.memory(), budget, 0, ExemplarConfig())
        for rows in (40, 30)
    ]
    places = {task: i for i, task in enumerate(tasks)}
    scheduler = EvaluationScheduler(places, judge, Timer(budget), lambda event: None, lambda: None)
    scheduler.run(tasks)
    assert not judge.compared
    scheduler.run(tasks, is_last=True)
    assert judge.compared == [(40, True), (30, True)]
