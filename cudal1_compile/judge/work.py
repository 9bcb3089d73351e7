"""Candidates that wait for a worker, program by program.

    Work(tasks) -> take(lane) -> all tasks of one program, whose exam is then made once

A program goes to the lane that had it last, where there is more than one to choose from.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from cudal1_compile.candidate import Candidate
from cudal1_compile.judge import wire
from cudal1_compile.judge.crew import Answer, Lane
from cudal1_compile.judge.verdict import Deferred, Rejected
from cudal1_compile.runtime.build import Binary
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import print_program

MAX_HOMES = 4096
Built = Binary | Rejected | Deferred


@dataclass(slots=True)
class Task:
    """One candidate, what it is built to, and what came of it."""

    program: Program
    candidate: Candidate
    seed: int
    built: Future[Built]
    answer: Future[Answer] = field(default_factory=Future)
    exam: str = ""  # a file that may hold the program's
    _request: wire.Message | None = None

    def request(self) -> wire.Message | Rejected | Deferred:
        """What a worker is asked, always the same object. Waits for the build."""
        binary = self.built.result()
        if not isinstance(binary, Binary):
            return binary
        if self._request is None:
            self._request = wire.judge_request(
                self.program, self.candidate, binary, self.seed, timed=True, exam=self.exam
            )
        return self._request

    def request_if_built(self) -> wire.Message | None:
        if not self.built.done() or self.built.exception() is not None:
            return None
        found = self.request()
        return None if isinstance(found, Rejected | Deferred) else found


class Work:
    """For several threads at once."""

    def __init__(self, tasks: Sequence[Task], homes: dict[str, Lane]) -> None:
        """homes: the lane of each program; is renewed."""
        self._lock = threading.Lock()
        self._homes = homes
        self._groups: dict[str, list[Task]] = {}
        for task in tasks:
            self._groups.setdefault(print_program(task.program), []).append(task)
        if len(homes) > MAX_HOMES:
            homes.clear()

    def __len__(self) -> int:
        """Programs that nobody has taken."""
        return len(self._groups)

    def take(self, lane: Lane) -> list[Task]:
        """One of this lane's own, or one that is nobody's, or any; empty where none is left."""
        with self._lock:
            if not self._groups:
                return []
            text = min(self._groups, key=lambda text: self._distance(text, lane))
            self._homes[text] = lane
            return self._groups.pop(text)

    def _distance(self, text: str, lane: Lane) -> int:
        home = self._homes.get(text)
        return 0 if home is lane else 1 if home is None else 2

    def clear(self) -> None:
        with self._lock:
            self._groups.clear()
