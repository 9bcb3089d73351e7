"""A kernel call's arguments as the region's program sees them.

fn(*outs, *scratch, *ins, *sizes, stream)  ->  Operands: the program at these sizes, views of outs and ins
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from cudal1_fx_passes.importer.layout import memory_view
from cudal1_fx_passes.program.ir import Input, Output, Program


@dataclass(frozen=True, slots=True)
class Operands:
    """Outputs and inputs with dims in memory order; `sizes` of the symbolic axes, in axis order."""

    program: Program  # static
    sizes: tuple[int, ...]
    outputs: list[Tensor]
    inputs: list[Tensor]


class ArgumentReader:
    def __init__(self, program: Program) -> None:
        self.program = program
        self._symbolic = [a.name for a in program.axes if a.symbolic]
        self._sized: dict[tuple[int, ...], Program] = {}

    def __call__(self, args: Sequence[Any]) -> Operands:
        first_size = len(args) - 1 - len(self._symbolic)
        sizes = tuple(map(int, args[first_size:-1]))
        if sizes not in self._sized:
            self._sized[sizes] = with_sizes(self.program, dict(zip(self._symbolic, sizes, strict=True)))
        program = self._sized[sizes]
        outs = args[: len(program.outputs)]
        ins = args[first_size - len(program.inputs) : first_size]  # scratch lies before them
        return Operands(
            program, sizes, _views(program, program.outputs, outs), _views(program, program.inputs, ins)
        )


def with_sizes(program: Program, sizes: dict[str, int]) -> Program:
    """The static program that a symbolic one is at these sizes."""
    axes = tuple(replace(a, size=sizes.get(a.name, a.size), symbolic=False) for a in program.axes)
    return replace(program, axes=axes)


def _views(program: Program, items: Sequence[Input | Output], tensors: Sequence[Tensor]) -> list[Tensor]:
    return [memory_view(program, item, tensor) for item, tensor in zip(items, tensors, strict=True)]
