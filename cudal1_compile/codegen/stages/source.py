"""Puts a kernel's text together: lines with indentation, the signature, the launch line.

A kernel's parameters are what its stage reads, then what it writes, then DIMS; the launch line names the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cudal1_compile.codegen.stages.stage import Buffer


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel with its launch: grid and block as launch expressions."""

    name: str
    text: str
    grid: str
    block: str
    arguments: tuple[str, ...]
    scratch: tuple[str, ...] = ()  # declarations that this kernel needs: "s1 f32[d0, 64]"

    @property
    def launch(self) -> str:
        return f"// launch: {self.name}<<<{self.grid}, {self.block}>>>({', '.join(self.arguments)})"


@dataclass
class Lines:
    """Source lines under construction."""

    text: list[str] = field(default_factory=list)
    depth: int = 0

    def add(self, *lines: str) -> None:
        self.text += ["  " * self.depth + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head + " {")
        self.depth += 1
        yield
        self.depth -= 1
        self.add("}")


def parameters(reads: Iterable[Buffer], writes: Iterable[Buffer]) -> str:
    parts = [f"const {b.dtype}* __restrict__ {b.name}" for b in reads]
    parts += [f"{b.dtype}* __restrict__ {b.name}" for b in writes]
    return ", ".join(parts)


def signature(name: str, threads: int | str, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> str:
    return f"__global__ void __launch_bounds__({threads}) {name}({parameters(reads, writes)} DIMS)"


def product(*factors: str | int) -> str:
    """A product without its ones: `256 * 4`, or `256`."""
    kept = [str(f) for f in factors if str(f) != "1"]
    return " * ".join(kept) or "1"
