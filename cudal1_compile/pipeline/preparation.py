"""What synthesis needs, made while the graph is still traced: the judge.

    with Preparation(...) as preparation:       the end of the outermost statement closes the judge
        preparation.begin()                     in a thread: a judge, whose first worker takes the device
        preparation.judge()                     waits for it, or makes one

The generator is made where it is needed, beside the worker's start. transformers sets torch's default dtype while
it loads, for the whole process, and what is traced meanwhile would be of it; and two threads that import from
transformers at once can get an ImportError, the user's too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType

import torch

from cudal1_compile.generate.daemons import start_daemon
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.sandbox import fork_server
from cudal1_compile.pipeline.place import TargetDevice


class Preparation:
    """The judge of one compile. Within its with statements it is one and the same; the outermost one closes it."""

    def __init__(self, place: TargetDevice) -> None:
        self._place = place
        self._depth = 0
        self._coming: _Made | None = None
        self._judge: Judge | None = None

    def __enter__(self) -> Preparation:
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.close()

    def begin(self) -> None:
        """Call it within the with statement, once it is likely that kernels are to be written."""
        fork_server.prepare()  # not in a thread: the fork server ends with the one that began it
        self._coming = _Made(self._make)

    def judge(self) -> Judge:
        """Raises BuildError or OSError where candidates cannot be built here."""
        if self._judge is None:
            self._judge = self._make() if self._coming is None else self._coming.get()
            self._coming = None
        return self._judge

    def _make(self) -> Judge:
        device = self._place.device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            return Judge(self._place.target)

    def close(self) -> None:
        """Now, also within the with statements: another one is made where one is asked for."""
        if self._coming is not None:
            self._coming.close()
        if self._judge is not None:
            self._judge.close()
        self._coming = self._judge = None


class _Made:
    """A judge that a thread makes."""

    def __init__(self, make: Callable[[], Judge]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._judge: Judge | None = None
        self._error: BaseException | None = None
        self._is_wanted = True
        self._thread = start_daemon(self._run, "cudal1-judge")

    def _run(self) -> None:
        try:
            judge = self._make()
            with self._lock:
                self._judge = judge
                is_wanted = self._is_wanted
            if is_wanted:
                judge.wake()
            else:
                judge.close()
        except BaseException as error:  # noqa: BLE001  whoever waits for it raises it
            self._error = error

    def get(self) -> Judge:
        """Waits for it, and raises what its making raised."""
        self._thread.ended.wait()
        if self._error is not None:
            raise self._error
        assert self._judge is not None
        return self._judge

    def close(self) -> None:
        """It is not wanted: not waited for either, where it is not there yet."""
        with self._lock:
            self._is_wanted = False
            judge = self._judge
        if judge is not None:
            judge.close()
