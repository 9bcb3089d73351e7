"""What a proof holds for: the verifier and the software under which a kernel was judged.

They are stored with each kernel. Under others it is judged again before it is used (planner.py).
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import torch

from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.runtime import driver, nvrtc
from cudal1_compile.runtime.target import Target

VERIFIER_VERSION = 21  # to be raised by hand when a gate refuses what it accepted before


def versions(target: Target) -> dict[str, str]:
    """By name. What is not installed is not named: a stored image runs without a compiler."""
    found = {"verifier": str(VERIFIER_VERSION), "torch": str(torch.__version__)}
    return found | _cuda_versions() if target.kind == "cuda" else found


def outdated(stored: dict[str, str], target: Target) -> str | None:
    """The first version that is not the stored one's, as text; None where all are the same."""
    for name, now in versions(target).items():
        if stored.get(name) != now:
            return f"{name} {stored.get(name, 'unknown')}, here is {now}"
    return None


@cache
def _cuda_versions() -> dict[str, str]:
    found = {"cuda": str(torch.version.cuda)}
    with suppress(LaunchError):
        found["driver"] = driver.version()
    with suppress(BuildError):
        found["nvrtc"] = nvrtc.version()
    return found
