"""A file system that really is full: a small tmpfs in a mount namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


def run_on_tmpfs(
    folder: Path, size: str, script: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python code with a tmpfs of `size` over `folder`; skips the test where this user may not mount one."""
    mount = f"mount -t tmpfs -o size={size},mode=755 none {folder}"
    command = ["unshare", "--mount", "--map-root-user", "bash", "-c"]
    if subprocess.run([*command, mount], capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    run = [*command, f'{mount} && exec "$0" "$@"', sys.executable, "-c", script, *arguments]
    done = subprocess.run(run, capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def fill(folder: Path) -> Callable[[], None]:
    """Takes all the room that a file system has left; returns what gives it back."""
    path = folder / "filler"
    filler = path.open("wb", buffering=0)
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass

    def give_back() -> None:
        filler.close()
        path.unlink()

    return give_back
