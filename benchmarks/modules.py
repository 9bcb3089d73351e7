"""What a user gets: `torch.compile(module, backend="cudal1")` on modules of a few operators, from an empty cache.

    python -m benchmarks.modules --out benchmarks/results --seconds 600     on a GPU: writes modules.h100.json
    python -m benchmarks.modules --dry --out OUT --modules running_sum      on a CPU, tiny: proves the script

    one process, module after module:  first call (plans, writes kernels within the budget, compiles)
    -> calls until the choice between the variants is settled -> errors against float64
    -> eager, Inductor and cudal1 in rounds of random order, each call from an idle device to an idle device

The options are the defaults but for the time that all modules together may take. The GPU has nothing else to do,
so times are what they are for one user; host time is in them. OUT/modules.rows.jsonl grows while it runs, and
`--rows FILE` takes such rows over: a second run goes on with the modules that are missing.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.model_contenders import (
    Contender,
    Step,
    errors,
    exact_results,
    results,
    run_first,
    time_rounds,
    timed_ms,
)
from benchmarks.model_summary import ERROR_MULTIPLE
from benchmarks.model_synthesis import is_right
from benchmarks.result_file import bootstrap, commit, geomean, mean, write_result
from benchmarks.zoo_modules import MODULES, ModuleSpec
from cudal1_cache.store import Store
from cudal1_compile.inductor.graph_plan import KERNEL_FREE
from cudal1_compile.pipeline.choice import SETTLED
from cudal1_compile.pipeline.process_state import SESSION, Totals
from cudal1_compile.runtime.target import detect_target

ROUNDS = 60
MEASURE_S = 3.0
MODULE_S = 35.0  # that a module takes: the run ends where less is left
NAMES = [m.name for m in MODULES]


class Decisions(logging.Handler):
    """What the trials on the first calls decided, in their own words: (choice, ratio)."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[tuple[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and record.msg.startswith("decided for"):
            self.found.append((str(record.args[0]), float(str(record.args[1]))))


def main(argv: Sequence[str] | None = None) -> int:
    end = time.monotonic()
    arguments = parse_arguments(argv)
    end += arguments.seconds
    if not arguments.dry and not torch.cuda.is_available():
        print("no CUDA device here; --dry proves the script on a CPU", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = _taken_over(arguments.rows)
    for name in [name for name in arguments.modules if name not in rows]:
        if end - time.monotonic() < MODULE_S:
            print(f"the time is over before {name}", flush=True)
            break
        rows[name] = _row(next(m for m in MODULES if m.name == name), arguments)
        print(f"{name}: {_line(rows[name])}", flush=True)
        with (arguments.out / "modules.rows.jsonl").open("a") as stream:
            stream.write(json.dumps({"module": name, **rows[name]}) + "\n")
    path = _write(rows, arguments)
    print(json.dumps(json.loads(path.read_text())["summary"], indent=1))
    return 0 if any("ms" in row for row in rows.values()) else 1


def _row(spec: ModuleSpec, arguments: argparse.Namespace) -> dict[str, Any]:
    """A module that fails is a row too: that is a finding."""
    try:
        return measure(spec, arguments.dry, arguments.options) | {"commit": commit()}
    except Exception as error:  # noqa: BLE001  the others are measured all the same
        return {"failed": f"{type(error).__name__}: {error}"[:500], "commit": commit()}


def measure(spec: ModuleSpec, dry: bool, options: dict[str, Any]) -> dict[str, Any]:
    """One module, all contenders; the kernel cache is empty before."""
    step = _make_step(spec, dry)
    decisions = Decisions()
    logger = logging.getLogger("cudal1_compile.pipeline.choice")
    level = logger.level
    logger.addHandler(decisions)
    logger.setLevel(logging.INFO)
    before = SESSION.totals
    try:
        with tempfile.TemporaryDirectory(prefix="cudal1-modules-") as cache:
            return _measured(step, dry, options | {"cache_dir": cache}, decisions, before)
    finally:
        logger.removeHandler(decisions)
        logger.setLevel(level)
        torch._dynamo.reset()


def _measured(
    step: Step, dry: bool, options: dict[str, Any], decisions: Decisions, before: Totals
) -> dict[str, Any]:
    inductor: Any = torch.compile(step.module, dynamic=False)
    compiled: Any = torch.compile(step.module, backend="cudal1", dynamic=False, options=options)
    contenders = [Contender("eager", step.module), Contender("inductor", inductor), Contender("cudal1", compiled)]
    for contender in contenders:
        run_first(step, contender)
    SESSION.first_calls.end()
    for _ in range(SETTLED):  # until the choice is settled
        step.clear()
        timed_ms(step, contenders[-1])
    exact = exact_results(step)
    worst = {
        contender.name: max(errors(results(step, contender.call), exact).values()) for contender in contenders
    }
    ms = time_rounds(step, contenders, 3 if dry else ROUNDS, MEASURE_S)
    after = SESSION.totals
    return {
        "first_call_s": {contender.name: contender.first_run_s for contender in contenders},
        "regions": {
            n: getattr(after, n) - getattr(before, n)
            for n in ("regions", "new", "aten", "unprofitable", "untuned")
        },
        "decided": decisions.found,
        "kernels": _written(SESSION.store(Path(options["cache_dir"])), step.inputs[0].device),
        "worst_error": worst,
        "ms": {name: median(found) for name, found in ms.items()},
        "rounds": ms,
    }


def _written(store: Store, device: torch.device) -> list[dict[str, Any]]:
    """What the judge said of each region's kernels."""
    target = detect_target(device).key
    wanted = {e.fingerprint for e in store.entries(target=target)} | {m.fingerprint for m in store.misses(target)}
    rows = []
    for fingerprint in sorted(wanted):
        attempts = store.attempts(fingerprint, target)
        refused = [f"{a.stage}: {a.reason[:200]}" for a in attempts if not is_right(a)]
        row: dict[str, Any] = {"fingerprint": fingerprint, "stages": Counter(a.stage for a in attempts)}
        row["best_score"] = max((a.speedup for a in attempts if a.speedup is not None), default=None)
        rows.append(row | {"refusals": list(dict.fromkeys(refused))[:3]})
    return rows


def _make_step(spec: ModuleSpec, dry: bool) -> Step:
    torch.manual_seed(0)
    module, inputs = spec.make(dry)
    device = "cpu" if dry else "cuda"
    moved = tuple(x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs)
    return Step(module.to(device).train(spec.trains), moved, spec.trains)


def is_sound(row: dict[str, Any]) -> bool:
    """Whether cudal1's errors stay within what eager's and Inductor's allow."""
    worst = row["worst_error"]
    return bool(worst["cudal1"] <= max(ERROR_MULTIPLE * max(worst["eager"], worst["inductor"]), 1e-6))


def summarise(rows: Collection[dict[str, Any]]) -> dict[str, Any]:
    measured = [row for row in rows if "ms" in row]
    over = {base: [row["ms"][base] / row["ms"]["cudal1"] for row in measured] for base in ("eager", "inductor")}
    best = [min(row["ms"]["eager"], row["ms"]["inductor"]) / row["ms"]["cudal1"] for row in measured]
    return {
        "sound": mean([float(is_sound(row)) for row in measured]),
        "failed": len(rows) - len(measured),
        "speedup_over_eager": geomean(over["eager"]),
        "speedup_over_inductor": geomean(over["inductor"]),
        "speedup_over_best": geomean(best),
        "slowest_over_inductor": min(over["inductor"], default=None),
        "slowest_over_best": min(best, default=None),
        "chosen": mean([float(any(c not in KERNEL_FREE for c, _ in row["decided"])) for row in measured]),
        "first_call_s": median([row["first_call_s"]["cudal1"] for row in measured] or [0.0]),
        "first_call_s_inductor": median([row["first_call_s"]["inductor"] for row in measured] or [0.0]),
    }


def _write(rows: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> Path:
    over = [row["ms"]["inductor"] / row["ms"]["cudal1"] for row in rows.values() if "ms" in row]
    intervals = {"speedup_over_inductor": bootstrap(over, geomean)}
    detail = {name: {k: v for k, v in row.items() if k != "rounds"} for name, row in rows.items()}
    body = {"modules": detail, "options": arguments.options}
    return write_result(
        arguments.out, "modules", summarise(rows.values()), len(rows), intervals, body, arguments.dry
    )


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}"
    ms = ", ".join(f"{name} {found:.3f}" for name, found in row["ms"].items())
    regions = ", ".join(f"{name} {count}" for name, count in row["regions"].items())
    sound = "right" if is_sound(row) else f"WRONG {row['worst_error']}"
    return f"{sound}; ms {ms}; {regions}; {row['decided']}; first call {row['first_call_s']['cudal1']:.1f} s"


def _taken_over(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return {line.pop("module"): line for line in lines}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--modules", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--rows", nargs="*", type=Path, default=[], help="modules.rows.jsonl of earlier runs")
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--products", action=argparse.BooleanOptionalAction, help="default: the backend's")
    parser.add_argument("--dry", action="store_true")
    found = parser.parse_args(argv)
    found.options = {"process_budget_s": 1e9} | ({"target": "host"} if found.dry else {})
    if found.products is not None:
        found.options["products"] = found.products
    return found


if __name__ == "__main__":
    sys.exit(main())
