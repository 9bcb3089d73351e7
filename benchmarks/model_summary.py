"""From rows of models to figures: coverage, wins, device time in the model's kernels, speed and errors.

A region is covered when the generator wrote at least one kernel for it that the judge found right, chosen or
not. coverage_time weighs by the time that Inductor spends outside libraries: its own kernels, and aten's that it
calls (never covered); a kernel of several regions counts in proportion to their operations. Regions are counted
once each by fingerprint. Numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import quantiles
from typing import Any

from benchmarks.model_contenders import GRAPHS
from benchmarks.model_kernels import OUTSIDE
from benchmarks.result_file import bootstrap, geomean, mean

ERROR_MULTIPLE = 4.0  # of the larger error of eager and Inductor that cudal1's may reach
OUTSIDE_LIBRARIES = ("triton", "aten")
BASELINES = ("eager", "inductor", "reduce_overhead")
SAMPLES = ("ms", "us", "host_us")

Row = Mapping[str, Any]


def covered_us(kernel: Row, right: Collection[str]) -> float:
    """The part of one kernel's time that lies in covered regions."""
    operations: Mapping[str, int] = kernel["operations"]
    total = sum(operations.values())
    inside = sum(n for fingerprint, n in operations.items() if fingerprint != OUTSIDE and fingerprint in right)
    return float(kernel["us"]) * inside / total if total else 0.0


def time_coverage(rows: Iterable[Row], right: Collection[str]) -> tuple[float, float]:
    """(covered, all) microseconds that Inductor spends outside libraries."""
    traced = [row for row in rows if row["traced"]]
    kernels = [k for row in traced for k in row["inductor_kernels"] if k["kind"] in OUTSIDE_LIBRARIES]
    return sum(covered_us(k, right) for k in kernels), sum(float(k["us"]) for k in kernels)


def share(part: float, whole: float) -> float:
    """NaN for a share of nothing."""
    return part / whole if whole else math.nan


def regions_of(rows: Iterable[Row]) -> set[str]:
    return {f for row in rows for plan in row["plans"] for f in plan["regions"]}


def chosen_of(rows: Iterable[Row]) -> set[str]:
    return {f for row in rows for plan in row["plans"] for f in plan["chosen"]}


def own_share(rows: Sequence[Row]) -> float:
    """Of the GPU-busy time of cudal1's contender, what passes in kernels that the generator wrote."""
    measured = [row for row in rows if row["own_us"] is not None]
    return share(sum(row["own_us"] for row in measured), sum(row["busy"]["cudal1"] for row in measured))


def compare_errors(accuracy: Row) -> dict[str, Any]:
    """Each contender's worst tensor; cudal1's error in its worst mode over eager's or Inductor's."""
    found: Mapping[str, Mapping[str, float]] = accuracy["errors"]
    own = [found[contender] for contender in ("cudal1", GRAPHS) if contender in found]
    ratios = {
        name: max(e[name] for e in own) / max(found["eager"][name], found["inductor"][name], accuracy["roundoff"])
        for name in found["cudal1"]
    }
    worst = max(ratios, key=lambda name: ratios[name])
    return {
        "tensors": len(ratios),
        "worst": {contender: max(e.values()) for contender, e in found.items()},
        "mean": {contender: mean(list(e.values())) for contender, e in found.items()},
        "worst_ratio": ratios[worst],
        "worst_tensor": worst,
        "worst_tensor_errors": {contender: e[worst] for contender, e in found.items()},
        "sound": ratios[worst] <= ERROR_MULTIPLE,
    }


def speedups(row: Row) -> dict[str, float]:
    """Median time of each other contender over cudal1's."""
    median_ms: Mapping[str, float] = row["median_ms"]
    return {
        contender: median_ms[contender] / median_ms["cudal1"] for contender in BASELINES if contender in median_ms
    }


def figures(rows: Sequence[Row], right: Collection[str]) -> dict[str, float]:
    """What the summary holds of coverage and choice, of some rows."""
    regions, chosen = regions_of(rows), chosen_of(rows)
    covered, spent = time_coverage(rows, right)
    return {
        "regions": len(regions),
        "coverage_regions": share(len(regions & set(right)), len(regions)),
        "coverage_time": share(covered, spent),
        "wins": share(len(chosen), len(regions)),
        "device_time_in_model_kernels": own_share(rows),
    }


def summarise(rows: Sequence[Row], right: Collection[str]) -> dict[str, float | int | str]:
    """The flat summary over all models together."""
    over = {
        contender: [s[contender] for row in rows if contender in (s := speedups(row))] for contender in BASELINES
    }
    compared = [compare_errors(row["accuracy"]) for row in rows]
    best = [min(speedups(row).values()) for row in rows]
    found: dict[str, float | int | str] = {**figures(rows, right)}
    found |= {f"speedup_over_{contender}": geomean(values) for contender, values in over.items()}
    found |= {
        "speedup_over_best_of_three": geomean(best),
        "slowest_over_inductor": min(over["inductor"], default=math.nan),
        "worst_error_ratio": max((c["worst_ratio"] for c in compared), default=math.nan),
        "sound": share(sum(c["sound"] for c in compared), len(compared)),
        "busy_over_inductor": geomean([r["busy"]["inductor"] / r["busy"]["cudal1"] for r in rows if r["busy"]]),
    }
    if not any(row["lean"] for row in rows):
        for key, contender in (("cold_compile_s", "cudal1"), ("cold_compile_s_inductor", "inductor")):
            found[key] = sum(total_s(row["cold"][contender]) for row in rows)
    found |= graph_figures(rows)
    warm = [row["warm"] for row in rows if row.get("warm")]
    if warm:
        found["warm_compile_s"] = sum(total_s(w["cudal1"]) for w in warm)
        found["warm_compile_s_inductor"] = sum(total_s(w["inductor"]) for w in warm)
        found["warm_graph_cache_misses"] = sum(w["cudal1"]["graph_cache_misses"] for w in warm)
    return found


def graph_figures(rows: Sequence[Row]) -> dict[str, float]:
    """cudal1 in reduce-overhead over Inductor in reduce-overhead, and the better mode of each over the other's."""
    timed = [(row["median_ms"], row.get("graphs", {}).get("median_ms", {})) for row in rows]
    pairs = [(t, g) for t, g in timed if {"reduce_overhead", GRAPHS} <= g.keys()]
    if not pairs:
        return {}
    ratios = [g["reduce_overhead"] / g[GRAPHS] for _, g in pairs]
    best = [
        min(g["reduce_overhead"], *(t[contender] for contender in BASELINES if contender in t))
        / min(t["cudal1"], g[GRAPHS])
        for t, g in pairs
    ]
    return {
        "speedup_in_reduce_overhead": geomean(ratios),
        "slowest_in_reduce_overhead": min(ratios),
        "speedup_best_mode_over_best_of_three": geomean(best),
    }


def total_s(times: Row) -> float:
    return float(times["compile_s"]) + float(times["first_run_s"])


def intervals(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Over models, each of which counts once a direction."""
    over = [s["inductor"] for row in rows if "inductor" in (s := speedups(row))]
    return {"speedup_over_inductor": bootstrap(over, geomean)}


def describe(row: Row, right: Collection[str], synthesis_s: Mapping[str, float]) -> dict[str, Any]:
    """One model in one direction, for `detail`."""
    regions = regions_of([row])
    kept = (
        "model",
        "direction",
        "layers",
        "warm",
        "plan_s",
        "settling",
        "median_ms",
        "ms",
        "graphs",
        "busy",
        "lean",
        "commit",
    )
    kept += () if row["lean"] else ("cold",)
    found: dict[str, Any] = {key: row[key] for key in kept if key in row}
    found |= figures([row], right)
    found["speedup_over"] = speedups(row)
    found["accuracy"] = compare_errors(row["accuracy"])
    found["choice"] = [p["choice"] for p in row["plans"]]
    found["choice_ratio"] = [p["ratio"] for p in row["plans"]]
    found["outcomes"] = count_outcomes(row)
    wrote_s = sum(synthesis_s.get(f, 0.0) for f in regions)
    found["synthesis_s_of_its_regions"] = wrote_s  # the time of regions worked on together is shared out
    if not row["lean"]:
        found["cold_first_call_with_synthesis_s"] = total_s(row["cold"]["cudal1"]) + wrote_s
    found["kernels"] = row["kernels"]
    for key in ("failures", "turn_s", "load", "own_us", "compiling_beside"):
        if key in row:
            found[key] = row[key]
    found["inductor_us_by_kind"] = by_kind(row["inductor_kernels"])
    found["uncovered_kernels"] = uncovered(row["inductor_kernels"], right) if row["traced"] else []
    found["cudal1_kernels"] = row.get("cudal1_kernels", [])
    return without_samples(found)


def without_samples(row: Row) -> dict[str, Any]:
    """The row with quartiles in place of samples, which are lists of times by arm."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if key in SAMPLES:
            found[key] = {arm: quartiles(times) for arm, times in value.items()}
        else:
            found[key] = without_samples(value) if isinstance(value, Mapping) else value
    return found


def quartiles(times: Sequence[float]) -> list[float]:
    return quantiles(times, n=4, method="inclusive") if len(times) > 1 else list(times)


def count_outcomes(row: Row) -> dict[str, int]:
    counts: dict[str, int] = {}
    for plan in row["plans"]:
        for outcome in plan["regions"].values():
            counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def count_refused(nodes: Iterable[Row]) -> dict[str, int]:
    """Nodes that no region takes, by operation and reason, most frequent first."""
    counts = Counter(f"{node['operation']}: {node['reason']}" for node in nodes)
    return dict(counts.most_common())


def by_kind(kernels: Iterable[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for kernel in kernels:
        found[kernel["kind"]] = found.get(kernel["kind"], 0.0) + float(kernel["us"])
    return found


def uncovered(kernels: Iterable[Row], right: Collection[str], limit: int = 12) -> list[dict[str, Any]]:
    """Where coverage_time is lost, the longest first."""
    rows = []
    for kernel in kernels:
        if kernel["kind"] in OUTSIDE_LIBRARIES:
            lost = float(kernel["us"]) - covered_us(kernel, right)
            missing = {f[:12] or "no region": n for f, n in kernel["operations"].items() if f not in right}
            rows.append({"name": kernel["name"], "lost_us": lost, "us": kernel["us"], "missing": missing})
    return sorted((r for r in rows if r["lost_us"] > 0), key=lambda r: -r["lost_us"])[:limit]
