"""A process that runs NVRTC, one text after the other. Started by builders.py only; may be killed at any time.

    {source, arch, kernels} -> {cubin, kernels} | {error}

It imports neither torch nor the judge, so that it starts in a tenth of a second.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import sys
from dataclasses import asdict
from typing import Any

from cudal1_compile.errors import BuildError
from cudal1_compile.judge.isolation import give_up_privileges, lower_limit, take_over_pipes
from cudal1_compile.runtime import nvrtc

MEMORY_BYTES = 4 << 30  # address space, the compiler's library included


def main() -> None:
    """Serves until the pipe closes."""
    requests, replies = take_over_pipes()
    given_up = give_up_privileges(sys.argv[1:] or None)
    lower_limit(resource.RLIMIT_AS, MEMORY_BYTES)
    with os.fdopen(requests, "rb") as source, os.fdopen(replies, "wb") as target:
        target.write(json.dumps({"given_up": given_up}).encode() + b"\n")
        target.flush()
        for line in source:
            target.write(json.dumps(_answer(json.loads(line))).encode() + b"\n")
            target.flush()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        built = nvrtc.compile_cubin(request["source"], request["arch"], tuple(request["kernels"]))
    except BuildError as error:
        return {"error": str(error)}
    kernels = {name: asdict(info) for name, info in built.kernels.items()}
    return {"cubin": base64.b64encode(built.cubin).decode(), "kernels": kernels}


if __name__ == "__main__":
    main()
