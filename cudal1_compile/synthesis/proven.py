"""The binary of code that the judge accepted: from the text that the judge built, which is what its gate left."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from cudal1_compile.errors import BuildError
from cudal1_compile.judge.static.text_gate import RefusedText, check_text
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import Binary, build
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program

_threads = ThreadPoolExecutor(2, "cudal1-binary")  # a build takes up to a second beside all that goes on


def begin_proven(program: Program, code: str, target: Target) -> Future[Binary]:
    """`build_proven` in a thread."""
    return _threads.submit(build_proven, program, code, target)


def build_proven(program: Program, code: str, target: Target) -> Binary:
    """Raises BuildError, also for what the text gate refuses; CandidateError; OSError, as `build` does."""
    text = check_text(code)
    if isinstance(text, RefusedText):
        raise BuildError(f"its source does not pass the text gate: {text.reason}")
    return build(program, parse_candidate(text.code, program), target)
