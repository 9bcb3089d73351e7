"""The worker processes of one device: started, asked, counted, replaced.

    WorkerPool(index, limits, spawn, canary) -> slots, one worker each; a slot serves one thread
    slot.ask(request) -> SlotAnswer: verdicts; a hang or a fault ends this worker alone, a spare one replaces it
    slot.why_not() -> a known-good kernel through it; after a worker that died it tells whose fault that was

A spare worker has torch imported and no CUDA context, so that a replacement costs a fraction of a second.
Which candidates a slot is asked for is decided in device.py.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.sandbox.device_lock import DeviceLock, LockFiles, let_go
from cudal1_compile.judge.sandbox.process import DeviceTaken, Worker, WorkerLate, WorkerLost
from cudal1_compile.judge.verdict import Deferred, Rejected, Verdict
from cudal1_compile.runtime.target import free_memory
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

PRESSED_BYTES = 512 << 20
PRESSED = "the device's memory is short, and the model comes first"

Following = Callable[[], wire.Message | None]  # what is asked next, if it is known by then


@dataclass(frozen=True, slots=True)
class SlotAnswer:
    """again: with the device to itself, or more time, a worker may come to another answer.

    lost: this worker's context, over what was asked.
    """

    verdicts: list[Verdict]
    again: bool = False
    lost: bool = False


class WorkerPool:
    """What the slots of one device share."""

    def __init__(
        self,
        index: int,
        limits: Limits,
        spawn: Callable[..., Worker],
        canary: Callable[[], wire.Message],
        lock_files: LockFiles,
    ) -> None:
        """canary: builds the known-good kernel; the request to judge it. Raises RuntimeError or OSError."""
        self.index = index  # of the device
        self.canary = canary
        self.limits = replace(limits, cached_suites_bytes=limits.cached_suites_bytes // limits.worker_count)
        self.restarts = 0  # workers lost to a candidate
        self.given_up: dict[str, bool] = {}  # what all workers gave up, by name; empty before there was one
        self.spent_s: defaultdict[str, float] = defaultdict(float)  # seconds by step, of all workers together
        self._lock = threading.Lock()
        self._lock_files = lock_files
        self._spawn = partial(spawn, lock_files=self._lock_files)
        self._out: list[Worker] = []  # with a slot
        self._read_only, self._closed = True, False
        self._spare: Worker | None = self._spawn()
        self.slots = [Slot(self) for _ in range(limits.worker_count)]

    def acquire(self, read_only: bool = True) -> Worker:
        """A worker that is not started. Raises WorkerLost once the pool is stopped."""
        with self._lock:
            if self._closed:
                raise WorkerLost("the judge is closed")
            found = None
            if read_only:
                found, self._spare = self._spare, None
            if found is None or not found.alive:
                found = self._spawn(read_only=read_only and self._read_only)
            self._out = [*(w for w in self._out if w.alive), found]
            return found

    def start(self, worker: Worker, index: int) -> None:
        """Gives it that device. Raises WorkerLost; the process is dead then."""
        begin = time.monotonic()
        reply = worker.ask(wire.start_request(index, self.limits, worker.lock_descriptors), self.limits.start_s)
        if not reply.get("ready"):
            worker.kill()
            raise WorkerLost(str(reply.get("failure", reply)).strip().splitlines()[-1])
        self.add("worker starts", time.monotonic() - begin)
        with self._lock:
            self.given_up = {k: v and self.given_up.get(k, True) for k, v in worker.given_up.items()}

    @contextmanager
    def device(self) -> Iterator[None]:
        """For another process that works on the device: no worker takes times meanwhile."""
        descriptors = self._lock_files.descriptors()
        try:
            with DeviceLock(descriptors).inside():
                yield
        finally:
            let_go(descriptors)

    @property
    def is_pressed(self) -> bool:
        """Whether this process, the user's, can hardly allocate on the device any more."""
        has_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return has_device and free_memory(torch.device("cuda", self.index)) < PRESSED_BYTES

    def let_write(self) -> None:
        """From now on workers may change files."""
        self._read_only = False

    def renew_spare(self) -> None:
        with self._lock:
            if self._spare is None and not self._closed:
                self._spare = self._spawn(read_only=self._read_only)

    def add(self, step: str, seconds: float) -> None:
        with self._lock:
            self.spent_s[step] += seconds

    def count_restart(self) -> None:
        with self._lock:
            self.restarts += 1

    def stop(self) -> None:
        """Ends the workers at once, also while other threads wait for them, and for good."""
        with self._lock:
            self._closed = True
            for worker in self._out:
                worker.stop()

    def close(self) -> None:
        """After `stop`, once no slot is in use."""
        for slot in self.slots:
            slot.retire()
        if self._spare is not None:
            self._spare.kill()
        self._spare = None
        self._lock_files.close()


def uuid_of(index: int) -> str:
    """Of a device; empty where this process has none, and no worker will start."""
    return str(torch.cuda.get_device_properties(index).uuid) if torch.cuda.is_available() else ""


@cache
def properties_of(index: int) -> Mapping[str, int | str]:
    """What torch knows of a device, as far as it can be written; nothing where this process has none."""
    found = torch.cuda.get_device_properties(index) if torch.cuda.is_available() else None
    values = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    return {name: value for name, value in values.items() if isinstance(value, int | str)}


class Slot:
    """One worker, and whoever replaces it. For one thread at a time."""

    def __init__(self, pool: WorkerPool) -> None:
        self.index = pool.index  # of the device that its next worker gets
        self._worker_pool = pool
        self._worker: Worker | None = None
        self._ahead: wire.Message | None = None  # the request that the worker has beside the one it works on
        self._spent_s: dict[str, float] = {}  # as this worker said last
        self._seen: set[str] = set()  # programs that this worker was asked about

    @property
    def up(self) -> bool:
        worker = self._worker  # its own thread may replace it meanwhile
        return worker is not None and worker.alive

    def knows(self, program: Program) -> bool:
        """Whether this worker was asked about the program, so that a candidate of it may have run there."""
        return print_program(program) in self._seen

    def start(self) -> Worker:
        """Its worker, a new one where there is none. Raises WorkerLost."""
        if self._worker is None or not self._worker.alive:
            self.retire()
            self._spent_s = {}
            self._seen = set()
            worker = self._worker_pool.acquire()
            try:
                self._worker_pool.start(worker, self.index)
            except DeviceTaken:
                raise
            except WorkerLost as lost:  # perhaps this driver writes where a worker may not
                worker = self._worker_pool.acquire(read_only=False)
                self._worker_pool.start(worker, self.index)
                log.warning("the worker starts only where it may write files: %s", lost)
                self._worker_pool.let_write()
            self._worker = worker
            self._worker_pool.renew_spare()
        return self._worker

    def ask(self, request: wire.Message, limit_s: float, following: Following | None = None) -> SlotAnswer:
        """A worker lost on the way is the candidate's doing, if the next one is fit. `following`: asked next."""
        count = len(request.get("entrants", (None,)))  # verdicts of a reply
        if self._must_give_way():
            return SlotAnswer([Deferred(PRESSED)] * count)
        try:
            worker = self.start()
        except WorkerLost as lost:
            put_off = Deferred(f"no worker can be started on the device: {lost}")
            return SlotAnswer([put_off] * count, again=not isinstance(lost, DeviceTaken))
        begin = time.monotonic()
        self._seen.add(request["program"])
        try:
            reply = self._exchange(worker, request, limit_s, following)
        except DeviceTaken as taken:
            self.retire()
            return SlotAnswer([Deferred(str(taken))] * count)
        except WorkerLost as lost:
            self.retire()
            self._worker_pool.count_restart()
            late = isinstance(lost, WorkerLate)  # others had the device meanwhile, or the cores
            why = None if late else self.why_not()
            verdict = Deferred(why) if why is not None else Rejected("verify", f"hang or crash: {lost}")
            return SlotAnswer([verdict] * count, late, lost=True)
        except BaseException:  # an interrupt: the next reply would be the answer to another question
            self.retire()
            raise
        self._worker_pool.add("worker", time.monotonic() - begin)
        self._count(reply)
        return self._read(reply, count)

    def _must_give_way(self) -> bool:
        """Whether memory is short even without what its worker holds; that is given up."""
        if not self._worker_pool.is_pressed:
            return False
        self.clear()
        return self._worker_pool.is_pressed

    def why_not(self) -> str | None:
        """Why its worker does not accept a known-good kernel; None where it does. It has nothing else in hand."""
        try:
            reply = self.start().ask(self._worker_pool.canary(), self._worker_pool.limits.request_s)
        except (WorkerLost, RuntimeError, OSError) as error:
            self.retire()
            return f"a known-good kernel fails: {error}"
        (verdict,) = self._read(reply, 1).verdicts
        match verdict:
            case Rejected(_, reason) | Deferred(reason):
                return f"a known-good kernel fails: {reason}"
        return None

    def free_bytes(self) -> int:
        """Of the device's memory; 0 where no worker can be started."""
        try:
            return int(
                self.start().ask(wire.room_request(), self._worker_pool.limits.start_s).get("free_bytes", 0)
            )
        except WorkerLost:
            return 0

    def clear(self) -> None:
        """Its worker, if it is up, gives its memory back and stays: a new one would take seconds to start."""
        if self._worker is None:
            return
        try:
            self._worker.ask(wire.clear_request(), self._worker_pool.limits.request_s)
        except WorkerLost:
            self.retire()

    def retire(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = self._ahead = None

    def _exchange(
        self,
        worker: Worker,
        request: wire.Message,
        limit_s: float,
        following: Following | None,
    ) -> wire.Message:
        if request is not self._ahead:
            worker.send(request)
        self._ahead = following() if following is not None else None
        if self._ahead is not None:
            worker.send(self._ahead)
        return worker.receive(limit_s)

    def _count(self, reply: wire.Message) -> None:
        """Adds what the worker's counters grew by."""
        said = reply.get("spent_s", {})
        for step, seconds in said.items():
            self._worker_pool.add(step, seconds - self._spent_s.get(step, 0.0))
        self._spent_s |= said

    def _read(self, reply: wire.Message, count: int) -> SlotAnswer:
        if "failure" in reply:
            self.retire()
            log.error("the judge's worker failed:\n%s", reply["failure"])
            reason = f"the judge failed: {str(reply['failure']).strip().splitlines()[-1]}"
            return SlotAnswer([Deferred(reason)] * count)
        if reply["fatal"]:
            self._worker_pool.count_restart()
            self.retire()
        again, lost = bool(reply.get("short_of_room")), bool(reply["fatal"])
        return SlotAnswer(wire.read_verdicts(reply), again, lost)
