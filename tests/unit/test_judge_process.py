"""The worker process from outside: clean start, deadlines, death, and a bench that survives what workers do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import cast

import pytest
import torch

from cudal1_compile.candidate import Candidate, parse_candidate
from cudal1_compile.judge import device_bench, landlock, wire, work
from cudal1_compile.judge import worker as worker_module
from cudal1_compile.judge.audit.honest import HONEST, SILU_SCALAR
from cudal1_compile.judge.audit.regions import region
from cudal1_compile.judge.isolation import worker_environment
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.memcheck import Look
from cudal1_compile.judge.process import Worker, WorkerLate, WorkerLost
from cudal1_compile.judge.trial import TrialStopped
from cudal1_compile.judge.verdict import Accepted, Deferred, Proof, Rejected, Timing, Verdict
from cudal1_compile.runtime.build import Binary, Resources
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import print_program

FAKE = """
import json, os, socket, sys, time
from cudal1_compile.judge.isolation import give_up_privileges, take_over_pipes
requests, replies = take_over_pipes()
given_up = give_up_privileges(sys.argv[1:] or None)
def refused(act):
    try:
        act()
        return ""
    except OSError as error:
        return str(error)
print("noise on standard output must not reach the protocol")
out = os.fdopen(replies, "wb")
def say(message):
    out.write(json.dumps(message).encode() + b"\\n"); out.flush()
say({"hello": 1, "given_up": given_up})
for line in os.fdopen(requests, "rb"):
    message = json.loads(line)
    match message["op"]:
        case "echo": say({"got": message, "environment": dict(os.environ), "pid": os.getpid()})
        case "write": say({"refused": refused(lambda: open(message["path"], message["mode"]))})
        case "remove": say({"refused": refused(lambda: os.remove(message["path"]))})
        case "connect": say({"refused": refused(lambda: socket.create_connection(message["to"], timeout=5))})
        case "signal": say({"refused": refused(lambda: os.kill(os.getppid(), 0))})
        case "hang": time.sleep(60)
        case "die": os._exit(9)
        case "child":
            child = os.fork()
            if child == 0:
                time.sleep(60)
            say({"child": child})
"""


@pytest.fixture()
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    (tmp_path / "fake_worker_for_tests.py").write_text(FAKE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return Worker("fake_worker_for_tests")


def test_answers_in_a_clean_environment(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "1")
    reply = worker.ask({"op": "echo", "n": 3}, 20.0)
    assert reply["got"] == {"op": "echo", "n": 3}
    assert "SECRET_OF_THE_USER" not in reply["environment"]
    assert reply["environment"]["HOME"] != os.environ.get("HOME")
    worker.kill()
    assert not worker.alive
    worker.kill()


def test_a_hang_is_killed_at_the_deadline(worker: Worker) -> None:
    worker.ask({"op": "echo"}, 20.0)
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match="in time"):
        worker.ask({"op": "hang"}, 0.3)
    assert time.monotonic() - begin < 5.0
    assert not worker.alive


def test_a_death_is_noticed_at_once(worker: Worker) -> None:
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match="died"):
        worker.ask({"op": "die"}, 20.0)
    assert time.monotonic() - begin < 15.0


def test_children_die_with_the_worker(worker: Worker) -> None:
    child = worker.ask({"op": "child"}, 20.0)["child"]
    assert Path(f"/proc/{child}").exists()
    worker.kill()
    end = time.monotonic() + 5.0
    while _running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _running(child)


LIMITED = """
import resource
from cudal1_compile.judge.isolation import lower_limit
for limit in (1 << 20, 1 << 30, 1 << 10):
    lower_limit(resource.RLIMIT_FSIZE, limit)
    print(*resource.getrlimit(resource.RLIMIT_FSIZE))
"""


def test_a_limit_is_only_ever_lowered() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert done.stdout.split() == ["1048576"] * 4 + ["1024"] * 2, done.stderr


def test_a_worker_tells_what_it_gave_up(worker: Worker) -> None:
    worker.ask({"op": "echo"}, 20.0)
    assert set(worker.given_up) == {"dies_with_parent", "no_network", "read_only_files"}
    assert worker.given_up["dies_with_parent"]
    assert worker.given_up["read_only_files"] == (landlock.version() > 0)
    worker.kill()


@pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")
def test_files_can_be_read_and_written_in_its_own_folder_only(worker: Worker, tmp_path: Path) -> None:
    other = tmp_path / "of the user"
    other.write_text("kept")

    def refused(op: str, path: Path | str, mode: str = "r") -> str:
        return str(worker.ask({"op": op, "path": str(path), "mode": mode}, 20.0)["refused"])

    home = Path(worker.ask({"op": "echo"}, 20.0)["environment"]["HOME"])
    assert not refused("write", home / "own", "w")
    assert not refused("remove", home / "own")
    assert not refused("write", other)
    assert not refused("write", "/dev/null", "w")
    assert "denied" in refused("write", other, "a")
    assert "denied" in refused("write", other, "r+")
    assert "denied" in refused("write", tmp_path / "new", "w")
    assert "denied" in refused("remove", other)
    assert other.read_text() == "kept"
    worker.kill()


def test_without_the_limit_files_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one above fails where the limit is not there."""
    (tmp_path / "fake_worker_for_tests.py").write_text(FAKE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    free = Worker("fake_worker_for_tests", read_only=False)
    assert not free.ask({"op": "write", "path": str(tmp_path / "new"), "mode": "w"}, 20.0)["refused"]
    assert not free.given_up["read_only_files"]
    free.kill()


def test_no_connection_leaves_a_worker_that_says_so(worker: Worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reply = worker.ask({"op": "connect", "to": server.getsockname()}, 20.0)
    assert bool(reply["refused"]) == worker.given_up["no_network"]
    worker.kill()


@pytest.mark.skipif(landlock.version() < 6, reason="the kernel's Landlock knows no signals")
def test_a_worker_cannot_signal_its_parent(worker: Worker) -> None:
    assert "not permitted" in worker.ask({"op": "signal"}, 20.0)["refused"]
    worker.kill()


ORDINARY = """
import ctypes, os
from cudal1_compile.judge.isolation import give_up_privileges
os.setgid(12345)
os.setuid(12345)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable, as a process that was never root
if os.fork() == 0:
    os._exit(ctypes.CDLL(None).unshare(0x10000000 | 0x40000000) == 0)
possible = os.wait()[1] != 0
print(give_up_privileges()["no_network"] == possible, os.getuid())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become an ordinary user")
def test_an_ordinary_user_loses_the_network_too_where_that_is_possible(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ORDINARY], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "12345"], done.stderr


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_paths_of_a_worker_are_absolute(tmp_path: Path) -> None:
    environment = worker_environment(tmp_path)
    assert all(os.path.isabs(path) for path in environment["PYTHONPATH"].split(os.pathsep))
    assert environment["HOME"] == str(tmp_path)


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


class _Script:
    """A worker that answers from a script; an exception in it is raised."""

    def __init__(self, answers: list[wire.Message | WorkerLost]) -> None:
        self.answers = answers
        self.alive = True
        self.given_up = {"no_network": True}
        self.device = -1
        self.turns: tuple[int, ...] = ()
        self.asked: list[str] = []
        self.sent: list[wire.Message] = []

    def send(self, message: wire.Message) -> None:
        self.sent.append(message)

    def receive(self, limit_s: float) -> wire.Message:
        return self.ask(self.sent.pop(0), limit_s)

    def stop(self) -> None:
        """It does nothing that could be stopped."""

    def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
        self.asked.append(message["op"])
        if message["op"] == "start":
            self.device = message["device"]
            return {"ready": True}
        answer = self.answers.pop(0)
        if isinstance(answer, WorkerLost):
            self.alive = False
            raise answer
        return answer

    def kill(self) -> None:
        self.alive = False


def _bench(
    monkeypatch: pytest.MonkeyPatch, scripts: list[_Script], limits: Limits | None = None
) -> device_bench.DeviceBench:
    binary = Binary("cuda", "sm_90a", b"x", {"k": Resources(16, 0, 0, 1024, "k")})
    monkeypatch.setattr(device_bench, "build", lambda *_, **__: binary)
    monkeypatch.setattr("cudal1_compile.runtime.nvrtc.library", lambda: None)
    monkeypatch.setattr(device_bench, "find_fault", lambda *_: Look(None, ()))
    monkeypatch.setattr(device_bench, "can_make_ahead", lambda _: False)  # workers are counted here
    target = Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20)
    made = iter(cast(list[Worker], scripts))
    limits = limits or Limits(build_threads=2)
    return device_bench.DeviceBench(target, limits, 0, lambda **_: next(made))


def _measured(speedup: float, seed: int = 1) -> Accepted:
    timing = Timing(10.0, 10.0 * speedup, None, speedup, speedup - 0.01, 70, final=True)
    return Accepted(Proof("t", "reassociates", (), seed, timing))


def _reply(*verdicts: object, fatal: bool = False) -> wire.Message:
    return wire.verdicts_reply(list(verdicts), fatal)  # type: ignore[arg-type]


def test_a_lost_worker_rejects_its_candidate_and_a_spare_takes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Rejected("verify", "out0 is wrong")
    scripts = [_Script([WorkerLost("hang")]), _Script([_reply(wrong)]), _Script([]), _Script([])]
    bench = _bench(monkeypatch, scripts)
    program = region("silu")
    candidate = parse_candidate(SILU_SCALAR, program)
    first, second = bench.try_many([(program, candidate), (program, candidate)], 1)
    assert isinstance(first, Rejected)
    assert "hang" in first.reason
    assert second == wrong
    assert bench.counts["worker restarts"] == 1
    bench.close()
    assert not any(s.alive for s in scripts[:3])


def test_a_fatal_reply_retires_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Rejected("verify", "the kernel faulted")
    right = Rejected("verify", "another")
    scripts = [_Script([_reply(fault, fatal=True)]), _Script([_reply(right)]), _Script([])]
    bench = _bench(monkeypatch, scripts)
    program = region("silu")
    candidate = parse_candidate(SILU_SCALAR, program)
    assert bench.try_many([(program, candidate)] * 2, 1) == [fault, right]
    assert not scripts[0].alive
    bench.close()


def test_a_failure_of_the_judge_itself_is_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = _bench(
        monkeypatch, [_Script([{"failure": "Traceback\nValueError: ours", "fatal": False}]), _Script([])]
    )
    program = region("silu")
    (verdict,) = bench.try_many([(program, parse_candidate(SILU_SCALAR, program))], 1)
    assert verdict == Deferred("the judge failed: ValueError: ours")
    bench.close()


def test_baselines_are_the_workers_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is lost on the way leaves no answer, and a spare one takes the next region."""
    scripts = [
        _Script([_reply(_measured(1.6)), WorkerLost("died")]),
        _Script([_reply(_measured(0.9))]),
        _Script([]),
    ]
    bench = _bench(monkeypatch, scripts)
    assert bench.baselines(region("softmax"), 1) == _measured(1.6)
    assert isinstance(bench.baselines(region("softmax"), 1), Rejected)
    assert bench.baselines(region("softmax"), 1) == _measured(0.9)
    assert scripts[0].asked == ["start", "baselines", "baselines"]
    bench.close()


def test_a_worker_answers_for_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Session:
        spent_s: dict[str, float] = {}
        short_of_room = False

        def baselines(self, program: Program, seed: int) -> Verdict:
            asked.append((program, seed))
            if len(asked) == 2:
                raise TrialStopped("the device does not answer")
            return _measured(1.6)

    server = worker_module._Server({})
    monkeypatch.setattr(server, "_session", Session())
    line = wire.encode(wire.baselines_request(region("softmax"), 7))
    reply, is_last = server.answer(line)
    assert wire.read_verdicts(wire.decode(reply)) == [_measured(1.6)] and not is_last
    assert asked == [(region("softmax"), 7)]
    reply, is_last = server.answer(line)
    assert isinstance(wire.read_verdicts(wire.decode(reply))[0], Rejected) and is_last


def test_finalists_after_a_fault_are_tried_alone_so_that_only_the_culprit_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = Rejected("verify", "the kernel faulted")
    good = Accepted(Proof("t", "reassociates", (), 1))
    scripts = [
        _Script([_reply(fault, fault, fatal=True)]),
        _Script([_reply(fault, fatal=True)]),
        _Script([_reply(good), _reply(good)]),
        _Script([]),
    ]
    bench = _bench(monkeypatch, scripts)
    program = region("silu")
    candidate = parse_candidate(SILU_SCALAR, program)
    assert bench.try_finalists(program, [candidate, candidate], 1) == [fault, good]
    assert scripts[2].asked == ["start", "judge", "finalists"]
    bench.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_device_a_candidate_is_deferred_and_the_reason_said(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = Binary("cuda", "sm_90a", b"x", {"k": Resources(16, 0, 0, 1024, "k")})
    monkeypatch.setattr(device_bench, "build", lambda *_, **__: binary)
    bench = device_bench.DeviceBench(Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20), Limits(), 0)
    program = region("silu")
    (verdict,) = bench.try_many([(program, parse_candidate(SILU_SCALAR, program))], 1)
    bench.close()
    assert isinstance(verdict, Deferred)
    assert "no CUDA device" in verdict.reason


def test_a_finalist_that_breaks_a_rule_falls_and_the_others_are_measured_again_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside, alone = Accepted(Proof("t", "reassociates", (), 1)), Accepted(Proof("t", "reassociates", (), 2))
    scripts = [_Script([_reply(beside, beside)]), _Script([_reply(alone)]), _Script([])]
    bench = _bench(monkeypatch, scripts)
    program = region("silu")
    faulty, sound = parse_candidate(SILU_SCALAR, program), parse_candidate(SILU_SCALAR + "\n", program)
    monkeypatch.setattr(
        device_bench,
        "find_fault",
        lambda program, candidate, *_: Look("a race in line 3" if candidate is faulty else None, ()),
    )
    assert bench.try_finalists(program, [faulty, sound], 1) == [Rejected("verify", "a race in line 3"), alone]
    assert not scripts[0].alive
    assert scripts[1].asked == ["start", "finalists"]
    bench.close()


def test_memory_checks_run_while_the_worker_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Accepted(Proof("t", "reassociates", (), 1))
    measuring = threading.Event()

    class Measuring(_Script):
        def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
            if message["op"] == "finalists":
                measuring.set()
            return super().ask(message, limit_s)

    bench = _bench(monkeypatch, [Measuring([_reply(good)]), _Script([])])
    seen: list[bool] = []

    def look(*_: object) -> Look:
        seen.append(measuring.wait(10.0))
        return Look(None, ())

    monkeypatch.setattr(device_bench, "find_fault", look)
    program = region("silu")
    assert bench.try_finalists(program, [parse_candidate(SILU_SCALAR, program)], 1) == [good]
    assert seen == [True]
    bench.close()


@pytest.mark.parametrize(
    ("again", "wanted"),
    [
        (_measured(3.8, seed=2), _measured(3.8)),  # the slower of two that agree, under the first one's seed
        (_measured(4.2, seed=2), _measured(4.0)),
        (_measured(2.0, seed=2), Rejected("time", "measured 4.00x, and 2.00x when measured again")),
        (Rejected("verify", "wrong on other data"), Rejected("verify", "wrong on other data")),
        (Deferred("busy"), Deferred("busy")),
    ],
)
def test_above_three_a_second_process_must_agree(
    again: Verdict, wanted: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = [_Script([_reply(_measured(4.0))]), _Script([_reply(again)]), _Script([])]
    bench = _bench(monkeypatch, scripts)
    program = region("silu")
    assert bench.try_finalists(program, [parse_candidate(SILU_SCALAR, program)], 1) == [wanted]
    assert not scripts[0].alive
    assert scripts[1].asked == ["start", "finalists"]
    bench.close()


def test_up_to_three_one_look_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [_Script([_reply(_measured(3.0))]), _Script([])]
    bench = _bench(monkeypatch, scripts)
    program = region("silu")
    assert bench.try_finalists(program, [parse_candidate(SILU_SCALAR, program)], 1) == [_measured(3.0)]
    assert scripts[0].alive
    bench.close()


def test_the_second_look_happens_on_another_gpu_of_the_model_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["H100", "L4", "H100"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: names[i])
    scripts = [
        _Script([_reply(_measured(4.0))]),
        _Script([_reply(_measured(4.0))]),
        _Script([_reply(_measured(2.0))]),
    ]
    bench = _bench(monkeypatch, [*scripts, _Script([])])
    program = region("silu")
    for _ in range(2):
        bench.try_finalists(program, [parse_candidate(SILU_SCALAR, program)], 1)
    assert [s.device for s in scripts] == [0, 2, 0]
    bench.close()


def test_a_worker_that_starts_only_where_it_may_write_is_let_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refused(_Script):
        def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
            return {"failure": "RuntimeError: a lock file cannot be made"}

    scripts = [Refused([]), _Script([_reply(Rejected("verify", "wrong"))]), _Script([])]
    scripts[1].given_up = {"read_only_files": False}
    bench = _bench(monkeypatch, scripts)
    spawn, asked = bench._crew._spawn, []

    def recorded(**options: bool) -> Worker:
        asked.append(options["read_only"])
        return spawn(**options)

    monkeypatch.setattr(bench._crew, "_spawn", recorded)
    program = region("silu")
    (verdict,) = bench.try_many([(program, parse_candidate(SILU_SCALAR, program))], 1)
    assert verdict == Rejected("verify", "wrong")
    assert bench.isolation == {"read_only_files": False}
    assert asked == [False, False]  # the spare one starts there too
    assert "lock file" in caplog.text
    bench.close()


def test_what_does_not_end_in_time_is_judged_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    late = WorkerLate("not in time")
    for second in (_reply(RIGHT), late):
        bench = _bench(monkeypatch, [_Script([late]), _Script([second]), _Script([])])
        (verdict,) = bench.try_many([_tasks()[0]], 1)
        assert verdict == (Rejected("verify", "hang or crash: not in time") if second is late else RIGHT)
        bench.close()


def test_finalists_that_do_not_end_in_time_are_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be Inductor's compile that is slow."""
    bench = _bench(monkeypatch, [_Script([WorkerLate("not in time")]), _Script([])])
    (verdict,) = bench.try_finalists(SILU, [_tasks()[0][1]], 1)
    assert verdict == Deferred("hang or crash: not in time")
    bench.close()


def test_restarts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = _bench(monkeypatch, [_Script([WorkerLost("hang")]), _Script([])])
    program = region("silu")
    bench.try_many([(program, parse_candidate(SILU_SCALAR, program))], 1)
    assert bench.counts == {"worker restarts": 1, "compilers lost": 0}
    bench.close()


def test_a_proof_tells_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = _bench(monkeypatch, [_Script([_reply(_measured(1.5))]), _Script([])], Limits(sanitize=True))
    monkeypatch.setattr(device_bench, "find_fault", lambda *_: Look(None, (("host check build", "clean"),)))
    monkeypatch.setattr(
        device_bench, "find_fault_on_device", lambda *_: Look(None, (("compute-sanitizer", "not installed"),))
    )
    program = region("silu")
    (verdict,) = bench.try_finalists(program, [parse_candidate(SILU_SCALAR, program)], 1)
    assert isinstance(verdict, Accepted)
    assert verdict.proof.checks == (("host check build", "clean"), ("compute-sanitizer", "not installed"))
    bench.close()


def test_what_the_sanitizer_finds_is_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [_Script([_reply(_measured(1.5))]), _Script([])]
    bench = _bench(monkeypatch, scripts, Limits(sanitize=True))
    program = region("silu")
    faulty, sound = parse_candidate(SILU_SCALAR, program), parse_candidate(SILU_SCALAR + "\n", program)
    fault = "memcheck: Invalid __global__ read"

    def look(program: Program, candidate: Candidate, *_: object) -> Look:
        return Look(fault if candidate is faulty else None, ())

    monkeypatch.setattr(device_bench, "find_fault_on_device", look)
    assert bench.try_finalists(program, [faulty, sound], 1) == [Rejected("verify", fault), _measured(1.5)]
    assert scripts[0].asked == ["start", "finalists"]
    assert scripts[0].alive
    bench.close()


# several workers


class _Lane(_Script):
    """Says how much room there is, and answers each region as its table tells; the last answer stays."""

    def __init__(self, answers: dict[str, list[wire.Message | WorkerLost]], free_bytes: int = 1 << 40) -> None:
        super().__init__([])
        self.table, self.free_bytes = answers, free_bytes

    def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
        if message["op"] == "room":
            return {"free_bytes": self.free_bytes}
        if message["op"] == "judge":
            answers = self.table[message["program"]]
            self.answers = [answers.pop(0) if len(answers) > 1 else answers[0]]
        return super().ask(message, limit_s)


SILU, SOFTMAX = region("silu"), region("softmax")
WRONG, RIGHT = Rejected("verify", "out0 is wrong"), Rejected("time", "slow")


def _tasks() -> list[tuple[Program, Candidate]]:
    codes = [next(h.code for h in HONEST if h.region == name) for name in ("silu", "softmax")]
    return [(p, parse_candidate(codes[p is SOFTMAX], p)) for p in (SILU, SOFTMAX, SOFTMAX)]


def _beside_and_alone(
    monkeypatch: pytest.MonkeyPatch, beside: wire.Message | WorkerLost, free_bytes: int = 1 << 40
) -> tuple[device_bench.DeviceBench, list[Verdict]]:
    """Two workers; the softmax region's first answer is `beside`."""
    table = {print_program(SILU): [_reply(WRONG)], print_program(SOFTMAX): [beside, _reply(RIGHT)]}
    scripts = cast(list[_Script], [_Lane(table, free_bytes) for _ in range(6)])
    bench = _bench(monkeypatch, scripts, Limits(build_threads=2, workers=2))
    return bench, bench.try_many(_tasks(), 1)


def test_several_workers_answer_in_the_order_of_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, verdicts = _beside_and_alone(monkeypatch, _reply(RIGHT))
    assert verdicts == [WRONG, RIGHT, RIGHT]
    assert bench.counts["worker restarts"] == 0
    bench.close()
    assert bench.workers == 0


def test_a_short_device_gets_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    two = 2 * (Limits(workers=2).worker_bytes + device_bench.CONTEXT_BYTES)
    bench, verdicts = _beside_and_alone(monkeypatch, _reply(RIGHT), free_bytes=two - (3 << 30))
    assert verdicts == [WRONG, RIGHT, RIGHT]
    assert bench.workers == 1
    bench.close()


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_others_may_have_caused_is_judged_again_alone(restarts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    full = _reply(Deferred("no room")) | {"short_of_room": True}
    bench, verdicts = _beside_and_alone(monkeypatch, WorkerLate("in time") if restarts else full)
    assert verdicts == [WRONG, RIGHT, RIGHT]
    assert bench.counts["worker restarts"] == restarts
    assert not any(lane.up for lane in bench._others)
    bench.close()


def test_finalists_get_the_room_that_idle_workers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = _beside_and_alone(monkeypatch, _reply(RIGHT))
    for lane in bench._others:  # which may not have been needed above
        bench._others[lane].submit(lane.start).result()
    full, good = _reply(Deferred("no room")) | {"short_of_room": True}, _measured(1.5)
    first = cast(_Lane, bench._first.start())
    first.answers = [full, _reply(good)]
    assert bench.try_finalists(SILU, [_tasks()[0][1]], 1) == [good]
    assert first.alive and bench.workers == 1
    bench.close()


def test_a_crash_is_never_anothers_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, verdicts = _beside_and_alone(monkeypatch, WorkerLost("died"))
    assert verdicts == [WRONG, Rejected("verify", "hang or crash: died"), RIGHT]
    bench.close()


def test_the_next_request_lies_ready_while_a_worker_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(_Lane):
        most = 0

        def receive(self, limit_s: float) -> wire.Message:
            self.most = max(self.most, len(self.sent))
            return super().receive(limit_s)

    scripts = [Busy({print_program(SILU): [_reply(WRONG), _reply(RIGHT)]}), _Script([])]
    bench = _bench(monkeypatch, cast(list[_Script], scripts))
    tasks = [(SILU, parse_candidate(SILU_SCALAR, SILU))] * 3
    assert bench.try_many(tasks, 1) == [WRONG, RIGHT, RIGHT]
    assert cast(Busy, scripts[0]).most == 2 and not scripts[0].sent
    bench.close()


def test_the_next_programs_first_request_lies_ready_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(_Lane):
        ready: list[int] = []

        def receive(self, limit_s: float) -> wire.Message:
            self.ready.append(len(self.sent))
            return super().receive(limit_s)

    monkeypatch.setattr(work.Task, "request_if_built", work.Task.request)  # builds are no matter of luck
    answers = {print_program(SILU): [_reply(WRONG)], print_program(SOFTMAX): [_reply(RIGHT)]}
    scripts = cast(list[_Script], [Busy(answers), _Script([])])
    bench = _bench(monkeypatch, scripts, Limits(build_threads=2, workers=1))
    assert bench.try_many(_tasks(), 1) == [WRONG, RIGHT, RIGHT]
    assert Busy.ready == [2, 2, 1]
    bench.close()


def test_a_request_that_was_sent_ahead_of_a_fault_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Rejected("verify", "the kernel faulted")
    scripts = [
        _Lane({print_program(SILU): [_reply(fault, fatal=True)]}),
        _Lane({print_program(SILU): [_reply(RIGHT)]}),
        _Script([]),
    ]
    bench = _bench(monkeypatch, cast(list[_Script], scripts))
    assert bench.try_many([(SILU, parse_candidate(SILU_SCALAR, SILU))] * 2, 1) == [fault, RIGHT]
    bench.close()


def test_requests_larger_than_a_pipe_go_while_a_reply_is_waited_for(worker: Worker) -> None:
    for n in range(2):
        worker.send({"op": "echo", "n": n, "padding": "x" * (1 << 20)})
    assert [worker.receive(20.0)["got"]["n"] for _ in range(2)] == [0, 1]
    worker.send({"op": "hang"})
    worker.send({"op": "echo", "padding": "x" * (1 << 20)})
    with pytest.raises(WorkerLate, match="in time"):
        worker.receive(0.3)
    assert not worker.alive


def test_an_interrupt_leaves_no_answer_for_another_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(_Script):
        def receive(self, limit_s: float) -> wire.Message:
            raise KeyboardInterrupt

    scripts = [Interrupted([]), _Script([_reply(RIGHT)]), _Script([])]
    bench = _bench(monkeypatch, scripts)
    with pytest.raises(KeyboardInterrupt):
        bench.try_many(_tasks()[:1], 1)
    assert bench.try_many(_tasks()[:1], 1) == [RIGHT]
    assert not scripts[0].alive
    bench.close()
