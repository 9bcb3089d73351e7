"""Native builds: cached, safe against a second process, clear when a tool fails or is not there."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from cudal1_compile.errors import BuildError
from cudal1_compile.runtime import hostbuild, places, toolchain
from cudal1_compile.runtime.toolchain import Step, build_native, run
from tests.runtime_kernels import BOMB

pytestmark = pytest.mark.host
FLAGS = ("-O1", "-shared", "-fPIC")
COMPILER = (toolchain.compiler, toolchain.compiler_version, toolchain.compiler_build)  # what a process keeps of it


def source(folder: Path, text: str) -> Path:
    path = folder / "odd name.c"
    path.write_text(text)
    return path


def test_a_build_is_cached_by_source_and_flags(tmp_path: Path) -> None:
    step = Step("a.so", (source(tmp_path, "int f(void) { return 41; }"),), FLAGS, "c")
    first = build_native("t", (step,))
    begun = (first / "a.so").stat().st_mtime_ns
    assert build_native("t", (step,)) == first and (first / "a.so").stat().st_mtime_ns == begun
    assert build_native("t", (Step("a.so", step.sources, (*FLAGS, "-DX"), "c"),)) != first
    source(tmp_path, "int f(void) { return 42; }")
    second = build_native("t", (step,))
    assert second != first
    assert ctypes.CDLL(str(second / "a.so")).f() == 42
    assert sorted(p.name for p in first.parent.iterdir()) == sorted(
        p.name for p in first.parent.iterdir() if not p.name.startswith(".build")
    )


def test_a_failed_build_leaves_nothing(tmp_path: Path, cudal1_cache_dir: Path) -> None:
    step = Step("a.so", (source(tmp_path, "int f(void) { return nosuch; }"),), FLAGS, "c")
    with pytest.raises(BuildError, match="nosuch"):
        build_native("t", (step,))
    assert list((cudal1_cache_dir / "native").iterdir()) == []


def test_what_every_user_may_write_is_not_loaded(
    tmp_path: Path, cudal1_cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = Step("a.so", (source(tmp_path, "int f(void) { return 43; }"),), FLAGS, "c")
    kept = build_native("t", (step,))
    for place in (cudal1_cache_dir, kept.parent, kept):
        place.chmod(0o775)
        assert build_native("t", (step,)) != kept
        assert f"others may write to {place} (mode 775): chmod go-w it" in caplog.text
        place.chmod(0o755)
    assert build_native("t", (step,)) == kept


def test_what_another_user_owns_is_not_loaded(
    tmp_path: Path, cudal1_cache_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step("a.so", (source(tmp_path, "int f(void) { return 44; }"),), FLAGS, "c")
    kept = build_native("t", (step,))
    monkeypatch.setattr(os, "geteuid", lambda: 65533)
    assert build_native("t", (step,)) != kept
    assert f"{cudal1_cache_dir} belongs to user {os.getuid()}, this is user 65533" in caplog.text


def test_a_folder_is_this_users_whatever_the_umask(tmp_path: Path, cudal1_cache_dir: Path) -> None:
    old = os.umask(0o002)
    try:
        kept = build_native("t", (Step("a.so", (source(tmp_path, "int f(void) { return 1; }"),), FLAGS, "c"),))
        assert kept == build_native("t", (Step("a.so", (tmp_path / "odd name.c",), FLAGS, "c"),))
    finally:
        os.umask(old)
    assert kept.parent == cudal1_cache_dir / "native"


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["a.so", "manifest.json"])
@pytest.mark.parametrize("damage", [_halve, _empty, _lengthen, _flip, Path.unlink])
def test_a_damaged_folder_is_moved_aside_and_built_anew(
    name: str, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = Step("a.so", (source(tmp_path, "int f(void) { return 45; }"),), FLAGS, "c")
    kept = build_native("t", (step,))
    damage(kept / name)
    assert build_native("t", (step,)) == kept and ctypes.CDLL(str(kept / "a.so")).f() == 45
    assert len(list(kept.parent.glob(f"{kept.name}.damaged-*"))) == 1
    assert len([r for r in caplog.records if "is built anew" in r.getMessage()]) == 1
    assert build_native("t", (step,)) == kept
    assert len(caplog.records) == 1


def test_a_damaged_folder_that_cannot_be_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step("a.so", (source(tmp_path, "int f(void) { return 46; }"),), FLAGS, "c")
    kept = build_native("t", (step,))
    _halve(kept / "a.so")
    monkeypatch.setattr(Path, "rename", refuse)
    mine = build_native("t", (step,))
    assert mine != kept and ctypes.CDLL(str(mine / "a.so")).f() == 46
    assert "is built for this process only" in caplog.text


def refuse(*_: object) -> None:
    raise OSError(30, "Read-only file system")


@pytest.mark.slow  # in every run: one file at a time, in this process
def test_a_process_survives_native_damage(cudal1_cache_dir: Path) -> None:
    """Of every folder: what had killed the next process by SIGBUS, or left it without kernels for ever."""
    native = cudal1_cache_dir / "native"
    used = [use_natively(cudal1_cache_dir)]
    for damage, host in ((_halve, "libcudal1_host.so"), (_empty, "runner_check")):
        outputs = ("cudal1_launch.so", host, "host.h.gch")
        damaged = [path for path in native.glob("*/*") if path.name in outputs and ".damaged-" not in str(path)]
        for path in damaged:
            damage(path)
        used.append(use_natively(cudal1_cache_dir))
        assert len(damaged) == 4 and used[-1].stderr.count("is built anew") == 4, used[-1].stderr
    assert [u.returncode for u in used] == [0, 0, 0], used[-1].stderr


def use_natively(directory: Path) -> subprocess.CompletedProcess[str]:
    script = (
        "import logging; logging.basicConfig()\n"
        "from cudal1_compile.runtime import host_load, hostbuild, launch_table\n"
        "code = '__global__ void k(float* x) { x[0] = 1.0f; }'\n"
        "for check in (False, True): hostbuild.compile_host(code, ('k',), check)\n"
        "assert launch_table.load_extension() is not None and host_load.functions().launch\n"
        "import subprocess\n"
        "subprocess.run([str(hostbuild.runtime_folder() / 'runner_check')], capture_output=True)\n"
    )
    environment = {**os.environ, "CUDAL1_CACHE_DIR": str(directory), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_processes_that_build_at_once(is_damaged: bool, tmp_path: Path, cudal1_cache_dir: Path) -> None:
    step = Step("a.so", (source(tmp_path, "int f(void) { return 7; }"),), FLAGS, "c")
    if is_damaged:
        _halve(build_native("t", (step,)) / "a.so")
    fork = get_context("fork")
    told = fork.SimpleQueue()
    children = [fork.Process(target=lambda: told.put(build_native("t", (step,)))) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    outputs = {told.get() for _ in children}
    assert len(outputs) == 1
    assert ctypes.CDLL(str(outputs.pop() / "a.so")).f() == 7
    kept = [p for p in (cudal1_cache_dir / "native").iterdir() if p.name != ".lock"]
    assert len(kept) == 1 + is_damaged and sum(".damaged-" in p.name for p in kept) == is_damaged


def test_outputs_are_on_the_disk_before_they_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def move(old: Path, new: Path) -> None:
        events.append(f"rename {new.name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", move)
    kept = build_native("t", (Step("a.so", (source(tmp_path, "int f(void) { return 8; }"),), FLAGS, "c"),))
    assert events[:2] == ["a.so", "manifest.json"] and events[2].startswith(".build-")
    assert events[-2:] == [f"rename {kept.name}", "native"]


def test_tools_that_fail_are_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="nosuchtool is not there"):
        run(["nosuchtool"])
    with pytest.raises(TimeoutError, match="too busy"):
        run([sys.executable, "-c", "import time; time.sleep(9)"], limit_s=0.02)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.compiler.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(BuildError, match="install g\\+\\+"):
        toolchain.compiler()
    toolchain.compiler.cache_clear()


def test_lines_without_addr2line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert places.candidate_line(tmp_path / "none.so", 16) is None


def test_a_tool_that_takes_too_long_dies_with_what_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "helper"
    script = tmp_path / "tool"
    script.write_text(f"#!/bin/sh\nsleep 100 &\necho $! > {marker}\nwait\n")
    script.chmod(0o755)
    with pytest.raises(TimeoutError, match="too busy"):
        run([str(script)], limit_s=0.1)
    helper = int(marker.read_text())
    for _ in range(50):
        if not is_running(helper):
            break
        time.sleep(0.1)
    assert not is_running(helper)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_tool_gets_no_more_memory_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    grab = "import time\ntime.sleep(0.3)\nbytearray(1 << 30)"
    run([sys.executable, "-c", grab])
    monkeypatch.setattr(toolchain, "MEMORY_BYTES", 1 << 29)
    with pytest.raises(BuildError, match="MemoryError"):
        run([sys.executable, "-c", grab])


def test_a_text_that_keeps_the_compiler_busy_is_a_build_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostbuild, "COMPILE_LIMIT_S", 1.0)
    monkeypatch.setattr(toolchain, "PATIENCE", 60)
    hostbuild.prepare()
    kernel = "__global__ void k(const float* a, float* o) { o[threadIdx.x] = grown(a[threadIdx.x]); }\n"
    with pytest.raises(BuildError, match="CPU time limit"):
        hostbuild.compile_host(BOMB + kernel, ("k",), check=False)


def test_what_was_removed_while_the_process_runs_is_built_again() -> None:
    code = "__global__ void k(float* x) { x[0] = 1.0f; }"
    hostbuild.compile_host(code, ("k",), True)
    for folder in (hostbuild.precompiled_header(True), hostbuild.runtime_folder()):
        shutil.rmtree(folder)
    hostbuild.compile_host(code, ("k",), True)
    assert (hostbuild.runtime_folder() / "runner_check").is_file()


def test_a_compiler_that_hardens_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cudal1_cache_dir: Path
) -> None:
    """As g++ of Ubuntu does: its own options come before the command's."""
    hardened = tmp_path / "hardened-g++"
    options = "-fstack-protector-strong -fstack-clash-protection -fcf-protection -D_FORTIFY_SOURCE=2"
    hardened.write_text(f'#!/bin/sh\nexec {toolchain.compiler()} {options} "$@"\n')
    hardened.chmod(0o755)
    caches = (*COMPILER, hostbuild._build_header)
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setenv("CXX", str(hardened))
    code = "__global__ void k(float* x) { char p[64]; for (char& c : p) c = x[0]; memcpy(x, p, 64); }"
    try:
        for check in (False, True):
            hostbuild.compile_host(code, ("k",), check)
    finally:
        for cache in caches:
            cache.cache_clear()


def test_another_build_of_the_same_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cudal1_cache_dir: Path
) -> None:
    """As after an update of a distribution's g++: it cannot read the header that the one before precompiled."""
    wrapper = tmp_path / "g++"
    real = toolchain.compiler()
    wrapper.write_text(f'#!/bin/sh\nexec {real} -fcf-protection=full -D_GLIBCXX_ASSERTIONS "$@"\n')
    wrapper.chmod(0o755)
    try:
        for chosen in (str(wrapper), real):
            for cache in (*COMPILER, hostbuild._build_header):
                cache.cache_clear()
            monkeypatch.setenv("CXX", chosen)
            hostbuild.compile_host("__global__ void k(float* x) { x[0] = 1.0f; }", ("k",), False)
    finally:
        for cache in (*COMPILER, hostbuild._build_header):
            cache.cache_clear()
