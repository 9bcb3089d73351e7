"""The bundled generator, or one of its form, in a process of its own on a GPU, as its user sees it.

    in_own_process(generator) -> GeneratorProcess     any other generator, and one on a CPU, stays as it is
    warm_up, propose    starts the process (generator_worker.py) where there is none
    leave_device        ends it: all that it held of the device is free

Sampling, tokenizing and lowering are thousands of small operations. Beside a thread that compiles, which wants the
interpreter too, they took three to ten times as long. The process works on the device beside the judge's workers,
whose lock it has too, and gives way to who takes times. An error, a late answer or an interrupt ends it; the next
call starts another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing

import torch

from cudal1_compile.generate.bundled import BundledGenerator
from cudal1_compile.generate.errors import GeneratorError, GeneratorTimeout
from cudal1_compile.generate.protocol import GRACE_S, Generator
from cudal1_compile.judge.bench.worker_pool import uuid_of
from cudal1_compile.judge.sandbox.device_lock import LockFiles
from cudal1_compile.judge.sandbox.fork_server import ForkServer
from cudal1_compile.judge.sandbox.process import STEP_S, Worker, WorkerLate, WorkerLost
from cudal1_compile.judge.sandbox.wire import Message
from cudal1_compile.pipeline import generator_worker

START_S = 60.0  # a process until it is warm


def in_own_process(generator: Generator, fork_server: ForkServer | None = None) -> Generator:
    """fork_server: whose fork the process is to be, if that can be had."""
    if not isinstance(generator, BundledGenerator) or generator.config.device == "cpu":
        return generator
    return GeneratorProcess(generator, uuid_of(torch.device(generator.config.device).index or 0), fork_server)


class GeneratorProcess:
    """For several threads: one asks at a time."""

    gives_way = writes_designs = True

    def __init__(self, form: BundledGenerator, gpu: str, fork_server: ForkServer | None = None) -> None:
        """form: the same here, which is never asked. gpu: its UUID; empty where nobody else works on it."""
        self.name, self.budget_tokens = form.name, form.budget_tokens
        self.prompts_at_once, self.count_tokens = form.prompts_at_once, form.count_tokens
        self._config, self._gpu, self._fork_server = form.config, gpu, fork_server
        self._lock = threading.Lock()  # of who asks
        self._worker: Worker | None = None
        self._has_left = False

    def warm_up(self) -> None:
        """Ahead of proposals; nothing once it has left the device. Raises GeneratorError as `propose_until`."""
        with self._lock:
            if not self._has_left:
                self._ask({"op": "warm_up"}, time.monotonic() + START_S)

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        return self.propose_until(prompts, n, seed, float("inf"))

    def propose_until(self, prompts: Sequence[str], n: int, seed: int, deadline: float) -> list[list[str]]:
        """As BundledGenerator's. Raises GeneratorError for whatever went wrong in the process, or with it."""
        request = {"op": "propose", "prompts": list(prompts), "n": n, "seed": seed, "deadline": deadline}
        with self._lock:
            replies: list[list[str]] = self._ask(request, deadline + GRACE_S)["replies"]
        return replies

    def leave_device(self) -> None:
        """At once, also while another thread asks. Until the next call."""
        while not self._lock.acquire(timeout=STEP_S):
            if (worker := self._worker) is not None:
                worker.stop()
        self._has_left = True
        try:
            self._end()
        finally:
            self._lock.release()

    def _ask(self, request: Message, end_s: float) -> Message:
        """end_s: as time.monotonic() tells it, in all processes."""
        if time.monotonic() >= end_s:
            raise self._late()
        try:
            return self._exchange(request, end_s)
        except BaseException:  # an interrupt too: the next reply would be the answer to another question
            self._end()
            raise

    def _exchange(self, request: Message, end_s: float) -> Message:
        try:
            if self._worker is None or not self._worker.alive:
                self._end()
                self._worker = self._begin()
                start = generator_worker.start_request(self._config, self._worker.lock_descriptors)
                _checked(self._worker.ask(start, end_s - time.monotonic()))
            return _checked(self._worker.ask(request, end_s - time.monotonic()))
        except WorkerLate:
            raise self._late() from None
        except (WorkerLost, OSError) as error:
            raise GeneratorError(f"generator {self.name} has no process any more: {error}") from None

    def _begin(self) -> Worker:
        """Raises OSError."""
        with closing(LockFiles(self._gpu)) as files:
            module = generator_worker.__name__
            return Worker(module, read_only=False, lock_files=files, fork_server=self._fork_server)

    def _late(self) -> GeneratorTimeout:
        return GeneratorTimeout(f"generator {self.name}: the time for this call is over")

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None


def _checked(reply: Message) -> Message:
    if "error" in reply:
        raise GeneratorError(reply["error"])
    return reply
