"""Test doubles for synthesis: a generator that replies from a script, a judge that reads its verdict off a name.

A kernel called `good_130` is right and 1.30 times as fast, `wrong_7` differs in an element at once, `slow_80` is
right and slower, `unsure_1` is deferred, `lucky_150` loses in its examination, `fake_200` is refused there,
`late_150` is deferred there. Where a `vain_1` is judged, nothing of its region can be verified.
aten runs every region 1.6 times as fast as Inductor, at half of its floor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch

from cudal1_compile.judge.verdict import Accepted, Deferred, HostCost, Proof, Rejected, Timed, Timing, Verdict
from cudal1_compile.kernel.candidate import CandidateError, Reply, parse_candidate, print_reply
from cudal1_compile.runtime.target import HOST, Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

GPU = Target("cuda", "Test GPU", "sm_90a", 132, 232448, 50 << 20)
Script = Callable[[int, Sequence[str], int], list[list[str]]]
_Job = tuple[list[Future[Verdict]], Callable[[], list[Verdict]]]


def program(rows: int = 32) -> Program:
    text = (
        f"region v1\ndims d0={rows} d1=64\nin0 f32[d0,d1]\nt0 f32[d0] = amax(in0) over d1\n"
        "t1 f32[d0,d1] = sub(in0, t0)\nout0 f32[d0,d1] = t1\n"
    )
    return parse_program(text)


def kernel(name: str) -> str:
    return (
        f"// launch: {name}<<<1, 32>>>(in0, out0)\n"
        f"__global__ void {name}(const f32* in0, f32* out0 DIMS) {{\n"
        "    for (int i = threadIdx.x; i < d0 * d1; i += 32) st(out0 + i, relu(ld(in0 + i)));\n}\n"
    )


def reply(name: str) -> str:
    return print_reply(Reply(f"analysis of {name}", "one warp", kernel(name)))


class ScriptedGenerator:
    """Calls script(call number, prompts, n); keeps the prompts."""

    name = "teacher:scripted"

    def __init__(self, script: Script | Sequence[Sequence[str]], budget_tokens: int = 4096) -> None:
        self.script = script
        self.budget_tokens = budget_tokens
        self.calls: list[tuple[list[str], int, int]] = []

    @property
    def prompts(self) -> list[str]:
        return [p for prompts, _, _ in self.calls for p in prompts]

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        self.calls.append((list(prompts), n, seed))
        call = len(self.calls) - 1
        if callable(self.script):
            return self.script(call, prompts, n)
        names = self.script[min(call, len(self.script) - 1)]
        return [[reply(name) for name in names][:n] for _ in prompts]


class ScriptedJudge:
    def __init__(self, target: Target = GPU) -> None:
        self.target = target
        self.workers = 1
        self.judged: list[str] = []
        self.examined: list[str] = []
        self.expected: list[int] = []  # regions of each call
        self.before: Callable[[str], None] = lambda name: None
        self._urgent: list[_Job] = []
        self._waiting: list[_Job] = []
        self.why: str | None = None  # it cannot judge
        self.compared: list[
            tuple[int, bool]
        ] = []  # rows of the regions whose baselines were asked for; Inductor's?
        self.baseline: Verdict = Rejected("time", "no clock")
        if target.kind == "cuda":
            timing = Timing(10.0, 10.0, 16.0, 1.6, 1.58, 70, final=True, floor_us=5.0, floor_share=0.49)
            self.baseline = Accepted(Proof(target.key, "exact", (), 1, timing, None, (("torch", "test"),)))

    def expect(self, programs: Sequence[Program]) -> None:
        self.expected.append(len(programs))

    def go_on(self) -> None:
        """As a judge does by itself: does what is urgent."""
        while self._urgent:
            answers, work = self._urgent.pop(0)
            for future, verdict in zip(answers, work(), strict=True):
                future.set_result(verdict)

    def trouble(self) -> str | None:
        return self.why

    # one thing after the other, each when it is waited for: examinations and baselines first

    def submit_quick(self, tasks: Sequence[tuple[Program, str]]) -> list[Future[Verdict]]:
        jobs: list[_Job] = [([Future()], lambda task=task: self.judge_tasks([task])) for task in tasks]  # type: ignore[misc]
        self._waiting += jobs
        return [future for (future,), _ in jobs]

    def submit_exam(self, program: Program, code: str, is_sure: bool) -> Future[Verdict]:
        future: Future[Verdict] = Future()
        self._urgent.append(([future], lambda: [self.examine(program, code)]))
        return future

    def submit_baselines(self, program: Program, inductor: bool) -> Future[Verdict]:
        future: Future[Verdict] = Future()
        self._urgent.append(([future], lambda: [self.baselines(program, inductor)]))
        return future

    def wait(self, futures: Sequence[Future[Verdict]], limit_s: float) -> None:
        while not any(f.done() for f in futures):
            answers, work = (self._urgent or self._waiting).pop(0)
            if any(f.cancelled() for f in answers):
                continue
            try:
                for future, verdict in zip(answers, work(), strict=True):
                    future.set_result(verdict)
            except (RuntimeError, ValueError) as error:
                for future in answers:
                    future.set_exception(error)

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        return [self._judge(p, code) for p, code in tasks]

    def examine(self, program: Program, code: str) -> Verdict:
        name = _name(code)
        self.examined.append(name)
        kind, value = name.split("_")
        if kind == "fake":
            return Rejected("verify", "replayed in a CUDA graph with new inputs: out0 differs")
        if kind == "late":
            return Deferred("the times vary too much")
        if kind == "vain":
            return Rejected("task", "out0 cannot be told from a constant")
        return Accepted(self._proof(0.97 if kind == "lucky" else int(value) / 100))

    def baselines(self, program: Program, inductor: bool) -> Verdict:
        self.compared.append((program.axes[0].size, inductor))
        return self.baseline

    def _judge(self, program: Program, code: str) -> Verdict:
        try:
            parse_candidate(code, program)
        except CandidateError as error:
            return Rejected("text", str(error))
        name = _name(code)
        self.before(name)
        self.judged.append(name)
        kind, value = name.split("_")
        if kind == "wrong":
            return Rejected("verify", f"out0 differs by {value}.0 at d0=3, d1=5")
        if kind == "unsure":
            return Deferred("the device is busy")
        return Timed(*self._measured(1.5 if kind == "vain" else int(value) / 100, final=False))

    def _proof(self, value: float) -> Proof:
        errors = (("normal", 0.1),)
        versions = (("torch", str(torch.__version__)),)
        return Proof(self.target.key, "exact", errors, 1, *self._measured(value, final=True), versions)

    def _measured(self, value: float, final: bool) -> tuple[Timing | None, HostCost | None]:
        if self.target.kind == "host":
            return None, HostCost(1000.0 / value, 1000.0)
        inductor = 10.0 * 1.1 if final else None
        return Timing(10.0 / value, 10.0, inductor, value, value - 0.02, 30, final, value + 0.02), None


def host_judge() -> ScriptedJudge:
    return ScriptedJudge(HOST)


def _name(code: str) -> str:
    found = re.search(r"launch: (\w+)<<<", code)
    assert found is not None
    return found[1]
