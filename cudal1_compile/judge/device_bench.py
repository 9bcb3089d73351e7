"""Candidates on a GPU: builds in parallel child processes, everything else in one killable worker process.

    build -> worker (judge | finalists, beside a memory check on the host) -> verdict
    hang or fault -> verdict, worker replaced by a waiting spare
    expect(programs) -> Inductor's baselines compiled ahead by background processes (prefetch.py)

A spare worker has torch imported and no CUDA context, so that a replacement costs a fraction of a second.
Restarts are counted. Speedups above SECOND_LOOK are measured again in another process, on another GPU of the
same model where there is one.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from cudal1_compile.candidate import Candidate
from cudal1_compile.errors import BuildError
from cudal1_compile.judge import wire
from cudal1_compile.judge.builders import Builders
from cudal1_compile.judge.inputs import derive_seed
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.memcheck import Look, find_fault
from cudal1_compile.judge.prefetch import Prefetch
from cudal1_compile.judge.process import Worker, WorkerLost
from cudal1_compile.judge.sanitizer import find_fault_on_device
from cudal1_compile.judge.speedup import SECOND_LOOK, agree
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Verdict
from cudal1_compile.runtime import nvrtc
from cudal1_compile.runtime.build import Binary, build
from cudal1_compile.runtime.launch_table import load_extension
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program import Program

log = logging.getLogger(__name__)

Entrants = list[tuple[Candidate, Binary]]


class DeviceBench:
    """One device. Not for several threads at once."""

    def __init__(
        self,
        target: Target,
        limits: Limits,
        device_index: int | None = None,
        spawn: Callable[..., Worker] = Worker,
    ) -> None:
        nvrtc.library()  # raises BuildError here, not once a candidate
        load_extension()  # built here: a worker may not write to the cache
        self.target = target
        self.limits = limits
        self.restarts = 0  # workers lost to a candidate
        self.spent_s: defaultdict[str, float] = defaultdict(
            float
        )  # seconds by step; `worker` holds the worker's own steps
        self._worker_spent_s: defaultdict[str, float] = defaultdict(float)
        self._index = torch.cuda.current_device() if device_index is None else device_index
        self._compiled = Path(
            tempfile.mkdtemp(prefix="cudal1-inductor-")
        )  # code of the baselines, for all workers
        self._spawn = partial(spawn, compiled=self._compiled)
        self._prefetch = Prefetch(f"cuda:{self._index}", self._spawn)
        threads = limits.build_threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(threads, "cudal1-build")
        self._builders = Builders(threads)
        self._given_up: dict[str, bool] = {}
        self._worker: Worker | None = None
        self._spare: Worker | None = self._spawn()

    @property
    def counts(self) -> dict[str, int]:
        """What candidates broke: workers, and compilers."""
        return {"worker restarts": self.restarts, "compilers lost": self._builders.lost}

    @property
    def isolation(self) -> dict[str, bool]:
        """What the worker gave up, by name; empty before there was one."""
        return self._given_up

    def expect(self, programs: Sequence[Program]) -> None:
        """Finalists of these regions may come: compiles their Inductor baseline in the background meanwhile."""
        if self.limits.inductor:
            self._prefetch.begin(programs)

    def try_many(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Verdict]:
        """Gates 2 to 5 and the quick timing; builds run ahead of the worker."""
        builds = [self._pool.submit(self._build, *task) for task in tasks]
        return [
            self._try(program, candidate, built, seed)
            for (program, candidate), built in zip(tasks, builds, strict=True)
        ]

    def try_finalists(self, program: Program, candidates: Sequence[Candidate], seed: int) -> list[Verdict]:
        """Gates 5 to 8 on fresh data; a hang or a fault ends only the candidate that did it."""
        built = list(self._pool.map(lambda c: self._build(program, c), candidates))
        verdicts: dict[int, Verdict] = {i: b for i, b in enumerate(built) if isinstance(b, Rejected)}
        ready = {i: (candidates[i], b) for i, b in enumerate(built) if isinstance(b, Binary)}
        verdicts |= self._check_and_measure(program, ready, seed)
        return [verdicts[i] for i in range(len(candidates))]

    def baselines(self, program: Program, seed: int) -> Verdict:
        """aten as the candidate, Inductor as the baseline."""
        self._prefetch.wait(program)
        request = wire.baselines_request(program, derive_seed(seed, "finalists"))
        return self._ask(request, 1, self.limits.finalists_s)[0]

    def close(self) -> None:
        self._prefetch.close()
        self._pool.shutdown(cancel_futures=True)
        self._builders.close()
        for worker in (self._worker, self._spare):
            if worker is not None:
                worker.kill()
        self._worker = self._spare = None
        shutil.rmtree(self._compiled, ignore_errors=True)

    def _build(self, program: Program, candidate: Candidate) -> Binary | Rejected:
        try:
            return build(program, candidate, self.target, compile_cubin=self._builders.compile_cubin)
        except BuildError as error:
            return Rejected("build", str(error))

    def _try(
        self, program: Program, candidate: Candidate, building: Future[Binary | Rejected], seed: int
    ) -> Verdict:
        begin = time.monotonic()
        built = building.result()
        self.spent_s["waited for builds"] += time.monotonic() - begin
        if isinstance(built, Rejected):
            return built
        request = wire.judge_request(program, candidate, built, seed, timed=True)
        return self._ask(request, 1, self.limits.request_s)[0]

    def _finalists(
        self, program: Program, ready: dict[int, tuple[Candidate, Binary]], seed: int
    ) -> dict[int, Verdict]:
        """All together; where one of several spoils the context, each is tried alone first."""
        if not ready:
            return {}
        restarts = self.restarts
        found = dict(zip(ready, self._ask_finalists(program, list(ready.values()), seed), strict=True))
        if self.restarts > restarts and len(ready) > 1:
            sound: dict[int, tuple[Candidate, Binary]] = {}
            for i, (candidate, binary) in ready.items():
                request = wire.judge_request(program, candidate, binary, seed, timed=False)
                found[i] = self._ask(request, 1, self.limits.request_s)[0]
                if isinstance(found[i], Accepted):
                    sound[i] = (candidate, binary)
            found |= dict(zip(sound, self._ask_finalists(program, list(sound.values()), seed), strict=True))
        return {i: self._second_look(program, ready[i], v, seed) for i, v in found.items()}

    def _check_and_measure(
        self, program: Program, ready: dict[int, tuple[Candidate, Binary]], seed: int
    ) -> dict[int, Verdict]:
        """Looks for broken rules that the GPU let pass, on the host while the worker measures."""
        looks = {
            i: self._pool.submit(find_fault, program, candidate, seed, self.limits.host_s)
            for i, (candidate, _) in ready.items()
        }
        seen = {i: self._sanitize(program, entrant, seed) for i, entrant in ready.items()}
        sound = {i: entrant for i, entrant in ready.items() if seen[i].fault is None}
        begin = time.monotonic()
        self._prefetch.wait(program)
        self.spent_s["waited for Inductor"] += time.monotonic() - begin
        found = self._finalists(program, sound, derive_seed(seed, "finalists"))
        begin = time.monotonic()
        checked = {i: look.result() for i, look in looks.items()}
        self.spent_s["waited for memory checks"] += time.monotonic() - begin
        if any(checked[i].fault for i in sound):
            self._retire()  # nothing is believed that a process measured beside a kernel that breaks rules
            sound = {i: entrant for i, entrant in sound.items() if checked[i].fault is None}
            found = self._finalists(program, sound, derive_seed(seed, "finalists"))
        return {i: _together(found.get(i), checked[i], seen[i]) for i in ready}

    def _sanitize(self, program: Program, entrant: tuple[Candidate, Binary], seed: int) -> Look:
        """Where it is asked for; before anything is timed, since it runs on the same GPU."""
        if not self.limits.sanitize:
            return Look(None, ())
        begin = time.monotonic()
        found = find_fault_on_device(program, *entrant, seed, self._index, self.limits.sanitizer_s)
        self.spent_s["compute-sanitizer"] += time.monotonic() - begin
        return found

    def _ask_finalists(self, program: Program, entrants: Entrants, seed: int) -> list[Verdict]:
        if not entrants:
            return []
        request = wire.finalists_request(program, entrants, seed)
        return self._ask(request, len(entrants), self.limits.finalists_s)

    def _second_look(
        self, program: Program, entrant: tuple[Candidate, Binary], verdict: Verdict, seed: int
    ) -> Verdict:
        """A speedup that is hard to believe must come out again in a process that knows nothing of the first."""
        if not isinstance(verdict, Accepted) or (verdict.proof.speedup or 0.0) <= SECOND_LOOK:
            return verdict
        home, self._index = self._index, _twin(self._index)
        self._retire()
        (second,) = self._ask_finalists(program, [entrant], derive_seed(seed, "second look"))
        if self._index != home:
            self._retire()
            self._index = home
        if not isinstance(second, Accepted) or second.proof.timing is None or verdict.proof.timing is None:
            return second
        if not agree(verdict.proof.timing.speedup, second.proof.timing.speedup):
            first, again = verdict.proof.timing.speedup, second.proof.timing.speedup
            return Rejected("time", f"measured {first:.2f}x, and {again:.2f}x when measured again")
        slower = min((verdict, second), key=lambda v: v.proof.speedup or 0.0)
        return replace(slower, proof=replace(slower.proof, seed=verdict.proof.seed))

    # the worker

    def _ask(self, request: wire.Message, count: int, limit_s: float) -> list[Verdict]:
        """Asks a ready worker; a worker lost on the way is the candidate's doing."""
        try:
            worker = self._ready_worker()
        except WorkerLost as lost:
            return [Deferred(f"no worker can be started on the device: {lost}")] * count
        begin = time.monotonic()
        try:
            reply = worker.ask(request, limit_s)
        except WorkerLost as lost:
            self._worker = None
            self.restarts += 1
            return [Rejected("verify", f"hang or crash: {lost}")] * count
        self.spent_s["worker"] += time.monotonic() - begin
        self._count(reply)
        if "failure" in reply:
            self._retire()
            log.error("the judge's worker failed:\n%s", reply["failure"])
            return [Deferred(f"the judge failed: {str(reply['failure']).strip().splitlines()[-1]}")] * count
        if reply["fatal"]:
            self.restarts += 1
            self._retire()
        return wire.read_verdicts(reply)

    def _count(self, reply: wire.Message) -> None:
        """Adds what the worker's counters grew by."""
        for step, seconds in reply.get("spent_s", {}).items():
            self.spent_s[step] += seconds - self._worker_spent_s[step]
            self._worker_spent_s[step] = seconds

    def _ready_worker(self) -> Worker:
        if self._worker is not None and self._worker.alive:
            return self._worker
        begin = time.monotonic()
        worker = self._spare if self._spare is not None and self._spare.alive else self._spawn()
        self._spare = None
        try:
            self._start(worker)
        except WorkerLost as lost:  # perhaps this driver writes where a worker may not
            worker = self._spawn(read_only=False)
            self._start(worker)
            log.warning("the worker starts only where it may write files: %s", lost)
            self._spawn = partial(self._spawn, read_only=False)
        self._worker, self._given_up = worker, worker.given_up
        self._worker_spent_s.clear()
        self.spent_s["worker starts"] += time.monotonic() - begin
        self._spare = self._spawn()
        return worker

    def _start(self, worker: Worker) -> None:
        """Gives it the device. Raises WorkerLost; the process is dead then."""
        reply = worker.ask(wire.start_request(self._index, self.limits), self.limits.start_s)
        if not reply.get("ready"):
            worker.kill()
            raise WorkerLost(str(reply.get("failure", reply)).strip().splitlines()[-1])

    def _retire(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None


def _together(verdict: Verdict | None, *looks: Look) -> Verdict:
    """A fault rules out what was measured; otherwise the proof tells what was looked for."""
    if fault := next((look.fault for look in looks if look.fault), None):
        return Rejected("verify", fault)
    assert verdict is not None, "a candidate without a fault is measured"
    if not isinstance(verdict, Accepted):
        return verdict
    said = tuple(words for look in looks for words in look.said)
    return Accepted(replace(verdict.proof, checks=said))


def _twin(index: int) -> int:
    """Another GPU of the same model, or the same one."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return next((i for i, name in enumerate(names) if i != index and name == names[index]), index)
