"""NVIDIA's compute-sanitizer over one call of a finalist: memcheck, racecheck and initcheck, each in a process.

    find_fault_on_device(program, candidate, binary, ...) -> CheckReport(fault | None, what each tool said)

Only where Limits(sanitize=True) asks for it: each tool takes seconds. It adds to the host's check build what that
one cannot compile, and the machine's own rules. A tool that is not installed, fails or takes too long says so in
the proof and refuses nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from cudal1_compile.config import environment_path
from cudal1_compile.judge.checks import sanitized_run
from cudal1_compile.judge.checks.memcheck import CheckReport
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.inputs.sizes import tensor_elements
from cudal1_compile.judge.sandbox.isolation import worker_environment
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.build import Binary
from cudal1_compile.runtime.launch_plan import axis_sizes, buffer_bytes, buffer_names, plan, symbolic_names
from cudal1_compile.runtime.scratch import ScratchFolder
from cudal1_compile.runtime.warden import watched
from cudal1_fx_passes.program.ir import Program

TOOLS = {"memcheck": ("--padding", "256"), "racecheck": (), "initcheck": ()}
FAULT_CODE = 86  # our own: no tool and no Python ends with it
MAX_ELEMENTS = 1 << 22  # of inputs and outputs

_FOUND = re.compile(r"ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: .*\([1-9]\d* error")
_HEADLINES = re.compile(r"^=+ (?!COMPUTE-SANITIZER|Program hit|Target|.*SUMMARY)(\S.*)$", re.MULTILINE)


def installed() -> str | None:
    """Path of compute-sanitizer."""
    homes = (environment_path("CUDA_HOME"), environment_path("CUDA_PATH"), "/usr/local/cuda")
    folders = [str(Path(home, "bin")) for home in homes if home]
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def find_fault_on_device(
    program: Program, candidate: Candidate, binary: Binary, seed: int, device_index: int, limit_s: float
) -> CheckReport:
    """Each tool in turn, at the region's sizes; the first fault ends it. limit_s: of one tool."""
    tool = installed()
    if tool is None:
        return CheckReport(None, (("compute-sanitizer", "not installed"),))
    if tensor_elements(program) > MAX_ELEMENTS:
        return CheckReport(None, (("compute-sanitizer", "not run: the region is too large"),))
    said: list[tuple[str, str]] = []
    with ScratchFolder("sanitizer").use() as folder:
        write_request(folder, program, candidate, binary, seed, device_index)
        for check, options in TOOLS.items():
            command = [tool, "--tool", check, "--error-exitcode", str(FAULT_CODE), "--print-limit", "3", *options]
            code, text = _run([*command, sys.executable, sanitized_run.__file__, str(folder)], folder, limit_s)
            said.append((check, outcome(code, text)))
            if said[-1][1].startswith("fault"):
                return CheckReport(f"{check}: {said[-1][1].removeprefix('fault: ')}", tuple(said))
    return CheckReport(None, tuple(said))


def outcome(code: int | None, text: str) -> str:
    """`clean`, `fault: ...` or why there is neither. code: of the process, None where it was killed."""
    if code == FAULT_CODE or _FOUND.search(text):
        headline = _HEADLINES.search(text)
        return f"fault: {headline[1] if headline else 'an error without a name'}"
    if code is None:
        return "not finished in time"
    lines = text.strip().splitlines()
    return "clean" if code == 0 else f"not run: {lines[-1][:120] if lines else f'exit code {code}'}"


def write_request(
    folder: Path, program: Program, candidate: Candidate, binary: Binary, seed: int, device_index: int
) -> None:
    """What sanitized_run.py reads."""
    made = make_inputs(program, "normal", seed, torch.device("cpu"))
    inputs: Mapping[str, Tensor] = {i.name: x for i, x in zip(program.inputs, made, strict=True)}
    planned, need = plan(program, candidate), buffer_bytes(program, candidate)
    names, zeroed, dims = buffer_names(program, candidate), dict(planned.zeroed), axis_sizes(program)
    for name, x in inputs.items():
        (folder / name).write_bytes(_storage(x)[: need[name]])
    request = {
        "device": device_index,
        "buffers": [{"bytes": need[n], "file": n if n in inputs else None, "zeroed": n in zeroed} for n in names],
        "launches": [
            {
                "symbol": binary.kernels[launch.kernel].symbol,
                "grid": launch.grid,
                "block": launch.block,
                "shared": launch.shared_bytes,
                "args": [names.index(a) for a in launch.args],
            }
            for launch in planned.launches
        ],
        "sizes": [dims[n] for n in symbolic_names(program)],
    }
    (folder / "cubin").write_bytes(binary.image)
    (folder / "request.json").write_text(json.dumps(request))


def _storage(x: Tensor) -> bytes:
    """From the first element on, gaps included."""
    start = x.storage_offset() * x.element_size()
    whole = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())
    return whole[start:].numpy().tobytes()


def _run(command: list[str], folder: Path, limit_s: float) -> tuple[int | None, str]:
    """Exit code (None where it took too long) and all that was written. Its whole process group ends here."""
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(worker_environment(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with child, watched(child.pid):
        try:
            text, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return child.returncode, text
