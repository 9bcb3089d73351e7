"""From rows of jobs to what coverage says: how much of the GPU's time was decided, how fast, and how right.

A region's time is that of Inductor's kernels for it in one call (coverage_trace.py says what is approximate);
shares are of all jobs' times together. A region is decided by a kernel (hit, new), at the floor, or by a proven
no win (unprofitable, or aten runs it). A job is over the limit where its first call took longer than Inductor's
(median of its processes) times INDUCTOR_SHARE, the budget and SLACK_S. Rows that failed count; what they have
counts too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.coverage_errors import is_wrong
from benchmarks.result_file import bootstrap, geomean, mean

KERNEL = ("hit", "new")
AT_FLOOR = ("at_floor",)
NO_WIN = ("unprofitable", "aten")
DECIDED = (*KERNEL, *AT_FLOOR, *NO_WIN)
OUTSIDE = ""
NO_ROOM = ("no room", "free for it")  # in the reason of a region that the judge had no memory for
INDUCTOR_SHARE = 1.1
SLACK_S = 2.0
REASON = 80  # characters

Row = Mapping[str, Any]


def limit_s(row: Row) -> float | None:
    """Of the first call; None where Inductor's is not known."""
    if not (times := row["inductor_first_s"]):
        return None
    return float(median(times)) * INDUCTOR_SHARE + float(row["budget_s"]) + SLACK_S


def is_over(row: Row) -> bool:
    limit = limit_s(row)
    first: float | None = row.get("first_call_s")
    return limit is not None and first is not None and first > limit


def us_by_outcome(row: Row) -> Counter[str]:
    """Of a job's regions. What Inductor's graph had and no plan had is `unseen`."""
    outcomes = {r["fingerprint"]: r["outcome"] for r in row.get("regions", [])}
    found: Counter[str] = Counter()
    for fingerprint, us in row.get("us", {}).items():
        if fingerprint != OUTSIDE:
            found[outcomes.get(fingerprint, "unseen")] += us
    return found


def graph_us(row: Row) -> float:
    us: Mapping[str, float] = row.get("us", {})
    return sum(us.values())


def share(part: float, whole: float) -> float:
    """NaN of nothing."""
    return part / whole if whole else math.nan


def value(rows: Iterable[Row]) -> dict[str, float]:
    """Shares of the regions' time, and what is decided of all time of the graphs."""
    rows = list(rows)
    us: Counter[str] = Counter()
    for row in rows:
        us.update(us_by_outcome(row))
    whole = sum(us.values())

    def part(outcomes: Sequence[str]) -> float:
        return sum(us[o] for o in outcomes)

    return {
        "value_decided": share(part(DECIDED), whole),
        "value_decided_of_graph": share(part(DECIDED), sum(graph_us(row) for row in rows)),
        "value_with_kernel": share(part(KERNEL), whole),
        "value_at_floor": share(part(AT_FLOOR), whole),
        "value_no_win": share(part(NO_WIN), whole),
    }


def usual_device(rows: Sequence[Row]) -> str:
    """Of most jobs; what failed before it had one has none."""
    devices = Counter(row["device"] for row in rows if row["device"])
    return max(devices, key=devices.__getitem__, default="")


def is_without_room(region: Row) -> bool:
    return region["outcome"] not in DECIDED and any(words in region["reason"] for words in NO_ROOM)


def speedup(row: Row, part: str = "") -> float | None:
    """Inductor's median time over cudal1's."""
    ms: Mapping[str, float] = (row.get(part, {}) if part else row).get("ms", {})
    return ms["inductor"] / ms["cudal1"] if {"inductor", "cudal1"} <= ms.keys() else None


def is_wrong_row(row: Row) -> bool:
    found = [part.get("errors", {}) for part in (row, row.get("graphs", {}))]
    return any(is_wrong(e["cudal1"], e.get("inductor", 0.0)) for e in found if "cudal1" in e)


def summarise(rows: Sequence[Row], rate: Mapping[str, Any]) -> dict[str, float | int]:
    regions = [r for row in rows for r in row.get("regions", [])]
    first = [row["first_verdict_s"] for row in rows if row.get("first_verdict_s") is not None]
    plain = [s for row in rows if (s := speedup(row)) is not None]
    graphs = [s for row in rows if (s := speedup(row, "graphs")) is not None]
    return {
        **value(rows),
        "no_room": sum(is_without_room(r) for r in regions),
        "first_verdict_s": median(first) if first else math.nan,
        "first_call_over_limit": sum(is_over(row) for row in rows),
        "judged_per_s_small": rate.get("judged_per_s_small", math.nan),
        "judged_per_s_large": rate.get("judged_per_s_large", math.nan),
        "speedup_over_inductor": geomean(plain),
        "slowest_over_inductor": min(plain, default=math.nan),
        "speedup_in_reduce_overhead": geomean(graphs),
        "wrong": sum(is_wrong_row(row) for row in rows),
        "jobs": len(rows),
        "regions": len(regions),
        **{f"regions_{o}": n for o, n in sorted(Counter(r["outcome"] for r in regions).items())},
        "failed": sum(bool(row["failed"]) for row in rows),
    }


def intervals(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Over jobs."""
    plain = [s for row in rows if (s := speedup(row)) is not None]

    def decided(drawn: Sequence[float]) -> float:
        return value([rows[int(i)] for i in drawn])["value_decided"]

    return {
        "speedup_over_inductor": bootstrap(plain, geomean),
        "value_decided": bootstrap([float(i) for i in range(len(rows))], decided),
    }


def describe(rows: Sequence[Row], rate: Mapping[str, Any]) -> dict[str, Any]:
    """`detail`: a row a job.

    A region: `fingerprint outcome [speedup] GPU-time [xcount] [#reason]`. memory_mib: the peak of the process's
    allocator, and what the device held after the first call, for whomever.
    """
    reasons: dict[str, int] = {}
    usual = usual_device(rows)
    described = {
        row["job"]: _describe(row, reasons) | ({} if row["device"] in ("", usual) else {"device": row["device"]})
        for row in rows
    }
    kinds = {kind: value([row for row in rows if row["kind"] == kind]) for kind in ("task", "model")}
    means = [found["value_decided"] for row in rows if math.isfinite((found := value([row]))["value_decided"])]
    return {
        "jobs": described,
        "reasons": list(reasons),
        "by_kind": kinds,
        "value_decided_mean_of_jobs": mean(means),
        "rate": dict(rate),
        "commits": sorted({row["commit"] for row in rows}),
    }


def _describe(row: Row, reasons: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": row["kind"],
        "first_call_s": _short(row.get("first_call_s")),
        "limit_s": _short(limit_s(row)),
        "inductor_first_s": " ".join(f"{s:.1f}" for s in row["inductor_first_s"]),
        "first_verdict_s": _short(row.get("first_verdict_s")),
        "value_decided": _short(value([row])["value_decided"]),
        "gpu_us": _short(graph_us(row)),
        "speedup": _short(speedup(row)),
        "ms": _short(row.get("ms", {}).get("cudal1")),
        "choices": " ".join(row.get("choices", [])),
        "calls": row.get("settling", {}).get("calls"),
        "errors": " ".join(f"{name} {error:.1e}" for name, error in row.get("errors", {}).items()),
        "memory_mib": " ".join(f"{arm} {'/'.join(map(str, mib))}" for arm, mib in row.get("mib", {}).items()),
        "regions": "; ".join(_words(r, row.get("us", {}), reasons) for r in row.get("regions", [])),
    }
    found["in_reduce_overhead"] = _short(speedup(row, "graphs"))
    if row.get("us") and not row.get("in_order", True):
        found["libraries"] = "nobody's: the profile has another order than the code"
    if row.get("against", "float64") != "float64":
        found["errors_against"] = row["against"]
    if is_wrong_row(row):
        found["wrong"] = True
    if row["failed"]:
        found["failed"] = {what: why[:REASON] for what, why in row["failed"].items()}
    return {key: v for key, v in found.items() if v not in (None, "")}


def _words(region: Row, us: Mapping[str, float], reasons: dict[str, int]) -> str:
    words = [region["fingerprint"][:12], region["outcome"]]
    if region["speedup"] is not None:
        words.append(f"{region['speedup']:.2f}x")
    words.append(f"{us.get(region['fingerprint'], 0.0):.0f}us")
    if region["count"] > 1:
        words.append(f"x{region['count']}")
    if region["reason"]:
        words.append(f"#{reasons.setdefault(region['reason'][:REASON], len(reasons))}")
    return " ".join(words)


def _short(x: float | None) -> float | None:
    """Four digits; nothing of what is not finite."""
    return float(f"{x:.4g}") if x is not None and math.isfinite(x) else None
