"""A device bench that survives what its worker does: losses, faults, second looks, memory checks."""

from __future__ import annotations

import fcntl
import threading

import pytest
import torch
from judge_doubles import RIGHT, SILU, Script, finals_of, judged, make_bench, measured, reply, tasks

from benchmarks.redteam.attacks_large import PLAIN
from benchmarks.redteam.honest import SILU_SCALAR, SILU_VECTOR
from benchmarks.redteam.regions import region
from cudal1_cache.descriptors import try_lock
from cudal1_compile.judge.bench import device as device_bench
from cudal1_compile.judge.bench import finals
from cudal1_compile.judge.bench import worker as worker_module
from cudal1_compile.judge.bench import worker_pool as pool
from cudal1_compile.judge.bench.slots import SLOT_BYTES
from cudal1_compile.judge.checks.memcheck import CheckReport
from cudal1_compile.judge.checks.trial import TrialStopped
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.sandbox.process import DeviceTaken, Worker, WorkerLate, WorkerLost
from cudal1_compile.judge.verdict import Accepted, Deferred, Proof, Rejected, Timed, Timing, Verdict
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime.build import Binary, Resources
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program


def test_a_request_carries_program_candidate_and_binary() -> None:
    program = region("silu")
    candidate = parse_candidate(SILU_SCALAR, program)
    binary = Binary("cuda", "sm_90a", b"\x7fELF\x00cubin", {"k": Resources(16, 0, 0, 1024, "k")})
    request = wire.decode(wire.encode(wire.judge_request(program, candidate, binary, 2**47, True)))
    assert wire.read_program(request) == program
    (entrant,) = request["entrants"]
    assert wire.read_entrant(entrant, program) == (candidate, binary)
    assert request["seed"] == 2**47


def test_limits_survive_the_wire() -> None:
    limits = Limits(verify_s=0.5, distributions=("normal", "offset"))
    request = wire.decode(wire.encode(wire.start_request(1, limits)))
    assert wire.read_limits(request) == limits
    assert request["device"] == 1


def test_a_lost_worker_rejects_its_candidate_and_a_spare_takes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Rejected("verify", "out0 is wrong")
    scripts = [Script([WorkerLost("hang")]), Script([reply(wrong)]), Script([]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    program = region("silu")
    candidate = parse_candidate(SILU_SCALAR, program)
    first, second = judged(bench, [(program, candidate), (program, candidate)])
    assert isinstance(first, Rejected)
    assert "hang" in first.reason
    assert second == wrong
    assert bench.counts["worker restarts"] == 1
    bench.close()
    assert not any(s.alive for s in scripts[:3])


def test_a_worker_that_only_waited_for_another_process_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [Script([DeviceTaken("others have it")]), Script([reply(RIGHT)]), Script([]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    assert judged(bench, tasks()[:1]) == [Deferred("others have it")]
    assert judged(bench, tasks()[:1]) == [RIGHT]
    assert bench.counts["worker restarts"] == 0
    bench.close()


def test_a_worker_that_waits_for_another_process_from_its_start_on_gives_up_no_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits(*_: object) -> wire.Message:
        raise DeviceTaken("others have it")

    scripts = [Script([]), Script([reply(RIGHT)]), Script([])]
    monkeypatch.setattr(scripts[0], "ask", waits)
    bench = make_bench(monkeypatch, scripts)
    (verdict,) = judged(bench, tasks()[:1])
    assert isinstance(verdict, Deferred) and "others have it" in verdict.reason
    assert bench._worker_pool._read_only  # it is not where it may write that it would start
    assert not scripts[1].asked
    bench.close()


def test_a_worker_that_died_says_nothing_where_a_known_good_kernel_fails_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first is lost over the candidate, the second over the known-good kernel, the third runs it."""
    fit = [reply(Accepted(Proof("t", "exact", (), 0))), reply(RIGHT)]
    scripts = [Script([WorkerLost("gone")]), Script([WorkerLost("gone too")]), Script(fit), Script([])]
    why_not = pool.Slot.why_not
    bench = make_bench(monkeypatch, scripts)
    monkeypatch.setattr(pool.Slot, "why_not", why_not)
    (verdict,) = judged(bench, tasks()[:1])
    assert isinstance(verdict, Deferred) and "known-good kernel fails: gone too" in verdict.reason
    assert bench.trouble() is None
    assert judged(bench, tasks()[:1]) == [RIGHT]
    assert scripts[2].asked == ["start", "judge", "judge"]
    bench.close()


def test_a_fatal_reply_retires_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Rejected("verify", "the kernel faulted")
    right = Rejected("verify", "another")
    scripts = [Script([reply(fault, fatal=True)]), Script([reply(right)]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    program = region("silu")
    candidate = parse_candidate(SILU_SCALAR, program)
    assert judged(bench, [(program, candidate)] * 2) == [fault, right]
    assert not scripts[0].alive
    bench.close()


def test_a_failure_of_the_judge_itself_is_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(
        monkeypatch, [Script([{"failure": "Traceback\nValueError: ours", "fatal": False}]), Script([])]
    )
    program = region("silu")
    (verdict,) = judged(bench, [(program, parse_candidate(SILU_SCALAR, program))])
    assert verdict == Deferred("the judge failed: ValueError: ours")
    bench.close()


def test_baselines_are_the_workers_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is lost on the way leaves no answer, and a spare one takes the next region."""
    scripts = [
        Script([reply(measured(1.6)), WorkerLost("died")]),
        Script([reply(measured(0.9))]),
        Script([]),
    ]
    bench = make_bench(monkeypatch, scripts)
    assert bench.submit_baselines(region("softmax"), 1, inductor=True).result(30.0) == measured(1.6)
    assert isinstance(bench.submit_baselines(region("softmax"), 1, inductor=True).result(30.0), Rejected)
    assert bench.submit_baselines(region("softmax"), 1, inductor=True).result(30.0) == measured(0.9)
    assert scripts[0].asked == ["start", "baselines", "baselines"]
    bench.close()


def test_a_worker_answers_for_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Session:
        spent_s: dict[str, float] = {}
        short_of_room = False

        def baselines(self, program: Program, seed: int, inductor: bool) -> Verdict:
            asked.append((program, seed, inductor))
            if len(asked) == 2:
                raise TrialStopped("the device does not answer")
            return measured(1.6)

    server = worker_module._Server({}, lambda message: None)
    monkeypatch.setattr(server, "_session", Session())
    line = wire.encode(wire.baselines_request(region("softmax"), 7, inductor=True))
    reply, is_last = server.answer(line)
    assert wire.read_verdicts(wire.decode(reply)) == [measured(1.6)] and not is_last
    assert asked == [(region("softmax"), 7, True)]
    reply, is_last = server.answer(line)
    assert isinstance(wire.read_verdicts(wire.decode(reply))[0], Rejected) and is_last


def timed(value: float) -> Timed:
    return Timed(Timing(10.0 / value, 10.0, 12.0, value, value - 0.02, 30, final=False, upper_bound=value + 0.02))


@pytest.mark.parametrize("is_sure", [False, True])
def test_an_examination_asks_every_gate(is_sure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a closer look, where that may show that it is in vain."""
    closer = [] if is_sure else [timed(1.4)]
    good = Accepted(Proof("t", "reassociates", (), 1))
    script = Script([reply(verdict) for verdict in (*closer, good, measured(1.4))])
    bench = make_bench(monkeypatch, [script, Script([])])
    program = region("silu")
    verdict = bench.submit_exam(program, parse_candidate(SILU_SCALAR, program), 1, is_sure).result(30.0)
    assert verdict == measured(1.4)
    assert script.asked == ["start", *["quick" for _ in closer], "judge", "finalists"]
    bench.close()


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([timed(1.0)], ["quick"]),
        ([Rejected("verify", "out0 differs")], ["quick"]),
        ([timed(1.4), Rejected("verify", "out0 differs")], ["quick", "judge"]),
    ],
)
def test_an_examination_ends_with_what_cannot_win(
    answers: list[Verdict], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script([reply(a) for a in answers])
    bench = make_bench(monkeypatch, [script, Script([])])
    program = region("silu")
    verdict = bench.submit_exam(program, parse_candidate(SILU_SCALAR, program), 1).result(30.0)
    assert verdict == answers[-1] and script.asked == ["start", *asked]
    bench.close()


def test_a_large_region_is_proven_at_smaller_sizes_and_then_once_at_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = Accepted(Proof("t", "reassociates", (), 1))
    script = Script([reply(timed(1.4)), reply(good), reply(good), reply(measured(1.4))])
    said: list[wire.Message] = []
    ask = script.ask

    def noted(message: wire.Message, limit_s: float) -> wire.Message:
        said.append(message)
        return ask(message, limit_s)

    monkeypatch.setattr(script, "ask", noted)
    bench = make_bench(monkeypatch, [script, Script([])])
    program = region("huge_silu")
    verdict = bench.submit_exam(program, parse_candidate(PLAIN, program), 1).result(30.0)
    assert verdict == measured(1.4) and script.asked == ["start", "quick", "judge", "judge", "finalists"]
    _, _, first, second, last = said
    assert first["program"] == second["program"] != last["program"] == print_program(program)
    assert first["seed"] != second["seed"] and (first["repeats"], second["repeats"]) == (1, 6)
    assert last["is_right_smaller"]
    bench.close()


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        (Rejected("verify", "out0 differs"), []),
        (Deferred("no room"), ["judge", "finalists"]),
        (Rejected("task", "out0 cannot be told from zeros"), ["judge", "finalists"]),
    ],
)
def test_what_smaller_sizes_do_not_tell_its_own_size_does(
    found: Verdict, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Accepted(Proof("t", "reassociates", (), 1))
    script = Script([reply(timed(1.4)), reply(found), reply(good), reply(measured(1.4))])
    bench = make_bench(monkeypatch, [script, Script([])])
    program = region("huge_silu")
    verdict = bench.submit_exam(program, parse_candidate(PLAIN, program), 1).result(30.0)
    assert script.asked == ["start", "quick", "judge", *asked]
    assert isinstance(verdict, Accepted if asked else Rejected)
    bench.close()


def test_candidates_are_timed_by_the_worker_that_timed_their_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [Script([reply(measured(1.6)), reply(timed(1.3)), reply(timed(1.2))]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    program = region("silu")
    assert bench.submit_baselines(program, 1, inductor=False).result(30.0) == measured(1.6)
    tasks = [(program, parse_candidate(code, program)) for code in (SILU_SCALAR, SILU_VECTOR)]
    assert [f.result(30.0) for f in bench.submit_quick(tasks, 1)] == [timed(1.3), timed(1.2)]
    assert scripts[0].asked == ["start", "baselines", "quick", "quick"]
    bench.close()


def test_finalists_after_a_fault_are_tried_alone_so_that_only_the_culprit_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = Rejected("verify", "the kernel faulted")
    good = Accepted(Proof("t", "reassociates", (), 1))
    scripts = [
        Script([reply(fault, fault, fatal=True)]),
        Script([reply(fault, fatal=True)]),
        Script([reply(good), reply(good)]),
        Script([]),
    ]
    bench = make_bench(monkeypatch, scripts)
    program = region("silu")
    candidate = parse_candidate(SILU_SCALAR, program)
    assert finals_of(bench, program, [candidate, candidate]) == [fault, good]
    assert scripts[2].asked == ["start", "judge", "finalists"]
    bench.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_the_first_worker_takes_the_device_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [Script([]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    bench.wake()
    bench._slots._threads[bench._slots.first].shutdown()
    assert scripts[0].asked == ["start"] and bench.workers == 1
    bench.close()


@pytest.mark.parametrize(("free_slots", "workers"), [(3, 2), (2, 2), (1, 1)])
def test_as_many_workers_take_the_device_as_there_is_room_for(
    free_slots: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(monkeypatch, [Script([]) for _ in range(4)], Limits(build_threads=2, workers=2))
    monkeypatch.setattr(device_bench, "_free_bytes", lambda index: free_slots * SLOT_BYTES)
    bench.wake()
    for thread in bench._slots._threads.values():
        thread.shutdown()
    assert bench.workers == workers and len(bench._slots._admitted) == workers - 1
    bench.close()


def test_a_known_good_kernel_does_not_wait_for_a_worker_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, [Script([]) for _ in range(4)], Limits(build_threads=2, workers=2))
    monkeypatch.setattr(device_bench, "_free_bytes", lambda index: 2 * SLOT_BYTES)
    bench.wake()
    held, ends = threading.Event(), threading.Event()

    def hold(slot: pool.Slot) -> None:
        held.set()
        ends.wait(30.0)

    bench._send(bench._slots.first, hold)
    assert held.wait(10.0) and bench.trouble() is None
    ends.set()
    bench.close()


def test_where_memory_is_short_the_model_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the worker holds is given up; where that is not enough nothing is asked of it."""
    script = Script([reply(timed(1.3)), {}, reply(timed(1.2)), {}])
    bench = make_bench(monkeypatch, [script, Script([])])
    pressed = iter([False, True, False, True, True])
    monkeypatch.setattr(pool.WorkerPool, "is_pressed", property(lambda _: next(pressed)))
    program = region("silu")
    candidate = parse_candidate(SILU_SCALAR, program)
    found = [bench.submit_quick([(program, candidate)], 1)[0].result(30.0) for _ in range(3)]
    assert found == [timed(1.3), timed(1.2), Deferred(pool.PRESSED)]
    assert script.asked == ["start", "quick", "clear", "quick", "clear"]
    bench.close()


def test_a_worker_that_cannot_start_ahead_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, [Script([]) for _ in range(3)])
    monkeypatch.setattr(pool.Slot, "start", lambda slot: _raise(WorkerLost("no device")))
    bench.wake()
    done = bench._slots._threads[bench._slots.first].submit(lambda: True)
    assert done.result(10.0) and bench._work.enlist(bench._slots.first), "it may be asked again"
    bench.close()


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.usefixtures("without_inductor")
def test_without_a_device_a_candidate_is_deferred_and_the_reason_said(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = Binary("cuda", "sm_90a", b"x", {"k": Resources(16, 0, 0, 1024, "k")})
    monkeypatch.setattr(device_bench, "build", lambda *_, **__: binary)
    bench = device_bench.DeviceBench(Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20), Limits(), 0)
    program = region("silu")
    (verdict,) = judged(bench, [(program, parse_candidate(SILU_SCALAR, program))])
    bench.close()
    assert isinstance(verdict, Deferred)
    assert "no CUDA device" in verdict.reason


def test_a_finalist_that_breaks_a_rule_falls_and_the_others_are_measured_again_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside, alone = Accepted(Proof("t", "reassociates", (), 1)), Accepted(Proof("t", "reassociates", (), 2))
    scripts = [Script([reply(beside, beside)]), Script([reply(alone)]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    program = region("silu")
    faulty, sound = parse_candidate(SILU_SCALAR, program), parse_candidate(SILU_SCALAR + "\n", program)
    monkeypatch.setattr(
        device_bench,
        "find_fault",
        lambda program, candidate, *_: CheckReport("a race in line 3" if candidate is faulty else None, ()),
    )
    assert finals_of(bench, program, [faulty, sound]) == [
        Rejected("verify", "a race in line 3"),
        alone,
    ]
    assert not scripts[0].alive
    assert scripts[1].asked == ["start", "finalists"]
    bench.close()


def test_memory_checks_run_while_the_worker_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Accepted(Proof("t", "reassociates", (), 1))
    measuring = threading.Event()

    class Measuring(Script):
        def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
            if message["op"] == "finalists":
                measuring.set()
            return super().ask(message, limit_s)

    bench = make_bench(monkeypatch, [Measuring([reply(good)]), Script([])])
    seen: list[bool] = []

    def look(*_: object) -> CheckReport:
        seen.append(measuring.wait(10.0))
        return CheckReport(None, ())

    monkeypatch.setattr(device_bench, "find_fault", look)
    program = region("silu")
    assert finals_of(bench, program, [parse_candidate(SILU_SCALAR, program)]) == [good]
    assert seen == [True]
    bench.close()


@pytest.mark.parametrize(
    ("again", "wanted"),
    [
        (measured(3.8, seed=2), measured(3.8)),  # the slower of two that agree, under the first one's seed
        (measured(4.2, seed=2), measured(4.0)),
        (measured(2.0, seed=2), Rejected("time", "measured 4.00x, and 2.00x when measured again")),
        (Rejected("verify", "wrong on other data"), Rejected("verify", "wrong on other data")),
        (Deferred("busy"), Deferred("busy")),
    ],
)
def test_above_three_a_second_process_must_agree(
    again: Verdict, wanted: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = [Script([reply(measured(4.0))]), Script([reply(again)]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    program = region("silu")
    assert finals_of(bench, program, [parse_candidate(SILU_SCALAR, program)]) == [wanted]
    assert not scripts[0].alive
    assert scripts[1].asked == ["start", "finalists"]
    bench.close()


def test_all_that_is_hard_to_believe_is_looked_at_in_one_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [
        Script([reply(measured(4.0), measured(1.5), measured(5.0))]),
        Script([reply(measured(4.1), measured(2.0))]),
        Script([]),
    ]
    bench = make_bench(monkeypatch, scripts)
    program = region("silu")
    found = finals_of(bench, program, [parse_candidate(SILU_SCALAR, program)] * 3)
    assert found[:2] == [measured(4.0), measured(1.5)]
    assert isinstance(found[2], Rejected) and "measured again" in found[2].reason
    assert scripts[1].asked == ["start", "finalists"]
    bench.close()


def test_up_to_three_one_look_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [Script([reply(measured(3.0))]), Script([])]
    bench = make_bench(monkeypatch, scripts)
    program = region("silu")
    assert finals_of(bench, program, [parse_candidate(SILU_SCALAR, program)]) == [measured(3.0)]
    assert scripts[0].alive
    bench.close()


def test_the_second_look_happens_on_another_gpu_of_the_model_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["H100", "L4", "H100"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: names[i])
    scripts = [
        Script([reply(measured(4.0))]),
        Script([reply(measured(4.0))]),
        Script([reply(measured(2.0))]),
    ]
    bench = make_bench(monkeypatch, [*scripts, Script([])])
    program = region("silu")
    for _ in range(2):
        finals_of(bench, program, [parse_candidate(SILU_SCALAR, program)])
    assert [s.device for s in scripts] == [0, 2, 0]
    bench.close()


def test_a_worker_that_starts_only_where_it_may_write_is_let_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refused(Script):
        def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
            return {"failure": "RuntimeError: a lock file cannot be made"}

    scripts = [Refused([]), Script([reply(Rejected("verify", "wrong"))]), Script([])]
    scripts[1].given_up = {"read_only_files": False}
    bench = make_bench(monkeypatch, scripts)
    spawn, asked = bench._worker_pool._spawn, []

    def recorded(**options: bool) -> Worker:
        asked.append(options["read_only"])
        return spawn(**options)

    monkeypatch.setattr(bench._worker_pool, "_spawn", recorded)
    program = region("silu")
    (verdict,) = judged(bench, [(program, parse_candidate(SILU_SCALAR, program))])
    assert verdict == Rejected("verify", "wrong")
    assert bench.isolation == {"read_only_files": False}
    assert asked == [False, False]  # the spare one starts there too
    assert "lock file" in caplog.text
    bench.close()


def test_what_does_not_end_in_time_is_judged_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    late = WorkerLate("not in time")
    for second in (reply(RIGHT), late):
        bench = make_bench(monkeypatch, [Script([late]), Script([second]), Script([])])
        (verdict,) = judged(bench, [tasks()[0]])
        assert verdict == (Rejected("verify", "hang or crash: not in time") if second is late else RIGHT)
        bench.close()


def test_finalists_that_do_not_end_in_time_are_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be Inductor's compile that is slow."""
    bench = make_bench(monkeypatch, [Script([WorkerLate("not in time")]), Script([])])
    (verdict,) = finals_of(bench, SILU, [tasks()[0][1]])
    assert verdict == Deferred("hang or crash: not in time")
    bench.close()


def test_restarts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, [Script([WorkerLost("hang")]), Script([])])
    program = region("silu")
    judged(bench, [(program, parse_candidate(SILU_SCALAR, program))])
    assert bench.counts == {"worker restarts": 1, "compilers lost": 0}
    bench.close()


def test_a_proof_tells_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(monkeypatch, [Script([reply(measured(1.5))]), Script([])], Limits(sanitize=True))
    monkeypatch.setattr(device_bench, "find_fault", lambda *_: CheckReport(None, (("host check build", "clean"),)))
    monkeypatch.setattr(
        finals, "find_fault_on_device", lambda *_: CheckReport(None, (("compute-sanitizer", "not installed"),))
    )
    program = region("silu")
    (verdict,) = finals_of(bench, program, [parse_candidate(SILU_SCALAR, program)])
    assert isinstance(verdict, Accepted)
    assert verdict.proof.checks == (("host check build", "clean"), ("compute-sanitizer", "not installed"))
    bench.close()


def test_what_the_sanitizer_finds_is_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [Script([reply(measured(1.5))]), Script([])]
    bench = make_bench(monkeypatch, scripts, Limits(sanitize=True))
    program = region("silu")
    faulty, sound = parse_candidate(SILU_SCALAR, program), parse_candidate(SILU_SCALAR + "\n", program)
    fault = "memcheck: Invalid __global__ read"

    _, device = bench._worker_pool._lock_files.descriptors()

    def look(program: Program, candidate: Candidate, *_: object) -> CheckReport:
        assert not try_lock(device, fcntl.LOCK_EX)  # and nobody takes times beside it
        return CheckReport(fault if candidate is faulty else None, ())

    monkeypatch.setattr(finals, "find_fault_on_device", look)
    assert finals_of(bench, program, [faulty, sound]) == [Rejected("verify", fault), measured(1.5)]
    assert scripts[0].asked == ["start", "finalists"]
    assert scripts[0].alive and try_lock(device, fcntl.LOCK_EX)
    bench.close()
