"""A device bench of several workers: answers in order, room, what is asked ahead and asked again."""

from __future__ import annotations

from typing import cast

import pytest
from judge_doubles import (
    RIGHT,
    SILU,
    SOFTMAX,
    WRONG,
    AtOnce,
    Script,
    Slot,
    finals_of,
    judged,
    make_bench,
    measured,
    pin_finals,
    reply,
    tasks,
)

from benchmarks.redteam.honest import SILU_SCALAR
from cudal1_compile.judge.bench import device as device_bench
from cudal1_compile.judge.bench.slots import SLOT_BYTES
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.sandbox.process import WorkerLate, WorkerLost
from cudal1_compile.judge.verdict import Deferred, Rejected, Verdict
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_fx_passes.program.text import print_program


def _beside_and_alone(
    monkeypatch: pytest.MonkeyPatch, beside: wire.Message | WorkerLost, free_bytes: int = 1 << 40
) -> tuple[device_bench.DeviceBench, list[Verdict]]:
    """Two workers; the softmax region's first answer is `beside`."""
    table = {print_program(SILU): [reply(WRONG)], print_program(SOFTMAX): [beside, reply(RIGHT)]}
    scripts = cast(list[Script], [Slot(table, free_bytes) for _ in range(6)])
    bench = make_bench(monkeypatch, scripts, Limits(build_threads=2, workers=2))
    return bench, judged(bench, tasks())


def test_several_workers_answer_in_the_order_of_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, verdicts = _beside_and_alone(monkeypatch, reply(RIGHT))
    assert verdicts == [WRONG, RIGHT, RIGHT]
    assert bench.counts["worker restarts"] == 0
    bench.close()
    assert bench.workers == 0


def test_a_short_device_gets_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, verdicts = _beside_and_alone(monkeypatch, reply(RIGHT), free_bytes=2 * SLOT_BYTES - 1)
    assert verdicts == [WRONG, RIGHT, RIGHT]
    assert bench.workers == 1
    bench.close()


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_others_may_have_caused_is_judged_again_alone(restarts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    full = reply(Deferred("no room")) | {"short_of_room": True}
    bench, verdicts = _beside_and_alone(monkeypatch, WorkerLate("in time") if restarts else full)
    assert verdicts == [WRONG, RIGHT, RIGHT]
    assert bench.counts["worker restarts"] == restarts
    bench.close()


def test_a_worker_beside_gives_its_memory_back_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = _beside_and_alone(monkeypatch, reply(RIGHT))
    (other,) = bench._slots.others
    worker = cast(Slot, other.start())
    assert bench._slots.clear_others(bench._slots.first)
    assert worker.asked[-1] == "clear" and worker.alive and other.up
    monkeypatch.setattr(worker, "ask", Script([WorkerLost("died")]).ask)
    assert bench._slots.clear_others(bench._slots.first)
    assert not other.up and not bench._slots.clear_others(bench._slots.first)
    bench.close()


@pytest.mark.parametrize("knows", [False, True])
def test_a_worker_that_never_saw_the_program_takes_the_second_look(
    knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = _beside_and_alone(monkeypatch, reply(RIGHT))
    (other,) = bench._slots.others
    first, beside = cast(Slot, bench._slots.first.start()), cast(Slot, other.start())
    monkeypatch.setattr(other, "knows", lambda _: knows)
    pin_finals(bench, monkeypatch)
    first.answers, beside.answers = [reply(measured(4.0))], [reply(measured(4.2))]
    script = cast(Slot, bench._worker_pool._spare)
    script.answers = [reply(measured(4.1))]
    assert finals_of(bench, SILU, [tasks()[0][1]]) == [measured(4.0)]
    assert first.alive is not knows and ("finalists" in beside.asked) is not knows
    bench.close()


def test_a_slot_knows_what_its_worker_was_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = _beside_and_alone(monkeypatch, reply(RIGHT))
    slots = [bench._slots.first, *bench._slots.others]
    assert any(slot.knows(SILU) for slot in slots) and any(slot.knows(SOFTMAX) for slot in slots)
    for slot in slots:
        slot.retire()
        slot.start()
        assert not slot.knows(SILU) and not slot.knows(SOFTMAX)
    bench.close()


def test_a_region_that_has_no_room_alone_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    full = reply(Deferred("no room")) | {"short_of_room": True}
    table = {print_program(SILU): [reply(WRONG)], print_program(SOFTMAX): [full]}
    scripts = cast(list[Script], [Slot(table) for _ in range(3)])
    bench = make_bench(monkeypatch, scripts, Limits(build_threads=2, workers=2))
    for slot in bench._slots.others:
        slot.start()
    silu, softmax, _ = tasks()
    assert judged(bench, [silu, *[softmax] * 4]) == [WRONG, *[Deferred("no room")] * 4]
    assert sum(s.asked.count("judge") for s in scripts) <= 1 + 2 + 1  # one may have been sent ahead
    bench.close()


def test_finalists_get_the_room_that_idle_workers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = _beside_and_alone(monkeypatch, reply(RIGHT))
    for slot in bench._slots.others:  # which may not have been needed above
        slot.start()
    pin_finals(bench, monkeypatch)
    full, good = reply(Deferred("no room")) | {"short_of_room": True}, measured(1.5)
    first = cast(Slot, bench._slots.first.start())
    first.answers = [full, reply(good)]
    assert finals_of(bench, SILU, [tasks()[0][1]]) == [good]
    assert first.alive and bench.workers == 2
    bench.close()


def test_a_crash_is_never_anothers_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, verdicts = _beside_and_alone(monkeypatch, WorkerLost("died"))
    assert verdicts == [WRONG, Rejected("verify", "hang or crash: died"), RIGHT]
    bench.close()


def test_the_next_request_lies_ready_while_a_worker_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(Slot):
        most = 0

        def receive(self, limit_s: float) -> wire.Message:
            self.most = max(self.most, len(self.sent))
            return super().receive(limit_s)

    scripts = [Busy({print_program(SILU): [reply(WRONG), reply(RIGHT)]}), Script([])]
    bench = make_bench(monkeypatch, cast(list[Script], scripts))
    tasks = [(SILU, parse_candidate(SILU_SCALAR, SILU))] * 3
    assert judged(bench, tasks) == [WRONG, RIGHT, RIGHT]
    assert cast(Busy, scripts[0]).most == 2 and not scripts[0].sent
    bench.close()


def test_the_next_programs_first_request_lies_ready_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(Slot):
        ready: list[int] = []

        def receive(self, limit_s: float) -> wire.Message:
            self.ready.append(len(self.sent))
            return super().receive(limit_s)

    monkeypatch.setattr(device_bench, "ThreadPoolExecutor", AtOnce)  # builds are no matter of luck
    answers = {print_program(SILU): [reply(WRONG)], print_program(SOFTMAX): [reply(RIGHT)]}
    scripts = cast(list[Script], [Busy(answers), Script([])])
    bench = make_bench(monkeypatch, scripts, Limits(build_threads=2, workers=1))
    assert judged(bench, tasks()) == [WRONG, RIGHT, RIGHT]
    assert Busy.ready == [2, 2, 1]
    bench.close()


def test_a_request_that_was_sent_ahead_of_a_fault_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Rejected("verify", "the kernel faulted")
    scripts = [
        Slot({print_program(SILU): [reply(fault, fatal=True)]}),
        Slot({print_program(SILU): [reply(RIGHT)]}),
        Script([]),
    ]
    bench = make_bench(monkeypatch, cast(list[Script], scripts))
    assert judged(bench, [(SILU, parse_candidate(SILU_SCALAR, SILU))] * 2) == [fault, RIGHT]
    bench.close()


def test_an_interrupt_leaves_no_answer_for_another_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Script):
        def receive(self, limit_s: float) -> wire.Message:
            raise KeyboardInterrupt

    scripts = [Interrupted([]), Script([reply(RIGHT)]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    with pytest.raises(KeyboardInterrupt):
        judged(bench, tasks()[:1])
    assert judged(bench, tasks()[:1]) == [RIGHT]
    assert not scripts[0].alive
    bench.close()


def test_finalists_of_several_programs_are_measured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = cast(list[Script], [Slot({}) for _ in range(2)])
    cast(Slot, scripts[0]).answers = [reply(measured(1.5)), reply(measured(2.5))]
    bench = make_bench(monkeypatch, scripts, Limits(build_threads=2, workers=1))
    silu, softmax, _ = tasks()
    first, second = (bench.submit_finalists(program, [candidate], 1) for program, candidate in (silu, softmax))
    assert [second[0].result(30.0), first[0].result(30.0)] == [measured(2.5), measured(1.5)]
    bench.close()
