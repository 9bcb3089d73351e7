"""What a launcher needs to know of a call, and the pure-Python launcher that stands in where no C compiler is.

    resolve(sizes) -> Table     launches with numbers; called once for each new set of symbolic sizes
    slow(*args)                 called instead of launching when a pointer is not aligned to 16 bytes
    failed(code, which)         raises LaunchError, or returns True to try again

`make_launcher` gives native/launch.c when it can be built (0.2 us a call), else CtypesLauncher (about 5 us).
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import MAX_LAUNCHES, MAX_SCRATCH
from cudal1_compile.runtime.toolchain import NATIVE_DIR, Step, build_native

log = logging.getLogger(__name__)

ALIGNMENT = 16
# (function, grid x y z, block x y z, shared bytes, (tensor number, ...))
LaunchRow = tuple[int, int, int, int, int, int, int, int, tuple[int, ...]]
# launches, and (tensor number, bytes) of what is zeroed before them
Table = tuple[tuple[LaunchRow, ...], tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class CallShape:
    """How many tensors and symbolic sizes a call has, and what to do when."""

    n_tensors: int
    n_sizes: int
    resolve: Callable[[tuple[int, ...]], Table]
    slow: Callable[..., None]
    failed: Callable[[int, int], bool]


@dataclass(frozen=True)
class DriverFunctions:
    """Addresses of the driver's functions."""

    launch: int  # cuLaunchKernel
    memset: int  # cuMemsetD8Async


def make_launcher(shape: CallShape, driver: DriverFunctions) -> Callable[..., None]:
    """Returns the callable (*tensors, *sizes, stream)."""
    extension = load_extension()
    if extension is None:
        return CtypesLauncher(shape, driver)
    launcher: Callable[..., None] = extension.Launcher(
        shape.n_tensors, shape.n_sizes, shape.resolve, shape.slow, shape.failed, driver.launch, driver.memset
    )
    return launcher


@lru_cache(maxsize=1)
def load_extension() -> ModuleType | None:
    """Builds (once for a Python ABI and source) and imports the C launcher; None without a C compiler."""
    include = sysconfig.get_paths()["include"]
    most = (f"-DMAX_LAUNCHES={MAX_LAUNCHES}", f"-DMAX_SCRATCH={MAX_SCRATCH}")
    flags = ("-O2", "-w", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{include}", *most)
    name = f"launch-{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    try:
        folder = build_native(name, (Step("cudal1_launch.so", (NATIVE_DIR / "launch.c",), flags, "c"),))
    except (BuildError, OSError) as error:
        log.warning("the C launcher cannot be built, every kernel call takes some 5 us more: %s", error)
        return None
    spec = importlib.util.spec_from_file_location("cudal1_launch", folder / "cudal1_launch.so")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CtypesLauncher:
    """The same call in Python."""

    def __init__(self, shape: CallShape, driver: DriverFunctions) -> None:
        u, p = ctypes.c_uint, ctypes.c_void_p
        self._shape = shape
        self._launch = ctypes.CFUNCTYPE(ctypes.c_int, p, u, u, u, u, u, u, u, p, p, p)(driver.launch)
        memset = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, p)
        self._memset = memset(driver.memset)
        self._tables: dict[tuple[int, ...], Table] = {}

    def __call__(self, *args: Any) -> None:
        shape = self._shape
        if len(args) != shape.n_tensors + shape.n_sizes + 1:
            expected = f"{shape.n_tensors} tensors, {shape.n_sizes} sizes and a stream"
            raise TypeError(f"{len(args)} arguments given, expected {expected}")
        pointers = [x if isinstance(x, int) else x.data_ptr() for x in args[: shape.n_tensors]]
        if any(pointer % ALIGNMENT for pointer in pointers):
            shape.slow(*args)
            return
        sizes, stream = tuple(int(size) for size in args[shape.n_tensors : -1]), int(args[-1])
        table = self._tables.get(sizes)
        if table is None:
            table = self._tables[sizes] = shape.resolve(sizes)
        launches, zeroed = table
        for tensor, size_bytes in zeroed:
            self._until_done(-1, partial(self._memset, pointers[tensor], 0, size_bytes, stream))
        for which, row in enumerate(launches):
            cells = [ctypes.c_uint64(pointers[tensor]) for tensor in row[8]]
            numbers = [ctypes.c_int(size) for size in sizes]
            params = (ctypes.c_void_p * (len(cells) + len(numbers)))(
                *(ctypes.addressof(cell) for cell in (*cells, *numbers))
            )
            self._until_done(which, partial(self._launch, *row[:8], stream, params, None))

    def _until_done(self, which: int, act: Callable[[], int]) -> None:
        while code := act():
            if not self._shape.failed(code, which):
                raise RuntimeError(f"CUDA error {code} in launch {which}")
