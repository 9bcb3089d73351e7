"""A known-good kernel, built and run as candidates are: does this machine judge at all right now?

What could be the machine's fault or the candidate's is the candidate's only where the canary passes right after.
No region without a win is stored before it has passed (synthesis/rounds.py). On the host it takes 0.1 s.
"""

from __future__ import annotations

import logging
import textwrap
import threading
import time
from collections.abc import Callable

import torch

from cudal1_compile.judge.verdict import Deferred, Rejected
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, run_isolated
from cudal1_compile.runtime.target import HOST
from cudal1_compile.runtime.trouble import MachineTrouble
from cudal1_fx_passes.program.text import parse_program

log = logging.getLogger(__name__)

KEPT_S = 30.0  # for which a pass holds where nothing has failed since
MAX_WORDS = 300  # characters of what a failure said
LIMIT_S = 2.0  # of CPU time, a build and a run; they take 0.03 s
SIZE = 64
PROGRAM = parse_program(f"region v1\ndims d0={SIZE}\nin0 f32[d0]\nt0 f32[d0] = relu(in0)\nout0 f32[d0] = t0\n")
CANDIDATE = parse_candidate(
    f"// launch: canary<<<1, {SIZE}>>>(in0, out0)\n"
    "__global__ void canary(const f32* in0, f32* out0 DIMS) {\n"
    "    st(out0 + threadIdx.x, relu(ld(in0 + threadIdx.x)));\n}\n",
    PROGRAM,
)


class Canary:
    """For several threads at once: who asks while it runs waits for the same answer."""

    def __init__(self, sing: Callable[[], str | None]) -> None:
        """sing: builds and runs it; why that failed, or None."""
        self._sing = sing
        self._lock = threading.Lock()
        self._began = float("-inf")
        self._why: str | None = None
        self._has_warned = False

    def trouble(self, since: float | None = None) -> str | None:
        """Why the machine cannot judge, as a sentence; None where it can.

        since: on the monotonic clock; an earlier run is no answer. Without it a pass holds for KEPT_S.
        """
        with self._lock:
            kept_from = time.monotonic() - KEPT_S if self._why is None else float("inf")
            if self._began < (kept_from if since is None else since):
                self._began = time.monotonic()
                self._why = self._sing()
            return self._why and f"the machine cannot build and run a known-good kernel: {self._why}"

    def rule(self, error: OSError) -> Rejected | Deferred:
        """What ended a build or a run: a refusal where the candidate may have done it, and the canary passes."""
        if isinstance(error, MachineTrouble) and not error.is_certain:
            if (why := self.trouble(time.monotonic())) is None:
                return Rejected("verify" if error.is_of_run else "build", str(error))
            error = OSError(f"{error}; {why}")
        if not self._has_warned and not isinstance(error, TimeoutError):
            log.warning("candidates are put off: %s", error)
            self._has_warned = True
        return Deferred(str(error))


def sing_on_host() -> str | None:
    """Both forms of build, each run once."""
    given = torch.arange(SIZE, dtype=torch.float32) - SIZE // 2
    try:
        for check in (True, False):
            got = torch.full((SIZE,), torch.nan)
            image = build(PROGRAM, CANDIDATE, HOST, check, limit_s=LIMIT_S).image
            run = run_isolated(PROGRAM, CANDIDATE, image, {"in0": given, "out0": got}, HostLimits(LIMIT_S))
            if not run.ok or not torch.equal(got, given.relu()):
                return run.message or "its results are wrong"
    except (RuntimeError, OSError, MemoryError) as error:
        return textwrap.shorten(str(error), MAX_WORDS) or type(error).__name__
    return None
