"""A built candidate, loaded and callable: `fn(*outs, *scratch, *ins, *sizes, stream)`.

A call computes nothing in Python: the C launcher reads the pointers, clears the scratch that wants it, and starts
every launch on the given stream. It never waits and never allocates, so it can be captured in a CUDA graph. The
exception is a pointer that is not aligned to 16 bytes: that tensor is copied to an aligned one and back.
Not here: allocation of outputs and scratch (the caller's), building (build.py), proving (the judge).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cudal1_compile.errors import LaunchError
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime import driver, host_load
from cudal1_compile.runtime.build import Binary
from cudal1_compile.runtime.launch_plan import axis_sizes, buffer_names, plan, symbolic_names
from cudal1_compile.runtime.launch_table import ALIGNMENT, CallShape, Table, make_launcher
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Program


class LoadedKernel:
    """A loaded kernel. `launch` is the bare C callable of the same arguments, for generated code."""

    launch: Callable[..., None]

    def __init__(self, program: Program, candidate: Candidate, binary: Binary, device_index: int) -> None:
        self._program = program
        self._candidate = candidate
        self._binary = binary
        self._tensors = buffer_names(program, candidate)
        self._n_outputs = len(program.outputs) + len(candidate.scratch)
        self._sizes = symbolic_names(program)
        self._module = _open(binary, device_index)
        try:
            self._functions = self._find_functions()
        except LaunchError:
            self._module.close()
            raise
        shape = CallShape(len(self._tensors), len(self._sizes), self._resolve, self._call_unaligned, self._failed)
        native = driver.functions() if isinstance(self._module, driver.Module) else host_load.functions()
        self.launch = make_launcher(shape, native)

    def __call__(self, *args: Any) -> None:
        self.launch(*args)

    def close(self) -> None:
        """Unloads the kernel; the GPU must have finished with it."""
        self.launch = _closed
        self._module.close()

    def _find_functions(self) -> dict[str, int]:
        if isinstance(self._module, driver.Module):
            return self._module.functions(self._symbols(self._module.shared_limit()))
        return self._module.functions(self._binary.kernels)

    def _symbols(self, shared_limit: int) -> dict[str, tuple[str, int]]:
        """Symbol and the most dynamic shared memory a launch may ask for, by kernel."""
        found: dict[str, tuple[str, int]] = {}
        dims = {a.name: a.size for a in self._program.axes}
        for launch in self._candidate.launches:
            resources = self._binary.kernels[launch.kernel]
            room = shared_limit - resources.shared_bytes
            asked = launch.shared.evaluate(dims)
            # A symbolic size may ask for more later; then the limit is what the device has.
            wanted = room if asked and self._sizes else asked
            before = found.get(launch.kernel, ("", 0))[1]
            found[launch.kernel] = (resources.symbol, max(wanted, before))
        return found

    def _resolve(self, sizes: tuple[int, ...]) -> Table:
        planned = plan(self._program, self._candidate, dict(zip(self._sizes, sizes, strict=True)))
        number = {name: i for i, name in enumerate(self._tensors)}
        rows = tuple(
            (
                self._functions[launch.kernel],
                *launch.grid,
                *launch.block,
                launch.shared_bytes,
                tuple(number[name] for name in launch.args),
            )
            for launch in planned.launches
        )
        return rows, tuple((number[name], size) for name, size in planned.zeroed)

    def _call_unaligned(self, *args: Any) -> None:
        """Copies every tensor whose pointer is not aligned, calls, and copies outputs and scratch back."""
        n = len(self._tensors)
        tensors = list(args[:n])
        copies: list[tuple[Tensor, Tensor]] = []
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, int) and tensor % ALIGNMENT:
                raise LaunchError(f"{self._tensors[i]}: address {tensor:#x} is not aligned to {ALIGNMENT} bytes")
            if isinstance(tensor, int) or tensor.data_ptr() % ALIGNMENT == 0:
                continue
            flat = tensor.as_strided((_span(tensor),), (1,))
            tensors[i] = _aligned_copy(flat)
            if i < self._n_outputs:
                copies.append((flat, tensors[i]))
        self.launch(*tensors, *args[n:])
        for flat, copy in copies:
            flat.copy_(copy)

    def _failed(self, code: int, which: int) -> bool:
        what = "clearing scratch" if which < 0 else self._candidate.launches[which].kernel
        if isinstance(self._module, host_load.HostModule):
            raise LaunchError(f"{what}: {host_load.last_fault()}")
        if not driver.has_context():
            self._module.make_current()  # a thread that has not used this device yet
            return True
        raise LaunchError(f"{what}: {driver.error_text(driver.libcuda(), code)}")


def load(program: Program, candidate: Candidate, binary: Binary, device_index: int = 0) -> LoadedKernel:
    """Loads a built candidate: a cubin onto a GPU, a host object into this process. Raises LaunchError."""
    return LoadedKernel(program, candidate, binary, device_index)


def _open(binary: Binary, device_index: int) -> driver.Module | host_load.HostModule:
    if binary.target_kind == "host":
        return host_load.HostModule(binary.image)
    return driver.Module(binary.image, device_index)


def allocate(
    program: Program, candidate: Candidate, device: torch.device, sizes: dict[str, int] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Uninitialised outputs (dims in memory order, strides as declared) and flat scratch for one call."""
    dims = axis_sizes(program, sizes)
    outputs = []
    for out in program.outputs:
        shape = tuple(dims[a] for a in out.axes)
        dtype = TORCH_DTYPE[program.output_dtype(out)]
        strides = out.strides if out.strides is not None else _dense(shape)
        outputs.append(torch.empty_strided(shape, strides, dtype=dtype, device=device))
    scratch = []
    for s in candidate.scratch:
        dtype = TORCH_DTYPE[s.dtype]
        scratch.append(torch.empty(s.size_bytes(dims) // dtype.itemsize, dtype=dtype, device=device))
    return outputs, scratch


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _span(tensor: Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _aligned_copy(flat: Tensor) -> Tensor:
    copy = torch.empty_like(flat)  # both of torch's allocators align to at least 64 bytes
    assert copy.data_ptr() % ALIGNMENT == 0
    return copy.copy_(flat)


def _closed(*_: Any) -> None:
    raise LaunchError("this kernel has been closed")
