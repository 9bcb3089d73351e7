"""Test doubles of the judge's workers: one that answers from a script, one that answers by region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import cast

import pytest

from benchmarks.redteam.honest import HONEST
from benchmarks.redteam.regions import region
from cudal1_compile.judge.bench import device as device_bench
from cudal1_compile.judge.bench import worker_pool as pool
from cudal1_compile.judge.checks.memcheck import CheckReport
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.sandbox.process import Worker, WorkerLost
from cudal1_compile.judge.verdict import Accepted, Proof, Rejected, Timing, Verdict
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime.build import Binary, Resources
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program


class Script:
    """A worker that answers from a script; an exception in it is raised."""

    def __init__(self, answers: list[wire.Message | WorkerLost]) -> None:
        self.answers = answers
        self.alive = True
        self.given_up = {"no_network": True}
        self.device = -1
        self.lock_descriptors: tuple[int, ...] = ()
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


def make_bench(
    monkeypatch: pytest.MonkeyPatch, scripts: list[Script], limits: Limits | None = None
) -> device_bench.DeviceBench:
    binary = Binary("cuda", "sm_90a", b"x", {"k": Resources(16, 0, 0, 1024, "k")})
    monkeypatch.setattr(device_bench, "build", lambda *_, **__: binary)
    monkeypatch.setattr("cudal1_compile.runtime.nvrtc.library", lambda: None)
    monkeypatch.setattr(device_bench, "find_fault", lambda *_: CheckReport(None, ()))
    monkeypatch.setattr(device_bench, "can_make_ahead", lambda _: False)  # workers are counted here
    monkeypatch.setattr(pool.Slot, "why_not", lambda slot: None)  # scripts hold no known-good kernel
    target = Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20)
    made = iter(cast(list[Worker], scripts))
    limits = limits or Limits(build_threads=2)
    return device_bench.DeviceBench(target, limits, 0, lambda **_: next(made))


class AtOnce:
    """A thread pool whose work is done when it is submitted."""

    def __init__(self, *_: object) -> None:
        """Of any size."""

    def submit(self, work: Callable[..., object], *arguments: object) -> Future[object]:
        done: Future[object] = Future()
        done.set_result(work(*arguments))
        return done

    def shutdown(self, cancel_futures: bool) -> None:
        """Nothing is under way."""


def judged(bench: device_bench.DeviceBench, tasks: Sequence[tuple[Program, Candidate]]) -> list[Verdict]:
    return [future.result(30.0) for future in bench.submit(tasks, 1)]


def finals_of(bench: device_bench.DeviceBench, program: Program, candidates: Sequence[Candidate]) -> list[Verdict]:
    return [future.result(30.0) for future in bench.submit_finalists(program, candidates, 1)]


def pin_finals(bench: device_bench.DeviceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is anyone's, or was some slot's before, goes to the first slot."""
    bench._work.homes.clear()
    send = bench._work.send
    monkeypatch.setattr(bench._work, "send", lambda slot, *what: send(slot or bench._slots.first, *what))


def measured(speedup: float, seed: int = 1) -> Accepted:
    timing = Timing(10.0, 10.0 * speedup, None, speedup, speedup - 0.01, 70, final=True)
    return Accepted(Proof("t", "reassociates", (), seed, timing))


def reply(*verdicts: object, fatal: bool = False) -> wire.Message:
    return wire.verdicts_reply(list(verdicts), fatal)  # type: ignore[arg-type]


class Slot(Script):
    """Says how much room there is, and answers each region as its table tells; the last answer stays."""

    def __init__(self, answers: dict[str, list[wire.Message | WorkerLost]], free_bytes: int = 1 << 40) -> None:
        super().__init__([])
        self.table, self.free_bytes = answers, free_bytes

    def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
        if message["op"] == "room":
            return {"free_bytes": self.free_bytes}
        if message["op"] == "clear":
            self.asked.append("clear")
            return {}
        if message["op"] == "judge":
            answers = self.table[message["program"]]
            self.answers = [answers.pop(0) if len(answers) > 1 else answers[0]]
        return super().ask(message, limit_s)


SILU, SOFTMAX = region("silu"), region("softmax")
WRONG, RIGHT = Rejected("verify", "out0 is wrong"), Rejected("time", "slow")


def tasks() -> list[tuple[Program, Candidate]]:
    """One of SILU, two of SOFTMAX."""
    codes = [next(h.code for h in HONEST if h.region == name) for name in ("silu", "softmax")]
    return [(p, parse_candidate(codes[p is SOFTMAX], p)) for p in (SILU, SOFTMAX, SOFTMAX)]
