"""Every claim about the child process is attacked: with native code that the build would never let through."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch

from cudal1_compile.candidate import Candidate, parse_candidate
from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.runtime import hostbuild, hostrun
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.elf import read_elf
from cudal1_compile.runtime.host_load import HostModule
from cudal1_compile.runtime.hostrun import HostLimits, HostRun, run_isolated
from cudal1_compile.runtime.target import HOST
from cudal1_compile.runtime.toolchain import compiler
from cudal1_fx_passes.text import parse_program

pytestmark = pytest.mark.host

PROGRAM = parse_program("region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n")
CODE = """// launch: k<<<1, 64>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) { out0[threadIdx.x] = -in0[threadIdx.x]; }
"""


def candidate() -> Candidate:
    return parse_candidate(CODE, PROGRAM)


def buffers() -> dict[str, torch.Tensor]:
    return {"in0": torch.rand(64), "out0": torch.zeros(64)}


HEADERS = ["fcntl", "signal", "stdlib", "string", "sys/socket", "unistd", "sys/mman", "sys/resource"]


def hostile_image(folder: Path, body: str, before: str = "") -> bytes:
    """An object with the entry that the runner calls, built without any of our gates."""
    source, image = folder / "hostile.cpp", folder / "hostile.so"
    entry = f'extern "C" void cudal1_entry_k(void** a) {{ float* out = *(float**)a[1]; {body} }}'
    source.write_text("\n".join([*(f"#include <{name}.h>" for name in HEADERS), before, entry, ""]))
    subprocess.run([compiler(), "-O1", "-w", "-shared", "-fPIC", str(source), "-o", str(image)], check=True)
    return image.read_bytes()


def attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, limits: HostLimits | None = None
) -> tuple[HostRun, torch.Tensor]:
    image = hostile_image(tmp_path, body)
    monkeypatch.setattr(hostbuild, "check_facts", lambda facts, check: None)
    data = buffers()
    return run_isolated(PROGRAM, candidate(), image, data, limits or HostLimits(seconds=1.0)), data["out0"]


SYSTEM_CALLS = {
    "fork": "out[0] = fork();",
    "socket": "out[0] = socket(AF_INET, SOCK_STREAM, 0);",
    "open": 'out[0] = open("/etc/passwd", O_RDONLY);',
    "write_file": 'out[0] = open("escaped", O_CREAT | O_WRONLY, 0600);',
    "exec": 'out[0] = system("touch escaped");',
    "kill_parent": "out[0] = kill(getppid(), SIGTERM);",
    "executable_memory": "out[0] = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;",
    "raise_limits": "rlimit l = {1 << 30, 1 << 30}; out[0] = setrlimit(RLIMIT_DATA, &l);",
    "catch_the_timer": "signal(SIGALRM, SIG_IGN); for (;;) {}",
}


@pytest.mark.parametrize("name", SYSTEM_CALLS)
def test_a_system_call_ends_the_child(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, out = attack(tmp_path, monkeypatch, SYSTEM_CALLS[name])
    assert found.status == "crash", found
    assert "signal 9" in found.message
    assert not out.any()
    assert not (tmp_path / "escaped").exists()


def test_the_gates_refuse_the_same_object(tmp_path: Path) -> None:
    image = hostile_image(tmp_path, "out[0] = fork();")
    found = run_isolated(PROGRAM, candidate(), image, buffers())
    assert found.status == "refused" and "fork" in found.message
    with pytest.raises(BuildError, match="fork"):
        HostModule(image)


def test_a_check_build_is_not_loaded_in_process() -> None:
    image = build(PROGRAM, candidate(), HOST, check=True).image
    assert hostbuild.is_checked(read_elf(image))
    with pytest.raises(LaunchError, match="check build"):
        HostModule(image)


def test_an_early_exit_is_not_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, out = attack(tmp_path, monkeypatch, "out[0] = 1; _exit(0);")
    assert found.status == "crash" and not out.any()


def test_the_environment_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL1_SECRET", "x")
    found, out = attack(tmp_path, monkeypatch, 'out[0] = getenv("CUDAL1_SECRET") ? 1 : 2;')
    assert found.ok and out[0] == 2


def test_memory_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grab = "static void* got = mmap(0, 6l << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);"
    image = hostile_image(tmp_path, "out[0] = got == MAP_FAILED ? 1 : 2;", before=grab)  # runs as it is loaded
    monkeypatch.setattr(hostbuild, "check_facts", lambda facts, check: None)
    for memory_bytes, expected in ((1 << 28, 1), (32 << 30, 2)):
        data = buffers()
        found = run_isolated(PROGRAM, candidate(), image, data, HostLimits(memory_bytes=memory_bytes))
        assert found.ok and data["out0"][0] == expected


def test_a_stuck_process_group_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner is replaced by one that starts a child of its own and ignores every polite signal."""
    marker = tmp_path / "grandchild"
    runner = tmp_path / "runner"
    runner.write_text(
        f"#!/bin/sh\ntrap '' TERM ALRM INT\nsleep 100 &\necho $! > {marker}\nwhile :; do wait; done\n"
    )
    runner.chmod(0o755)
    image = build(PROGRAM, candidate(), HOST).image
    monkeypatch.setattr(hostbuild, "runtime_folder", lambda: tmp_path)
    monkeypatch.setattr(hostrun, "GRACE_S", 0.3)
    with pytest.raises(TimeoutError, match="too busy"):
        run_isolated(PROGRAM, candidate(), image, buffers(), HostLimits(seconds=0.1))
    grandchild = int(marker.read_text())
    for _ in range(50):
        if not _alive(grandchild):
            break
        time.sleep(0.1)
    assert not _alive(grandchild)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_garbage_is_refused() -> None:
    with pytest.raises(BuildError, match="ELF"):
        run_isolated(PROGRAM, candidate(), b"not an object", buffers())


def test_buffers_must_fit() -> None:
    image = build(PROGRAM, candidate(), HOST).image
    with pytest.raises(LaunchError, match="out0"):
        run_isolated(PROGRAM, candidate(), image, {"in0": torch.rand(64)})
    with pytest.raises(LaunchError, match="bytes"):
        run_isolated(PROGRAM, candidate(), image, {"in0": torch.rand(63), "out0": torch.zeros(64)})


def test_nothing_is_left_behind() -> None:
    image = build(PROGRAM, candidate(), HOST).image
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert run_isolated(PROGRAM, candidate(), image, buffers()).ok
    assert len(set(os.listdir("/proc/self/fd"))) == len(before)


def test_temporary_files_may_lie_in_a_folder_with_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "of the user"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for check in (False, True):
        found = run_isolated(PROGRAM, candidate(), build(PROGRAM, candidate(), HOST, check=check).image, buffers())
        assert found.ok, found
