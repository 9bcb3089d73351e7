"""A CUDA graph through the driver, of what is asked of the current stream.

torch's own graphs hold the device's random numbers while they are captured: a thread that draws meanwhile gets an
error, and so does everyone once a capture has failed. Here what draws cannot be captured, and nothing else of the
process is touched.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import TypeVar

import torch

from cudal1_compile.runtime.driver import check, libcuda

THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
AUTO_FREE = 1  # CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
T = TypeVar("T")


class Graph:
    def __init__(self, executable: ctypes.c_void_p, device: int, pool: tuple[int, int]) -> None:
        """pool: torch's, of the graph alone; it keeps the memory of all tensors that the graph has made."""
        self._executable, self._device = executable, device
        weakref.finalize(self, _free, executable, device, pool).atexit = False

    def replay(self) -> None:
        """On the current stream. Raises LaunchError."""
        stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        check(libcuda(), libcuda().cuGraphLaunch(self._executable, stream), "cuGraphLaunch")


def _free(executable: ctypes.c_void_p, device: int, pool: tuple[int, int]) -> None:
    libcuda().cuGraphExecDestroy(executable)
    torch._C._cuda_releasePool(device, pool)


def capture(run: Callable[[], T], pool: tuple[int, int]) -> tuple[Graph, T]:
    """What `run` asks of the current stream, which is not the default one; nothing of it is done.

    pool: torch's, for all that `run` makes; graphs may share one that are replayed in the order of their captures.

    Raises LaunchError where the driver refuses, and what `run` raises; the device is then as it was.
    """
    cuda, current = libcuda(), torch.cuda.current_stream()
    stream, device = ctypes.c_void_p(current.cuda_stream), current.device.index
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    torch._C._cuda_beginAllocateCurrentThreadToPool(device, pool)
    try:
        check(cuda, cuda.cuStreamBeginCapture_v2(stream, THREAD_LOCAL), "cuStreamBeginCapture")
        try:
            result = run()
        finally:
            code = cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
        check(cuda, code, "cuStreamEndCapture")
        code = cuda.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(AUTO_FREE))
        check(cuda, code, "cuGraphInstantiate")
    finally:
        torch._C._cuda_endAllocateToPool(device, pool)
        if graph:
            cuda.cuGraphDestroy(graph)
        if not executable:
            torch._C._cuda_releasePool(device, pool)
    return Graph(executable, device, pool), result
