"""The C++ compiler, ninja, and a cache of what they built from the package's own sources.

Commands are argument lists, never shell text. A build happens in a fresh folder that is renamed into place,
so that two processes may build the same thing at once. What was built before is checked against its digests
(manifest.py) when a process first asks for it; a damaged folder is moved aside and built anew. It compiles nothing
that a generator wrote: see hostbuild.py for that.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import logging
import math
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

from cudal1_cache.ownership import check_own
from cudal1_compile.config import cache_dir, environment_path
from cudal1_compile.errors import BuildError
from cudal1_compile.runtime.manifest import seal_folder, sync, why_damaged
from cudal1_compile.runtime.scratch import ScratchFolder
from cudal1_compile.runtime.source import HEADER_DIR
from cudal1_compile.runtime.trouble import MachineTrouble, tool_trouble
from cudal1_compile.runtime.warden import watched

log = logging.getLogger(__name__)

NATIVE_DIR = Path(__file__).parent / "native"
BUILD_LIMIT_S = 60.0  # of CPU time, each tool
PATIENCE = 10  # times that, by the wall clock: then a tool is killed, as the machine has no time for it
MEMORY_BYTES = 4 << 30  # of each tool's address space
MIN_FREE_BYTES = 4 << 20  # a build that fails on a disk with less has failed for want of room


@dataclass(frozen=True)
class Step:
    """One output of a native build: its file name, the sources, the compiler's flags."""

    output: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    language: str = "c++"  # or "c"


@lru_cache(maxsize=4)
def compiler(language: str = "c++") -> str:
    """Path of the compiler (CXX or CC, else g++ or gcc); raises BuildError where there is none.

    The host target needs GCC's own sanitizer hooks, so a CXX that is not a g++ is passed over.
    """
    variable, names = ("CXX", ("g++",)) if language == "c++" else ("CC", ("gcc", "cc"))
    wanted = environment_path(variable)
    if wanted and (language == "c" or "g++" in Path(wanted).name):
        names = (wanted, *names)
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise BuildError(f"no {language} compiler found: install g++, or set {variable}")


@lru_cache(maxsize=4)
def compiler_version(language: str = "c++") -> str:
    return run([compiler(language), "-dumpfullversion", "-dumpversion", "-dumpmachine"]).stdout


@lru_cache(maxsize=4)
def compiler_build(language: str = "c++") -> str:
    """Tells builds and wrappers of one version apart: what one precompiled, no other reads."""
    path = compiler(language)
    inner = Path(run([path, f"-print-prog-name={'cc1plus' if language == 'c++' else 'cc1'}"]).stdout.strip())
    found = inner.stat() if inner.is_file() else None  # a compiler that is no GCC has none
    return repr((path, compiler_version(language), found and (found.st_size, found.st_mtime_ns)))


def _children(pid: int) -> Iterator[int]:
    """Those that a process has now; looked for when the first number is asked for."""
    with suppress(OSError):
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def run(
    command: list[str], cwd: Path | None = None, limit_s: float = BUILD_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Runs a build tool; raises BuildError where it cannot start, fails or takes more than its CPU time.

    TimeoutError: it was killed before that, because the machine is too busy. MachineTrouble: it failed for
    what may be another reason of the machine's.
    """
    try:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise BuildError(f"{command[0]} is not there") from None
    with child, watched(child.pid):
        # children last: what starts once its parent is limited inherits that
        for pid in chain([child.pid], _children(child.pid)):
            with suppress(ProcessLookupError, PermissionError, ValueError):  # it has ended, or has less already
                resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
                resource.prlimit(pid, resource.RLIMIT_CPU, (math.ceil(limit_s), math.ceil(limit_s) + 1))
        try:
            out, errors = child.communicate(timeout=PATIENCE * limit_s)
        except BaseException as error:
            os.killpg(child.pid, signal.SIGKILL)  # g++ alone would leave its compiler running
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(
                    f"the machine is too busy: {Path(command[0]).name} got less than {limit_s:g} s of CPU time "
                    f"in {PATIENCE * limit_s:g} s"
                ) from None
            raise
    done = subprocess.CompletedProcess(command, child.returncode, out, errors)
    if done.returncode != 0:
        said = done.stderr or done.stdout
        trouble = tool_trouble(said, done.returncode)
        raise trouble or BuildError(f"{Path(command[0]).name} failed:\n{said[-2000:]}")
    return done


def run_in(folder: Path, command: list[str], limit_s: float = BUILD_LIMIT_S) -> None:
    """As `run` for a tool that writes into `folder`; raises OSError where its disk is full."""
    try:
        run(command, limit_s=limit_s)
    except (BuildError, MachineTrouble):
        if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from None
        raise


def build_native(name: str, steps: tuple[Step, ...]) -> Path:
    """Builds the package's own sources with ninja; returns the folder that holds the outputs, cached.

    Where the cache has no room or may not be written, or others may write there, the outputs last as long as this
    process.
    """
    name = f"{name}-{_key(steps)}"
    try:
        return _kept_folder(cache_dir() / "native" / name, steps)
    except TimeoutError:
        raise
    except OSError as error:
        log.warning("%s is built for this process only, its folder cannot be used: %s", name, error)
    folder = _process_folder() / name
    return folder if folder.is_dir() else _build_at(folder, steps)


def _kept_folder(folder: Path, steps: tuple[Step, ...]) -> Path:
    """Raises OSError where it cannot be relied upon."""
    outputs = [step.output for step in steps]
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the cache's own directory has its mode already
    check_own(cache_dir(), folder.parent, *([folder] if folder.is_dir() else []))
    if folder.is_dir() and why_damaged(folder, outputs) is not None:
        _move_aside(folder, outputs)
    if folder.is_dir():
        return folder
    _build_at(folder, steps)
    # another process may have published first, and a disk may lose what it is given
    if (why := why_damaged(folder, outputs)) is not None:
        raise OSError(f"{folder} was just built, but {why}")
    return folder


def _move_aside(folder: Path, outputs: list[str]) -> None:
    """Unless another process did so and has built it anew."""
    with open(folder.with_name(".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir() or (why := why_damaged(folder, outputs)) is None:
            return
        aside = folder.with_name(f"{folder.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        folder.rename(aside)
    log.warning("%s is built anew, because %s; it was moved to %s", folder, why, aside.name)


def _build_at(folder: Path, steps: tuple[Step, ...]) -> Path:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as work, watched(work):
        Path(work, "build.ninja").write_text(_ninja_text(steps))
        run_in(Path(work), [_ninja(), "-C", work])
        seal_folder(Path(work), [step.output for step in steps])
        publish(Path(work), folder)
    return folder


@lru_cache(maxsize=1)
def _process_folder() -> Path:
    found = ScratchFolder("native")
    atexit.register(found.remove)
    return found.path


def publish(work: Path, folder: Path) -> None:
    """Renames a finished folder into place; another process may have been faster, which is as good."""
    kept = work.with_name(work.name + ".done")
    os.rename(work, kept)
    work.mkdir()
    try:
        os.rename(kept, folder)
    except OSError:
        shutil.rmtree(kept)
        if not folder.is_dir():
            raise
    sync(folder.parent)


def _key(steps: tuple[Step, ...]) -> str:
    digest = hashlib.sha256()
    for header in sorted([*NATIVE_DIR.glob("*.h"), *HEADER_DIR.iterdir()]):
        digest.update(header.read_bytes())
    for step in steps:
        digest.update(repr((step.output, step.flags, step.language, compiler_build(step.language))).encode())
        for source in step.sources:
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _ninja() -> str:
    try:
        import ninja
    except ImportError:
        found = shutil.which("ninja")
    else:
        found = shutil.which("ninja", path=ninja.BIN_DIR) or shutil.which("ninja")
    if not found:
        raise BuildError("ninja is not there: pip install ninja")
    return found


def _ninja_text(steps: tuple[Step, ...]) -> str:
    lines = ["rule build", "  command = $compiler $flags -o $out $in $libraries", "  description = $out"]
    for step in steps:
        flags = [f for f in step.flags if not f.startswith("-l")]
        libraries = [f for f in step.flags if f.startswith("-l")]
        lines += [
            f"build {step.output}: build {' '.join(_escape(str(s)) for s in step.sources)}",
            f"  compiler = {_escape(compiler(step.language))}",
            f"  flags = {' '.join(map(_escape, flags))}",
            f"  libraries = {' '.join(libraries)}",
        ]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
