"""Settings from the environment: the ONE file of the package that reads it.

CUDAL1_CACHE_DIR     where launchers, host runtimes and the kernel cache lie (default: the user's cache directory)
CUDAL1_KEY_FILE      the key that seals the cache's rows, outside of it (default: in the user's configuration)
CUDAL1_TRUSTED_KEYS  public keys, as `cudal1 cache sign` prints them, whose signed kernels are used; by commas
CUDAL1_DEBUG         0 to 4: hits and misses, timings, the graph behind each pass, prompts and sources
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import platformdirs

MAX_DEBUG_LEVEL = 4


def cache_dir() -> Path:
    """The directory of everything that is kept between processes; made where that is possible.

    Only this user may enter it: what lies there is loaded as native code.
    """
    path = (
        Path(os.environ.get("CUDAL1_CACHE_DIR") or platformdirs.user_cache_dir("cudal1")).expanduser().absolute()
    )
    with suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def lock_folders() -> tuple[Path, ...]:
    """Where this user's processes find each other's locks, the best place first; they need not be there."""
    # the same for a process that lacks the variable, as cron's do
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return Path(runtime, "cudal1"), cache_dir() / "locks"


def key_file() -> Path:
    """Where this user's key lies or is to be made."""
    named = os.environ.get("CUDAL1_KEY_FILE")
    return Path(named).expanduser().absolute() if named else Path(platformdirs.user_config_dir("cudal1"), "key")


def trusted_keys() -> tuple[str, ...]:
    """As the user wrote them; nothing is checked here."""
    return tuple(text.strip() for text in os.environ.get("CUDAL1_TRUSTED_KEYS", "").split(",") if text.strip())


def debug_level() -> int:
    """0 (silent) to 4; raises ValueError for anything else."""
    text = os.environ.get("CUDAL1_DEBUG", "0") or "0"
    if not text.isdigit() or int(text) > MAX_DEBUG_LEVEL:
        raise ValueError(f"CUDAL1_DEBUG={text!r}: expected 0 to {MAX_DEBUG_LEVEL}")
    return int(text)


def environment_path(name: str) -> str | None:
    """A variable that names a place or a tool of the user's system (CUDA_HOME, CXX, PATH); None if unset."""
    return os.environ.get(name) or None


def environment_secret(name: str) -> str | None:
    """A key that the user keeps in a variable of this name; None if unset. Never to be logged or stored."""
    return os.environ.get(name) or None
