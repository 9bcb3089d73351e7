"""From rl.py's measured programs to its figures: each arm's, by time and without weight, with paired intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.duel import Row
from benchmarks.families import FamilyProgram
from benchmarks.generator import Outcome, judge_row
from benchmarks.result_file import BOOTSTRAP, mean
from benchmarks.rlval_cut import COUNTS, OTHERS

GREEDY = "sft_greedy"
RIGHT = ("right_1", "right_8")
SPEEDS = ("over_best", "over_best_raw", "over_sft_greedy", "over_sft_greedy_raw")  # the last two where it was run
ENDS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Measured:
    """One program's figures."""

    program: FamilyProgram
    best_us: float  # of the better of aten and Inductor
    outcomes: Mapping[str, Outcome]  # by arm
    candidates: Mapping[str, int]
    failures: Mapping[str, str]

    def figures(self, arm: str) -> list[float]:
        """Shares, then logarithms of speeds, in the order of RIGHT and SPEEDS."""
        right, (ran, raw) = self.outcomes[arm].right, self._us(arm)
        found = [right, float(right > 0), math.log(self.best_us / ran), math.log(self.best_us / raw)]
        if GREEDY in self.outcomes:
            greedy_ran, greedy_raw = self._us(GREEDY)
            found += [math.log(greedy_ran / ran), math.log(greedy_raw / raw)]
        return found

    def _us(self, arm: str) -> tuple[float, float]:
        """Of what would run, and of the fastest right kernel, the baseline where there is none."""
        us = self.outcomes[arm].best_us or self.best_us
        return min(us, self.best_us), us

    def describe(self) -> dict[str, Any]:
        """right: share of each arm that had a wrong one."""
        p, some = self.program, next(iter(self.outcomes.values()))
        us = {"aten": some.aten_us, "inductor": some.inductor_us}
        us |= {arm: outcome.best_us for arm, outcome in self.outcomes.items()}
        right = {arm: outcome.right for arm, outcome in self.outcomes.items() if outcome.right < 1}
        named = {"kind": p.family, "name": p.name, "direction": p.direction, "shape": p.shape}
        faults = {"right": right, "failures": dict(self.failures)}
        return named | {"us": us} | {key: found for key, found in faults.items() if found}


def read_row(program: FamilyProgram, row: Row, names: Mapping[str, dict[str, str]]) -> Measured | None:
    """None where no baseline could be timed: then it has no weight."""
    outcomes = {arm: judge_row(row, of_sample) for arm, of_sample in names.items()}
    baselines = [us for us in (row.us("aten"), row.us("inductor")) if us]
    counts = {arm: len({n for n in of.values() if not n.startswith("!")}) for arm, of in names.items()}
    return Measured(program, min(baselines), outcomes, counts, row.failures) if baselines else None


def summarise(
    found: Sequence[Measured], arms: Sequence[str]
) -> tuple[dict[str, Any], dict[str, tuple[float, float]], dict[str, Any]]:
    """(summary, intervals, detail). Raises ValueError where nothing was measured."""
    if not found:
        raise ValueError("no program was measured: give more --seconds, or read why in OUT/rl.rows.*.jsonl")
    weight_P, draws_PB = np.array([m.best_us for m in found]), _draws(len(found))
    drawn_PB = weight_P[:, None] * draws_PB
    values = {arm: np.array([m.figures(arm) for m in found]).T for arm in arms}  # [F, P]
    rows, plain = [], {}
    intervals: dict[str, tuple[float, float]] = {}
    for arm, v_FP in values.items():
        plain[arm] = _named(v_FP.mean(-1))
        rows.append(
            {"stage": arm, **_named(v_FP @ weight_P / weight_P.sum()), "candidates": _candidates(found, arm)}
        )
        low, high = np.quantile(v_FP @ (drawn_PB / drawn_PB.sum(0)), ENDS, axis=-1)
        intervals |= _spans(arm, "", low, high)
        intervals |= _spans(arm, ".plain", *np.quantile(v_FP @ draws_PB, ENDS, axis=-1))
    is_product_P = np.array([m.program.family not in OTHERS for m in found])
    summary = {"rows": rows, "time_in_products": float(weight_P[is_product_P].sum() / weight_P.sum())}
    kinds = {kind: _of_kind(found, values, weight_P, kind) for kind in COUNTS}
    return summary, intervals, {"plain": plain, "kinds": kinds, "programs": [m.describe() for m in found]}


def _draws(count: int) -> NDArray[np.float64]:
    """Weights of programs [P, BOOTSTRAP]: the same for all arms, so that a difference of two is paired."""
    found: NDArray[np.float64] = (
        np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), BOOTSTRAP).T / count
    )
    return found


def _named(value_F: NDArray[np.float64]) -> dict[str, float]:
    names = (*RIGHT, *SPEEDS)[: len(value_F)]
    return {n: float(v if n in RIGHT else math.exp(v)) for n, v in zip(names, value_F, strict=True)}


def _spans(
    arm: str, suffix: str, low_F: NDArray[np.float64], high_F: NDArray[np.float64]
) -> dict[str, tuple[float, float]]:
    low, high = _named(low_F), _named(high_F)
    return {f"{arm}.{name}{suffix}": (low[name], high[name]) for name in low}


def _candidates(found: Sequence[Measured], arm: str) -> float:
    return mean([float(m.candidates[arm]) for m in found])


def _of_kind(
    found: Sequence[Measured], values: Mapping[str, NDArray[np.float64]], weight_P: NDArray[np.float64], kind: str
) -> dict[str, Any]:
    own_P = np.array([m.program.family == kind for m in found])
    share = float(weight_P[own_P].sum() / weight_P.sum())
    rows = {
        a: _named(v[:, own_P] @ weight_P[own_P] / weight_P[own_P].sum()) for a, v in values.items() if any(own_P)
    }
    return {"n": int(own_P.sum()), "time": share, **rows}
