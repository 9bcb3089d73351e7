"""Arithmetic of integers shorter than a register wraps around, as torch's does, before anything reads it.

    t1 i8[d0] = sum(in0) over d1   ->   t9 i32[d0] = sum(in0) over d1
                                        t1 i8[d0] = cast(t9)

A value that is only stored stays as it is: the store keeps its low bits.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_fx_passes.program.ir import Op, Program, Ref

NARROW = ("i8", "i16", "u8")
_OVERFLOWS = frozenset(
    ["neg", "abs", "add", "sub", "mul", "pow", "fma", "sum", "prod", "cumsum", "cumprod", "dot"]
)


def wrap_narrow(program: Program) -> Program:
    """Returns an equal program; the same one where nothing can overflow."""
    if not any(op.dtype in NARROW for op in program.ops):
        return program
    refs = [x for op in program.ops for x in op.operands if isinstance(x, Ref)]
    read = {x.name for x in refs} | {i.value for x in refs for _, i in x.access}
    ops: list[Op] = []
    for op in program.ops:
        if op.dtype in NARROW and op.fn in _OVERFLOWS and op.name in read:
            wide = replace(op, name=f"t{len(program.ops) + len(ops)}", dtype="i32")  # no name that is there
            ops += [wide, Op(op.name, op.dtype, op.axes, "cast", (Ref(wide.name),))]
        else:
            ops.append(op)
    return replace(program, ops=tuple(ops))
