"""What goes on beside what in a device bench: builds, candidates of several programs, finalists."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import cast
from unittest.mock import Mock

import pytest
from judge_doubles import Script, Slot, make_bench, measured, pin_finals, reply

from cudal1_compile.judge.bench import device as device_bench
from cudal1_compile.judge.bench import jobs as work
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.sandbox.process import WorkerLost
from cudal1_compile.judge.verdict import Deferred, Rejected, Verdict
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime.build import Binary, Resources
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

BINARY = Binary("cuda", "sm_90a", b"x", {"k": Resources(16, 0, 0, 1024, "k")})
RIGHT, FAULT = Rejected("time", "slow"), Rejected("verify", "the kernel faulted")
WAIT_S = 20.0  # for what comes at once


def region(rows: int) -> Program:
    return parse_program(
        f"region v1\ndims d0={rows} d1=64\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d0,d1] = t0\n"
    )


def code(program: Program, name: str) -> Candidate:
    text = (
        f"// launch: {name}<<<d0, d1>>>(in0, out0)\n__global__ void {name}(const f32* in0, f32* out0 DIMS) {{\n"
        "    int i = blockIdx.x * d1 + threadIdx.x;\n    st(out0 + i, expf(ld(in0 + i)));\n}\n"
    )
    return parse_candidate(text, program)


def task(rows: int, name: str) -> tuple[Program, Candidate]:
    return region(rows), code(region(rows), name)


class Told(Slot):
    """A worker that calls `before` with the kernel's name, or `finalists`; it answers all alike unless told so."""

    def __init__(self, before: Callable[[str], None], answers: dict[str, wire.Message | WorkerLost]) -> None:
        super().__init__({})
        self.before, self.told = before, answers

    def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
        if message["op"] not in ("judge", "finalists"):
            return super().ask(message, limit_s)
        name = _name(message["entrants"][0]["code"]) if message["op"] == "judge" else "finalists"
        self.asked.append(name)
        self.before(name)
        answer = self.told.get(name, reply(RIGHT if name != "finalists" else measured(1.5)))
        if isinstance(answer, WorkerLost):
            self.alive = False
            raise answer
        return answer


def _name(text: str) -> str:
    return text.split("launch: ")[1].split("<<<")[0]


class Gates:
    """Builds and requests by name: which have begun, and which may not go on yet."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._changed = threading.Condition()
        self._shut: set[str] = set()

    def shut(self, *names: str) -> None:
        self._shut |= set(names)

    def open(self, *names: str) -> None:
        with self._changed:
            self._shut -= set(names)
            self._changed.notify_all()

    def __call__(self, name: str) -> None:
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: name not in self._shut, WAIT_S), f"{name} was never let through"

    def wait(self, name: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.begun, WAIT_S), (
                f"{name} has not begun: {self.begun}"
            )


class Rig:
    """A bench whose builds and workers wait at gates."""

    def __init__(self, patch: pytest.MonkeyPatch, workers: int, builders: int) -> None:
        self.builds, self.asked = Gates(), Gates()
        self.answers: dict[str, wire.Message | WorkerLost] = {}
        scripts = cast(list[Script], [Told(self.asked, self.answers) for _ in range(12)])
        self.bench = make_bench(patch, scripts, Limits(build_threads=builders, workers=workers))

        def built(program: Program, candidate: Candidate, *_: object, **__: object) -> Binary:
            self.builds(_name(candidate.code))
            return BINARY

        patch.setattr(device_bench, "build", built)
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.bench.close()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], Rig]]:
    made: list[Rig] = []

    def rig(workers: int, builders: int) -> Rig:
        made.append(Rig(monkeypatch, workers, builders))
        return made[-1]

    yield rig
    for found in made:
        found.close()


Make = Callable[[int, int], Rig]


def test_a_slow_build_holds_up_neither_its_program_nor_the_others(make: Make) -> None:
    rig = make(1, 2)
    rig.builds.shut("a1")
    futures = rig.bench.submit([task(8, "a0"), task(8, "a1"), task(8, "a2"), task(16, "b0")], 1)
    assert [futures[i].result(WAIT_S) for i in (0, 2, 3)] == [RIGHT] * 3
    assert not futures[1].done()
    (final,) = rig.bench.submit_finalists(*_finalists(8, "a0"), 1)
    assert final.result(WAIT_S) == measured(1.5)  # by the slot that waits for the build
    rig.builds.open("a1")
    assert futures[1].result(WAIT_S) == RIGHT


def test_builds_go_on_while_workers_judge_and_measure_and_not_too_far(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "AHEAD", 4)
    rig = make(1, 1)
    rig.asked.shut("k0", "finalists")
    futures = rig.bench.submit([task(8, f"k{i}") for i in range(8)], 1)
    rig.asked.wait("k0")
    rig.builds.wait("k3")
    time.sleep(0.05)
    assert rig.builds.begun == [f"k{i}" for i in range(len(rig.builds.begun))]  # in order
    assert len(rig.builds.begun) <= 1 + 1 + 4  # one in hand, one sent ahead
    rig.asked.open("k0")
    assert [f.result(WAIT_S) for f in futures] == [RIGHT] * 8
    (final,) = rig.bench.submit_finalists(*_finalists(16, "f0"), 1)
    rig.asked.wait("finalists")
    later = rig.bench.submit([task(8, "l0"), task(8, "l1")], 1)
    rig.builds.wait("l1")
    assert not final.done()
    rig.asked.open("finalists")
    assert final.result(WAIT_S) == measured(1.5)
    assert [f.result(WAIT_S) for f in later] == [RIGHT] * 2


def test_a_worker_that_has_rested_is_woken_while_the_first_goes_on(make: Make) -> None:
    rig = make(2, 2)
    rig.asked.shut("a0", "b0", "c0")
    futures = rig.bench.submit([task(r, f"{n}{i}") for r, n in ((8, "a"), (16, "b")) for i in range(6)], 1)
    rig.asked.wait("a0")
    rig.asked.wait("b0")  # both workers are up
    rig.asked.open("a0", "b0")
    assert [f.result(WAIT_S) for f in futures] == [RIGHT] * 12
    first = rig.bench.submit([task(32, f"c{i}") for i in range(3)], 1)
    rig.asked.wait("c0")
    (other,) = rig.bench.submit([task(64, "d0")], 1)
    assert other.result(WAIT_S) == RIGHT and not first[0].done()
    rig.asked.open("c0")
    assert [f.result(WAIT_S) for f in first] == [RIGHT] * 3


def test_finalists_are_measured_while_other_workers_judge(make: Make) -> None:
    rig = make(2, 2)
    rig.asked.shut("a0", "b0", "finalists")
    futures = rig.bench.submit([task(r, f"{n}{i}") for r, n in ((8, "a"), (16, "b")) for i in range(6)], 1)
    rig.asked.wait("a0")
    rig.asked.wait("b0")  # both workers are up
    finals = rig.bench.submit_finalists(*_finalists(32, "f0"), 1)
    later = rig.bench.submit([task(64, f"c{i}") for i in range(3)], 1)
    rig.asked.open("a0")
    rig.asked.wait("finalists")  # behind the candidates of the program that its slot is at, ahead of others
    assert [f.result(WAIT_S) for f in futures[:6]] == [RIGHT] * 6
    assert "c0" not in rig.asked.begun and not finals[0].done()
    rig.asked.open("b0")
    assert [f.result(WAIT_S) for f in (*futures[6:], *later)] == [RIGHT] * 9
    assert not finals[0].done()
    rig.asked.open("finalists")
    assert finals[0].result(WAIT_S) == measured(1.5)


def test_another_worker_goes_on_with_the_program_of_one_who_measures(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(2, 4)
    pin_finals(rig.bench, monkeypatch)
    first = rig.bench._slots.first
    rig.asked.shut("a0", "b0", "finalists")
    futures = rig.bench.submit(
        [task(r, f"{n}{i}") for r, n in ((8, "a"), (16, "b"), (32, "c")) for i in range(6)], 1
    )
    rig.asked.wait("a0")
    rig.asked.wait("b0")
    mine, other = ("a", "b") if rig.bench._work.homes[print_program(region(8))] is first else ("b", "a")
    finals = rig.bench.submit_finalists(*_finalists(64, "f0"), 1)
    rig.asked.open(f"{mine}0")
    rig.asked.wait("finalists")
    rig.asked.open(f"{other}0")
    assert [f.result(WAIT_S) for f in futures] == [RIGHT] * 18
    assert not finals[0].done()
    assert rig.asked.begun.index(f"{mine}5") < rig.asked.begun.index("c0")  # in the order of value
    rig.asked.open("finalists")


def _two_workers(rig: Rig) -> None:
    rig.asked.shut("a0", "b0")
    futures = rig.bench.submit([task(r, f"{n}{i}") for r, n in ((8, "a"), (16, "b")) for i in range(3)], 1)
    rig.asked.wait("a0")
    rig.asked.wait("b0")
    rig.asked.open("a0", "b0")
    assert [f.result(WAIT_S) for f in futures] == [RIGHT] * 6


def _finals_of_two(rig: Rig) -> list[Verdict]:
    """Of two programs, begun by both workers before either goes on."""
    rig.asked.shut("finalists")
    several = [rig.bench.submit_finalists(*_finalists(rows, "f0"), 1) for rows in (32, 64)]
    _wait_until(lambda: rig.asked.begun.count("finalists") == 2)
    rig.asked.open("finalists")
    return [finals[0].result(WAIT_S) for finals in several]


def test_finalists_of_several_programs_are_measured_side_by_side(make: Make) -> None:
    rig = make(2, 4)
    _two_workers(rig)
    assert _finals_of_two(rig) == [measured(1.5)] * 2


def test_of_two_that_want_the_device_alone_each_gets_it(make: Make) -> None:
    rig = make(2, 4)
    _two_workers(rig)
    full = reply(Deferred("no room")) | {"short_of_room": True}
    rig.answers["finalists"] = full
    assert _finals_of_two(rig) == [Deferred("no room")] * 2
    assert rig.asked.begun.count("finalists") == 4
    del rig.answers["finalists"]
    assert _finals_of_more(rig, 3) == [measured(1.5)] * 3  # and nobody waits any more


def test_second_looks_that_cross_wait_for_nobody(make: Make) -> None:
    rig = make(2, 4)
    _two_workers(rig)
    rig.answers["finalists"] = reply(measured(4.0))
    assert _finals_of_two(rig) == [measured(4.0)] * 2
    assert rig.asked.begun.count("finalists") == 4
    assert rig.bench.counts["worker restarts"] == 0


def _finals_of_more(rig: Rig, count: int) -> list[Verdict]:
    several = [rig.bench.submit_finalists(*_finalists(128 + i, "f0"), 1) for i in range(count)]
    return [finals[0].result(WAIT_S) for finals in several]


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_a_build_for_which_the_machine_had_no_time_is_tried_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(1, 1)

    def late(*_: object, **__: object) -> Binary:
        raise TimeoutError("the machine is too busy for the compiler")

    with monkeypatch.context() as busy:
        busy.setattr(device_bench, "build", late)
        (put_off,) = rig.bench.submit([task(8, "a0")], 1)
        assert put_off.result(WAIT_S) == Deferred("the machine is too busy for the compiler")
    (again,) = rig.bench.submit([task(8, "a0")], 1)
    assert again.result(WAIT_S) == RIGHT


def test_a_known_binary_is_not_built_again_for_the_finals(make: Make) -> None:
    rig = make(1, 2)
    (future,) = rig.bench.submit([task(8, "a0")], 1)
    future.result(WAIT_S)
    (final,) = rig.bench.submit_finalists(*_finalists(8, "a0"), 1)
    assert final.result(WAIT_S) == measured(1.5)
    assert rig.builds.begun == ["a0"]


def test_what_is_cancelled_is_neither_built_nor_judged(make: Make) -> None:
    rig = make(1, 1)
    rig.builds.shut("k0")
    futures = rig.bench.submit([task(8, f"k{i}") for i in range(4)], 1)
    rig.builds.wait("k0")
    assert futures[1].cancel() and futures[2].cancel()
    rig.builds.open("k0")
    assert [futures[i].result(WAIT_S) for i in (0, 3)] == [RIGHT] * 2
    assert rig.builds.begun == rig.asked.begun == ["k0", "k3"]
    (again,) = rig.bench.submit([task(8, "k1")], 1)
    assert again.result(WAIT_S) == RIGHT


def test_cancelled_finalists_are_not_measured(make: Make) -> None:
    rig = make(1, 2)
    rig.asked.shut("a0")
    (busy,) = rig.bench.submit([task(8, "a0")], 1)
    rig.asked.wait("a0")
    finals = rig.bench.submit_finalists(*_finalists(16, "f0", "f1"), 1)
    baselines = rig.bench.submit_baselines(region(16), 1, inductor=False)
    assert [f.cancel() for f in (*finals, baselines)] == [True] * 3
    rig.asked.open("a0")
    assert busy.result(WAIT_S) == RIGHT
    (after,) = rig.bench.submit([task(8, "a1")], 1)
    assert after.result(WAIT_S) == RIGHT and "finalists" not in rig.asked.begun


def test_one_candidate_is_enough_to_learn_that_there_is_no_room(make: Make) -> None:
    rig = make(2, 4)
    full = reply(Deferred("no room")) | {"short_of_room": True}
    names = [f"a{i}" for i in range(8)]
    rig.answers |= dict.fromkeys(names, full)
    rig.asked.shut("b0")
    futures = rig.bench.submit([*(task(8, name) for name in names), task(16, "b0"), task(16, "b1")], 1)
    rig.asked.wait("b0")
    rig.asked.open("b0")
    assert [f.result(WAIT_S) for f in futures] == [*[Deferred("no room")] * 8, RIGHT, RIGHT]
    assert sum(name in names for name in rig.asked.begun) <= 3  # one beside, perhaps one sent ahead; one alone


def test_others_rest_while_one_has_the_device_for_itself(make: Make) -> None:
    rig = make(2, 4)
    rig.answers["a0"] = reply(Deferred("no room")) | {"short_of_room": True}
    rig.asked.shut("b0")
    futures = rig.bench.submit([task(8, "a0"), *(task(16, f"b{i}") for i in range(6))], 1)
    rig.asked.wait("a0")
    rig.asked.wait("b0")
    rig.answers["a0"] = reply(RIGHT)
    time.sleep(0.05)
    assert rig.asked.begun.count("a0") == 1  # not while another worker has something in hand
    rig.asked.shut("a0")
    rig.asked.open("b0")
    end = time.monotonic() + WAIT_S
    while rig.asked.begun.count("a0") < 2 and time.monotonic() < end:
        time.sleep(0.01)
    begun = list(rig.asked.begun)
    time.sleep(0.05)
    assert rig.asked.begun == begun and len(begun) <= 2 + 1 + 1  # b1 may have been sent ahead
    rig.asked.open("a0")
    assert [f.result(WAIT_S) for f in futures] == [RIGHT] * 7


@pytest.mark.parametrize("fault", [reply(FAULT, fatal=True), WorkerLost("died")])
def test_programs_whose_candidates_cost_workers_go_behind_the_next_ones(
    make: Make, monkeypatch: pytest.MonkeyPatch, fault: wire.Message | WorkerLost
) -> None:
    monkeypatch.setattr(work, "BEHIND", 2)
    rig = make(1, 1)
    rig.answers |= {"a0": fault, "a1": fault}
    rig.asked.shut("s0")
    begin = rig.bench.submit([task(64, "s0")], 1)  # until all is built
    rig.asked.wait("s0")
    tasks = [*(task(8, f"a{i}") for i in range(4)), *(task(16, f"b{i}") for i in range(2)), task(32, "c0")]
    futures = rig.bench.submit([*tasks, task(48, "d0"), task(56, "e0")], 1)
    rig.builds.wait("e0")
    time.sleep(0.05)
    rig.asked.open("s0")
    found: list[Verdict] = [f.result(WAIT_S) for f in (*begin, *futures)]
    assert [isinstance(v, Rejected) and v.stage for v in found] == ["time", "verify", "verify", *["time"] * 7]
    order = rig.asked.begun
    assert order[:3] == ["s0", "a0", "a1"]
    assert order.index("b0") < order.index("c0") < order.index("d0") < order.index("a3") < order.index("e0")


def _finalists(rows: int, *names: str) -> tuple[Program, list[Candidate]]:
    return region(rows), [code(region(rows), name) for name in names]


def test_a_slot_that_cannot_be_started_leaves_nobody_waiting(make: Make) -> None:
    """The first answers for the others; a job to a slot without a worker comes back deferred."""
    rig = make(2, 2)
    (other,) = rig.bench._slots.others
    started = other.start

    def start() -> object:
        raise WorkerLost("no memory")

    patched: list[Verdict] = []
    other.start = start  # type: ignore[method-assign, assignment]
    rig.bench._send(other, lambda slot: patched.extend(slot.ask({"program": "p"}, 1.0).verdicts))
    _wait_until(lambda: bool(patched))
    assert isinstance(patched[0], Deferred) and "no memory" in patched[0].reason
    futures = rig.bench.submit([task(8, "a0"), task(16, "b0"), task(32, "c0")], 1)
    assert [f.result(WAIT_S) for f in futures] == [RIGHT] * 3
    other.start = started  # type: ignore[method-assign]


def test_closing_gives_up_what_waits(make: Make) -> None:
    rig = make(2, 1)
    rig.builds.shut("k1")
    futures = rig.bench.submit([task(8, f"k{i}") for i in range(4)], 1)
    assert futures[0].result(WAIT_S) == RIGHT
    rig.builds.wait("k1")
    threading.Timer(0.2, rig.builds.open, ["k1"]).start()  # a real one is killed
    rig.close()
    assert all(f.cancelled() for f in futures[2:])


def test_what_is_of_a_more_valuable_program_comes_first() -> None:
    """Its candidates before an examination of another one, and its examination before its candidates."""
    built: Future[work.Built] = Future()
    built.set_result(Mock(spec=Binary))
    todo, slot = work.Work(lambda program, candidate: built), cast(Slot, object())
    low, high = region(8), region(16)
    todo.rank([high, low])
    todo.add([work.CandidateTask(p, [Mock()], 1) for p in (low, low, high, high)])
    asked: list[str] = []
    for program in (low, high):
        text = print_program(program)
        todo.send(slot, lambda _, text=text: asked.append(text), text)  # type: ignore[misc]
    todo.send(slot, lambda _: asked.append("first"))
    taken = [todo.take(slot) for _ in range(7)]
    for job in taken:
        if isinstance(job, work.Job):
            job.run(slot)
    assert asked == ["first", print_program(high), print_program(low)]
    assert [t.program if isinstance(t, work.CandidateTask) else None for t in taken] == [
        *(None, None),
        *(high, high),
        None,
        *(low, low),
    ]
    assert todo.take(slot) is None
