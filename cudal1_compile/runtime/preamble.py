"""The generated preamble: a program's sizes, element types and strides as C++ constants.

    #define DIMS , const int d0      (one a symbolic axis; empty without any)
    constexpr int d1 = 64;           (one a static axis)
    typedef bf16 in0_t;              (one an input and an output)
    constexpr int in0_d1 = 128;      (strides in elements, of tensors with explicit strides only)

It knows nothing of the candidate's code.
"""

from __future__ import annotations

from collections.abc import Iterator

from cudal1_fx_passes.program.ir import Input, Output, Program


def preamble(program: Program) -> str:
    """Returns the lines, ended by a newline."""
    return "\n".join(_lines(program)) + "\n"


def symbolic_axes(program: Program) -> list[str]:
    """The axes whose sizes are kernel parameters, in the order in which DIMS declares them."""
    return [a.name for a in program.axes if a.symbolic]


def _lines(program: Program) -> Iterator[str]:
    parameters = "".join(f", const int {name}" for name in symbolic_axes(program))
    yield f"#define DIMS {parameters}".rstrip()
    for axis in program.axes:
        if not axis.symbolic:
            yield f"constexpr int {axis.name} = {axis.size};"
    for item in program.inputs:
        yield f"typedef {item.dtype} {item.name}_t;"
        yield from _strides(item)
    for out in program.outputs:
        yield f"typedef {program.output_dtype(out)} {out.name}_t;"
        yield from _strides(out)


def _strides(tensor: Input | Output) -> Iterator[str]:
    for axis, stride in zip(tensor.axes, tensor.strides or (), strict=False):
        yield f"constexpr int {tensor.name}_{axis} = {stride};"
