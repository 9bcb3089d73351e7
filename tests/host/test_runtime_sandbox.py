"""Every claim about the child process is attacked: with native code that the build would never let through."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch

from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.judge.sandbox import landlock
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime import hostbuild, hostrun
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.elf import ElfFacts, read_elf
from cudal1_compile.runtime.host_load import HostModule
from cudal1_compile.runtime.hostrun import HostLimits, HostRun, run_isolated
from cudal1_compile.runtime.target import HOST
from cudal1_compile.runtime.toolchain import compiler
from cudal1_compile.runtime.trouble import MachineTrouble
from cudal1_fx_passes.program.text import parse_program

pytestmark = pytest.mark.host

PROGRAM = parse_program("region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n")
CODE = """// launch: k<<<1, 64>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) { out0[threadIdx.x] = -in0[threadIdx.x]; }
"""


def candidate() -> Candidate:
    return parse_candidate(CODE, PROGRAM)


def buffers() -> dict[str, torch.Tensor]:
    return {"in0": torch.rand(64), "out0": torch.zeros(64)}


HEADERS = [
    "fcntl",
    "signal",
    "stdio",
    "stdlib",
    "string",
    "sys/ptrace",
    "sys/socket",
    "unistd",
    "sys/mman",
    "sys/resource",
]
CONSTRUCTOR = "static long found; __attribute__((constructor)) static void at_load() { %s }"


def hostile_image(folder: Path, body: str, before: str = "") -> bytes:
    """An object with the entry that the runner calls, built without any of our gates."""
    source, image = folder / "hostile.cpp", folder / "hostile.so"
    entry = f'extern "C" void cudal1_entry_k(void** a) {{ float* out = *(float**)a[1]; {body} }}'
    source.write_text("\n".join([*(f"#include <{name}.h>" for name in HEADERS), before, entry, ""]))
    command = [compiler(), "-O1", "-w", "-shared", "-fPIC", "-nodefaultlibs", str(source), "-o", str(image), "-lc"]
    subprocess.run(command, check=True)
    return image.read_bytes()


def without_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostrun, "read_elf", lambda image: ElfFacts(frozenset(), frozenset(), 0))


def attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, before: str = "", limits: HostLimits | None = None
) -> tuple[HostRun, torch.Tensor]:
    image = hostile_image(tmp_path, body, before)
    without_gates(monkeypatch)
    data = buffers()
    return run_isolated(PROGRAM, candidate(), image, data, limits or HostLimits(seconds=1.0)), data["out0"]


SYSTEM_CALLS = {
    "fork": "found = fork();",
    "socket": "found = socket(AF_INET, SOCK_STREAM, 0);",
    "write_file": 'found = open("escaped", O_CREAT | O_WRONLY, 0600);',
    "write_its_own_object": 'found = open("kernel.so", O_WRONLY);',
    "exec": 'found = system("touch escaped");',
    "kill_parent": "found = kill(getppid(), SIGTERM);",
    "trace_parent": "found = ptrace(PTRACE_ATTACH, getppid(), 0, 0);",
    "executable_memory": "found = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;",
    "executable_data": "static char code[8192]; found = mprotect((char*)((long)code & ~4095l), 4096, 5);",
    "raise_limits": "rlimit l = {1 << 30, 1 << 30}; found = setrlimit(RLIMIT_DATA, &l);",
    "catch_the_timer": "signal(SIGALRM, SIG_IGN); for (;;) {}",
    "another_session": "found = setsid();",
    "write_elsewhere": 'found = write(2, "x", 1);',
}


@pytest.mark.parametrize("when", ["running", "loading"])
@pytest.mark.parametrize("name", SYSTEM_CALLS)
def test_a_system_call_ends_the_child(
    name: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is made as the object is loaded."""
    before = CONSTRUCTOR % (SYSTEM_CALLS[name] if when == "loading" else "")
    found, out = attack(tmp_path, monkeypatch, SYSTEM_CALLS[name] if when == "running" else "", before)
    assert found.status == "crash", found
    assert f"while {when}" in found.message and "signal 31" in found.message
    assert not out.any()
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/shadow", "/proc/self/mem", "data", "request", "/"])
def test_code_that_is_loaded_opens_nothing(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not landlock.version():
        pytest.skip("this kernel has no Landlock")
    before = CONSTRUCTOR % f'found = open("{path}", O_RDONLY);'
    found, out = attack(tmp_path, monkeypatch, "out[0] = found < 0 ? 1 : 2;", before)
    assert found.ok and out[0] == 1, found


def test_code_that_is_loaded_cannot_report_for_the_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a result, nor a seal that is not there."""
    forged = r'{"status": "ok", "transactions": 1, "barriers": 0}'.replace('"', r"\"")
    for said, message in ((forged, "no report"), ("R" + forged, "claimed a seal"), ("R", "claimed"), ("", "died")):
        before = CONSTRUCTOR % f'write(1, "{said}", {len(said.replace(chr(92), ""))}); _exit(0);'
        found, out = attack(tmp_path, monkeypatch, "out[0] = 1;", before)
        assert found.status == "crash" and message in found.message and not out.any(), found


def test_code_that_is_loaded_has_the_kernels_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = attack(tmp_path, monkeypatch, "", CONSTRUCTOR % "for (;;) {}", HostLimits(seconds=0.2))
    assert found.status == "timeout", found


def test_a_process_that_cannot_be_sealed_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner runs under a filter of its own that refuses seccomp to its children."""
    image = build(PROGRAM, candidate(), HOST).image
    wrapper = tmp_path / "runner"
    source = tmp_path / "refuse.c"
    source.write_text(REFUSE_SECCOMP % (hostbuild.runtime_folder() / "runner"))
    subprocess.run([compiler("c"), str(source), "-o", str(wrapper)], check=True)
    monkeypatch.setattr(hostbuild, "runtime_folder", lambda: tmp_path)
    data = buffers()
    with pytest.raises(MachineTrouble, match="can be sealed"):
        run_isolated(PROGRAM, candidate(), image, data)
    assert not data["out0"].any()


REFUSE_SECCOMP = r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char** argv) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {4, code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 1;
  execv("%s", argv);
  return 1;
}
"""


def test_the_gates_refuse_the_same_object(tmp_path: Path) -> None:
    image = hostile_image(tmp_path, "out[0] = fork();")
    with pytest.raises(BuildError, match="nothing may run as it is loaded"):
        run_isolated(PROGRAM, candidate(), image, buffers())
    with pytest.raises(BuildError, match="nothing may run as it is loaded"):
        HostModule(image)


def test_an_object_is_opened_without_being_run() -> None:
    for check in (False, True):
        assert hostrun.open_isolated(build(PROGRAM, candidate(), HOST, check=check).image).ok


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
    without_gates(monkeypatch)
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
