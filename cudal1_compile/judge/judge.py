"""The judge: candidates in, verdicts out. The one door of this folder.

    code -> text gate -> launch plan -> bench: builds, then the host's child processes or a device's worker

    with Judge(target) as judge:
        verdict = judge.judge(program, code)
        verdicts = judge.finalists(program, codes)
        futures = judge.submit([(program, code), ...])    # the same without waiting

Synthesis measures first: submit_baselines(program) -> submit_quick([(program, code), ...]) -> submit_exam(program,
code) for what would win, which passes every gate of both of the above.

All that is submitted goes on side by side, as the target's bench can: builds of what comes later, candidates of
several programs, finalists of others. Seeds are secret: drawn when the judge is made, written into proofs only.
The process that owns a judge never runs an unproven kernel. A candidate that appears twice in one request is
judged once.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Event
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

from cudal1_compile.judge.bench.host import HostBench
from cudal1_compile.judge.inputs.sizes import product_bytes, tensor_bytes
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.static.text_gate import RefusedText, check_text
from cudal1_compile.judge.verdict import Rejected, Verdict
from cudal1_compile.kernel.candidate import Candidate, CandidateError, parse_candidate
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

MIN_SCRATCH_LIMIT = 16 << 20  # bytes
SCRATCH_FACTOR = 2  # of the bytes of all inputs and outputs, and of the products between them
GROWTH = 64  # of symbolic sizes: scratch may not grow faster than the tensors


Submit = Callable[[Sequence[tuple[Program, Candidate]], int], list[Future[Verdict]]]


class Bench(Protocol):
    """Where candidates whose text is in order are built and tried."""

    @property
    def spent_s(self) -> defaultdict[str, float]: ...  # seconds by step

    @property
    def counts(self) -> dict[str, int]: ...

    @property
    def isolation(self) -> dict[str, bool]: ...

    @property
    def workers(self) -> int: ...

    def expect(self, programs: Sequence[Program]) -> None: ...

    def submit(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Future[Verdict]]: ...

    def submit_quick(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Future[Verdict]]: ...

    def submit_exam(self, program: Program, candidate: Candidate, seed: int, is_sure: bool) -> Future[Verdict]: ...

    def submit_finalists(
        self, program: Program, candidates: Sequence[Candidate], seed: int
    ) -> list[Future[Verdict]]: ...

    def submit_baselines(self, program: Program, seed: int, inductor: bool) -> Future[Verdict]: ...

    def trouble(self) -> str | None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


class Judge:
    """Judges candidates for one target. Close it, or use it in a with statement: it owns processes."""

    def __init__(self, target: Target, limits: Limits | None = None, seed: int | None = None) -> None:
        """seed: for tests only; otherwise secret. Raises BuildError where candidates cannot be built here."""
        self.target = target
        self.limits = limits or Limits()
        self._seed = secrets.randbits(48) if seed is None else seed
        self._bench: Bench = _bench(target, self.limits)
        self._rung = Event()  # one of these is done
        self._heard: WeakSet[Future[Verdict]] = WeakSet()

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._bench.close()

    @property
    def spent_s(self) -> dict[str, float]:
        """Seconds by step since the judge began, of all workers together, for whoever looks for its bottleneck."""
        return dict(self._bench.spent_s)

    @property
    def counts(self) -> dict[str, int]:
        """What candidates broke since the judge began, by name: workers, compilers, runs on the host."""
        return self._bench.counts

    @property
    def isolation(self) -> dict[str, bool]:
        """Which limits the kernel let the candidates' processes have, by name; empty before there was one."""
        return self._bench.isolation

    @property
    def workers(self) -> int:
        """Processes that have the device now and judge at once; 1 on the host target."""
        return self._bench.workers

    def trouble(self) -> str | None:
        """Why this machine cannot judge now, told by a known-good kernel in 0.1 s; None where it can."""
        return self._bench.trouble()

    def expect(self, programs: Sequence[Program]) -> None:
        """Says whose candidates come next: baselines are compiled ahead. Replaces what was said before."""
        self._bench.expect(programs)

    def wake(self) -> None:
        """Something will be submitted soon: the workers take the device meanwhile."""
        self._bench.wake()

    def judge(self, program: Program, code: str) -> Verdict:
        """Gates 1 to 5 and a quick timing; on the host target the cost."""
        return self.judge_tasks([(program, code)])[0]

    def judge_many(self, program: Program, codes: Sequence[str]) -> list[Verdict]:
        """`judge` for several candidates of one region; builds run in parallel."""
        return self.judge_tasks([(program, code) for code in codes])

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        """`judge` for many regions at once. Keep a region's candidates together: its case suite is made once."""
        return _wait_for(self.submit(tasks))

    def time_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        """`submit_quick` for many regions at once: Timed, or refused."""
        return _wait_for(self.submit_quick(tasks))

    def examine_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        """`submit_exam` for candidates that were timed, side by side."""
        return _wait_for([self.submit_exam(program, code, is_sure=True) for program, code in tasks])

    def finalists(self, program: Program, codes: Sequence[str]) -> list[Verdict]:
        """Gates 5 to 8 on fresh data, all candidates measured together."""
        return _wait_for(self.submit_finalists(program, codes))

    def baselines(self, program: Program, inductor: bool = True) -> Verdict:
        """aten as the candidate against Inductor, and the physical floor. Rejected: there is no answer."""
        (verdict,) = _wait_for([self.submit_baselines(program, inductor)])
        return verdict

    # without waiting; a future that is cancelled before its turn costs nothing more

    def submit(self, tasks: Sequence[tuple[Program, str]]) -> list[Future[Verdict]]:
        """`judge_tasks`. What comes first is built first, and judged first where nothing else is ready earlier."""
        return self._submit(tasks, self._bench.submit)

    def submit_quick(self, tasks: Sequence[tuple[Program, str]]) -> list[Future[Verdict]]:
        """Timed before anything is proven (on the host target: a cost), or refused for what is grossly wrong."""
        return self._submit(tasks, self._bench.submit_quick)

    def submit_exam(self, program: Program, code: str, is_sure: bool = False) -> Future[Verdict]:
        """Every gate of `judge` and of `finalists`. Timed: a closer look showed that it cannot win.

        is_sure: its quick time has shown that it is faster; no closer look is taken first.
        """
        found = _read(program, code)
        if isinstance(found, Rejected):
            return _decided(found)
        return self._bench.submit_exam(program, found, self._seed, is_sure)

    def _submit(self, tasks: Sequence[tuple[Program, str]], submit: Submit) -> list[Future[Verdict]]:
        begin = time.monotonic()
        checked = [_read(program, code) for program, code in tasks]
        self._bench.spent_s["text"] += time.monotonic() - begin
        unique: dict[tuple[str, str], tuple[Program, Candidate]] = {}
        for (program, _), found in zip(tasks, checked, strict=True):
            if isinstance(found, Candidate):
                unique.setdefault((print_program(program), found.digest), (program, found))
        futures = dict(zip(unique, submit(list(unique.values()), self._seed), strict=True))
        return [
            _decided(found) if isinstance(found, Rejected) else futures[print_program(program), found.digest]
            for (program, _), found in zip(tasks, checked, strict=True)
        ]

    def submit_finalists(self, program: Program, codes: Sequence[str]) -> list[Future[Verdict]]:
        """`finalists`, beside candidates of other regions where the device has several workers."""
        checked = [_read(program, code) for code in codes]
        ready = [c for c in checked if isinstance(c, Candidate)]
        futures = iter(self._bench.submit_finalists(program, ready, self._seed) if ready else ())
        return [next(futures) if isinstance(c, Candidate) else _decided(c) for c in checked]

    def submit_baselines(self, program: Program, inductor: bool = True) -> Future[Verdict]:
        """`baselines`."""
        return self._bench.submit_baselines(program, self._seed, inductor)

    def wait(self, futures: Sequence[Future[Verdict]], limit_s: float) -> None:
        """Until one of them is done.

        Not by concurrent.futures.wait: an interrupt in it can leave futures locked for ever.
        """
        for future in futures:
            if future not in self._heard:
                self._heard.add(future)
                future.add_done_callback(lambda _: self._rung.set())
        end = time.monotonic() + limit_s
        while not any(f.done() for f in futures) and (left_s := end - time.monotonic()) > 0:
            self._rung.wait(left_s)
            self._rung.clear()


def _wait_for(futures: Sequence[Future[Verdict]]) -> list[Verdict]:
    """What else is under way is given up where one of them raises, or an interrupt comes."""
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _decided(verdict: Verdict) -> Future[Verdict]:
    found: Future[Verdict] = Future()
    found.set_result(verdict)
    return found


def _read(program: Program, code: str) -> Candidate | Rejected:
    """Gate 1 and the launch plan."""
    text = check_text(code)
    if isinstance(text, RefusedText):
        return Rejected("text", text.reason)
    try:
        candidate = parse_candidate(text.code, program)
        return _asks_too_much(program, candidate) or candidate
    except CandidateError as error:  # also of scratch where symbolic sizes are larger
        return Rejected("text", str(error))


def _asks_too_much(program: Program, candidate: Candidate) -> Rejected | None:
    for times in (1, GROWTH) if candidate.scratch else ():
        larger = replace(
            program, axes=tuple(replace(a, size=a.size * times) if a.symbolic else a for a in program.axes)
        )
        asked = sum(s.size_bytes({a.name: a.size for a in larger.axes}) for s in candidate.scratch)
        allowed = max(MIN_SCRATCH_LIMIT, SCRATCH_FACTOR * (tensor_bytes(larger) + product_bytes(larger)))
        if asked > allowed:
            where = "for this region" if times == 1 else f"where symbolic sizes are {times} times as large"
            return Rejected("text", f"{asked} bytes of scratch, at most {allowed} are allowed {where}")
    return None


def _bench(target: Target, limits: Limits) -> Bench:
    if target.kind == "host":
        return HostBench(target, limits)
    from cudal1_compile.judge.bench.device import DeviceBench  # only where a GPU is asked for

    return DeviceBench(target, limits)
