"""Candidates on a GPU: builds in parallel child processes, everything else in killable worker processes.

    build -> workers, each with whole programs (judge)
             | finals.py (finalists, beside a memory check on the host) -> verdict
    hang or fault -> verdict, this worker replaced by a waiting spare; the others go on
    expect(programs) -> Inductor's baselines compiled ahead by background processes (prefetch.py)
    try_many -> small regions' exams made ahead by others (exam_file.py)

Workers take turns on the device (turns.py): exams and trials side by side, times alone. Where the device's memory
is short for several, there is one; what was put off beside others, or did not end in time, is judged again alone.
Restarts are counted.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import torch

from cudal1_compile.candidate import Candidate
from cudal1_compile.errors import BuildError
from cudal1_compile.judge import nursery, wire
from cudal1_compile.judge.builders import Builders
from cudal1_compile.judge.crew import Answer, Crew, Following, Lane
from cudal1_compile.judge.exam_file import can_make_ahead
from cudal1_compile.judge.finals import Finals, Heat
from cudal1_compile.judge.inputs import derive_seed
from cudal1_compile.judge.lanes import Lanes
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.prefetch import COMPILERS, EXAMINERS, Prefetch, can_compile_ahead
from cudal1_compile.judge.process import Worker
from cudal1_compile.judge.verdict import Deferred, Rejected, Verdict
from cudal1_compile.judge.work import Built, Task, Work
from cudal1_compile.runtime import nvrtc
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.launch_table import load_extension
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import print_program

log = logging.getLogger(__name__)

EXAM_S = 0.15  # that a worker waits for an exam that another process makes


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
        self._nursery = nursery.take()
        spawn = partial(spawn, compiled=self._compiled, nursery=self._nursery)
        self._crew = Crew(index, limits, spawn)
        self._lanes = Lanes(*self._crew.lanes)
        self._homes: dict[str, Lane] = {}  # who has a program's exam
        self._prefetch = Prefetch(spawn, COMPILERS)  # of baselines
        self._exams = Prefetch(spawn, EXAMINERS)
        self._exam_numbers = count()
        self._pool = ThreadPoolExecutor(limits.build_count, "cudal1-build")
        self._builders = Builders(limits.build_count)
        self._finals = Finals(self._crew, self._lanes, self._pool, self._prefetch, limits)

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
        return self._lanes.up

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
        for lane in self._lanes.helpers(len(work)):
            self._lanes.help(lane, lambda own: self._serve(own, work))
        try:
            self._serve(self._lanes.first, work)
            answers = [task.answer.result() for task in found]
        finally:
            work.clear()
        if any(answer.again for answer in answers):
            self._ask_again_alone(found, answers)
        return [answer.verdicts[0] for answer in answers]

    def _ask_again_alone(self, tasks: Sequence[Task], answers: list[Answer]) -> None:
        """What others may have caused; of a program that has no room alone one candidate is enough."""
        had_others = self._lanes.clear_others()
        too_large: dict[str, Answer] = {}
        for i, (task, answer) in enumerate(zip(tasks, answers, strict=True)):
            if not answer.again or (isinstance(answer.verdicts[0], Deferred) and not had_others):
                continue
            text = print_program(task.program)
            answers[i] = too_large.get(text) or self._ask(self._lanes.first, task)
            if answers[i].again and isinstance(answers[i].verdicts[0], Deferred):
                too_large[text] = answers[i]

    def try_finalists(
        self, tasks: Sequence[tuple[Program, Sequence[Candidate]]], seed: int
    ) -> list[list[Verdict]]:
        """Gates 5 to 8 on fresh data, the candidates of each program together."""
        heats = [
            Heat(p, cs, [self._pool.submit(self._build, p, c) for c in cs], derive_seed(seed, "finalists"))
            for p, cs in tasks
        ]
        self._finals.run(heats)
        return [[heat.verdicts[i] for i in range(len(heat.candidates))] for heat in heats]

    def baselines(self, program: Program, seed: int) -> Verdict:
        """aten as the candidate, Inductor as the baseline."""
        self._prefetch.wait(program)
        request = wire.baselines_request(program, derive_seed(seed, "finalists"))
        return self._finals.ask(request).verdicts[0]

    def close(self) -> None:
        self._nursery.give_up_young()
        self._prefetch.close()
        self._exams.close()
        self._crew.stop()
        self._pool.shutdown(cancel_futures=True)
        self._lanes.close()
        self._builders.close()
        self._crew.close()
        nursery.keep(self._nursery)
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

    def _ask(self, lane: Lane, task: Task, following: Following | None = None) -> Answer:
        begin = time.monotonic()
        request = task.request()
        self._crew.add("waited for builds", time.monotonic() - begin)
        if isinstance(request, Rejected | Deferred):
            return Answer([request])
        return lane.ask(request, self.limits.request_s, following)
