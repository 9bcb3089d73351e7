"""The judge: candidates in, verdicts out. The one door of this folder.

    code -> text gate -> launch plan -> bench: builds, then the host's child processes or a device's worker

    with Judge(target) as judge:
        verdict = judge.judge(program, code)
        verdicts = judge.finalists(program, codes)

Seeds are secret: drawn when the judge is made, written into proofs only. The process that owns a judge never
runs an unproven kernel. A candidate that appears twice in one request is judged once.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Protocol

from cudal1_compile.candidate import Candidate, parse_candidate
from cudal1_compile.errors import CandidateError
from cudal1_compile.judge.host_bench import HostBench
from cudal1_compile.judge.kept import foreign_rounding, rounds_literals, twin
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sizes import counts_in_floats, tensor_bytes
from cudal1_compile.judge.textgate import RefusedText, check_text
from cudal1_compile.judge.verdict import Accepted, Rejected, Verdict
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import print_program

MIN_SCRATCH_LIMIT = 16 << 20  # bytes
SCRATCH_FACTOR = 2  # of the bytes of all inputs and outputs
LIBRARY_KINDS = (Kind.REDUCE, Kind.SCAN, Kind.DOT)  # of operations that aten has library code for
GROWTH = 64  # of symbolic sizes: scratch may not grow faster than the tensors


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

    def try_many(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Verdict]: ...

    def try_finalists(
        self, tasks: Sequence[tuple[Program, Sequence[Candidate]]], seed: int
    ) -> list[list[Verdict]]: ...

    def baselines(self, program: Program, seed: int) -> Verdict: ...

    def close(self) -> None: ...


class Judge:
    """Judges candidates for one target. Close it, or use it in a with statement: it owns processes."""

    def __init__(self, target: Target, limits: Limits | None = None, seed: int | None = None) -> None:
        """seed: for tests only; otherwise secret. Raises BuildError where candidates cannot be built here."""
        self.target = target
        self.limits = limits or Limits()
        self._seed = secrets.randbits(48) if seed is None else seed
        self._bench: Bench = _bench(target, self.limits)

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

    def expect(self, programs: Sequence[Program]) -> None:
        """Says whose candidates come next: baselines are compiled ahead. Replaces what was said before."""
        self._bench.expect(programs)

    def judge(self, program: Program, code: str) -> Verdict:
        """Gates 1 to 5 and a quick timing; on the host target the cost."""
        return self.judge_tasks([(program, code)])[0]

    def judge_many(self, program: Program, codes: Sequence[str]) -> list[Verdict]:
        """`judge` for several candidates of one region; builds run in parallel."""
        return self.judge_tasks([(program, code) for code in codes])

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        """`judge` for many regions at once. Keep a region's candidates together: its exam is made once."""
        begin = time.monotonic()
        checked = [_read(program, code) for program, code in tasks]
        self._bench.spent_s["text"] += time.monotonic() - begin
        unique: dict[tuple[str, str], tuple[Program, Candidate]] = {}
        for (program, _), found in zip(tasks, checked, strict=True):
            if isinstance(found, Candidate):
                unique.setdefault((print_program(program), found.digest), (program, found))
        verdicts = dict(zip(unique, self._try_many(list(unique.values())), strict=True))
        return [
            found if isinstance(found, Rejected) else verdicts[print_program(program), found.digest]
            for (program, _), found in zip(tasks, checked, strict=True)
        ]

    def finalists(self, program: Program, codes: Sequence[str]) -> list[Verdict]:
        """Gates 5 to 8 on fresh data, all candidates measured together."""
        return self.finalists_of([(program, codes)])[0]

    def finalists_of(self, tasks: Sequence[tuple[Program, Sequence[str]]]) -> list[list[Verdict]]:
        """`finalists` of several programs: built and checked side by side, measured in turn."""
        checked = [[_read(program, code) for code in codes] for program, codes in tasks]
        ready = [(p, c) for (p, _), cs in zip(tasks, checked, strict=True) for c in cs if isinstance(c, Candidate)]
        refused = iter(self._try_twins(ready))
        exact = [[next(refused) if isinstance(c, Candidate) else c for c in cs] for cs in checked]
        sound = [
            [c for c, no in zip(cs, nos, strict=True) if no is None and isinstance(c, Candidate)]
            for cs, nos in zip(checked, exact, strict=True)
        ]
        heats = [(p, cs) for (p, _), cs in zip(tasks, sound, strict=True) if cs]
        found = iter(
            _ruled(p, c, v)
            for (p, cs), verdicts in zip(heats, self._bench.try_finalists(heats, self._seed), strict=True)
            for c, v in zip(cs, verdicts, strict=True)
        )
        return [[no or next(found) for no in nos] for nos in exact]

    def _try_many(self, tasks: Sequence[tuple[Program, Candidate]]) -> list[Verdict]:
        refused = self._try_twins(tasks)
        sound = [task for task, found in zip(tasks, refused, strict=True) if found is None]
        verdicts = iter(self._bench.try_many(sound, self._seed))
        return [found or _ruled(*task, next(verdicts)) for task, found in zip(tasks, refused, strict=True)]

    def _try_twins(self, tasks: Sequence[tuple[Program, Candidate]]) -> list[Verdict | None]:
        """Of candidates that round: why they are not right without it, else None. Speed is not asked for."""
        twins = [twin(program, candidate) for program, candidate in tasks]
        asked = [(program, other) for (program, _), other in zip(tasks, twins, strict=True) if other]
        verdicts = iter(self._bench.try_many(asked, self._seed) if asked else [])
        return [None if other is None else _of_twin(next(verdicts)) for other in twins]

    def baselines(self, program: Program) -> Verdict:
        """aten as the candidate against Inductor, for a region without a kernel. Rejected: there is no answer."""
        if not any(OPS[op.fn].kind in LIBRARY_KINDS for op in program.ops):
            return Rejected("time", "only pointwise operations, which Inductor fuses and aten does not")
        return self._bench.baselines(program, self._seed)


def _ruled(program: Program, candidate: Candidate, verdict: Verdict) -> Verdict:
    """Refuses what is right by a budget that its own roundings do not belong to, or at small sizes only."""
    right = isinstance(verdict, Accepted) or (isinstance(verdict, Rejected) and verdict.stage == "time")
    if right and (foreign := foreign_rounding(program, candidate)) is not None:
        return Rejected("verify", f"round_to<{foreign}>: nothing in the region is of that type")
    if right and rounds_literals(candidate):
        return Rejected("verify", "round_to of a literal: write down the number that it gives")
    if right and counts_in_floats(program, candidate):
        return Rejected("verify", "whole numbers made of floats: count in int, a float has those up to 2^24 only")
    return verdict


def _of_twin(verdict: Verdict) -> Verdict | None:
    if isinstance(verdict, Accepted) or (isinstance(verdict, Rejected) and verdict.stage == "time"):
        return None
    if isinstance(verdict, Rejected):
        return Rejected(verdict.stage, f"without its calls of round_to: {verdict.reason}")
    return verdict


def _read(program: Program, code: str) -> Candidate | Rejected:
    """Gate 1 and the launch plan."""
    text = check_text(code)
    if isinstance(text, RefusedText):
        return Rejected("text", text.reason)
    try:
        candidate = parse_candidate(text.code, program)
    except CandidateError as error:
        return Rejected("text", str(error))
    for times in (1, GROWTH) if candidate.scratch else ():
        larger = replace(
            program, axes=tuple(replace(a, size=a.size * times) if a.symbolic else a for a in program.axes)
        )
        asked = sum(s.size_bytes({a.name: a.size for a in larger.axes}) for s in candidate.scratch)
        allowed = max(MIN_SCRATCH_LIMIT, SCRATCH_FACTOR * tensor_bytes(larger))
        if asked > allowed:
            where = "for this region" if times == 1 else f"where symbolic sizes are {times} times as large"
            return Rejected("text", f"{asked} bytes of scratch, at most {allowed} are allowed {where}")
    return candidate


def _bench(target: Target, limits: Limits) -> Bench:
    if target.kind == "host":
        return HostBench(target, limits)
    from cudal1_compile.judge.device_bench import DeviceBench  # only where a GPU is asked for

    return DeviceBench(target, limits)
