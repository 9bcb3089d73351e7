"""The host target's baseline: what a region costs when it is run one operation at a time.

The unit is the cost unit of hostrun.py (one 128-byte transaction). An operation reads each operand once and writes
its result once, densely, as eager torch would at best; views, transposed reads and literals are free. This is a
declared yardstick for a machine without a GPU and says nothing about time.
"""

from __future__ import annotations

from collections.abc import Mapping

from cudal1_fx_passes.program.ir import ITEM_BYTES, Literal, Op, Program

LINE_BYTES = 128


def lines(size_bytes: int) -> int:
    """Transactions that a dense access to so many bytes takes."""
    return -(-size_bytes // LINE_BYTES)


def baseline_cost(program: Program, sizes: Mapping[str, int] | None = None) -> int:
    """The cost units of the whole program, one operation at a time, and of copying inputs that are outputs."""
    extent = {a.name: a.size for a in program.axes} | dict(sizes or {})
    total = sum(_op_cost(program, op, extent) for op in program.ops)
    inputs = {i.name for i in program.inputs}
    copies = [out.value for out in program.outputs if out.value in inputs]
    return total + sum(2 * _value_lines(program, name, extent) for name in copies)


def _op_cost(program: Program, op: Op, extent: Mapping[str, int]) -> int:
    read = {x.name for x in op.operands if not isinstance(x, Literal)}
    for x in op.operands:
        if not isinstance(x, Literal):
            read |= set(x.index_values)
    return sum(_value_lines(program, name, extent) for name in sorted(read | {op.name}))


def _value_lines(program: Program, name: str, extent: Mapping[str, int]) -> int:
    elements = 1
    for axis in program.value_axes[name]:
        elements *= extent[axis]
    return lines(elements * ITEM_BYTES[program.value_dtype[name]])
