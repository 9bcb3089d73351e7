"""From rows to what the file says. Pure functions; a row is one process: a task, cold or warm, strict or not.

Times are host-inclusive (host_us); names with `loop_` and `gpu_` say the same of loop_us and GPU-busy time
(rounds.py). A ratio is the other arm's
time over cudal1's, the median of the rounds' own ratios. cudal1 is the faster, by median, of its two modes, as the
others' modes count too; `default_*` is its default mode alone, against eager, graph and inductor.

    geomean_over_eager, geomean_over_inductor   over that arm
    geomean_over_best                           over the fastest of the others, each task's ratio clipped at CLIP
    losses, wins                                tasks under LOSS, and over 1 / LOSS, of that ratio (not clipped)
    losses_to_dynamo                            losses with all free but Dynamo's guards and the GPU's work
    no_time                                     tasks of which one side has none: in no geomean, and losses too
    failed                                      rows whose process or arms of cudal1 failed; left_out: other arms
    wrong, tf32, no_reference                   see below

An arm is wrong where elements are outside 1e-4 though eager has none there; where eager has, the same of 1e-2. A
wrong arm takes part in nothing. Where the strict row (TF32 forbidden) of the task says that the arm is right, TF32
made the difference, which the user's flag allows: that counts as `tf32`, not as `wrong`, and so do tasks of which
eager itself is outside 1e-4 and within it in the strict row (`tf32_eager`).
`warm_*`, `strict_*` and `strict_warm_*` are the other tracks; without a prefix: cold caches, default flags.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from benchmarks.result_file import bootstrap, geomean
from benchmarks.speed.arms import DYNAMO, MAX_AUTOTUNE, OTHERS, OURS
from benchmarks.speed.errors import TOLERANCES
from benchmarks.speed.rounds import CLOCKS

CLIP = 4.0
LOSS = 0.97
HOST, LOOP, GPU = CLOCKS
DEFAULT_OTHERS = ("eager", "graph", "inductor")
REASON = 120  # characters
MOSTLY = 0.9  # of an arm's calls
ARMS = (*OTHERS, MAX_AUTOTUNE, *OURS)
USUAL_REFERENCE = "float64 on cuda"

Row = Mapping[str, Any]


def is_right(row: Row, arm: str, tolerance: str = "") -> bool:
    """By that tolerance; without one by the narrower that eager is within. Without a reference all are right."""
    errors: Mapping[str, Mapping[str, float]] = row.get("errors", {})
    if arm not in errors or "eager" not in errors:
        return True
    for one in [tolerance] if tolerance else ["1e-4", "1e-2"]:
        if errors["eager"][one] == 0.0:
            return errors[arm][one] == 0.0
    return True


def forgive(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows with `tf32`: their arms of which TF32 alone makes the difference, by their strict rows."""
    strict = {(row["task"], row["track"]): row for row in rows if row["strict"]}
    found = []
    for row in rows:
        other = {} if row["strict"] else strict.get((row["task"], row["track"]), {})
        names = [n for n in other.get("errors", {}) if n in row.get("errors", {})]
        tf32 = [n for n in names if n != "eager" and not is_right(row, n) and is_right(other, n)]
        found.append({**row, "tf32": tf32, "tf32_eager": "eager" in names and _only_tf32(row, other)})
    return found


def _only_tf32(row: Row, strict: Row) -> bool:
    return bool(row["errors"]["eager"]["1e-4"] > 0.0 and strict["errors"]["eager"]["1e-4"] == 0.0)


def counts(row: Row, arm: str, clock: str = HOST) -> bool:
    """Whether the arm has a time, and results that are right."""
    return arm in row.get(clock, {}) and (is_right(row, arm) or arm in row.get("tf32", ()))


def fastest(row: Row, arms: Iterable[str], clock: str = HOST) -> str | None:
    """By median, of those that count."""
    return min((a for a in arms if counts(row, a, clock)), key=lambda a: median(row[clock][a]), default=None)


def ratio(row: Row, ours: Sequence[str], others: Sequence[str], clock: str = HOST) -> float | None:
    """The fastest other's time over the fastest of ours; None where one side has none."""
    mine, best = fastest(row, ours, clock), fastest(row, others, clock)
    if mine is None or best is None:
        return None
    return median(b / a for a, b in zip(row[clock][mine], row[clock][best], strict=True))


def over(row: Row, ours: Sequence[str] = OURS, clock: str = HOST) -> dict[str, float | None]:
    return {
        "eager": ratio(row, ours, ("eager",), clock),
        "inductor": ratio(row, ours, ("inductor",), clock),
        "best": ratio(row, ours, OTHERS if len(ours) > 1 else DEFAULT_OTHERS, clock),
    }


def summarise(rows: Sequence[Row]) -> dict[str, float | int]:
    found: dict[str, float | int] = {}
    for prefix, part in tracks(rows).items():
        found |= {f"{prefix}{key}": value for key, value in _track(part).items()}
    return found


def tracks(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By prefix of their names; cold caches and default flags first."""
    ways = {
        "": ("cold", False),
        "warm_": ("warm", False),
        "strict_": ("cold", True),
        "strict_warm_": ("warm", True),
    }
    parts = {prefix: [r for r in rows if (r["track"], r["strict"]) == way] for prefix, way in ways.items()}
    return {prefix: part for prefix, part in parts.items() if part}


def _track(rows: Sequence[Row]) -> dict[str, float | int]:
    found = _speeds(rows, OURS, HOST) | {f"default_{k}": v for k, v in _speeds(rows, OURS[:1], HOST).items()}
    found |= {"losses_to_dynamo": sum(lost_to_dynamo(row, OURS, OTHERS) for row in rows)}
    found |= {"default_losses_to_dynamo": sum(lost_to_dynamo(row, OURS[:1], DEFAULT_OTHERS) for row in rows)}
    for name, clock in (("loop", LOOP), ("gpu", GPU)):
        found |= {f"{name}_{k}": v for k, v in _speeds(rows, OURS, clock).items()}
        found |= {f"{name}_default_{k}": v for k, v in _speeds(rows, OURS[:1], clock).items()}
    tuned = [v for row in rows if (v := ratio(row, OURS, (MAX_AUTOTUNE,))) is not None]
    fractions = [v for row in rows if (v := fraction(row, OURS)) is not None]
    return found | {
        "geomean_over_max_autotune": geomean(tuned),
        "max_autotune_tasks": len(tuned),
        "roofline_median": median(fractions) if fractions else math.nan,
        "roofline_best_other_median": _median([fraction(row, OTHERS) for row in rows]),
        "tasks": len(rows),
        **{f"wrong_{t}": sum(any(_is_wrong(r, a, t) for a in OURS) for r in rows) for t in ("1e-4", "1e-2")},
        "wrong": sum(any(_is_wrong(row, arm) for arm in OURS) for row in rows),
        "wrong_inductor": sum(_is_wrong(row, "inductor") for row in rows),
        "tf32": sum(any(arm in row.get("tf32", ()) for arm in OURS) for row in rows),
        "tf32_eager": sum(bool(row.get("tf32_eager")) for row in rows),
        "no_reference": sum("errors" not in row for row in rows),
        "failed": sum(any(not _is_other(what) for what in row["failed"]) for row in rows),
        "left_out": sum(_is_other(what) for row in rows for what in row["failed"]),
    }


def _is_other(what: str) -> bool:
    """Of a failure's name, such as `cold, graph`."""
    return what.rpartition(", ")[2] in (*OTHERS, MAX_AUTOTUNE, DYNAMO)


def _is_wrong(row: Row, arm: str, tolerance: str = "") -> bool:
    return not is_right(row, arm, tolerance) and arm not in row.get("tf32", ())


def _speeds(rows: Sequence[Row], ours: Sequence[str], clock: str) -> dict[str, float | int]:
    found = [over(row, ours, clock) for row in rows]
    best = [v for one in found if (v := one["best"]) is not None]
    low, middle, high = quantiles(best, n=4) if len(best) > 1 else (best * 3 or [math.nan] * 3)
    return {
        "geomean_over_eager": geomean([v for one in found if (v := one["eager"]) is not None]),
        "geomean_over_inductor": geomean([v for one in found if (v := one["inductor"]) is not None]),
        "geomean_over_best": geomean([min(v, CLIP) for v in best]),
        "quartile_1_over_best": low,
        "median_over_best": middle,
        "quartile_3_over_best": high,
        "slowest_over_best": min(best, default=math.nan),
        "losses": sum(v < LOSS for v in best) + len(rows) - len(best),
        "wins": sum(v > 1 / LOSS for v in best),
        "no_time": len(rows) - len(best),
    }


def lost_to_dynamo(row: Row, ours: Sequence[str], others: Sequence[str]) -> bool:
    """A loss against an arm that ends before Dynamo's guards and this backend's work on the GPU could."""
    mine, best, lost = fastest(row, ours), fastest(row, others), ratio(row, ours, others)
    if mine is None or best is None or lost is None or lost >= LOSS or DYNAMO not in row[HOST]:
        return False
    least_us = median(row[HOST][DYNAMO]) + median(row.get(GPU, {}).get(mine, [0.0]))
    return median(row[HOST][best]) < LOSS * least_us


def fraction(row: Row, arms: Sequence[str]) -> float | None:
    """Of the roofline that the fastest of the arms reaches, by GPU-busy time."""
    name = fastest(row, arms, GPU)
    return None if name is None or "floor_us" not in row else row["floor_us"] / median(row[GPU][name])


def _median(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return median(known) if known else math.nan


def intervals(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Over tasks."""
    found = {}
    for prefix, part in tracks(rows).items():
        for name, ours in (("", OURS), ("default_", OURS[:1])):
            best = [min(v, CLIP) for row in part if (v := over(row, ours)["best"]) is not None]
            found[f"{prefix}{name}geomean_over_best"] = bootstrap(best, geomean)
    return found


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """`detail`: by track a row a task, wins and losses by the best arm, and geomeans by family, size and bound."""
    found: dict[str, Any] = {"commits": sorted({row["commit"] for row in rows}), "arms": " ".join(ARMS)}
    for prefix, part in tracks(rows).items():
        groups = {key: _groups(part, key) for key in ("family", "size", "bound")}
        found[prefix.removesuffix("_") or "cold"] = {
            "tasks": {row["task"]: _describe(row) for row in part},
            "by_best": _by_best(part, OURS, OTHERS),
            "default_by_best": _by_best(part, OURS[:1], DEFAULT_OTHERS),
            **{f"by_{key}": group for key, group in groups.items()},
        }
    return found


def _by_best(rows: Sequence[Row], ours: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """Of each arm that is the best other one: tasks won, even and lost against it."""
    said: dict[str, Counter[str]] = {}
    for row in rows:
        if (v := ratio(row, ours, others)) is not None:
            outcome = "lost" if v < LOSS else "won" if v > 1 / LOSS else "even"
            said.setdefault(str(fastest(row, others)), Counter())[outcome] += 1
    return {name: f"won {c['won']}, even {c['even']}, lost {c['lost']}" for name, c in sorted(said.items())}


def _groups(rows: Sequence[Row], key: str) -> dict[str, str]:
    found = {}
    for name in sorted({row[key] for row in rows}):
        speeds = _speeds([row for row in rows if row[key] == name], OURS, HOST)
        found[name] = f"{speeds['geomean_over_best']:.3f}x over best, {speeds['losses']} losses"
    return found


def _describe(row: Row) -> dict[str, Any]:
    """Of each of ARMS, `-` where it has none.

    host_us: quartile, median, quartile; loop_us, gpu_us: median. outside: shares of elements at 1e-4, 1e-2.
    """
    errors: Mapping[str, Mapping[str, float]] = row.get("errors", {})
    against = row.get("reference", "")
    found: dict[str, Any] = {
        "kind": f"{row['family']}, {row['size']}, {row['bound']}",
        **{f"over_{name}": _short(v) for name, v in over(row).items()},
        "default_over_best": _short(over(row, OURS[:1])["best"]),
        "loop_over_best": _short(over(row, OURS, LOOP)["best"]),
        "gpu_over_best": _short(over(row, OURS, GPU)["best"]),
        "dynamo_us": _short(median(row[HOST][DYNAMO]) if DYNAMO in row.get(HOST, {}) else None),
        "best": fastest(row, OTHERS),
        "cudal1": fastest(row, OURS),
        "roofline": _short(fraction(row, OURS)),
        "floor_us": _short(row.get("floor_us")),
        HOST: _each(row.get(HOST, {}), _quartiles),
        **{clock: _each(row.get(clock, {}), lambda us: f"{median(us):.4g}") for clock in (LOOP, GPU)},
        "not_hidden": " ".join(name for name, share in row.get("hidden", {}).items() if share < MOSTLY),
        "outside": _each({n: e for n, e in errors.items() if any(e[t] for t in TOLERANCES)}, _outside),
        "first_call_s": _short(row.get("first_call_s", {}).get(OURS[0])),
        "regions": " ".join(f"{outcome} {n}" for outcome, n in row.get("regions", {}).items()),
        "choices": " ".join(row.get("choices", {}).get(OURS[0], ())),
        "reference": "" if against == USUAL_REFERENCE else against,
        "tf32": " ".join([*row.get("tf32", ()), *(["eager"] if row.get("tf32_eager") else [])]),
        "wrong": " ".join(arm for arm in errors if _is_wrong(row, arm)),
        "failed": {what: why[:REASON] for what, why in row["failed"].items()},
    }
    return {key: v for key, v in found.items() if v not in (None, "", {})}


def _each(values: Mapping[str, Any], say: Callable[[Any], str]) -> str:
    return "; ".join(say(values[arm]) if arm in values else "-" for arm in ARMS) if values else ""


def _quartiles(times: Sequence[float]) -> str:
    points = quantiles(times, n=4) if len(times) > 1 else list(times) * 3
    return " ".join(f"{point:.4g}" for point in points)


def _outside(error: Mapping[str, float]) -> str:
    return " ".join(f"{error[t]:.2g}" for t in TOLERANCES)


def _short(x: float | None) -> float | None:
    return None if x is None else float(f"{x:.4g}")
