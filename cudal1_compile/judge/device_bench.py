"""Candidates on a GPU: builds in parallel child processes, everything else in killable worker processes.

    build -> workers, each with whole programs (judge)
             | one worker (finalists, beside a memory check on the host) -> verdict
    hang or fault -> verdict, this worker replaced by a waiting spare; the others go on
    expect(programs) -> Inductor's baselines compiled ahead by background processes (prefetch.py)
    try_many -> small regions' exams made ahead by others (exam_file.py)

Workers take turns on the device (turns.py): exams and trials side by side, times alone. Where the device's memory
is short for several, there is one; what was put off beside others, or did not end in time, is judged again alone.
Finalists that do not end in time are put off: it may be Inductor's compile that is slow.
Restarts are counted. Speedups above SECOND_LOOK are measured again in another process, on another GPU of the
same model where there is one, else by a worker that never saw the program.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import torch

from cudal1_compile.candidate import Candidate
from cudal1_compile.errors import BuildError
from cudal1_compile.judge import wire
from cudal1_compile.judge.builders import Builders
from cudal1_compile.judge.crew import Answer, Crew, Following, Lane
from cudal1_compile.judge.exam_file import can_make_ahead
from cudal1_compile.judge.inputs import derive_seed
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.memcheck import Look, find_fault
from cudal1_compile.judge.prefetch import COMPILERS, EXAMINERS, Prefetch, can_compile_ahead
from cudal1_compile.judge.process import Worker, WorkerLost
from cudal1_compile.judge.sanitizer import find_fault_on_device
from cudal1_compile.judge.speedup import SECOND_LOOK, agree
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Verdict
from cudal1_compile.judge.work import Built, Task, Work
from cudal1_compile.runtime import nvrtc
from cudal1_compile.runtime.build import Binary, build
from cudal1_compile.runtime.launch_table import load_extension
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import print_program

log = logging.getLogger(__name__)

EXAM_S = 0.15  # that a worker waits for an exam that another process makes
LANE_BYTES = 9 << 30  # that are free for each worker: few regions need more, and those are judged alone
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
        index = torch.cuda.current_device() if device_index is None else device_index
        self._compiled = Path(
            tempfile.mkdtemp(prefix="cudal1-inductor-")
        )  # code of the baselines, for all workers
        spawn = partial(spawn, compiled=self._compiled)
        self._crew = Crew(index, limits, spawn)
        self._first, *others = self._crew.lanes
        self._others = {lane: ThreadPoolExecutor(1, "cudal1-lane") for lane in others}  # each with its thread
        self._room_for = 0  # of the others
        self._homes: dict[str, Lane] = {}  # who has a program's exam
        self._prefetch = Prefetch(spawn, COMPILERS)  # of baselines
        self._exams = Prefetch(spawn, EXAMINERS)
        self._exam_numbers = count()
        threads = limits.build_threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(threads, "cudal1-build")
        self._builders = Builders(threads)

    @property
    def spent_s(self) -> defaultdict[str, float]:
        """Seconds by step, of all workers together; `worker` holds the workers' own steps."""
        return self._crew.spent_s

    @property
    def counts(self) -> dict[str, int]:
        """What candidates broke: workers, and compilers."""
        return {"worker restarts": self._crew.restarts, "compilers lost": self._builders.lost}

    @property
    def isolation(self) -> dict[str, bool]:
        """What all workers gave up, by name; empty before there was one."""
        return self._crew.given_up

    @property
    def workers(self) -> int:
        """That have the device now."""
        return sum(lane.up for lane in self._crew.lanes)

    def expect(self, programs: Sequence[Program]) -> None:
        """Finalists of these regions may come: compiles their Inductor baseline in the background meanwhile."""
        if self.limits.inductor:
            device = f"cuda:{self._crew.index}"
            self._prefetch.begin([wire.compile_request(p, device) for p in programs if can_compile_ahead(p)])

    def try_many(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Verdict]:
        """Gates 2 to 5 and the quick timing; builds run ahead of the workers."""
        found = [Task(*task, seed, self._pool.submit(self._build, *task)) for task in tasks]
        self._exams.begin(self._exam_requests([program for program, _ in tasks], seed))
        work = Work(found, self._homes)
        helpers = self._helpers(len(work))
        for lane in helpers:
            self._others[lane].submit(self._help, lane, work)
        try:
            self._serve(self._first, work)
            answers = [task.answer.result() for task in found]
        finally:
            work.clear()
        if any(answer.again for answer in answers):
            self._ask_again_alone(found, answers)
        return [answer.verdicts[0] for answer in answers]

    def _ask_again_alone(self, tasks: Sequence[Task], answers: list[Answer]) -> None:
        """What others may have caused; of a program that has no room alone one candidate is enough."""
        had_others = self._clear_others()
        too_large: dict[str, Answer] = {}
        for i, (task, answer) in enumerate(zip(tasks, answers, strict=True)):
            if not answer.again or (isinstance(answer.verdicts[0], Deferred) and not had_others):
                continue
            text = print_program(task.program)
            answers[i] = too_large.get(text) or self._ask(self._first, task)
            if answers[i].again and isinstance(answers[i].verdicts[0], Deferred):
                too_large[text] = answers[i]

    def try_finalists(self, program: Program, candidates: Sequence[Candidate], seed: int) -> list[Verdict]:
        """Gates 5 to 8 on fresh data; a hang or a fault ends only the candidate that did it."""
        built = list(self._pool.map(lambda c: self._build(program, c), candidates))
        verdicts: dict[int, Verdict] = {i: b for i, b in enumerate(built) if not isinstance(b, Binary)}
        ready = {i: (candidates[i], b) for i, b in enumerate(built) if isinstance(b, Binary)}
        verdicts |= self._check_and_measure(program, ready, seed)
        return [verdicts[i] for i in range(len(candidates))]

    def baselines(self, program: Program, seed: int) -> Verdict:
        """aten as the candidate, Inductor as the baseline."""
        self._prefetch.wait(program)
        request = wire.baselines_request(program, derive_seed(seed, "finalists"))
        return self._ask_first(request)[0]

    def close(self) -> None:
        self._prefetch.close()
        self._exams.close()
        self._crew.stop()
        for pool in (self._pool, *self._others.values()):
            pool.shutdown(cancel_futures=True)
        self._builders.close()
        self._crew.close()
        shutil.rmtree(self._compiled, ignore_errors=True)

    def _build(self, program: Program, candidate: Candidate) -> Built:
        try:
            return build(program, candidate, self.target, compile_cubin=self._builders.compile_cubin)
        except BuildError as error:
            return Rejected("build", str(error))
        except TimeoutError as error:
            return Deferred(str(error))

    def _exam_requests(self, programs: Sequence[Program], seed: int) -> list[wire.Message]:
        """Of programs that no worker has had."""
        new = {print_program(p): p for p in programs if can_make_ahead(p)}
        return [
            wire.exam_request(p, seed, self.limits, self._compiled / f"{next(self._exam_numbers)}.exam")
            for text, p in new.items()
            if text not in self._homes
        ]

    # several workers

    def _serve(self, lane: Lane, work: Work) -> None:
        """Takes programs until none is left."""
        group = work.take(lane)
        while group:
            self._wait_for_exam(group)
            coming: list[Task] = []
            for task, following in zip(group, [*group[1:], None], strict=True):
                ahead = following.request_if_built if following else partial(self._next, lane, work, coming)
                try:
                    task.answer.set_result(self._ask(lane, task, ahead))
                except Exception as error:  # noqa: BLE001  whoever waits for the answer raises it
                    task.answer.set_exception(error)
            if group[0].exam:
                Path(group[0].exam).unlink(missing_ok=True)
            group = coming or work.take(lane)

    def _next(self, lane: Lane, work: Work, coming: list[Task]) -> wire.Message | None:
        """Takes the next program while the last of this one is judged; its first request, if it is ready."""
        coming += work.take(lane)
        if not coming or not self._exams.done(coming[0].program):
            return None
        self._wait_for_exam(coming)
        return coming[0].request_if_built()

    def _wait_for_exam(self, group: Sequence[Task]) -> None:
        """Tells the tasks of a program of the file that holds its exam, if it was made ahead."""
        begin = time.monotonic()
        found = str(self._exams.wait(group[0].program, EXAM_S).get("exam", ""))
        self._crew.add("waited for exams", time.monotonic() - begin)
        for task in group:
            task.exam = found

    def _help(self, lane: Lane, work: Work) -> None:
        """The same beside the first worker, which goes on without this one where it cannot be started."""
        try:
            lane.start()
        except WorkerLost as lost:
            log.info("the judge goes on with fewer workers: %s", lost)
        else:
            self._serve(lane, work)

    def _ask(self, lane: Lane, task: Task, following: Following | None = None) -> Answer:
        begin = time.monotonic()
        request = task.request()
        self._crew.add("waited for builds", time.monotonic() - begin)
        if isinstance(request, Rejected | Deferred):
            return Answer([request])
        return lane.ask(request, self.limits.request_s, following)

    def _helpers(self, programs: int) -> list[Lane]:
        """Lanes that work beside the first: as many as the device has room for, whatever each of them may take."""
        wanted = list(self._others)[: programs - 1]
        if wanted and not any(lane.up for lane in self._others):
            self._room_for = self._first.free_bytes() // LANE_BYTES - 1
        return wanted[: max(0, self._room_for)]

    def _clear_others(self) -> bool:
        """Gives the first worker the device's memory, but for contexts; whether there were others."""
        found = any(lane.up for lane in self._others)
        for lane, thread in self._others.items():
            thread.submit(lane.clear).result()
        return found

    def _ask_first(self, request: wire.Message) -> list[Verdict]:
        """What is measured at length: by the first worker, the only one that is busy."""
        answer = self._first.ask(request, self.limits.finalists_s)
        if answer.again and isinstance(answer.verdicts[0], Deferred) and self._clear_others():
            answer = self._first.ask(request, self.limits.finalists_s)
        if answer.again:
            return [Deferred(v.reason) if isinstance(v, Rejected) else v for v in answer.verdicts]
        return answer.verdicts

    def _finalists(
        self, program: Program, ready: dict[int, tuple[Candidate, Binary]], seed: int
    ) -> dict[int, Verdict]:
        """All together; where one of several spoils the context, each is tried alone first."""
        if not ready:
            return {}
        found = self._together_or_alone(program, ready, seed)
        return found | self._second_look(program, ready, found, seed)

    def _together_or_alone(
        self, program: Program, ready: dict[int, tuple[Candidate, Binary]], seed: int
    ) -> dict[int, Verdict]:
        restarts = self._crew.restarts
        found = dict(zip(ready, self._ask_finalists(program, list(ready.values()), seed), strict=True))
        if self._crew.restarts > restarts and len(ready) > 1:
            sound: dict[int, tuple[Candidate, Binary]] = {}
            for i, (candidate, binary) in ready.items():
                request = wire.judge_request(program, candidate, binary, seed, timed=False)
                found[i] = self._first.ask(request, self.limits.request_s).verdicts[0]
                if isinstance(found[i], Accepted):
                    sound[i] = (candidate, binary)
            found |= dict(zip(sound, self._ask_finalists(program, list(sound.values()), seed), strict=True))
        return found

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
            self._first.retire()  # nothing is believed that a process measured beside a kernel that breaks rules
            sound = {i: entrant for i, entrant in sound.items() if checked[i].fault is None}
            found = self._finalists(program, sound, derive_seed(seed, "finalists"))
        return {i: _together(found.get(i), checked[i], seen[i]) for i in ready}

    def _sanitize(self, program: Program, entrant: tuple[Candidate, Binary], seed: int) -> Look:
        """Where it is asked for; before anything is timed, since it runs on the same GPU."""
        if not self.limits.sanitize:
            return Look(None, ())
        begin = time.monotonic()
        found = find_fault_on_device(program, *entrant, seed, self._crew.index, self.limits.sanitizer_s)
        self.spent_s["compute-sanitizer"] += time.monotonic() - begin
        return found

    def _ask_finalists(self, program: Program, entrants: Entrants, seed: int) -> list[Verdict]:
        if not entrants:
            return []
        return self._ask_first(wire.finalists_request(program, entrants, seed))

    def _second_look(
        self,
        program: Program,
        ready: dict[int, tuple[Candidate, Binary]],
        found: dict[int, Verdict],
        seed: int,
    ) -> dict[int, Verdict]:
        """A speedup that is hard to believe must come out again in a process that knows nothing of the first."""
        first = {
            i: v for i, v in found.items() if isinstance(v, Accepted) and (v.proof.speedup or 0.0) > SECOND_LOOK
        }
        if not first:
            return {}
        entrants, again = {i: ready[i] for i in first}, derive_seed(seed, "second look")
        second = self._by_a_stranger(program, entrants, again) or self._by_a_new_process(program, entrants, again)
        return {i: _confirmed(v, second[i]) for i, v in first.items()}

    def _by_a_stranger(
        self, program: Program, ready: dict[int, tuple[Candidate, Binary]], seed: int
    ) -> dict[int, Verdict] | None:
        """By a worker that is up and never saw the program; None where there is none, or it was lost or short."""
        strangers = [lane for lane in self._others if lane.up and not lane.knows(program)]
        if not strangers or _twin(self._crew.index) != self._crew.index:
            return None
        restarts, lane = self._crew.restarts, strangers[0]
        request = wire.finalists_request(program, list(ready.values()), seed)
        answer = self._others[lane].submit(lane.ask, request, self.limits.finalists_s).result()
        if answer.again or self._crew.restarts > restarts:
            return None
        return dict(zip(ready, answer.verdicts, strict=True))

    def _by_a_new_process(
        self, program: Program, ready: dict[int, tuple[Candidate, Binary]], seed: int
    ) -> dict[int, Verdict]:
        """On another GPU of the same model where there is one."""
        home, self._crew.index = self._crew.index, _twin(self._crew.index)
        self._first.retire()
        found = self._together_or_alone(program, ready, seed)
        if self._crew.index != home:
            self._first.retire()
            self._crew.index = home
        return found


def _confirmed(first: Accepted, second: Verdict) -> Verdict:
    """The slower of both where they agree."""
    if not isinstance(second, Accepted) or second.proof.timing is None or first.proof.timing is None:
        return second
    before, again = first.proof.timing.speedup, second.proof.timing.speedup
    if not agree(before, again):
        return Rejected("time", f"measured {before:.2f}x, and {again:.2f}x when measured again")
    slower = min((first, second), key=lambda v: v.proof.speedup or 0.0)
    return replace(slower, proof=replace(slower.proof, seed=first.proof.seed))


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
