"""The expectations of several cases of one region in one run of the oracle.

A case suite runs some thousand small operations, most of them a few microseconds of launching. A program with a
batch axis, along which the cases are stacked, needs as many operations for all of them as for one. Its elements
are those of the cases run alone (the native reference may sum in another order, as it may between two devices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.bounds import Bounded, bounded_outputs
from cudal1_compile.judge.oracle.compare import Expected, expected_of
from cudal1_compile.judge.oracle.error_budget import Rule
from cudal1_compile.judge.oracle.f32_accumulation import expected_of_f32, in_float32, stored_of
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, MAX_DIMS, Axis, Op, Output, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

CASES = "cases"  # the axis along which cases are stacked


def stack(program: Program, count: int) -> Program | None:
    """The program for `count` cases at once; None where a tensor has no room for one more dim."""
    if MAX_DIMS in {*(len(i.axes) for i in program.inputs), *(len(o.axes) for o in program.outputs)}:
        return None
    varying = {i.name for i in program.inputs}
    ops: list[Op] = []
    for op in program.ops:
        if _reads(op) & varying:
            varying.add(op.name)
            op = replace(op, axes=(CASES, *op.axes))
        ops.append(op)
    inputs = tuple(replace(i, axes=(CASES, *i.axes), strides=None) for i in program.inputs)
    outputs = tuple(
        replace(o, axes=(CASES, *o.axes), strides=None) if o.value in varying else o for o in program.outputs
    )
    return Program((Axis(CASES, count), *program.axes), inputs, tuple(ops), outputs)


@torch.inference_mode()
def expect_stacked(
    stacked: Program,
    cases: Sequence[Sequence[Tensor]],
    coherent: Sequence[bool],
    integral: Sequence[bool],
    unwidened: Program | None = None,
    held: Mapping[str, str] | None = None,
) -> list[list[Expected]]:
    """As compare.expect for the inputs of each case, at the example's sizes; coherent, integral: of each case.

    unwidened: the program itself, where what is stacked is it widened; then as expect_f32_accumulation, held too.
    """
    inputs = [torch.stack(list(same)) for same in zip(*cases, strict=True)]
    inputs = inputs if unwidened is None else in_float32(inputs)
    oracle = bounded_outputs(stacked, inputs, None, _rule(coherent, inputs[0]), _rule(integral, inputs[0]), held)
    native = stored_of(oracle) if held else evaluate(stacked, inputs)

    def conclude(out: Output, native: Tensor, oracle: Bounded) -> list[Expected]:
        if unwidened is None:
            return expected_of(out.name, stacked.output_dtype(out), native, oracle)
        return expected_of_f32(unwidened, out, native, oracle)

    columns = []
    for out, n, o in zip(stacked.outputs, native, oracle, strict=True):
        if CASES not in out.axes:  # no input in it: the same for all cases
            columns.append(conclude(out, n[None], o.of_one) * len(cases))
        else:
            columns.append(conclude(out, n, o))
    return [list(row) for row in zip(*columns, strict=True)]


def share_rules(stacked: Program) -> bool:
    """Whether cases of different rules of the error bound may be stacked: every rounded value has their axis."""
    exact = (Kind.IOTA, Kind.POINTWISE)
    return all(CASES in o.axes for o in stacked.ops if o.dtype in FLOAT_DTYPES or OPS[o.fn].kind not in exact)


def _rule(cases: Sequence[bool], like: Tensor) -> Rule:
    """One for all where all agree."""
    return cases[0] if len(set(cases)) == 1 else torch.tensor(cases, device=like.device)


def _reads(op: Op) -> set[str]:
    refs = [x for x in op.operands if isinstance(x, Ref)]
    return {r.name for r in refs} | {v for r in refs for v in r.index_values}
