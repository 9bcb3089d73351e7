"""Candidate in, binary out: NVRTC for a GPU, g++ for the host target.

    build(program, candidate, target) -> Binary      raises BuildError with the compiler's first errors

A build checks resources against the launch plan too, so that a kernel which cannot be launched is a build
error with a sentence. Nothing is loaded or run here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.kernel.text import kernels as declared_kernels
from cudal1_compile.runtime import hostbuild, nvrtc
from cudal1_compile.runtime.elf import read_elf
from cudal1_compile.runtime.source import assemble
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program

REGISTERS_PER_SM = 65536
MAX_LOCAL_BYTES = 4096  # a thread; more is a register array that was indexed at run time, or a mistake


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes. On the host only the symbol and the shared bytes mean something."""

    registers: int  # a thread
    shared_bytes: int  # static, a block
    local_bytes: int  # stack and spills, a thread
    max_threads: int  # a block, by registers and launch bounds
    symbol: str  # the kernel's name in the image


@dataclass(frozen=True)
class Binary:
    """A built candidate: a cubin (cuda) or a shared object (host)."""

    target_kind: Literal["cuda", "host"]
    arch: str
    image: bytes
    kernels: dict[str, Resources]
    checked: bool = False  # host only: built with the legality checks, for run_isolated


def build(
    program: Program,
    candidate: Candidate,
    target: Target,
    check: bool = False,
    compile_cubin: Callable[[str, str, tuple[str, ...]], nvrtc.Compiled] = nvrtc.compile_cubin,
    limit_s: float | None = None,
) -> Binary:
    """Builds a candidate. Raises BuildError.

    check: host only, adds the legality checks of hostrun. compile_cubin: NVRTC here, or in a process of its own.
    limit_s: host only, of CPU time.
    """
    source = assemble(program, candidate, target)
    names = tuple(dict.fromkeys(launch.kernel for launch in candidate.launches))
    if target.kind == "host":
        image = hostbuild.compile_host(source, names, check, limit_s)
        shared_bytes = -(-read_elf(image).tls_bytes // len(names))  # one has this at least: known is what all have
        kernels = {name: Resources(0, shared_bytes, 0, 1024, hostbuild.entry_symbol(name)) for name in names}
        _check_resources(program, candidate, target, kernels)
        return Binary("host", target.arch, image, kernels, check)
    compiled = compile_cubin(source, target.arch, names)
    bounds = declared_kernels(candidate.code)
    kernels = {name: _resources(info, bounds.get(name)) for name, info in compiled.kernels.items()}
    _check_resources(program, candidate, target, kernels)
    return Binary("cuda", target.arch, compiled.cubin, kernels)


def max_block_threads(registers: int) -> int:
    """The largest block that one SM's register file holds (registers are given out by 8 a thread, by warps)."""
    by_registers = REGISTERS_PER_SM // (max(registers, 1) + 7 & ~7) // 32 * 32
    return min(1024, by_registers)


def _resources(info: nvrtc.KernelInfo, bound: int | None) -> Resources:
    """bound: threads of the kernel's launch bounds."""
    limit = max_block_threads(info.registers)
    limit = limit if bound is None else min(limit, bound)
    return Resources(info.registers, info.shared_bytes, info.local_bytes, limit, info.symbol)


def _check_resources(
    program: Program, candidate: Candidate, target: Target, kernels: dict[str, Resources]
) -> None:
    dims = {a.name: a.size for a in program.axes}
    for launch in candidate.launches:
        found = kernels[launch.kernel]
        x, y, z = (e.evaluate(dims) for e in launch.block)
        dynamic = launch.shared.evaluate(dims)
        if x * y * z > found.max_threads:
            raise BuildError(
                f"{launch.kernel}: a block of {x * y * z} threads, but {found.registers} registers a thread and "
                f"its launch bounds allow {found.max_threads}; use a smaller block or fewer live values"
            )
        if found.shared_bytes + dynamic > target.shared_bytes:
            raise BuildError(
                f"{launch.kernel}: {found.shared_bytes} bytes of static and {dynamic} of dynamic shared memory, "
                f"a block has {target.shared_bytes}"
            )
        if found.local_bytes > MAX_LOCAL_BYTES:
            raise BuildError(
                f"{launch.kernel}: {found.local_bytes} bytes of local memory a thread: arrays too large"
            )
