"""What synthesis needs, made while the graph is still traced: the judge, and the bundled generator.

    with Preparation(...) as preparation:       the end of the outermost statement closes the judge, and the
                                                generator leaves the device
        preparation.begin()                     in threads: a judge, whose workers take the device, and a
                                                generator, whose process takes it too
        preparation.judge(), .generator()       waits for it, or makes one

On a GPU both have forks of one fork server, the judge's: while that still imports, the judge's end is its end too.
Other generators than the bundled one are made where they are needed. transformers sets torch's default dtype while
it loads, for the whole process, and what is traced meanwhile would be of it; and two threads that import from
transformers at once can get an ImportError, the user's too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from cudal1_compile.generate.daemons import start_daemon
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.factory import is_light
from cudal1_compile.generate.protocol import Generator, WarmsUp, leave_device
from cudal1_compile.pipeline.place import TargetDevice
from cudal1_compile.pipeline.process_state import Session
from cudal1_fx_passes.program.precision import products_may_use_tf32

if TYPE_CHECKING:  # a warm start has no judge
    from cudal1_compile.judge.judge import Judge
    from cudal1_compile.judge.sandbox.fork_server import ForkServer

T = TypeVar("T")


class Preparation:
    """Judge and generator of one compile. Within its with statements both are one and the same."""

    def __init__(self, place: TargetDevice, session: Session, generator: str | Generator) -> None:
        self._place, self._session, self._wanted = place, session, generator
        self._depth = 0
        self._fork_server: ForkServer | None = None
        self._judge = _Part(
            "cudal1-judge", self._make_judge, lambda judge: judge.close(), lambda judge: judge.wake()
        )
        self._generator = _Part("cudal1-generator", self._make_generator, leave_device, self._warm_up)

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
        self._prepare()  # not in a thread: the fork server ends with the one that began it
        self._judge.begin()
        if is_light(self._wanted):
            self._generator.begin()

    def judge(self) -> Judge:
        """Raises BuildError or OSError where candidates cannot be built here."""
        return self._judge.get()

    def generator(self) -> Generator:
        """Raises GeneratorError, or ValueError for a text that names no generator."""
        return self._generator.get()

    def _make_judge(self) -> Judge:
        from cudal1_compile.judge.judge import Judge
        from cudal1_compile.judge.limits import Limits

        if self._place.device.type == "cpu":
            return Judge(self._place.target)
        self._prepare()
        with torch.cuda.device(self._place.device):
            return Judge(self._place.target, Limits(products_in_tf32=products_may_use_tf32()))

    def _make_generator(self) -> Generator:
        found = self._session.generator(self._wanted, self._place.device)
        if self._place.device.type == "cpu":
            return found
        from cudal1_compile.pipeline.generator_process import in_own_process

        self._prepare()
        return in_own_process(found, self._fork_server)

    def _prepare(self) -> None:
        from cudal1_compile.judge.sandbox import fork_server

        if self._fork_server is None:
            self._fork_server = fork_server.prepare()

    def _warm_up(self, generator: Generator) -> None:
        """What it says of the device it will say again when it is asked."""
        if isinstance(generator, WarmsUp):
            with suppress(GeneratorError):
                generator.warm_up()

    def close(self) -> None:
        """Now, also within the with statements: what is asked for again is made again."""
        self._judge.close()
        self._generator.close()
        self._fork_server = None


class _Part(Generic[T]):
    """One of the things that a compile needs: made by a thread where that was begun, else when it is asked for.

    wake: called by that thread with what is still wanted once it is there.
    """

    def __init__(
        self, name: str, make: Callable[[], T], drop: Callable[[T], None], wake: Callable[[T], None] | None = None
    ) -> None:
        self.name, self.make, self.drop, self.wake = name, make, drop, wake
        self._coming: _Made[T] | None = None
        self._found: T | None = None

    def begin(self) -> None:
        self._coming = _Made(self)

    def get(self) -> T:
        if self._found is None:
            self._found = self.make() if self._coming is None else self._coming.get()
            self._coming = None
        return self._found

    def close(self) -> None:
        if self._coming is not None:
            self._coming.close()
        if self._found is not None:
            self.drop(self._found)
        self._coming = self._found = None


class _Made(Generic[T]):
    """What a thread makes."""

    def __init__(self, part: _Part[T]) -> None:
        self._part = part
        self._lock = threading.Lock()
        self._found: T | None = None
        self._error: BaseException | None = None
        self._is_wanted = True
        self._is_there = threading.Event()  # it, or the error
        self._thread = start_daemon(self._run, part.name)

    def _run(self) -> None:
        try:
            found = self._part.make()
            with self._lock:
                self._found = found
                is_wanted = self._is_wanted
            self._is_there.set()
            if not is_wanted:
                self._part.drop(found)
            elif self._part.wake is not None:
                self._part.wake(found)
        except BaseException as error:  # noqa: BLE001  whoever waits for it raises it
            self._error = error
        finally:
            self._is_there.set()

    def get(self) -> T:
        """Waits for it, and raises what its making raised."""
        self._is_there.wait()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def close(self) -> None:
        """It is not wanted: not waited for either, where it is not there yet."""
        with self._lock:
            self._is_wanted = False
            found = self._found
        if found is not None:
            self._part.drop(found)
