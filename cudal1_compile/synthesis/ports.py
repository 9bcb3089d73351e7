"""What synthesis needs of the judge, so that tests can stand in for it. The real ones fit as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cudal1_compile.judge.verdict import Verdict
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program import Program


class JudgePort(Protocol):
    @property
    def target(self) -> Target: ...

    def expect(self, programs: Sequence[Program]) -> None: ...

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]: ...

    def finalists(self, program: Program, codes: Sequence[str]) -> list[Verdict]: ...

    def finalists_of(self, tasks: Sequence[tuple[Program, Sequence[str]]]) -> list[list[Verdict]]: ...

    def baselines(self, program: Program) -> Verdict: ...
