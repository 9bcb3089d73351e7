"""What synthesis needs of the judge, so that tests can stand in for it. The real ones fit as they are."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from cudal1_compile.judge.verdict import Verdict
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program


class JudgePort(Protocol):
    """What is submitted goes on by itself; a future that is cancelled before its turn costs nothing more."""

    @property
    def target(self) -> Target: ...

    @property
    def workers(self) -> int: ...  # that can judge now

    def expect(self, programs: Sequence[Program]) -> None: ...

    def trouble(self) -> str | None: ...  # why the machine cannot judge now

    def submit_quick(self, tasks: Sequence[tuple[Program, str]]) -> list[Future[Verdict]]: ...

    def submit_exam(self, program: Program, code: str, is_sure: bool) -> Future[Verdict]: ...

    def submit_baselines(self, program: Program, inductor: bool) -> Future[Verdict]: ...

    def wait(self, futures: Sequence[Future[Verdict]], limit_s: float) -> None: ...  # until one is done
