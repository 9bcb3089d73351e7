"""The C++ compiler, ninja, and a cache of what they built from the package's own sources.

Commands are argument lists, never shell text. A build happens in a fresh folder that is renamed into place,
so that two processes may build the same thing at once. It compiles nothing that a generator wrote: see
hostbuild.py for that.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cudal1_compile.config import cache_dir, environment_path
from cudal1_compile.errors import BuildError
from cudal1_compile.runtime.source import HEADER_DIR

NATIVE_DIR = Path(__file__).parent / "native"
BUILD_LIMIT_S = 180.0


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


def run(
    command: list[str], cwd: Path | None = None, limit_s: float = BUILD_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Runs a build tool; raises BuildError where it cannot start, fails or takes too long."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=limit_s, check=False)
    except FileNotFoundError:
        raise BuildError(f"{command[0]} is not there") from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"{Path(command[0]).name} took longer than {limit_s:g} s") from None
    if done.returncode != 0:
        raise BuildError(f"{Path(command[0]).name} failed:\n{(done.stderr or done.stdout)[-2000:]}")
    return done


def build_native(name: str, steps: tuple[Step, ...]) -> Path:
    """Builds the package's own sources with ninja; returns the folder that holds the outputs, cached."""
    folder = cache_dir() / "native" / f"{name}-{_key(steps)}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as work:
        Path(work, "build.ninja").write_text(_ninja_text(steps))
        run([_ninja(), "-C", work])
        publish(Path(work), folder)
    return folder


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


def _key(steps: tuple[Step, ...]) -> str:
    digest = hashlib.sha256()
    for header in sorted([*NATIVE_DIR.glob("*.h"), *HEADER_DIR.iterdir()]):
        digest.update(header.read_bytes())
    for step in steps:
        digest.update(repr((step.output, step.flags, step.language, compiler_version(step.language))).encode())
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
