"""The CUDA driver through ctypes: loads a cubin into a device's primary context and finds its kernels.

The primary context is the one that torch uses; it is retained here and released again by close(). Loading is the
only thing done: launches go through the addresses that `functions` gives to launch_table.py.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from cudal1_compile.errors import LaunchError
from cudal1_compile.runtime.cubin import check_cubin
from cudal1_compile.runtime.launch_table import DriverFunctions

DEINITIALIZED = 4
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


@lru_cache(maxsize=1)
def libcuda() -> ctypes.CDLL:
    """The driver, initialised; raises LaunchError where there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LaunchError(f"no CUDA driver: {error}") from None
    check(cuda, cuda.cuInit(0), "cuInit")
    return cuda


def version() -> str:
    """Of the kernel module (580.159.04) where it can be read, else the CUDA version that the driver knows."""
    with suppress(OSError, AttributeError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        return re.search(r"\d+\.\d+(\.\d+)*", text).group()  # type: ignore[union-attr]
    number = ctypes.c_int()
    check(libcuda(), libcuda().cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
    return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"


def error_text(cuda: ctypes.CDLL, code: int) -> str:
    """`CUDA_ERROR_INVALID_VALUE (1)`."""
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    return f"{(name.value or b'unknown').decode()} ({code})"


def check(cuda: ctypes.CDLL, code: int, what: str) -> None:
    """Raises LaunchError for an error code."""
    if code != 0:
        raise LaunchError(f"{what}: {error_text(cuda, code)}")


def functions() -> DriverFunctions:
    """Addresses of cuLaunchKernel and cuMemsetD8Async."""
    cuda = libcuda()
    launch = ctypes.cast(cuda.cuLaunchKernel, ctypes.c_void_p).value
    memset = ctypes.cast(cuda.cuMemsetD8Async, ctypes.c_void_p).value
    assert launch is not None and memset is not None
    return DriverFunctions(launch, memset)


def has_context() -> bool:
    """Whether the calling thread has a current CUDA context."""
    context = ctypes.c_void_p()
    check(libcuda(), libcuda().cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
    return bool(context)


class Module:
    """A cubin in one device's primary context."""

    def __init__(self, image: bytes, device_index: int) -> None:
        check_cubin(image)
        self._cuda = libcuda()
        self._device = ctypes.c_int()
        self._check(self._cuda.cuDeviceGet(ctypes.byref(self._device), device_index), f"device {device_index}")
        self._context = ctypes.c_void_p()
        retained = self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), self._device)
        self._check(retained, "cuDevicePrimaryCtxRetain")
        self._module = ctypes.c_void_p()
        with self.current():
            code = self._cuda.cuModuleLoadData(ctypes.byref(self._module), image)
        if code != 0:
            self._cuda.cuDevicePrimaryCtxRelease(self._device)
            raise LaunchError(f"cuModuleLoadData: {error_text(self._cuda, code)}")

    def functions(self, symbols: Mapping[str, tuple[str, int]]) -> dict[str, int]:
        """CUfunction by kernel name, for {name: (symbol, dynamic shared bytes that a launch may ask for)}."""
        with self.current():
            return {name: self._function(symbol, shared) for name, (symbol, shared) in symbols.items()}

    def shared_limit(self) -> int:
        """Bytes of shared memory that one block may use, static and dynamic together."""
        value = ctypes.c_int()
        self._check(self._cuda.cuDeviceGetAttribute(ctypes.byref(value), SHARED_OPTIN, self._device), "attribute")
        return value.value

    def make_current(self) -> None:
        """Binds the context to the calling thread for good, as torch does when a thread first uses the device."""
        self._check(self._cuda.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")

    @contextmanager
    def current(self) -> Iterator[None]:
        self._check(self._cuda.cuCtxPushCurrent_v2(self._context), "cuCtxPushCurrent")
        try:
            yield
        finally:
            self._cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def close(self) -> None:
        """Unloads the module and gives the context back. Launches that still run must have ended."""
        if not self._module:
            return
        with self.current():
            code = self._cuda.cuModuleUnload(self._module)
        self._module = ctypes.c_void_p()
        self._cuda.cuDevicePrimaryCtxRelease(self._device)
        if code != DEINITIALIZED:
            self._check(code, "cuModuleUnload")

    def _function(self, symbol: str, shared_bytes: int) -> int:
        found = ctypes.c_void_p()
        code = self._cuda.cuModuleGetFunction(ctypes.byref(found), self._module, symbol.encode())
        self._check(code, f"kernel {symbol}")
        if shared_bytes > 0:  # the default is 48 KiB together with the static part
            code = self._cuda.cuFuncSetAttribute(found, MAX_DYNAMIC_SHARED, shared_bytes)
            self._check(code, f"{symbol}: {shared_bytes} bytes of dynamic shared memory")
        # Lazy loading would otherwise happen at the first launch, perhaps inside a graph capture.
        if hasattr(self._cuda, "cuFuncLoad"):
            self._check(self._cuda.cuFuncLoad(found), f"cuFuncLoad {symbol}")
        assert found.value is not None
        return found.value

    def _check(self, code: int, what: str) -> None:
        check(self._cuda, code, what)
