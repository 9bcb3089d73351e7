"""A model's turn: what is measured once all is compiled and the GPU is free of others.

    first runs -> calls until cudal1 has chosen between its variants -> errors against float64
    -> timed rounds -> GPU-busy time by kernel (three calls of each contender under the profiler)
    and once cudal1 is compiled in reduce-overhead: its choice -> its errors -> timed rounds beside Inductor's

The row is plain data; model_summary.py makes figures of it. Without a GPU operations stand in for kernel times.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any
from unittest import mock

import torch

from benchmarks.model_contenders import (
    GRAPHS,
    Contender,
    Job,
    Step,
    errors,
    exact_results,
    results,
    run_first,
    time_rounds,
)
from benchmarks.model_kernels import (
    Operations,
    Origins,
    ProfileError,
    base_name,
    kind_of,
    mean_times,
    own_us,
    profile,
)
from cudal1_compile.inductor.graph_plan import GraphPlanned
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.pipeline import choice
from cudal1_fx_passes.program.text import parse_program

PROFILED_CALLS = 3
FRAIL = ("reduce_overhead", GRAPHS)  # contenders in CUDA graphs, which a row can do without


@contextmanager
def may_fail(contenders: dict[str, Contender], failures: dict[str, str], what: str) -> Iterator[None]:
    """What a row can do without: its failure is noted, the contender is left out."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  any failure of a baseline is a finding, not the end
        if what == "inductor":
            raise
        failures[what] = f"{type(error).__name__}: {error}"[:500]
        contenders.pop(what, None)
        traceback.print_exc()


@dataclass
class Watched:
    """What the trial of the last graph measured, by variant."""

    gains: dict[str, float] = field(default_factory=dict)  # speed over `inductor`, of those too that dropped out
    us: dict[str, list[float | None]] = field(default_factory=dict)  # a call, of those that were decided between
    host_us: dict[str, list[float | None]] = field(default_factory=dict)


@contextmanager
def watch_trials() -> Iterator[Watched]:
    found = Watched()
    worth_more_calls, decide = choice.worth_more_calls, choice.decide

    def note(figures: choice.Figures) -> None:
        found.gains |= {n: median(ratios) for n in figures if (ratios := choice.speedups(figures, n))}

    def noted_worth(figures: choice.Figures) -> Any:
        note(figures)
        return worth_more_calls(figures)

    def noted_decide(figures: choice.Figures, host_us: choice.Figures, rivals: int) -> choice.Decision:
        note(figures)
        found.us, found.host_us = ({n: list(us) for n, us in x.items()} for x in (figures, host_us))
        return decide(figures, host_us, rivals)

    with mock.patch.multiple(choice, worth_more_calls=noted_worth, decide=noted_decide):
        yield found


@dataclass
class Turn:
    """What a process brings to its turn. `keys`: under which the plans of cudal1's contenders are stored."""

    job: Job
    step: Step
    contenders: dict[str, Contender]
    origins: list[Origins]  # of Inductor's kernels, by graph
    keys: dict[str, list[str]]
    failures: dict[str, str]
    plan_s: float
    accuracy: dict[str, Any] = field(default_factory=dict)

    def measure(self) -> dict[str, Any]:
        """With the device to itself."""
        start = time.monotonic()
        self._run_first()
        settled = self._settle("cudal1")
        roundoff = torch.finfo(next(p.dtype for p in self.step.module.parameters())).eps / 2
        self.accuracy = {"errors": self._errors(self.contenders), "roundoff": roundoff}
        contenders = list(self.contenders.values())
        times = time_rounds(self.step, contenders, self.job.rounds, self.job.limit_s)
        return {
            "model": self.job.model,
            "direction": "train" if self.job.train else "inference",
            "layers": self.job.layers,
            "lean": self.job.lean,
            "traced": bool(self.origins),
            "cold": {a.name: {"compile_s": a.compile_s, "first_run_s": a.first_run_s} for a in contenders},
            "plan_s": self.plan_s,
            **settled,
            "accuracy": self.accuracy,
            "ms": times,
            "median_ms": _medians(times),
            **self._busy(settled["kernels"]),
            "failures": self.failures,
            "turn_s": time.monotonic() - start,
            "load": os.getloadavg()[0],
        }

    def measure_graphs(self) -> dict[str, Any]:
        """What the row gets once cudal1 is compiled in reduce-overhead: its times beside Inductor's in that mode.

        Other contenders are not timed again: CUPTI stays attached once it has profiled, and what launches kernel
        by kernel takes 1.2 to 2.3 times as long since (CNNs whose host holds them up, H100).
        """
        start = time.monotonic()
        graphs: dict[str, Any] = {}
        self._run_first()
        if GRAPHS in self.contenders:
            with may_fail(self.contenders, self.failures, GRAPHS):
                settled = self._settle(GRAPHS)
                graphs = {"choice": [p["choice"] for p in settled["plans"]], "settling": settled["settling"]}
                self.accuracy["errors"] |= self._errors({GRAPHS: self.contenders[GRAPHS]})
                contenders = [self.contenders[name] for name in FRAIL if name in self.contenders]
                times = time_rounds(self.step, contenders, self.job.rounds, self.job.limit_s)
                graphs |= {"ms": times, "median_ms": _medians(times), "turn_s": time.monotonic() - start}
        return {"graphs": graphs, "accuracy": self.accuracy, "failures": self.failures}

    def _run_first(self) -> None:
        for name in [n for n in self.contenders if n not in FRAIL]:
            run_first(self.step, self.contenders[name])
        for name in [n for n in FRAIL if n in self.contenders]:
            with may_fail(self.contenders, self.failures, name):
                run_first(self.step, self.contenders[name])
                for _ in range(3):  # CUDA graphs: warm up, record, replay
                    self.step.clear()
                    self.step.run(self.contenders[name].call)

    def _settle(self, contender: str) -> dict[str, Any]:
        """Calls of a contender of cudal1 until the trial between variants has decided, and what it decided."""
        from cudal1_compile.pipeline.process_state import SESSION

        SESSION.first_calls.end()
        plans, calls = self._stored_plans(contender), 0
        start = time.monotonic()
        with watch_trials() as watched:
            while any(p.choice == "deciding" for p in plans) and calls < choice.SETTLED:
                self.step.clear()
                self.step.run(self.contenders[contender].call)
                calls += 1
                plans = self._stored_plans(contender)
        chosen = {f: e for p in plans for f, e in p.kernels(_choice(p)).items()}
        return {
            "settling": {
                "calls": calls,
                "seconds": time.monotonic() - start,
                **asdict(watched),
                "proposed": [_proposed(p) for p in plans],
            },
            "plans": [
                {
                    "choice": p.choice,
                    "ratio": p.ratio,
                    "regions": {r.fingerprint: r.outcome for r in p.regions},
                    "chosen": sorted(p.kernels(_choice(p))),
                }
                for p in plans
            ],
            "kernels": self._kernel_names(plans, chosen),
        }

    def _stored_plans(self, contender: str) -> list[GraphPlanned]:
        from cudal1_compile.inductor.graph_plan import from_row
        from cudal1_compile.pipeline.process_state import SESSION
        from cudal1_compile.runtime.target import detect_target

        store, target = SESSION.store(self.job.store), detect_target(self.job.device).key
        rows = [store.get_plan(key, target) for key in self.keys[contender]]
        return [from_row(row) for row in rows if row is not None]

    def _kernel_names(self, plans: list[GraphPlanned], chosen: dict[str, str]) -> list[str]:
        from cudal1_compile.pipeline.process_state import SESSION

        texts = {r.fingerprint: r.seen.text for p in plans for r in p.regions}
        names: set[str] = set()
        for fingerprint, entry_id in chosen.items():
            entry = SESSION.store(self.job.store).get_entry(entry_id)
            if entry is not None:
                candidate = parse_candidate(entry.code, parse_program(texts[fingerprint]))
                names |= {base_name(launch.kernel) for launch in candidate.launches}
        return sorted(names)

    def _errors(self, contenders: dict[str, Contender]) -> dict[str, dict[str, float]]:
        """Of each contender, tensor by tensor, against the same model in float64."""
        self.step.clear()
        exact = exact_results(self.step)
        return {name: errors(results(self.step, contender.call), exact) for name, contender in contenders.items()}

    def _busy(self, kernels: list[str]) -> dict[str, Any]:
        """GPU-busy microseconds of one call by kernel; without a GPU operations are counted in their place."""
        if self.job.dry:
            return {"busy": None, "inductor_kernels": self._counted(), "own_us": None}
        try:
            times = self._profiled()
        except (ProfileError, OSError, ValueError) as error:
            self.failures["profile"] = str(error)
            return {"busy": None, "inductor_kernels": [], "own_us": None}
        busy = {name: sum(sum(part.values()) for part in parts) for name, parts in times.items()}
        return {
            "busy": busy,
            "inductor_kernels": self._attributed(times["inductor"]),
            "own_us": sum(own_us(part, kernels) for part in times["cudal1"]),
            "cudal1_kernels": [_longest(part) for part in times["cudal1"]],
        }

    def _profiled(self) -> dict[str, list[dict[str, float]]]:
        """Contender -> kernel times of the forward and, in training, of the backward."""
        once: list[Callable[[], None]] = []
        for contender in self.contenders.values():
            once.append(_bind(self._forward, contender))
            if self.job.train:
                once.append(self.step.backward)
        folder = self.job.work / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        found = profile(once * PROFILED_CALLS, folder / f"{self.job.name}.json")
        self.step.clear()
        parts = [mean_times(found[i :: len(once)]) for i in range(len(once))]
        width = 2 if self.job.train else 1
        return {name: parts[i * width : (i + 1) * width] for i, name in enumerate(self.contenders)}

    def _forward(self, contender: Contender) -> None:
        self.step.clear()
        self.step.forward(contender.call)

    def _attributed(self, parts: list[dict[str, float]]) -> list[dict[str, Any]]:
        """Inductor's kernels with their time, kind and operations by region."""
        rows = []
        for i, times in enumerate(parts):
            origins = _merged([o for o, _ in self.origins[i :: len(parts)]])
            for name, us in times.items():
                rows.append({"part": i, "name": name[:160], "us": us, "kind": kind_of(name)})
                rows[-1]["operations"] = origins.get(name, {})
        return rows

    def _counted(self) -> list[dict[str, Any]]:
        return [
            {
                "part": i,
                "name": "operations",
                "us": float(sum(found.values())),
                "kind": "triton",
                "operations": found,
            }
            for i, (_, found) in enumerate(self.origins)
        ]


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: median(ms) for name, ms in times.items() if ms}


def _bind(function: Callable[[Contender], None], contender: Contender) -> Callable[[], None]:
    return lambda: function(contender)


def _longest(times: dict[str, float], count: int = 40) -> dict[str, float]:
    """Names cut: those of libraries run over several lines."""
    return {name[:120]: us for name, us in sorted(times.items(), key=lambda item: -item[1])[:count]}


def _choice(plan: GraphPlanned) -> Any:
    return "inductor" if plan.choice == "deciding" else plan.choice


def _merged(found: list[dict[str, Operations]]) -> dict[str, Operations]:
    """One table for the graphs of one direction (several only where Dynamo broke the model's graph)."""
    merged: dict[str, Operations] = {}
    for table in found:
        for name, operations in table.items():
            into = merged.setdefault(name, {})
            for fingerprint, count in operations.items():
                into[fingerprint] = into.get(fingerprint, 0) + count
    return merged


def _proposed(plan: GraphPlanned) -> dict[str, float]:
    """What the variant `all_kernels` runs, and what a call saves if each region saves what it saves alone."""
    chosen = plan.chosen("all_kernels")
    regions = [r for r in plan.regions if r.fingerprint in chosen]
    return {
        "regions": len(regions),
        "products": sum(r.seen.has_product for r in regions),
        "saved_us": sum(r.saved * r.seen.count for r in regions),
    }
