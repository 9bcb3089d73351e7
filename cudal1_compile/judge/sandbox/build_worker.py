"""A process that runs NVRTC, one text after the other. Started by builders.py only; may be killed at any time.

    {source, arch, kernels, cpu_s} -> {cubin, kernels} | {error}

A text that takes more CPU time than that ends it. It imports neither torch nor the judge, so that it starts in a
tenth of a second.
"""

from __future__ import annotations

import base64
import json
import math
import os
import resource
import sys
import time
from dataclasses import asdict
from typing import Any

from cudal1_compile.errors import BuildError
from cudal1_compile.judge.sandbox.isolation import give_up_privileges, lower_limit, take_over_pipes
from cudal1_compile.runtime import nvrtc

MEMORY_BYTES = 4 << 30  # address space, the compiler's library included
NICE = 5  # one a core builds beside one process that judges


def main() -> None:
    """Serves until the pipe closes."""
    requests, replies = take_over_pipes()
    given_up = give_up_privileges(sys.argv[1:] or None)
    lower_limit(resource.RLIMIT_AS, MEMORY_BYTES)
    os.nice(NICE)
    with os.fdopen(requests, "rb") as source, os.fdopen(replies, "wb") as target:
        target.write(json.dumps({"given_up": given_up}).encode() + b"\n")
        target.flush()
        for line in source:
            target.write(json.dumps(_answer(json.loads(line))).encode() + b"\n")
            target.flush()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    _grant(request["cpu_s"])
    try:
        built = nvrtc.compile_cubin(request["source"], request["arch"], tuple(request["kernels"]))
    except BuildError as error:
        return {"error": str(error)}
    kernels = {name: asdict(info) for name, info in built.kernels.items()}
    return {"cubin": base64.b64encode(built.cubin).decode(), "kernels": kernels}


def _grant(seconds: int) -> None:
    """So much CPU time from now on; then this process dies."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()
