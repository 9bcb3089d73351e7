"""What a worker process gives up before it serves: its terminal, core dumps, the network, writing of files.

Linux only; where the kernel refuses a step, the step is left out and reported. Device code cannot make system
calls, so these are second lines of defence. A limit on address space is not among them: CUDA reserves far more
than it uses. The device's memory is limited through torch's allocator instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudal1_compile.config import cache_dir, environment_path
from cudal1_compile.judge.sandbox import landlock

_CLONE_NEWNET = 0x40000000
_CLONE_NEWUSER = 0x10000000  # makes the other one possible without privileges
_PR_SET_PDEATHSIG = 1
MAX_FILE_BYTES = 4 << 30
_ON_DEVICES = landlock.WRITE_FILE | landlock.TRUNCATE | landlock.MAKE_REG | landlock.REMOVE_FILE  # /dev/shm
_ON_THREADS = landlock.WRITE_FILE | landlock.TRUNCATE  # CUDA's driver names its threads, by fopen(..., "w")
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CC", "CXX")


def worker_environment(scratch: Path, compiled: Path | None = None) -> Mapping[str, str]:
    """The whole environment of a worker: tools of the system, this package, a home of its own.

    `compiled`: where Inductor keeps its code, if workers share it.
    """
    compiled = compiled or scratch
    found = {name: value for name in _PASSED_ON if (value := environment_path(name)) is not None}
    return found | {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of helpers: a worker is one process that can be killed
        "TRITON_CACHE_DIR": str(compiled / "triton"),
        "CUDAL1_CACHE_DIR": str(cache_dir()),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path),
        "OMP_NUM_THREADS": "1",  # several workers' threads would wait for each other's cores
        "CUDA_MODULE_LOADING": "LAZY",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # by CUDA, no fork could use the device then
        # no client of an MPS daemon, where a fault ends the others' contexts too
        "CUDA_MPS_PIPE_DIRECTORY": str(scratch),
    }


def shared_folder() -> Path:
    """Within a worker: the folder that it shares with the others of its judge, if it shares any."""
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent


def give_up_privileges(writable: Sequence[str] | None = None) -> dict[str, bool]:
    """Called once in the worker, before torch is imported. Returns which steps worked.

    writable: the folders in which files may still be changed; None: any.
    """
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    without_network = _leave_network(libc)
    version = 0 if writable is None else _write_only_under(writable)
    return {
        "dies_with_parent": die_with_parent(),
        "no_network": without_network or version >= 4,
        "read_only_files": version > 0,
    }


def die_with_parent() -> bool:
    """Whether this process is killed once the thread that started it has ended."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)


def lower_limit(kind: int, limit: int) -> None:
    """Of this process and its children; a limit that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(kind, (limit, limit))


def _leave_network(libc: ctypes.CDLL) -> bool:
    """Into a network without devices; an ordinary user gets there within a user namespace of its own."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with contextlib.suppress(OSError):  # unmapped, it is nobody, and owns its files all the same
            Path("/proc/self", name).write_text(text)
    return True


def _write_only_under(folders: Sequence[str]) -> int:
    """The version of Landlock that is in force; 0 where it could not be had."""
    allowed = dict.fromkeys(folders, landlock.ANY_WRITE)
    try:
        return landlock.restrict_writes(allowed | {"/dev": _ON_DEVICES, "/proc/self": _ON_THREADS})
    except OSError:
        return 0


def take_over_pipes() -> tuple[int, int]:
    """Moves the protocol off descriptors 0 and 1, so that nothing printed can mix with it."""
    requests, replies = os.dup(0), os.dup(1)
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 0)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.close(silent)
    return requests, replies
