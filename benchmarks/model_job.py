"""One process for one model in one direction: it plans, compiles, waits for its turn, and measures.

    serve(job, pipe)        plan -> Inductor's arms ... "kernels" -> cudal1's arm ... "measure" -> a row
    serve_warm(job, pipe)   a second process: the same compiles from the caches

Compiling runs nothing on the device, so all models do it at once; the parent (models.py) gives the turn to
measure to one process at a time. The parent also has the kernels written, between the plan and cudal1's compile.
"""

from __future__ import annotations

import copy
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import fx

from benchmarks.model_arms import (
    Arm,
    Step,
    both_directions,
    cache_folder,
    compile_arm,
    errors,
    inductor_backend,
    results,
    run_first,
    time_rounds,
)
from benchmarks.model_kernels import (
    Operations,
    ProfileError,
    base_name,
    count_operations,
    kind_of,
    mean_times,
    own_us,
    profile,
    read_origins,
    regions_by_node,
)
from benchmarks.zoo import ZOO, Loss, build
from cudal1_compile.candidate import parse_candidate
from cudal1_compile.plan import GraphPlanned
from cudal1_fx_passes.partition import Partition
from cudal1_fx_passes.text import parse_program

SETTLING_CALLS = 48  # within which the first-call trial must have decided
PROFILED_CALLS = 3
FRAIL = {"reduce_overhead"}  # arms that a row can do without
MODES = {"inductor": None, "reduce_overhead": "reduce-overhead"}


@dataclass(frozen=True, slots=True)
class Job:
    """What a process measures. `store`: kernel cache; `work`: folder for compiler caches and logs."""

    model: str
    train: bool
    layers: int
    store: Path
    work: Path
    dry: bool = False
    rounds: int = 20
    limit_s: float = 10.0  # of the timed rounds

    @property
    def name(self) -> str:
        return f"{self.model}.{'train' if self.train else 'inference'}"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.dry else torch.device("cuda", 0)

    @property
    def options(self) -> dict[str, Any]:
        """Of the backend: what the cache holds is used, nothing is asked for."""
        return {
            "on_miss": "fallback",
            "cache_dir": str(self.store),
            "target": "host" if self.dry else "auto",
        }

    def caches(self, arm: str) -> Path:
        return self.work / "caches" / self.name / arm


@dataclass(frozen=True, slots=True)
class Said:
    """A message to the parent: `what` is planned, ready, measured, warm or failed."""

    job: str
    what: str
    body: Any = None


@dataclass
class Provenance:
    """What Inductor's plain compile made of the graphs, in the order in which it saw them."""

    found: list[Partition] = field(default_factory=list)
    code: list[str] = field(default_factory=list)


def serve(job: Job, pipe: Connection) -> None:
    """Runs in its own process."""
    _own_process(job, "cold")
    try:
        worker = _Worker(job)
        pipe.send(Said(job.name, "planned", worker.plan()))
        worker.compile_inductor()
        if pipe.recv() != "kernels":
            return
        worker.compile_cudal1()
        pipe.send(Said(job.name, "ready"))
        if pipe.recv() == "measure":
            pipe.send(Said(job.name, "measured", worker.measure()))
    except Exception:  # noqa: BLE001  one model's failure is reported, the others go on
        pipe.send(Said(job.name, "failed", traceback.format_exc()))


def serve_warm(job: Job, pipe: Connection) -> None:
    """Runs in its own process, after `serve` of the same job has ended."""
    _own_process(job, "warm")
    try:
        pipe.send(Said(job.name, "warm", _warm(job)))
    except Exception:  # noqa: BLE001  as above
        pipe.send(Said(job.name, "failed", traceback.format_exc()))


class _Worker:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.step = _make_step(job)
        _prime(job)
        self.arms = {"eager": Arm("eager", self.step.module)}
        self.origins: list[tuple[dict[str, Operations], Operations]] = []  # of Inductor's kernels, by graph
        self.failures: dict[str, str] = {}  # of what a row can do without
        self.plan_s = 0.0
        self._keys: list[str] = []

    def plan(self) -> dict[str, Any]:
        """The regions that the backend's collecting pass sees."""
        plans: list[GraphPlanned] = []
        start = time.monotonic()
        planned: Any = torch.compile(self.step.module, backend=_planning_backend(self.job, plans), dynamic=False)
        with cache_folder(self.job.caches("plan")):
            self.step.forward(planned)  # runs op by op, so that graphs behind a graph break are seen too
        self.step.clear()
        torch._dynamo.reset()
        if not self.job.dry:
            torch.cuda.empty_cache()
        self.plan_s = time.monotonic() - start
        return {
            "regions": [asdict(r) for p in plans for r in p.regions],
            "refused": [asdict(n) for p in plans for n in p.refused],
            "graphs": len(plans),
        }

    def compile_inductor(self) -> None:
        with self._may_fail("provenance"):
            self.origins = self._find_origins()
        torch._dynamo.reset()
        for name, mode in MODES.items():
            folder = self.job.caches("inductor")  # both modes share what Triton compiles
            with self._may_fail(name):
                self.arms[name] = compile_arm(name, self.step, inductor_backend(mode), folder)

    def _find_origins(self) -> list[tuple[dict[str, Operations], Operations]]:
        seen = Provenance()
        with _provenance(seen) as backend:
            compile_arm("provenance", self.step, backend, self.job.caches("provenance"))
        if not seen.found or len(seen.code) != len(seen.found):
            raise ProfileError(f"Inductor wrote {len(seen.code)} modules for {len(seen.found)} graphs")
        return [
            (read_origins(code, regions_by_node(found)), count_operations(found))
            for code, found in zip(seen.code, seen.found, strict=True)
        ]

    @contextmanager
    def _may_fail(self, what: str) -> Iterator[None]:
        """What a row can do without: its failure is noted, the arm is left out."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  any failure of a baseline is a finding, not the end
            if what == "inductor":
                raise
            self.failures[what] = f"{type(error).__name__}: {error}"[:500]
            self.arms.pop(what, None)
            traceback.print_exc()

    def compile_cudal1(self) -> None:
        backend = _cudal1_backend(self.job, self._keys)
        self.arms["cudal1"] = compile_arm("cudal1", self.step, backend, self.job.caches("cudal1"))

    def measure(self) -> dict[str, Any]:
        """With the device to itself."""
        start = time.monotonic()
        first_s = {name: run_first(self.step, arm) for name, arm in self.arms.items() if name not in FRAIL}
        for name in FRAIL & self.arms.keys():
            with self._may_fail(name):
                first_s[name] = run_first(self.step, self.arms[name])
                for _ in range(3):  # CUDA graphs: warm up, record, replay
                    self.step.clear()
                    self.step.run(self.arms[name].call)
        settled = self._settle()
        accuracy = self._accuracy()
        arms = list(self.arms.values())
        times = time_rounds(self.step, arms, self.job.rounds, self.job.limit_s)
        return {
            "model": self.job.model,
            "direction": "train" if self.job.train else "inference",
            "layers": self.job.layers,
            "cold": {a.name: {"compile_s": a.compile_s, "first_run_s": first_s[a.name]} for a in arms},
            "plan_s": self.plan_s,
            **settled,
            "accuracy": accuracy,
            "ms": times,
            "median_ms": {name: median(ms) for name, ms in times.items() if ms},
            **self._busy(settled["kernels"]),
            "failures": self.failures,
            "turn_s": time.monotonic() - start,
            "load": os.getloadavg()[0],
        }

    def _settle(self) -> dict[str, Any]:
        """Calls until the trial between variants has decided, and what it decided."""
        plans, calls = self._stored_plans(), 0
        start = time.monotonic()
        while any(p.choice == "deciding" for p in plans) and calls < SETTLING_CALLS:
            self.step.clear()
            self.step.run(self.arms["cudal1"].call)
            calls += 1
            plans = self._stored_plans()
        chosen = {f: e for p in plans for f, e in p.chosen(_choice(p)).items()}
        return {
            "settling": {"calls": calls, "seconds": time.monotonic() - start},
            "plans": [
                {
                    "choice": p.choice,
                    "ratio": p.ratio,
                    "regions": {r.fingerprint: r.outcome for r in p.regions},
                    "chosen": sorted(p.chosen(_choice(p))),
                }
                for p in plans
            ],
            "kernels": self._kernel_names(plans, chosen),
        }

    def _stored_plans(self) -> list[GraphPlanned]:
        from cudal1_compile.plan import from_row
        from cudal1_compile.runtime.target import detect_target
        from cudal1_compile.session import SESSION

        store, target = SESSION.store(self.job.store), detect_target(self.job.device).key
        rows = [store.get_plan(key, target) for key in self._keys]
        return [from_row(row) for row in rows if row is not None]

    def _kernel_names(self, plans: list[GraphPlanned], chosen: dict[str, str]) -> list[str]:
        from cudal1_compile.session import SESSION

        texts = {r.fingerprint: r.text for p in plans for r in p.regions}
        names: set[str] = set()
        for fingerprint, entry_id in chosen.items():
            entry = SESSION.store(self.job.store).get_entry(entry_id)
            if entry is not None:
                candidate = parse_candidate(entry.code, parse_program(texts[fingerprint]))
                names |= {base_name(launch.kernel) for launch in candidate.launches}
        return sorted(names)

    def _accuracy(self) -> dict[str, Any]:
        """Errors of each arm against the same model in float64."""
        self.step.clear()
        exact_step = Step(
            copy.deepcopy(self.step.module).double(),
            tuple(x.double() if x.is_floating_point() else x for x in self.step.inputs),
            self.step.train,
        )
        exact = results(exact_step, exact_step.module)
        del exact_step
        found = {name: errors(results(self.step, arm.call), exact) for name, arm in self.arms.items()}
        dtype = next(p.dtype for p in self.step.module.parameters())
        return {"errors": found, "roundoff": torch.finfo(dtype).eps / 2}

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
            "inductor_kernels": self._attributed(times["inductor"]) if self.origins else [],
            "own_us": sum(own_us(part, kernels) for part in times["cudal1"]),
            "cudal1_kernels": [_longest(part) for part in times["cudal1"]],
        }

    def _profiled(self) -> dict[str, list[dict[str, float]]]:
        """Arm -> kernel times of the forward and, in training, of the backward."""
        once: list[Callable[[], None]] = []
        for arm in self.arms.values():
            once.append(_bind(self._forward, arm))
            if self.job.train:
                once.append(self.step.backward)
        folder = self.job.work / "traces"
        folder.mkdir(parents=True, exist_ok=True)
        found = profile(once * PROFILED_CALLS, folder / f"{self.job.name}.json")
        self.step.clear()
        parts = [mean_times(found[i :: len(once)]) for i in range(len(once))]
        width = 2 if self.job.train else 1
        return {name: parts[i * width : (i + 1) * width] for i, name in enumerate(self.arms)}

    def _forward(self, arm: Arm) -> None:
        self.step.clear()
        self.step.forward(arm.call)

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


def _warm(job: Job) -> dict[str, Any]:
    from torch._dynamo.utils import counters

    from cudal1_compile.session import SESSION

    step = _make_step(job)
    _prime(job)
    row: dict[str, Any] = {}
    keys: list[str] = []
    for name, backend in (("inductor", inductor_backend(None)), ("cudal1", _cudal1_backend(job, keys))):
        counters.clear()
        arm = compile_arm(name, step, backend, job.caches(name))
        row[name] = {
            "compile_s": arm.compile_s,
            "autograd_cache_hits": counters["aot_autograd"]["autograd_cache_hit"],
            "graph_cache_hits": counters["inductor"]["fxgraph_cache_hit"],
            "graph_cache_misses": counters["inductor"]["fxgraph_cache_miss"],
            "first_run_s": run_first(step, arm),
        }
    row["cudal1"]["regions"] = asdict(SESSION.totals)
    return row


def _own_process(job: Job, word: str) -> None:
    """Output goes to a log file; few threads, because all models compile at once."""
    folder = job.work / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / f"{job.name}.{word}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(2)


def _make_step(job: Job) -> Step:
    spec = next(s for s in ZOO if s.name == job.model)
    module, inputs = build(spec, job.device, job.layers, tiny=job.dry)
    model: Any = getattr(module, "model", None)
    if isinstance(module, Loss) and getattr(model, "loss_type", "") is None:
        model.loss_type = "ForCausalLM"  # what it falls back to, but with a warning that breaks the graph
    return Step.of(module, inputs, job.train)


def _prime(job: Job) -> None:
    """Imports and self-tests that a process pays once stay out of the compile times."""
    from cudal1_compile import hook

    x = torch.ones(8, 8, device=job.device)
    with cache_folder(job.caches("prime")), both_directions():
        torch.compile(lambda t: t.sin() + 1, backend="inductor")(x)
        hook.self_test()
    torch._dynamo.reset()


def _planning_backend(job: Job, plans: list[GraphPlanned]) -> Callable[..., Any]:
    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        from cudal1_compile.options import parse_options
        from cudal1_compile.pipeline import Job as GraphJob
        from cudal1_compile.pipeline import Pipeline
        from cudal1_compile.planner import Place
        from cudal1_compile.runtime.target import detect_target
        from cudal1_compile.session import SESSION

        place = Place(job.device, detect_target(job.device))
        graph = GraphJob(gm, example_inputs, parse_options(None, job.options), place)
        plans.append(Pipeline(graph, SESSION).plan())
        return gm.forward

    return backend


def _cudal1_backend(job: Job, keys: list[str]) -> Callable[..., Any]:
    """The backend as a user has it; `keys` gets the key under which each graph's plan is stored."""

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        from cudal1_compile.backend import cudal1
        from cudal1_compile.graph_key import graph_key

        keys.append(graph_key(gm, example_inputs, {}))
        return cudal1(gm, example_inputs, options=job.options)

    return backend


@contextmanager
def _provenance(seen: Provenance) -> Iterator[Callable[..., Any]]:
    """A backend that is Inductor, and notes each graph at the backend's hook with the code made of it."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering

    from cudal1_compile.splice import HOOK, Observe

    observe = Observe(None, lambda _, found: seen.found.append(found))

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        return compile_fx(gm, example_inputs, config_patches={HOOK: observe})

    with mock.patch.object(GraphLowering, "save_output_code", staticmethod(seen.code.append)):
        yield backend


def _bind(function: Callable[[Arm], None], arm: Arm) -> Callable[[], None]:
    return lambda: function(arm)


def _longest(times: dict[str, float], count: int = 40) -> dict[str, float]:
    """Names cut: those of libraries run over several lines."""
    return {name[:120]: us for name, us in sorted(times.items(), key=lambda item: -item[1])[:count]}


def _choice(plan: GraphPlanned) -> Any:
    return "none" if plan.choice == "deciding" else plan.choice


def _merged(found: list[dict[str, Operations]]) -> dict[str, Operations]:
    """One table for the graphs of one direction (several only where Dynamo broke the model's graph)."""
    merged: dict[str, Operations] = {}
    for table in found:
        for name, operations in table.items():
            into = merged.setdefault(name, {})
            for fingerprint, count in operations.items():
                into[fingerprint] = into.get(fingerprint, 0) + count
    return merged
