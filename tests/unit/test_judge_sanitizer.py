"""What goes to compute-sanitizer and what is read from it; the tool itself is needed by tests/gpu only."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.redteam.honest import COLUMN_ATOMIC, SILU_SCALAR, STRIDED
from benchmarks.redteam.regions import region
from cudal1_compile.judge.checks import sanitized_run, sanitizer
from cudal1_compile.judge.checks.memcheck import CheckReport
from cudal1_compile.judge.checks.sanitizer import find_fault_on_device, outcome, write_request
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import Binary, Resources
from cudal1_fx_passes.program.text import parse_program

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at k(const float *, float *)+0x90
=========     by thread (255,0,0) in block (46,0,0)
=========     Address 0x7f2e2fa0b8f0 is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at k(const float *, float *)+0x1a0
=========     and Read access at k(const float *, float *)+0x2b0 [128 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNED = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at k+0x1a0
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
CLEAN_RACES = (
    "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
)
BINARY = Binary("cuda", "sm_90a", b"cubin", {"k": Resources(16, 0, 0, 1024, "_Z1kv")})


@pytest.mark.parametrize(
    ("code", "text", "said"),
    [
        (0, CLEAN, "clean"),
        (0, CLEAN_RACES, "clean"),
        (0, WARNED, "clean"),
        (86, MEMCHECK, "fault: Invalid __global__ write of size 4 bytes"),
        (1, MEMCHECK, "fault: Invalid __global__ write of size 4 bytes"),  # the run itself ended badly too
        (86, RACECHECK, "fault: Error: Race reported between Write access at k(const float *, float *)+0x1a0"),
        (86, "", "fault: an error without a name"),
        (None, "", "not finished in time"),
        (1, "========= COMPUTE-SANITIZER\nDevice not supported", "not run: Device not supported"),
        (2, "", "not run: exit code 2"),
    ],
)
def test_an_outcome_is_clean_a_fault_or_says_why_not(code: int | None, text: str, said: str) -> None:
    assert outcome(code, text) == said


@pytest.mark.parametrize(("name", "code"), [("silu", SILU_SCALAR), ("column_sum", COLUMN_ATOMIC)])
def test_buffers_are_as_large_as_the_program_says_and_arguments_find_them(
    name: str, code: str, tmp_path: Path
) -> None:
    program = region(name)
    candidate = parse_candidate(code, program)
    kernels = {launch.kernel: BINARY.kernels["k"] for launch in candidate.launches}
    write_request(tmp_path, program, candidate, Binary("cuda", "sm_90a", b"cubin", kernels), 5, 2)
    request = json.loads((tmp_path / "request.json").read_text())
    names = [*(o.name for o in program.outputs), *(s.name for s in candidate.scratch)]
    names += [i.name for i in program.inputs]
    assert request["device"] == 2
    assert [names[i] for launch in request["launches"] for i in launch["args"]] == [
        a for launch in candidate.launches for a in launch.args
    ]
    for buffer, buffer_name in zip(request["buffers"], names, strict=True):
        is_input = buffer_name.startswith("in")
        assert buffer["file"] == (buffer_name if is_input else None)
        if is_input:
            assert (tmp_path / buffer_name).stat().st_size == buffer["bytes"] > 0
    assert {n for n, b in zip(names, request["buffers"], strict=True) if b["zeroed"]} == {
        s.name for s in candidate.scratch if s.zeroed
    }


def test_a_strided_input_is_written_with_its_gaps(tmp_path: Path) -> None:
    program = region("strided")
    write_request(tmp_path, program, parse_candidate(STRIDED, program), BINARY, 5, 0)
    dense = program.size(program.inputs[0].axes) * 4
    assert (tmp_path / "in0").stat().st_size > dense


def _find(limit_s: float = 20.0) -> CheckReport:
    program = region("silu")
    return find_fault_on_device(program, parse_candidate(SILU_SCALAR, program), BINARY, 5, 0, limit_s)


def test_without_the_tool_the_proof_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "installed", lambda: None)
    assert _find() == CheckReport(None, (("compute-sanitizer", "not installed"),))


def test_a_large_region_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "installed", lambda: "tool")
    program = parse_program(
        f"region v1\ndims d0={sanitizer.MAX_ELEMENTS}\nin0 f32[d0]\nt0 f32[d0] = exp(in0)\nout0 f32[d0] = t0\n"
    )
    code = "// launch: k<<<1, 32>>>(in0, out0)\n__global__ void k(const f32* in0, f32* out0 DIMS) {}\n"
    found = find_fault_on_device(program, parse_candidate(code, program), BINARY, 5, 0, 1.0)
    assert found.said == (("compute-sanitizer", "not run: the region is too large"),)


def _tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A stand-in with the tool's name: only how it is started and ended is of interest here."""
    script = tmp_path / "compute-sanitizer"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert sanitizer.installed() == str(script)


def test_each_tool_runs_and_the_first_fault_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tool(tmp_path, monkeypatch, 'if [ "$2" = racecheck ]; then echo "========= Error: Race"; exit 86; fi')
    assert _find() == CheckReport(
        "racecheck: Error: Race", (("memcheck", "clean"), ("racecheck", "fault: Error: Race"))
    )


def test_a_tool_that_takes_too_long_dies_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tool(tmp_path, monkeypatch, f"sleep 100 & echo $! > {tmp_path}/child; wait")
    begin = time.monotonic()
    assert _find(limit_s=0.5).said == tuple((check, "not finished in time") for check in sanitizer.TOOLS)
    assert time.monotonic() - begin < 15.0
    child = int((tmp_path / "child").read_text())
    while _runs(child):  # a killed process needs a moment on a busy machine
        assert time.monotonic() - begin < 30.0
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_run_needs_the_standard_library_and_the_driver_only(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps({"device": 99, "buffers": [], "launches": [], "sizes": []}))
    (tmp_path / "cubin").write_bytes(b"no cubin")
    command = [sys.executable, "-S", sanitized_run.__file__, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}
    )
    assert done.returncode != 0
    assert "libcuda.so.1" in done.stderr or "CUDA error" in done.stderr
