"""Candidates on a GPU: builds in parallel child processes, everything else in killable worker processes.

    submit_quick, submit -> builds, in this order -> workers, each with whole programs -> verdict
    submit_exam, submit_finalists, submit_baselines -> any of the workers (finals.py) -> verdicts
    hang or fault -> verdict, this worker replaced by a waiting spare; the others go on
    expect(programs) -> Inductor's baselines compiled ahead by background processes (prefetch.py)
    small regions' case suites made ahead by others (case_suite_file.py)

All of it goes on side by side: what waits for what is said in jobs.py. The device lock (device_lock.py) lets
case suites and trials run side by side, and times be taken alone, whichever process judges on the device. Where
memory is short for several workers, there is one; what was put off beside others, or did not end in time, is
judged again alone. Restarts are counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import torch

from cudal1_compile.errors import BuildError
from cudal1_compile.judge.bench import canary
from cudal1_compile.judge.bench.canary import Canary
from cudal1_compile.judge.bench.finals import FinalsRunner, Form, Heat
from cudal1_compile.judge.bench.jobs import Built, CandidateTask, Job, Work
from cudal1_compile.judge.bench.prefetch import COMPILERS, SUITE_MAKERS, Prefetch, warm_ups
from cudal1_compile.judge.bench.slots import Slots
from cudal1_compile.judge.bench.worker_pool import (
    Following,
    Slot,
    SlotAnswer,
    WorkerPool,
    properties_of,
    uuid_of,
)
from cudal1_compile.judge.checks.case_suite_file import can_make_ahead
from cudal1_compile.judge.checks.lean import is_lean
from cudal1_compile.judge.checks.memcheck import find_fault
from cudal1_compile.judge.checks.ruling import is_right, of_unrounded, ruled, with_unrounded
from cudal1_compile.judge.inputs.make import derive_seed
from cudal1_compile.judge.inputs.reduced import names_sizes, reduced
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import fork_server, wire
from cudal1_compile.judge.sandbox.build_budget import BuildBudget
from cudal1_compile.judge.sandbox.builders import Builders
from cudal1_compile.judge.sandbox.device_lock import LockFiles
from cudal1_compile.judge.sandbox.process import Worker, WorkerLost
from cudal1_compile.judge.verdict import Deferred, Rejected, Verdict
from cudal1_compile.kernel.candidate import Candidate, CandidateError, parse_candidate
from cudal1_compile.runtime import hostbuild, nvrtc
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.launch_table import load_extension
from cudal1_compile.runtime.scratch import ScratchFolder
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

SUITE_S = 0.15  # that a worker waits for a case suite made by another process
SUITES_AHEAD = 8  # programs
KEPT_BUILDS = 512  # of the last candidates: finalists, and those that were not built in time, come again


class DeviceBench:
    """One device. Not for several threads at once; what is submitted is done in threads of its own."""

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
        self._scratch = ScratchFolder("inductor")
        self._compiled = self._scratch.path  # code of the baselines, for all workers
        self._fork_server = fork_server.take()
        spawn = partial(spawn, compiled=self._compiled, fork_server=self._fork_server)
        self._builders = Builders(limits.build_count)
        self._worker_pool = WorkerPool(index, limits, spawn, self._canary_request, LockFiles(uuid_of(index)))
        self._slots = Slots(*self._worker_pool.slots)
        self._prefetch = Prefetch(spawn, COMPILERS)  # of baselines
        self._suites = Prefetch(spawn, SUITE_MAKERS)
        self._suite_numbers = count()
        self._suite_files: dict[str, str] = {}  # of programs that are being judged
        self._budget = BuildBudget(limits.slow_builds_s)
        self._canary = Canary(self._sing)
        self._canary_build = Canary(self._sing_to_compiler)
        self._pool = ThreadPoolExecutor(limits.build_count, "cudal1-build")
        self._checks = ThreadPoolExecutor(limits.build_count, "cudal1-check")  # of finalists, who do not queue
        self._built: OrderedDict[tuple[str, str], Future[Built]] = OrderedDict()
        # by program; None: not tried yet
        self._put_off_tasks: dict[str, list[tuple[CandidateTask, SlotAnswer | None]]] = {}
        self._lock = threading.Lock()
        self._work = Work(self._begin_build)
        self._finals = FinalsRunner(self._worker_pool, self._slots, self._work, self._send, self._prefetch, limits)

    @property
    def spent_s(self) -> defaultdict[str, float]:
        """Seconds by step, of all workers together; `worker` holds the workers' own steps."""
        return self._worker_pool.spent_s

    @property
    def counts(self) -> dict[str, int]:
        """What candidates broke: workers, and compilers."""
        return {"worker restarts": self._worker_pool.restarts, "compilers lost": self._builders.lost}

    @property
    def isolation(self) -> dict[str, bool]:
        """What all workers gave up, by name; empty before there was one."""
        return self._worker_pool.given_up

    @property
    def workers(self) -> int:
        """That have the device now."""
        return self._slots.up

    def expect(self, programs: Sequence[Program]) -> None:
        """These regions may come, the most valuable first: compiles their Inductor baselines meanwhile."""
        self._work.rank(programs)
        if self.limits.inductor:
            self._prefetch.begin([self._compile_request(p) for p in programs])

    def submit(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Future[Verdict]]:
        """Gates 2 to 5 and the quick timing, the first ones first."""
        return self._add([CandidateTask(p, with_unrounded(p, c), seed) for p, c in tasks])

    def submit_quick(self, tasks: Sequence[tuple[Program, Candidate]], seed: int) -> list[Future[Verdict]]:
        """A launch on rough cases and the quick timing, the first ones first."""
        return self._add([CandidateTask(p, [c], seed, is_quick=True) for p, c in tasks])

    def _compile_request(self, program: Program) -> wire.Message:
        index = self._worker_pool.index
        return wire.compile_request(program, f"cuda:{index}", properties_of(index), self.limits.products_in_tf32)

    def _add(self, tasks: Sequence[CandidateTask]) -> list[Future[Verdict]]:
        self._work.add(tasks)
        if tasks:
            if not tasks[0].is_quick:
                self._prepare_suites(tasks[0].seed)
            self._wake_all()
        return [task.answer for task in tasks]

    def submit_exam(
        self, program: Program, candidate: Candidate, seed: int, is_sure: bool = False
    ) -> Future[Verdict]:
        """All gates, for one that was timed. Timed, where a closer look at first shows that it cannot win."""
        return self.submit_finalists(program, [candidate], seed, is_exam=True, is_sure=is_sure)[0]

    def submit_finalists(
        self,
        program: Program,
        candidates: Sequence[Candidate],
        seed: int,
        is_exam: bool = False,
        is_sure: bool = False,
    ) -> list[Future[Verdict]]:
        """Gates 5 to 8 on fresh data, all candidates together. is_exam: those before, first.

        is_sure: of an examination, that no closer look is taken before it.
        """
        fresh = derive_seed(seed, "finalists")
        several = [with_unrounded(program, c) for c in candidates]
        found = ((i, self._smaller(program, c)) for i, c in enumerate(candidates) if is_exam)
        smaller = {i: s for i, s in found if s is not None}
        checked = [
            (s.program, s.candidate) if (s := smaller.get(i)) else (program, c) for i, c in enumerate(candidates)
        ]
        heat = Heat(
            program,
            candidates,
            [self._build_again(program, c) for c in candidates],
            {i: self._unrounded(program, cs[0], is_exam) for i, cs in enumerate(several) if len(cs) > 1},
            [self._checks.submit(find_fault, p, c, fresh, self.limits.host_s) for p, c in checked],
            seed,
            fresh,
            [Future() for _ in candidates],
            is_exam,
            is_sure,
            smaller,
        )
        text = print_program(program)
        self._send(self._work.homes.get(text), partial(self._finals.run, heat), text)  # who has its baselines
        return list(heat.answers)

    def _unrounded(self, program: Program, form: Candidate, is_exam: bool) -> Form:
        smaller = self._smaller(program, form) if is_exam else None
        return smaller or Form(program, form, self._build_again(program, form))

    def _smaller(self, program: Program, candidate: Candidate) -> Form | None:
        """None where the region is small enough for all cases, or the candidate is right at its sizes alone."""
        other = reduced(program) if is_lean(program) else None
        if other is None or names_sizes(program, candidate):
            return None
        try:
            made = parse_candidate(candidate.code, other)
        except CandidateError:
            return None
        return Form(other, made, self._build_again(other, made))

    def submit_baselines(self, program: Program, seed: int, inductor: bool) -> Future[Verdict]:
        """aten as the candidate, Inductor as the baseline where it is asked for, once that is compiled ahead."""
        answer: Future[Verdict] = Future()
        text = print_program(program)

        def compare(slot: Slot) -> Verdict:
            self._work.homes[text] = slot  # whose candidates are timed against them
            request = wire.baselines_request(program, seed, inductor)
            return self._finals.ask(slot, request, self.limits.finalists_s).verdicts[0]

        def send(_: object = None) -> None:
            self._send(self._work.homes.get(text), partial(_answer, answer, compare), text)

        if inductor:
            self._prefetch.then(program, send)
        else:
            send()
        return answer

    def wake(self) -> None:
        for slot in (self._slots.first, *self._slots.admit(_free_bytes(self._worker_pool.index))):
            self._send(slot, _start)
        if self.limits.inductor:
            self._prefetch.warm(self._compile_request(p) for p in warm_ups())
        for _ in range(self.limits.build_count):
            self._pool.submit(self._builders.warm)
        self._checks.submit(hostbuild.prepare)

    def close(self) -> None:
        self._fork_server.give_up_young()
        self._prefetch.close()
        self._suites.close()
        self._worker_pool.stop()
        self._work.close()
        self._builders.stop()
        for pool in (self._pool, self._checks):
            pool.shutdown(cancel_futures=True)
        self._slots.close()
        self._builders.close()
        self._worker_pool.close()
        fork_server.keep(self._fork_server)
        self._scratch.remove()

    # builds

    def _begin_build(self, program: Program, candidate: Candidate) -> Future[Built]:
        """Behind those that have begun; one that is known is not built again."""
        return self._kept_build(program, candidate, self._pool)

    def _build_again(self, program: Program, candidate: Candidate) -> Future[Built]:
        """Of one that may be known; at once."""
        return self._kept_build(program, candidate, self._checks)

    def _kept_build(self, program: Program, candidate: Candidate, pool: ThreadPoolExecutor) -> Future[Built]:
        key = (print_program(program), candidate.digest)
        with self._lock:
            found = self._built.get(key)
            if found is None or _is_no_answer(found):
                found = self._built[key] = pool.submit(self._build, program, candidate)
            self._built.move_to_end(key)
            while len(self._built) > KEPT_BUILDS:
                self._built.popitem(last=False)
            return found

    def _build(self, program: Program, candidate: Candidate) -> Built:
        try:
            with self._budget.grant(print_program(program), self._builders.limit_s) as limit_s:
                compile_cubin = partial(self._builders.compile_cubin, limit_s=limit_s)
                return build(program, candidate, self.target, compile_cubin=compile_cubin)
        except BuildError as error:
            return Rejected("build", str(error))
        except OSError as error:
            return self._canary_build.rule(error)

    # the known-good kernel

    def trouble(self) -> str | None:
        """Through the compiler and a worker, once one is free."""
        return self._canary.trouble()

    def _sing(self) -> str | None:
        answer: Future[str | None] = Future()
        limit_s = self.limits.start_s + self.limits.request_s
        try:
            self._send(None, lambda slot: answer.set_result(slot.why_not()))
            return answer.result(limit_s)
        except (RuntimeError, OSError) as error:  # no thread, no time
            return str(error) or f"no answer in {limit_s:g} s"

    def _sing_to_compiler(self) -> str | None:
        try:
            self._canary_request()
        except (RuntimeError, OSError) as error:
            return str(error)
        return None

    def _canary_request(self) -> wire.Message:
        binary = build(canary.PROGRAM, canary.CANDIDATE, self.target, compile_cubin=self._builders.compile_cubin)
        return wire.judge_request(canary.PROGRAM, canary.CANDIDATE, binary, 0, timed=False)

    # case suites made ahead

    def _prepare_suites(self, seed: int) -> None:
        """Of the programs that come next."""
        coming = self._work.free_programs(self._slots.first)[:SUITES_AHEAD]
        with self._lock:
            self._suites.begin(self._suite_requests(coming, seed))

    def _suite_requests(self, programs: Sequence[Program], seed: int) -> list[wire.Message]:
        """Of programs that no worker has had."""
        new = {print_program(p): p for p in programs if can_make_ahead(p)}
        return [
            wire.suite_request(p, seed, self.limits, self._compiled / f"{next(self._suite_numbers)}.suite")
            for text, p in new.items()
            if text not in self._work.homes
        ]

    def _give_suite(self, task: CandidateTask) -> None:
        """Tells a task of the file that holds its program's case suite, if it was made ahead."""
        if task.suite is None:
            if task.text not in self._suite_files:
                begin = time.monotonic()
                self._suite_files[task.text] = str(self._suites.wait(task.program, SUITE_S).get("suite", ""))
                self._worker_pool.add("waited for case suites", time.monotonic() - begin)
                self._prepare_suites(task.seed)
            task.suite = self._suite_files.get(task.text, "")

    def _drop_suite(self, task: CandidateTask) -> None:
        """Once none of its candidates is left."""
        if not self._work.has(task.text) and (path := self._suite_files.pop(task.text, "")):
            Path(path).unlink(missing_ok=True)

    # slots, each in its thread

    def _send(self, slot: Slot | None, run: Callable[[Slot], None], text: str = "") -> None:
        self._work.send(slot, run, text)
        if slot is not None:
            self._wake(slot)
        else:
            self._wake_all()

    def _wake_all(self) -> None:
        """That are up: those that are not come when the first has nothing in hand, and finds work for them."""
        for one in self._slots.all:
            if one.up or one is self._slots.first:
                self._wake(one)

    def _wake(self, slot: Slot) -> None:
        if self._work.enlist(slot):
            self._slots.begin(slot, self._serve)

    def _serve(self, slot: Slot) -> None:
        """Does what there is for this slot, until nothing is left."""
        try:
            if slot is not self._slots.first:
                slot.start()
        except WorkerLost as lost:
            log.info("the judge goes on with fewer workers: %s", lost)
            for job in self._work.dismiss(slot):
                job.run(slot)  # it says so to whoever waits
            return
        coming: CandidateTask | None = None
        while True:
            if coming is None and slot is self._slots.first:
                self._get_help()
            begin = time.monotonic()
            taken = coming or self._work.take(slot)
            coming = None
            match taken:
                case CandidateTask():
                    self._worker_pool.add("waited for builds", time.monotonic() - begin)
                    coming = self._judge(slot, taken)
                case Job(run):
                    run(slot)
                case None:
                    return

    def _get_help(self) -> None:
        """Others begin, if there is work for them."""
        wanted = len(self._work.free_programs(self._slots.first)) + self._work.free_jobs - 1
        for slot in self._slots.helpers() if wanted > 0 else ():
            if wanted > 0 and self._work.enlist(slot):
                self._slots.begin(slot, self._serve)
                wanted -= 1

    def _judge(self, slot: Slot, task: CandidateTask) -> CandidateTask | None:
        """Answers for one candidate. The one that the worker was sent meanwhile, if there is one."""
        ahead: list[CandidateTask] = []
        try:
            if not task.is_quick:
                self._give_suite(task)
            answer = self._try(slot, task, partial(self._next, slot, ahead))
        except BaseException as error:  # noqa: BLE001  whoever waits for the answer raises it
            task.answer.set_exception(error)
        else:
            if answer.lost:
                self._work.count_fault(task)
            if answer.again:
                self._put_off(task, answer)
            else:
                task.answer.set_result(answer.verdicts[0])
        coming = ahead[0] if ahead else None
        if coming is None or coming.text != task.text:
            self._drop_suite(task)
        return coming

    def _next(self, slot: Slot, ahead: list[CandidateTask]) -> wire.Message | None:
        """Takes the next candidate while one is judged; its request, if there is nothing to wait for."""
        task = self._work.take_ahead(slot)
        if task is None:
            return None
        ahead.append(task)
        if not task.is_quick:
            if task.text not in self._suite_files and not self._suites.done(task.program):
                return None
            self._give_suite(task)
        request = task.request(0)
        return None if isinstance(request, Rejected | Deferred) else request

    def _try(self, slot: Slot, task: CandidateTask, following: Following | None = None) -> SlotAnswer:
        """The candidate's verdict, or that of its unrounded form, where that one is not right."""
        program, (*unrounded, candidate) = task.program, task.candidates
        for i in range(len(unrounded)):
            answer = self._ask(slot, task.request(i))
            if answer.again or not is_right(answer.verdicts[0]):
                return replace(answer, verdicts=[of_unrounded(answer.verdicts[0])])
        answer = self._ask(slot, task.request(len(unrounded)), following)
        if task.is_quick:
            return answer
        return replace(answer, verdicts=[ruled(program, candidate, answer.verdicts[0])])

    def _ask(
        self, slot: Slot, request: wire.Message | Rejected | Deferred, following: Following | None = None
    ) -> SlotAnswer:
        if isinstance(request, Rejected | Deferred):
            return SlotAnswer([request])
        return slot.ask(request, self.limits.request_s, following)

    # what others may have caused

    def _put_off(self, task: CandidateTask, answer: SlotAnswer) -> None:
        """To be judged again alone; without room no other candidate of the program is tried beside the others."""
        found: list[tuple[CandidateTask, SlotAnswer | None]] = [(task, answer)]
        if _has_no_room(answer):
            found += [(other, None) for other in self._work.take_others(task)]
        with self._lock:
            is_known = task.text in self._put_off_tasks
            self._put_off_tasks.setdefault(task.text, []).extend(found)
        if not is_known:
            self._send(self._slots.first, partial(self._try_alone, task.text))

    def _try_alone(self, text: str, slot: Slot) -> None:
        """Of a program that has no room alone either one candidate is enough."""
        with self._work.alone(slot):
            had_others = self._slots.clear_others(slot)
            with self._lock:
                found = self._put_off_tasks.pop(text)
            full: SlotAnswer | None = None
            for task, answer in found:
                if answer is None and not task.answer.set_running_or_notify_cancel():
                    continue
                try:
                    if answer is None or not _has_no_room(answer) or had_others:
                        answer = full or self._ask_alone(slot, task, is_new=answer is None)
                    full = answer if _has_no_room(answer) else full
                    task.answer.set_result(answer.verdicts[0])
                except BaseException as error:  # noqa: BLE001  whoever waits for the answer raises it
                    task.answer.set_exception(error)

    def _ask_alone(self, slot: Slot, task: CandidateTask, is_new: bool) -> SlotAnswer:
        """What does not end in time has had two tries then."""
        answer = self._try(slot, task)
        if is_new and answer.again and not _has_no_room(answer):
            answer = self._try(slot, task)
        return answer


def _free_bytes(index: int) -> int:
    """Of a device, as this process sees it; 0 where it has none."""
    return torch.cuda.mem_get_info(index)[0] if torch.cuda.is_available() else 0


def _start(slot: Slot) -> None:
    with suppress(WorkerLost, RuntimeError, OSError):  # the first that is asked of it says so
        slot.start()


def _is_no_answer(build: Future[Built]) -> bool:
    """Whether it was given up, or the machine had no time for the compiler."""
    if not build.done():
        return False
    return build.cancelled() or build.exception() is not None or isinstance(build.result(), Deferred)


def _has_no_room(answer: SlotAnswer) -> bool:
    return answer.again and isinstance(answer.verdicts[0], Deferred)


def _answer(answer: Future[Verdict], work: Callable[[Slot], Verdict], slot: Slot) -> None:
    if answer.set_running_or_notify_cancel():
        try:
            answer.set_result(work(slot))
        except BaseException as error:  # noqa: BLE001  whoever waits for the answer raises it
            answer.set_exception(error)
