"""Runs a program with torch: natively (each operation in its own dtype) or in float64 (the oracle).

Tensors carry one dim per axis of the PROGRAM's axis order that they have; operands are aligned to the
result's axes before each operation. This is the meaning of Region text V1, not a fast way to compute it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, INT_DTYPES, Index, Literal, Number, Op, Operand, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.precision import convolutions_in_f32
from cudal1_fx_passes.program.products import match_convolution, run_convolution

TORCH_DTYPE: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
DTYPE_NAME = {v: k for k, v in TORCH_DTYPE.items()}


class Meaningless(ValueError):
    """A reduction that reads outside of its operand, and for which nothing there is neutral."""


def evaluate(
    program: Program, inputs: Sequence[Tensor], sizes: Mapping[str, int] | None = None, float64: bool = False
) -> list[Tensor]:
    """Returns one tensor an output, dims in the output's memory order.

    inputs: one tensor an input, dims in the input's memory order (any strides), dtypes as declared.
    sizes: overrides of axis sizes (symbolic or shrunk axes).
    float64: float values, literals and intermediates are float64; integers and booleans stay as they are.
    """
    return _outputs(program, run_values(program, inputs, sizes, float64))


def run_values(
    program: Program, inputs: Sequence[Tensor], sizes: Mapping[str, int] | None = None, float64: bool = False
) -> dict[str, Tensor]:
    """Returns every value by name, dims in the program's axis order."""
    if len(inputs) != len(program.inputs):
        raise ValueError(f"got {len(inputs)} inputs, the program has {len(program.inputs)}")
    extent = {a.name: a.size for a in program.axes} | dict(sizes or {})
    values: dict[str, Tensor] = {}
    for spec, x in zip(program.inputs, inputs, strict=True):
        order = program.value_axes[spec.name]
        x = x.permute([spec.axes.index(a) for a in order]) if spec.axes else x
        values[spec.name] = x.double() if float64 and spec.dtype in FLOAT_DTYPES else x
    device = inputs[0].device if inputs else torch.device("cpu")
    for op in program.ops:
        values[op.name] = _run(program, op, values, extent, float64, device)
    return values


def run_op(
    program: Program,
    op: Op,
    values: Mapping[str, Tensor],
    device: torch.device,
    sizes: Mapping[str, int] | None = None,
    float64: bool = False,
) -> Tensor:
    """Runs one operation over values by name (dims in the program's axis order)."""
    extent = {a.name: a.size for a in program.axes} | dict(sizes or {})
    return _run(program, op, values, extent, float64, device)


def read_terms(
    program: Program,
    op: Op,
    values: Mapping[str, Tensor],
    device: torch.device,
    sizes: Mapping[str, int] | None = None,
) -> tuple[Tensor, Tensor | None, tuple[int, ...]]:
    """What a reduction reduces, which of it lies in bounds (None: all), and the dims that it reduces."""
    extent = {a.name: a.size for a in program.axes} | dict(sizes or {})
    span = tuple(a.name for a in program.axes if a.name in op.axes or a.name in op.over)
    x, inside = _read(program, op.operands[0], values, extent, span, torch.float64, device)
    return _spread(x, [extent[a] for a in span]), inside, tuple(span.index(a) for a in op.over)


def _outputs(program: Program, values: dict[str, Tensor]) -> list[Tensor]:
    found = []
    for out in program.outputs:
        order = program.value_axes[out.value]
        found.append(values[out.value].permute([order.index(a) for a in out.axes]))
    return found


def _run(
    p: Program,
    op: Op,
    values: Mapping[str, Tensor],
    extent: Mapping[str, int],
    float64: bool,
    device: torch.device,
) -> Tensor:
    spec = OPS[op.fn]
    dtype = torch.float64 if float64 and op.dtype in FLOAT_DTYPES else TORCH_DTYPE[op.dtype]
    span = tuple(a.name for a in p.axes if a.name in op.axes or a.name in op.over)
    if spec.kind is Kind.IOTA:
        return torch.arange(extent[op.over[0]], dtype=dtype, device=device)
    if spec.kind is Kind.DOT and not float64 and op.fn == "dot_tf32":
        values = {**values, **{x.name: round_to_tf32(values[x.name]) for x in op.operands if isinstance(x, Ref)}}
    if (found := _convolution(p, op, values, extent)) is not None:
        return found.to(dtype)
    literal_dtype = _operand_dtype(p, op, float64)
    if op.fn in ("mul", "div") and literal_dtype in (torch.float16, torch.bfloat16):
        literal_dtype = torch.float32  # as torch does with numbers there
    read = [_read(p, x, values, extent, span, literal_dtype, device) for x in op.operands]
    if spec.kind is Kind.POINTWISE:
        x = spec.run(*(t for t, _ in read)).to(dtype)
        return _spread(x, [extent[a] for a in op.axes])
    if spec.kind is Kind.SCAN:
        x = _spread(read[0][0], [extent[a] for a in span])
        return spec.run(x, span.index(op.over[0])).to(dtype)
    dims = tuple(span.index(a) for a in op.over)
    sizes = [extent[a] for a in span]
    if spec.kind is Kind.DOT:
        return _dot(read, sizes, dims, dtype)
    return _reduce(op, read, sizes, dims, dtype)


def _reduce(
    op: Op, read: list[tuple[Tensor, Tensor | None]], sizes: list[int], dims: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    spec = OPS[op.fn]
    x, inside = read[0]
    x = _spread(x, sizes)
    extra = [o.value for o in op.operands[1:] if isinstance(o, Literal)]
    if inside is None:
        return spec.run(x, dims, *extra).to(dtype)
    inside = _spread(inside, sizes)
    if op.fn == "mean":
        return (torch.where(inside, x, 0).sum(dims) / inside.sum(dims)).to(dtype)
    if spec.identity is None:
        raise Meaningless(f"{op.name}: {op.fn} has no meaning for accesses outside the bounds")
    if not x.is_floating_point() and abs(spec.identity) == float("inf"):
        limits = torch.iinfo(x.dtype)
        fill: float = limits.min if spec.identity < 0 else limits.max
    else:
        fill = spec.identity
    return spec.run(torch.where(inside, x, torch.full_like(x[..., :1], fill)), dims, *extra).to(dtype)


def round_to_tf32(x: Tensor) -> Tensor:
    """Float32 values to ten bits of mantissa, ties away from zero."""
    bits = x.contiguous().view(torch.int32)
    return torch.where(x.isfinite(), ((bits + 0x1000) & ~0x1FFF).view(torch.float32), x)


def _convolution(p: Program, op: Op, values: Mapping[str, Tensor], extent: Mapping[str, int]) -> Tensor | None:
    """A `dot` that is a convolution, by torch's own; None for any other. In full precision, whatever the flags."""
    if OPS[op.fn].kind is not Kind.DOT:
        return None
    sized = replace(p, axes=tuple(replace(a, size=extent[a.name]) for a in p.axes))
    found = match_convolution(sized, op)
    if found is None:
        return None
    operands = [values[x.name] for x in op.operands if isinstance(x, Ref)]
    if not all(x.is_floating_point() for x in operands):
        return None
    # a processor has no TF32, and other threads read the flag
    with convolutions_in_f32() if operands[0].is_cuda else nullcontext():
        made: Tensor = run_convolution(sized, op, found, (operands[0], operands[1]))
        return made


def _dot(
    read: list[tuple[Tensor, Tensor | None]], sizes: list[int], dims: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    masked = [x if inside is None else torch.where(inside, x, torch.zeros_like(x)) for x, inside in read]
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(sizes)]
    terms, tensors = [], []
    for x in masked:
        held = [i for i in range(x.dim()) if x.shape[i] == sizes[i] and sizes[i] != 1]
        terms.append("".join(letters[i] for i in held))
        tensors.append(x.reshape([x.shape[i] for i in held]))
    kept = [i for i in range(len(sizes)) if i not in dims]
    alone = [i for i in kept if not any(letters[i] in t for t in terms)]
    out = "".join(letters[i] for i in kept if i not in alone)
    got = torch.einsum(f"{','.join(terms)}->{out}", *tensors)
    return got.reshape([sizes[i] if i not in alone else 1 for i in kept]).to(dtype)


def _operand_dtype(p: Program, op: Op, float64: bool) -> torch.dtype:
    """The dtype in which a literal takes part: that of the tensor operands, or the result's."""
    names = [x.name for x in op.operands if isinstance(x, Ref)]
    if op.fn == "where":
        names = [x.name for x in op.operands[1:] if isinstance(x, Ref)]
    found = p.value_dtype[names[0]] if names else op.dtype
    return torch.float64 if float64 and found in FLOAT_DTYPES else TORCH_DTYPE[found]


def _spread(x: Tensor, sizes: list[int]) -> Tensor:
    return x.expand(sizes) if list(x.shape) != sizes else x


def _read(
    p: Program,
    x: Operand,
    values: Mapping[str, Tensor],
    extent: Mapping[str, int],
    span: tuple[str, ...],
    literal_dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor | None]:
    """One operand aligned to `span` (size 1 where it does not vary), and where its accesses are in bounds."""
    if isinstance(x, Literal):
        dtype = torch.bool if isinstance(x.value, bool) else literal_dtype
        return _literal(x.value, dtype, device, [1] * len(span)), None
    held = p.value_axes[x.name]
    value = values[x.name]
    if not x.access:
        return _align(value, held, span), None
    access = dict(x.access)
    inside: Tensor | None = None
    positions = []
    for axis in held:
        position, ok = _index(p, access.get(axis, Index(((1, axis),))), values, extent, span, device)
        ok = (
            ok & (position >= 0) & (position < extent[axis])
            if ok is not None
            else (position >= 0) & (position < extent[axis])
        )
        inside = ok if inside is None else inside & ok
        positions.append(position.clamp(0, extent[axis] - 1))
    assert inside is not None
    got = value[tuple(positions)]  # index tensors broadcast
    return got, None if bool(inside.all()) else inside


def _literal(value: bool | int | float, dtype: torch.dtype, device: torch.device, shape: list[int]) -> Tensor:
    """Filled on the device: a copy from the host would synchronise with it."""
    if dtype.is_floating_point and torch.finfo(dtype).max < abs(value) < float("inf"):
        return torch.tensor(value, dtype=dtype, device=device).reshape(shape)  # rounds to infinity; full refuses
    return torch.full(shape, value, dtype=dtype, device=device)


def _index(
    p: Program,
    index: Index,
    values: Mapping[str, Tensor],
    extent: Mapping[str, int],
    span: tuple[str, ...],
    device: torch.device,
) -> tuple[Tensor, Tensor | None]:
    if index.value is not None:
        return _align(values[index.value], p.value_axes[index.value], span).long(), None
    position = torch.full([1] * len(span), index.offset, dtype=torch.int64, device=device)
    for coefficient, axis in index.terms:
        steps = torch.arange(extent[axis], dtype=torch.int64, device=device)
        position = position + coefficient * _align(steps, (axis,), span)
    if index.divisor == 1:
        return position, None
    return torch.div(position, index.divisor, rounding_mode="floor"), position % index.divisor == 0


def _align(value: Tensor, held: tuple[str, ...], span: tuple[str, ...]) -> Tensor:
    if held == span:
        return value
    return value.reshape([value.shape[held.index(a)] if a in held else 1 for a in span])


def fit_number(number: Number, dtype: str) -> Number:
    """A literal as it takes part in an operation of `dtype`. Raises ProgramError for what an integer cannot be."""
    if dtype in INT_DTYPES:
        limits = torch.iinfo(TORCH_DTYPE[dtype])
        if not limits.min <= number <= limits.max:
            raise ProgramError(f"{number} is no {dtype}")
    if dtype in FLOAT_DTYPES:
        return float(number)
    return bool(number) if dtype == "bool" else int(number)
