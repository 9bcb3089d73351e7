"""What a killed process leaves behind: no tool that runs, no folder; at once, or swept up by the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slow_cases import slow_but

from cudal1_compile.runtime import hostbuild, scratch, warden
from cudal1_compile.runtime.scratch import PREFIX, ScratchFolder

pytestmark = pytest.mark.host

COMPILES = """
from cudal1_compile.runtime import hostbuild
from tests.runtime_kernels import BOMB
hostbuild.prepare()
print("ready", flush=True)
kernel = "__global__ void k(const float* a, float* o) { o[threadIdx.x] = grown(a[threadIdx.x]); }"
hostbuild.compile_host(BOMB + kernel, ("k",), check=False)
"""
HOLDS = """
import sys, time
from cudal1_compile.runtime import warden
from cudal1_compile.runtime.scratch import ScratchFolder
held = ScratchFolder("run")
(held.path / "data").write_text("x")
print(warden._warden._process.pid, flush=True)
time.sleep(100)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "temporary"
    found.mkdir()
    return found


@pytest.fixture
def begin(place: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts Python code that has said a line; its temporary directory is `place`."""
    begun: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        environment = os.environ | {"TMPDIR": str(place), "PYTHONPATH": paths}
        child = subprocess.Popen([sys.executable, "-c", code], stdout=-1, text=True, env=environment)
        begun.append(child)
        return child

    yield start
    for child in begun:
        child.kill()
        child.communicate()


def tools(place: Path) -> list[str]:
    """Compilers that work on something in there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in words and ("cc1plus" in words or "g++" in words):
            found.append(words)
    return found


def within(limit_s: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + limit_s
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize("number", slow_but([signal.SIGKILL], [signal.SIGTERM, signal.SIGKILL]))
def test_no_compiler_outlives_a_killed_process(
    number: signal.Signals, place: Path, begin: Callable[[str], subprocess.Popen[str]]
) -> None:
    child = begin(COMPILES)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    assert within(30.0, lambda: any("cc1plus" in words for words in tools(place)))
    child.send_signal(number)
    assert within(2.0, lambda: not tools(place)), tools(place)
    assert within(2.0, lambda: not list(place.glob(f"{PREFIX}*")))
    assert child.wait() == -number


def test_what_is_left_with_a_killed_warden_is_swept_up_by_the_next(
    place: Path, begin: Callable[[str], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = begin(HOLDS), begin(HOLDS)
    assert first.stdout is not None and other.stdout is not None
    os.kill(int(first.stdout.readline()), signal.SIGKILL)
    other.stdout.readline()
    left, kept = sorted(place.glob(f"{PREFIX}run-*"), key=lambda p: p.stat().st_mtime_ns)
    first.kill()
    first.wait()
    (place / "cudal1-cache").mkdir()  # a user's own
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with ScratchFolder("run").use() as mine:
        found = {p.name for p in place.iterdir()}
    assert len(found & {left.name, kept.name}) == 1 and {mine.name, "cudal1-cache"} < found and len(found) == 3


def test_what_a_process_holds_is_not_swept() -> None:
    with ScratchFolder("run").use() as folder:
        scratch.sweep(tempfile.gettempdir())
        assert folder.is_dir()
    assert not folder.exists()


def test_a_fork_removes_nothing_of_its_parents() -> None:
    held = ScratchFolder("run")
    pid = os.fork()
    if pid == 0:
        held.remove()
        os._exit(int(warden._warden._process is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert held.path.is_dir()
    held.remove()
    held.remove()
    assert not held.path.exists()


def test_a_warden_without_anything_to_watch_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden, "KEPT_S", 0.1)
    found = warden.Warden()
    found.watch("/nowhere")
    process = found._process
    assert process is not None
    time.sleep(0.3)
    assert process.poll() is None
    found.release("/nowhere")
    assert within(5.0, lambda: found._process is None) and process.returncode == 0


def test_a_process_goes_on_without_a_warden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden, "PROGRAM", Path("/no/such/program"))
    found = warden.Warden()
    for _ in range(2):
        found.watch("1")
        found.release("1")
    monkeypatch.setattr(warden.sys, "executable", "/no/such/python")
    found = warden.Warden()
    found.watch("1")
    found.release("1")
    assert found._process is None


def test_a_compile_leaves_no_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostbuild.prepare()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    hostbuild.compile_host("__global__ void k(float* x) { x[0] = 1.0f; }", ("k",), check=False)
    assert list(place.iterdir()) == []
