"""Which schedule is likely fast for a program never measured: a small regression over measured times.

    (program, schedule) -> some 60 numbers -> two hidden layers -> log of time, up to a number of the program's own

It is the mean of several nets that differ by how they began: what is larger than anything measured, one ranks by
chance. The trainer fits it (cudal1_trainer/scores/fit_prior.py). It never sees the program's text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cudal1_compile.codegen.prior.product_features import describe_product
from cudal1_compile.codegen.prior.traffic import Traffic, bytes_moved, traffic
from cudal1_compile.codegen.products.window_sums import lanes_of
from cudal1_compile.codegen.stages.schedule import Schedule
from cudal1_compile.codegen.strategies import STRATEGIES
from cudal1_compile.errors import damage_named
from cudal1_fx_passes.program.ir import ITEM_BYTES, Program

BUNDLED = Path(__file__).with_name("h100.npz")

SCHEDULE_KINDS = (
    *("exact", "stride", "rows", "block", "warp", "thread", "tile", "split_block", "split_tile"),
    *("joined", "joined_tile", "split_chunks", "windows", "gathered"),
)
FEATURES = 6  # raised when a program or a schedule is described in another way


def describe_program(program: Program) -> list[float]:
    """Sizes in log2, counts, widths: what a schedule's speed may depend on."""
    reduced = [o for o in program.ops if o.over and o.fn != "iota"]
    widest = max((program.size(v) for v in program.value_axes.values()), default=1)
    inner = {i.axes[-1] for i in program.inputs if i.axes}
    lengths = [program.size(o.over) for o in reduced]
    kept = [program.size(o.axes) for o in reduced]
    item = max((ITEM_BYTES[i.dtype] for i in program.inputs), default=4)
    last = max((program.axis[a].size for a in inner), default=1)
    return [
        math.log2(widest),
        math.log2(max(lengths, default=1)),
        math.log2(max(kept, default=1)),
        math.log2(last),
        float(last % 2 == 0) + float(last % 4 == 0) + float(last % 8 == 0),
        len(program.ops) / 16,
        len(program.inputs) / 4,
        len(program.outputs) / 2,
        math.log2(item),
        len(reduced) / 2,
        float(any(set(o.over) & inner for o in reduced)),
        float(any(not set(o.over) & inner for o in reduced)),
        len({o.over for o in reduced}) / 2,
        float(sum(1 for o in program.ops if o.fn in _SLOW)) / 4,
    ]


_SLOW = {"exp", "log", "tanh", "erf", "sin", "cos", "pow", "log1p", "expm1", "sigmoid", "div", "logsumexp"}


def describe_schedules(
    program: Program, moved: Sequence[Traffic], schedules: Sequence[Schedule]
) -> list[list[float]]:
    """The schedules' own features, kernels, and what each moves beyond the inputs and outputs once."""
    least = bytes_moved(program)
    return [
        [
            *_describe_schedule(s),
            sum(1 + (x.splits > 1 and not x.kind.startswith(("joined", "strip"))) for x in s.stages) / 2,
            math.log2((t.asked + 1) / least),
            math.log2((t.sectors + 1) / least),
            *describe_product(program, s),
        ]
        for s, t in zip(schedules, moved, strict=True)
    ]


def _describe_schedule(schedule: Schedule) -> list[float]:
    first, last = schedule.stages[0], schedule.stages[-1]
    strategy = [float(schedule.strategy == s) for s in STRATEGIES]
    used = {"windows" if lanes_of(s) else s.kind for s in schedule.stages}
    kind = [float(m in used) for m in SCHEDULE_KINDS]
    return [
        *strategy,
        *kind,
        math.log2(first.vector),
        math.log2(first.block) - 8,
        math.log2(last.vector),
        math.log2(last.block) - 8,
        float(first.cached),
        math.log2(max(s.splits for s in schedule.stages)),
        len(schedule.stages) / 2,
    ]


@dataclass(frozen=True)
class Prior:
    """A fitted regression: standardisation and three layers of several nets, along the first axis."""

    shift: NDArray[np.float32]
    scale: NDArray[np.float32]
    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    scores: str = ""  # digest of the score files that it was fitted to

    def rank(self, program: Program, schedules: Sequence[Schedule]) -> NDArray[np.float32]:
        """Predicted log time of each schedule, comparable within the program only."""
        base, moved = describe_program(program), traffic(program, schedules)
        return self.predict(
            np.array([[*base, *own] for own in describe_schedules(program, moved, schedules)], np.float32)
        )

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of features, a row a schedule."""
        x = (x - self.shift) / self.scale
        *hidden, (weight, bias) = self.layers
        for w, b in hidden:
            x = np.maximum(x @ w.swapaxes(1, 2) + b[:, None], 0.0)
        found: NDArray[np.float32] = (x @ weight.swapaxes(1, 2) + bias[:, None])[..., 0].mean(0)
        return found

    def save(self, path: Path) -> None:
        arrays = {"shift": self.shift, "scale": self.scale, "scores": np.array(self.scores)}
        for i, (weight, bias) in enumerate(self.layers):
            arrays |= {f"w{i}": weight, f"b{i}": bias}
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)


def load_prior(path: Path = BUNDLED) -> Prior | None:
    """None where there is no file. Raises ValueError for a damaged one."""
    if not path.is_file():
        return None
    with damage_named(path), np.load(path, allow_pickle=False) as arrays:
        count = sum(1 for name in arrays.files if name[0] == "w")
        layers = tuple((arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(count))
        return Prior(arrays["shift"], arrays["scale"], layers, str(arrays["scores"]))
