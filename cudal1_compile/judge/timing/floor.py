"""The physical floor of a region on one GPU: what its bytes and its multiplications alone would take.

    Floor(clock).us(program)

Bytes: outputs and the parts of inputs that are read, in the time that a copy of as many bytes takes, timed as all
contenders are (captured, caches flushed), so that a launch's own time is in it. Multiplications: sums of products
whose operands are in bounds, at the fastest rate that a library's large square product was measured at in the
widest form that the numerics allow: float32 in three TF32 products. Other arithmetic counts as free, so the floor
is a lower bound; algorithms with fewer multiplications (Winograd's) could pass it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from math import prod
from pathlib import Path

import torch

from cudal1_compile.judge.timing.clock import Clock, Contender, calls_per_graph
from cudal1_compile.judge.timing.least_bytes import least_bytes
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Index, Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

COPIED_BYTES = tuple(1 << n for n in range(12, 31, 2))  # read and written together
ROUNDS = 5
SIDE = {"f64": 4096, "f32": 8192, "f16": 8192, "bf16": 8192}  # of the square products
AHEAD = ("tf32", "f32", "bf16", "f16")  # products that most models have
SPLIT = 3  # TF32 products in the place of one of float32


class Floor:
    """Of one clock's device; measured when it is first asked for, or part by part before."""

    copied_bytes = COPIED_BYTES

    def __init__(self, clock: Clock, shared: Path | None = None) -> None:
        """shared: a folder of all who have such a clock, so that one of them measures for all."""
        self._clock = clock
        self._file = None if shared is None else shared / "floor.json"
        self._measured: dict[str, float] = {}

    def us(self, program: Program) -> float:
        """Of one call, at the example's sizes."""
        counts = [(op, flops(program, op)) for op in program.ops if OPS[op.fn].kind is Kind.DOT]
        return max(self._copy_us(least_bytes(program)), sum(n / self._rate(_form(op)) for op, n in counts))

    def _copy_us(self, size: int) -> float:
        """Between two measured sizes on a line, beyond the largest on the last one."""
        (least, least_us), *_ = self._copies
        if size <= least:
            return least_us
        lines = list(pairwise(self._copies))
        (a, a_us), (b, b_us) = next((line for line in lines if size <= line[1][0]), lines[-1])
        return a_us + (b_us - a_us) * (size - a) / (b - a)

    @cached_property
    def _copies(self) -> Sequence[tuple[int, float]]:
        return [(n, self._value(f"copy {n}", partial(self._measure_copy, n))) for n in self.copied_bytes]

    def _measure_copy(self, size: int) -> float:
        clock = self._clock
        sources = [torch.zeros(size // 8, dtype=torch.int32, device=clock.device) for _ in range(2)]
        calls = calls_per_graph(size / clock.bytes_per_us)
        targets = [torch.empty_like(sources[0]) for _ in range(calls)]
        graph = clock.capture(lambda i: targets[i].copy_(sources[i % 2]), calls)
        return min(clock.measure([Contender("copy", graph, calls, _nothing)], ROUNDS, random.Random(0))[0])

    def parts(self) -> Iterator[Callable[[], object]]:
        """What most regions' floors need; each call measures a part, half a second at most."""
        yield lambda: self._copies
        for dtype in AHEAD:
            yield partial(self._rate, dtype)

    def _rate(self, dtype: str) -> float:
        """Multiplications and additions in a microsecond."""
        return self._value(dtype, lambda: max(self._measured_rates(dtype)))

    def _value(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self._measured:
            with self._clock.device_lock.alone():
                self._measured |= self._read()
                if name not in self._measured:
                    self._measured[name] = measure()
                    self._write()
        return self._measured[name]

    def _read(self) -> dict[str, float]:
        if self._file is None or not self._file.exists():
            return {}
        return {str(name): float(value) for name, value in json.loads(self._file.read_text()).items()}

    def _write(self) -> None:
        """Whole at any time."""
        if self._file is not None:
            written = self._file.with_suffix(".new")
            written.write_text(json.dumps(self._measured))
            written.replace(self._file)

    def _measured_rates(self, dtype: str) -> Iterator[float]:
        if dtype == "f32":
            yield self._rate("tf32") / SPLIT
            yield self._measure_product("f32", tf32=False)
        elif dtype == "tf32":
            yield self._measure_product("f32", tf32=True)
        elif dtype in SIDE:
            yield self._measure_product(dtype, tf32=False)
        else:  # of integers, which no library multiplies fast
            yield math.inf

    def _measure_product(self, dtype: str, tf32: bool) -> float:
        side = SIDE[dtype]
        a, b, out = (
            torch.randn(side, side, device=self._clock.device, dtype=TORCH_DTYPE[dtype]) for _ in range(3)
        )
        flags = torch.backends.cuda.matmul
        before, flags.fp32_precision = flags.fp32_precision, "tf32" if tf32 else "ieee"
        try:
            torch.mm(a, b, out=out)
            graph = self._clock.capture(lambda _: torch.mm(a, b, out=out), 1)
        finally:
            flags.fp32_precision = before
        (times,) = self._clock.measure([Contender("product", graph, 1, _nothing)], ROUNDS, random.Random(0))
        return 2.0 * side**3 / min(times)


def _form(op: Op) -> str:
    return "tf32" if op.fn == "dot_tf32" else op.dtype


def flops(program: Program, op: Op) -> int:
    """Two a product of operands that are both in bounds."""
    reads = {axis: index for x in op.operands if isinstance(x, Ref) for axis, index in x.access}
    placed = {a for index in reads.values() for _, a in index.terms}
    free = prod(program.axis[a].size for a in (*op.axes, *op.over) if a not in placed)
    return 2 * free * prod(_pairs(program, index, program.axis[axis].size) for axis, index in reads.items())


def _pairs(program: Program, index: Index, size: int) -> int:
    """Combinations of the index's axes that read inside [0, size)."""
    positions = torch.tensor([index.offset])
    for coefficient, axis in index.terms:
        positions = (positions[:, None] + coefficient * torch.arange(program.axis[axis].size)).flatten()
    exact = positions[positions % index.divisor == 0] // index.divisor
    return int(((exact >= 0) & (exact < size)).sum())


def _nothing() -> None:
    """A contender without state to reset."""
