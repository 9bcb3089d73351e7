"""Opens an accepted host kernel in the user's own process, to run over CPU tensors.

The plain object is opened beside libcudal1_host.so, which holds the scheduler and plays the driver's part; the
object must obey the allow-list of hostbuild.py. There is one scheduler a process: the interpreter's lock, which a
launcher holds, keeps two calls apart.
"""

from __future__ import annotations

import _ctypes
import ctypes
from collections.abc import Iterable
from functools import lru_cache

from cudal1_compile.errors import LaunchError
from cudal1_compile.runtime import hostbuild
from cudal1_compile.runtime.elf import read_elf
from cudal1_compile.runtime.launch_table import DriverFunctions
from cudal1_compile.runtime.scratch import ScratchFolder


class HostModule:
    """An opened object."""

    def __init__(self, image: bytes) -> None:
        facts = read_elf(image)
        if hostbuild.is_checked(facts):
            raise LaunchError("a check build runs in its own process only: load one of build(..., check=False)")
        hostbuild.check_facts(facts, check=False)
        _scheduler()  # first: the object's symbols are found in it
        with ScratchFolder("load").use() as folder:
            path = folder / "kernel.so"
            path.write_bytes(image)
            self._object: ctypes.CDLL | None = ctypes.CDLL(str(path))

    def functions(self, kernels: Iterable[str]) -> dict[str, int]:
        """Entry address by kernel name."""
        assert self._object is not None
        return {name: _address(self._object, hostbuild.entry_symbol(name)) for name in kernels}

    def close(self) -> None:
        """Closes the object; its kernels must not be called any more."""
        if self._object is not None:
            _ctypes.dlclose(self._object._handle)
            self._object = None


def functions() -> DriverFunctions:
    """Addresses of what stands in for cuLaunchKernel and cuMemsetD8Async."""
    scheduler = _scheduler()
    return DriverFunctions(_address(scheduler, "cudal1_host_launch"), _address(scheduler, "cudal1_host_memset"))


def last_fault() -> str:
    """Why the last launch failed."""
    read = _scheduler().cudal1_host_fault
    read.restype = ctypes.c_char_p
    text: bytes = read()
    return text.decode(errors="replace")


@lru_cache(maxsize=1)
def _scheduler() -> ctypes.CDLL:
    return ctypes.CDLL(str(hostbuild.runtime_folder() / "libcudal1_host.so"), mode=ctypes.RTLD_GLOBAL)


def _address(library: ctypes.CDLL, name: str) -> int:
    value = ctypes.cast(library[name], ctypes.c_void_p).value
    assert value is not None
    return value
