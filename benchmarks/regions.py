"""The first look at where speed is: real models' regions, every template strategy, against aten and Inductor.

    python -m benchmarks.regions --regions trainer/data/regions.jsonl --out OUT [--seconds 480]
    python -m benchmarks.regions --regions trainer/data/families.jsonl --families scan,pool --cold --out OUT

For each distinct region: up to --variants template variants (all strategies), built, checked, and timed beside
aten and Inductor (that region alone, dynamic=False), GPU-busy. OUT/regions.rows.jsonl grows while it runs; OUT/
regions.exploration.GPU.json holds the statistics: geomeans by family, direction, dtype and strategy, how often
which strategy is fastest, the best variant over Inductor, and every failure. The templates are programs: these
figures say what is worth learning, nothing about a model.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.duel import Config, Job, Row, duel_into
from benchmarks.result_file import bootstrap, geomean, write_result
from cudal1_compile.runtime.cores import usable_cores
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import write_variants


def read_regions(path: Path, limit: int, families: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The file's rows; of families.jsonl those of some families, each in its model's place."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{"model": row.get("family"), **row} for row in rows if not families or row["family"] in families]
    return rows[:limit] if limit else rows


def make_jobs(regions: Sequence[dict[str, Any]], variants: int) -> tuple[list[Job], dict[str, str]]:
    """Jobs named by their place in the file, and why some regions have none."""
    jobs, refused = [], {}
    for i, region in enumerate(regions):
        written = write_variants(parse_program(region["text"]), variants)
        if not written:
            refused[str(i)] = "no template applies"
            continue
        jobs.append(Job(str(i), region["text"], tuple((v.name, v.reply.code) for v in written)))
    return jobs, refused


def family_of(program: Program) -> str:
    """What kind of work a program is: windows, gathers, scans, then by which axes its reductions remove."""
    fns = {o.fn for o in program.ops}
    if any(a.name.startswith("k") for a in program.axes):
        return "window"
    if fns & {"cumsum", "cumprod"}:
        return "scan"
    overs = {o.over for o in program.ops if o.over and o.fn != "iota"}
    if not overs:
        return "pointwise"
    widest = max((p for p in program.inputs), key=lambda i: len(i.axes)).axes
    inner = {o for o in overs if widest and widest[-1] in o}
    outer = overs - inner
    if inner and outer:
        return "rows and columns"
    return "rows" if inner else "columns"


def best_template(row: Row) -> tuple[str, float] | None:
    times = {name: t[0] for name, t in row.busy.items() if name not in ("aten", "inductor")}
    if not times:
        return None
    name = min(times, key=lambda k: times[k])
    return name, times[name]


def speedup(row: Row, contender: str = "inductor") -> float | None:
    """Best variant over a contender."""
    best, other = best_template(row), row.us(contender)
    return other / best[1] if best is not None and other is not None else None


def strategy_of(name: str) -> str:
    return name.partition("/")[0].removesuffix("!")


def best_by_strategy(row: Row) -> dict[str, float]:
    """Each strategy's fastest variant over Inductor."""
    base = row.us("inductor")
    if base is None:
        return {}
    found: dict[str, float] = {}
    for name, times in row.busy.items():
        if name not in ("aten", "inductor"):
            strategy = strategy_of(name)
            found[strategy] = max(base / times[0], found.get(strategy, 0.0))
    return found


def summarise(regions: Sequence[dict[str, Any]], rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(summary, detail)."""
    over = {r.ident: s for r in rows if (s := speedup(r)) is not None}
    eager = [s for r in rows if (s := speedup(r, "aten")) is not None]
    groups: dict[str, dict[str, list[float]]] = {k: defaultdict(list) for k in ("family", "direction", "model")}
    for ident, value in over.items():
        region = regions[int(ident)]
        groups["family"][family_of(parse_program(region["text"]))].append(value)
        groups["direction"][region["direction"]].append(value)
        groups["model"][region["model"]].append(value)
    strategies: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for strategy, value in best_by_strategy(row).items():
            strategies[strategy].append(value)
    fastest = [found[0] for r in rows if (found := best_template(r)) is not None]
    kernels = sum(len(r.busy.keys() - {"aten", "inductor"}) for r in rows)
    failed = [f"{strategy_of(n)}: {why.split(':')[0]}" for r in rows for n, why in r.failures.items()]
    summary = {
        "regions": len(regions),
        "measured": len(rows),
        "with_a_right_kernel": len(fastest),
        "best_over_inductor": geomean(list(over.values())),
        "best_over_inductor_clamped": geomean([max(1.0, v) for v in over.values()]),
        "wins_over_inductor": sum(v > 1.0 for v in over.values()) / max(1, len(over)),
        "best_over_aten": geomean(eager),
        "kernels_right": kernels,
        "kernels_failed": len(failed),
    }
    detail: dict[str, Any] = {
        key: {name: {"n": len(v), "best_over_inductor": geomean(v)} for name, v in sorted(g.items())}
        for key, g in groups.items()
    }
    detail["strategy"] = {
        name: {"n": len(v), "best_over_inductor": geomean(v)} for name, v in sorted(strategies.items())
    }
    detail["fastest_strategy"] = dict(Counter(strategy_of(n) for n in fastest).most_common())
    detail["fastest_schedule"] = dict(Counter(fastest).most_common(60))
    detail["failures"] = dict(Counter(failed).most_common())
    detail["programs"] = [_program_detail(regions, r) for r in rows]
    return summary, detail


def _program_detail(regions: Sequence[dict[str, Any]], row: Row) -> dict[str, Any]:
    region = regions[int(row.ident)]
    best = best_template(row)
    program = parse_program(region["text"])
    return {
        "model": region["model"],
        "direction": region["direction"],
        "family": family_of(program),
        "name": region.get("name"),
        "operations": len(program.ops),
        "best": best[0] if best else None,
        "us": {name: round(t[0], 3) for name, t in row.busy.items() if name in ("aten", "inductor")}
        | ({"best": round(best[1], 3)} if best else {}),
        "over_inductor": speedup(row),
        "failures": row.failures,
        "text": region["text"],
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Template variants of real regions against aten and Inductor.")
    parser.add_argument("--regions", type=Path, required=True, help="JSON lines of benchmarks.extract_regions")
    parser.add_argument("--cold", action="store_true", help="L2 flushed before every call, as in families.py")
    parser.add_argument("--families", default="", help="of families.jsonl, those to take: scan,pool")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", type=int, default=16, help="of one region, at most")
    parser.add_argument("--limit", type=int, default=0, help="regions, from the front; 0 is all")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument(
        "--dry", action="store_true", help="on the CPU's host target: proves the script, no result"
    )
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    regions = read_regions(arguments.regions, arguments.limit, list(filter(None, arguments.families.split(","))))
    jobs, refused = make_jobs(regions, arguments.variants)
    print(f"{len(jobs)} of {len(regions)} regions, {sum(len(j.codes) for j in jobs)} variants", flush=True)
    config = Config(arguments.workers, distributions=("normal", "offset"), dry=arguments.dry, cold=arguments.cold)
    rows = duel_into(arguments.out / "regions.rows.jsonl", jobs, config, start, start + arguments.seconds)
    summary, detail = summarise(regions, rows)
    detail["refused"] = refused
    values = [v for r in rows if (v := speedup(r)) is not None]
    intervals = {"best_over_inductor": bootstrap(values, geomean)}
    path = write_result(arguments.out, "regions.exploration", summary, len(rows), intervals, detail, arguments.dry)
    print(json.dumps(summary | {"seconds": round(time.monotonic() - start)}, indent=1))
    for key in ("family", "strategy", "fastest_strategy", "failures"):
        print(key, json.dumps(detail[key]))
    print(path)


if __name__ == "__main__":
    main()
