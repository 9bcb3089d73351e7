"""Reductions part by part: what some of the terms give, joined with what others gave.

    partial(operation over some terms) -> joined() with those before -> concluded() -> the result of all

A mean and a variance are joined by their counts (Chan, Golub and LeVeque), a position by its value. PartialSums
holds what is joined so far of a whole result, or of a scan of each of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.reduction_rules import POSITIONS, joined_best
from cudal1_fx_passes.program.ir import Literal, Op

State = tuple[Tensor, ...]
At = tuple[int | slice, ...]
SCANS = {"cumsum": "sum", "cumprod": "prod"}
COUNTED = ("mean", "var")

_JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "dot": torch.add,
    "dot_tf32": torch.add,
    "prod": torch.mul,
    "amax": torch.maximum,
    "amin": torch.minimum,
    "any": torch.logical_or,
    "all": torch.logical_and,
    "logsumexp": torch.logaddexp,
}


def as_reduction(op: Op) -> Op:
    """What gives all that a scan's terms come to; any other operation as it is."""
    if op.fn not in SCANS:
        return op
    return replace(op, fn=SCANS[op.fn], axes=tuple(a for a in op.axes if a not in op.over))


def partial(
    run: Callable[[Op], Tensor],
    op: Op,
    operand_dtype: str,
    count: Tensor | None,
    ranges: Sequence[tuple[int, int]],
    extents: Sequence[int],
) -> State:
    """What some terms give. count: of those in bounds, of a mean or variance.

    ranges, extents: of the axes that are reduced, in the order of `op.over`: those of these terms, and of all.
    """
    if op.fn == "mean":
        assert count is not None
        return run(op), count
    if op.fn == "var":
        assert count is not None
        mean = run(replace(op, fn="mean", operands=op.operands[:1]))
        return run(replace(op, operands=(op.operands[0], Literal(0)))) * count, mean, count
    if op.fn in POSITIONS:
        best = run(replace(op, fn="amax" if op.fn == "argmax" else "amin", dtype=operand_dtype))
        return best, _position_of_all(run(op).long(), ranges, extents)
    return (run(op),)


def _position_of_all(place: Tensor, ranges: Sequence[tuple[int, int]], extents: Sequence[int]) -> Tensor:
    """A row-major position within ranges as one within the whole axes."""
    found, stride = torch.zeros_like(place), 1
    for (lo, hi), extent in zip(reversed(ranges), reversed(extents), strict=True):
        found += (place % (hi - lo) + lo) * stride
        place = place // (hi - lo)
        stride *= extent
    return found


def joined(fn: str, a: State, b: State) -> State:
    """What the terms of both give. fn: of the reduction, or "best" for joined_best."""
    if fn == "mean":
        return _mean_of(a, b), a[1] + b[1]
    if fn == "var":
        (square_a, mean_a, count_a), (square_b, mean_b, count_b) = a, b
        between = (mean_b - mean_a).square() * (count_a * count_b / (count_a + count_b))
        return square_a + square_b + between, _mean_of(a[1:], b[1:]), count_a + count_b
    if fn in POSITIONS:
        return _joined_positions(fn, a, b)
    if fn == "best":
        return joined_best(a, b)
    return tuple(_JOINS[fn](x, y) for x, y in zip(a, b, strict=True))


def _mean_of(a: State, b: State) -> Tensor:
    """Of two means with their counts; that of no terms is not a number."""
    sums = (torch.where(count > 0, mean * count, 0.0) for mean, count in (a, b))
    return sum(sums, torch.zeros_like(a[0])) / (a[1] + b[1])


def _joined_positions(fn: str, a: State, b: State) -> State:
    """NaN is the best, and of equals the first."""
    (value_a, place_a), (value_b, place_b) = a, b
    odd_a, odd_b = value_a != value_a, value_b != value_b
    better = ((value_b > value_a) if fn == "argmax" else (value_b < value_a)) & ~odd_a | (odd_b & ~odd_a)
    alike = (value_a == value_b) | (odd_a & odd_b)
    place = torch.where(alike, torch.minimum(place_a, place_b), torch.where(better, place_b, place_a))
    return torch.where(better, value_b, value_a), place


def concluded(op: Op, state: State) -> Tensor:
    """The result of all terms, floats as they are joined."""
    if op.fn == "var":
        correction = op.operands[1].value if isinstance(op.operands[1], Literal) else 1
        return state[0] / (state[2] - float(correction)).clamp_min(0.0)
    return state[1] if op.fn in POSITIONS else state[0]


class PartialSums:
    """States by key, each of tensors of `shape`; a region of them is joined at a time.

    What is known under a key alone is as under "value" where it is not given.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self.states: dict[str, State] = {}

    def join(self, key: str, fn: str, at: At, before: At | None, found: State) -> None:
        """before: where that lies which it is joined with; None: nowhere."""
        held = self.states.get(key)
        if held is None:
            held = self.states[key] = tuple(x.new_empty(self._shape) for x in found)
        new = found if before is None else joined(fn, tuple(x[before] for x in held), found)
        for x, part in zip(held, new, strict=True):
            x[at] = part

    def join_all(self, fn: str, at: At, before: At | None, found: Mapping[str, State]) -> None:
        """Of keys that hold the same with other operands, "value" among them."""
        for key in found.keys() - self.states.keys() - {"value"}:
            if "value" in self.states:
                self.states[key] = tuple(x.clone() for x in self.states["value"])
        keys = self.states.keys() | found.keys() if "value" in self.states else found.keys()
        for key in keys:
            self.join(key, fn, at, before, found.get(key, found["value"]))
