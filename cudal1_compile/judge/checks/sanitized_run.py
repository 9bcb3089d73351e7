"""One call of a cubin with the CUDA driver alone, watched by compute-sanitizer. Started by sanitizer.py only.

    python sanitized_run.py FOLDER        FOLDER holds request.json, cubin, and a file for each input

Each buffer is an allocation of its own, of its exact size, and outputs and scratch hold nothing: so the tools see
every access beside a buffer and every read of what nobody wrote. Imports the standard library only.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def main() -> None:
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())
    driver = _Driver(request["device"], (folder / "cubin").read_bytes())
    pointers = [driver.buffer(folder, buffer) for buffer in request["buffers"]]
    for launch in request["launches"]:
        cells = [*(pointers[i] for i in launch["args"]), *map(ctypes.c_int, request["sizes"])]
        driver.launch(launch, cells)
    driver.call("cuCtxSynchronize")


class _Driver:
    """A device's primary context with one module."""

    def __init__(self, device_index: int, cubin: bytes) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), device_index)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(self._module), cubin)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            sys.exit(f"{name}: CUDA error {code}")

    def buffer(self, folder: Path, request: dict[str, Any]) -> ctypes.c_uint64:
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t(request["bytes"])
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, request["bytes"])))
        if request["file"]:
            self.call("cuMemcpyHtoD_v2", pointer, (folder / request["file"]).read_bytes(), size)
        if request["zeroed"]:
            self.call("cuMemsetD8_v2", pointer, 0, size)
        return pointer

    def launch(self, launch: dict[str, Any], cells: list[Any]) -> None:
        function, shared = ctypes.c_void_p(), launch["shared"]
        self.call("cuModuleGetFunction", ctypes.byref(function), self._module, launch["symbol"].encode())
        if shared:
            self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
        parameters = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        shape = (*launch["grid"], *launch["block"])
        self.call("cuLaunchKernel", function, *shape, shared, None, parameters, None)


if __name__ == "__main__":
    main()
