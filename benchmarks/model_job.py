"""One process for one model in one direction: it plans, compiles, waits for its turn, and measures.

    serve(job, pipe)        plan -> Inductor's two ... "kernels" -> cudal1 ... "measure" -> a row
                            ... "graphs" -> cudal1 in reduce-overhead ... "measure" -> its part of the row
    serve_warm(job, pipe)   a second process: the same compiles from the caches

Compiling runs nothing on the device, so all models do it at once; the parent (models.py) gives the turn to
measure to one process at a time. The parent also has the kernels written, between the plan and cudal1's compile.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import fx

from benchmarks.model_contenders import (
    GRAPHS,
    Contender,
    Job,
    Step,
    both_directions,
    cache_folder,
    compile_contender,
    inductor_backend,
    run_first,
)
from benchmarks.model_kernels import Origins, ProfileError, count_operations, read_origins, regions_by_node
from benchmarks.model_measure import Turn, may_fail
from benchmarks.zoo import Loss, build
from benchmarks.zoo_cnn import SPECS
from cudal1_compile.inductor.graph_plan import GraphPlanned
from cudal1_fx_passes.fusion.partition import Partition

if TYPE_CHECKING:  # Inductor comes with it, whose import is none of a compile's time
    from cudal1_compile.pipeline.compile import Pipeline

MODES = {"inductor": None, "reduce_overhead": "reduce-overhead"}


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
        if job.products and pipe.recv() == "plan":  # kernels in the forward may change what the backward reads
            pipe.send(Said(job.name, "planned", worker.plan()))
        worker.compile_inductor()
        if pipe.recv() != "kernels":
            return
        worker.compile_cudal1()
        pipe.send(Said(job.name, "ready"))
        if pipe.recv() == "measure":
            pipe.send(Said(job.name, "measured", worker.turn.measure()))
        if job.graphs and pipe.recv() == "graphs":  # a row is there by now, should the time be over meanwhile
            worker.compile_graphs()
            pipe.send(Said(job.name, "ready"))
            if pipe.recv() == "measure":
                pipe.send(Said(job.name, "measured", worker.turn.measure_graphs()))
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
        start = time.monotonic()
        self.step = _make_step(job)
        built = time.monotonic()
        _prime(job)
        self.start_s = {"build": built - start, "prime": time.monotonic() - built}
        self.contenders = {"eager": Contender("eager", self.step.module)}
        self.origins: list[Origins] = []  # of Inductor's kernels, by graph
        self.failures: dict[str, str] = {}  # of what a row can do without
        self.plan_s = 0.0
        self._keys: dict[str, list[str]] = {}  # of the plans of cudal1's contenders

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
            "seconds": self.start_s | {"plan": self.plan_s},
        }

    def compile_inductor(self) -> None:
        for name, mode in MODES.items():
            folder = self.job.caches("inductor")  # both modes share what Triton compiles
            with may_fail(self.contenders, self.failures, name):
                self.contenders[name] = compile_contender(name, self.step, inductor_backend(mode), folder)
        if not self.job.lean:
            with may_fail(self.contenders, self.failures, "provenance"):
                self.origins = self._find_origins()

    def _find_origins(self) -> list[Origins]:
        seen = Provenance()
        with _provenance(seen) as backend:
            # what Inductor timed for its own, as whether to pad a product, decides here too: the same kernels
            compile_contender("provenance", self.step, backend, self.job.caches("inductor"))
        if not seen.found or len(seen.code) != len(seen.found):
            raise ProfileError(f"Inductor wrote {len(seen.code)} modules for {len(seen.found)} graphs")
        return [
            (read_origins(code, regions_by_node(found)), count_operations(found))
            for code, found in zip(seen.code, seen.found, strict=True)
        ]

    def compile_cudal1(self) -> None:
        self._compile_cudal1("cudal1", None)

    def compile_graphs(self) -> None:
        with may_fail(self.contenders, self.failures, GRAPHS):
            self._compile_cudal1(GRAPHS, "reduce-overhead")

    def _compile_cudal1(self, name: str, mode: str | None) -> None:
        backend = _cudal1_backend(self.job, self._keys.setdefault(name, []), mode)
        self.contenders[name] = compile_contender(name, self.step, backend, self.job.caches("cudal1"))

    @cached_property
    def turn(self) -> Turn:
        return Turn(self.job, self.step, self.contenders, self.origins, self._keys, self.failures, self.plan_s)


def _warm(job: Job) -> dict[str, Any]:
    from torch._dynamo.utils import counters

    from cudal1_compile.pipeline.process_state import SESSION

    step = _make_step(job)
    _prime(job)
    row: dict[str, Any] = {}
    keys: list[str] = []
    for name, backend in (("inductor", inductor_backend(None)), ("cudal1", _cudal1_backend(job, keys))):
        counters.clear()
        contender = compile_contender(name, step, backend, job.caches(name))
        run_first(step, contender)
        row[name] = {
            "compile_s": contender.compile_s,
            "autograd_cache_hits": counters["aot_autograd"]["autograd_cache_hit"],
            "graph_cache_hits": counters["inductor"]["fxgraph_cache_hit"],
            "graph_cache_misses": counters["inductor"]["fxgraph_cache_miss"],
            "first_run_s": contender.first_run_s,
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
    module, inputs = build(SPECS[job.model], job.device, job.layers, tiny=job.dry)
    model: Any = getattr(module, "model", None)
    if isinstance(module, Loss) and getattr(model, "loss_type", "") is None:
        model.loss_type = "ForCausalLM"  # what it falls back to, but with a warning that breaks the graph
    return Step.of(module, inputs, job.train)


def _prime(job: Job) -> None:
    """Imports and self-tests that a process pays once stay out of the compile times, in no contender's folder."""
    from cudal1_compile.inductor import hook

    x = torch.ones(8, 8, device=job.device)
    with both_directions():
        torch.compile(lambda t: t.sin() + 1, backend="inductor")(x)
        hook.self_test()
    torch._dynamo.reset()


def _pipeline(job: Job, gm: fx.GraphModule, example_inputs: list[Any], mode: str | None = None) -> Pipeline:
    """As the backend makes it for this graph."""
    from cudal1_compile.options import parse_options
    from cudal1_compile.pipeline.compile import CompileJob as GraphJob
    from cudal1_compile.pipeline.compile import Pipeline
    from cudal1_compile.pipeline.place import TargetDevice
    from cudal1_compile.pipeline.process_state import SESSION
    from cudal1_compile.runtime.target import detect_target

    place = TargetDevice(job.device, detect_target(job.device))
    return Pipeline(GraphJob(gm, example_inputs, parse_options(mode, job.options), place), SESSION)


def _planning_backend(job: Job, plans: list[GraphPlanned]) -> Callable[..., Any]:
    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        plans.append(_pipeline(job, gm, example_inputs).plan())
        return gm.forward

    return backend


def _cudal1_backend(job: Job, keys: list[str], mode: str | None = None) -> Callable[..., Any]:
    """The backend as a user has it; `keys` gets the key under which each graph's plan is stored."""

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        from cudal1_compile.backend import cudal1

        keys.append(_pipeline(job, gm, example_inputs, mode).key)
        return cudal1(gm, example_inputs, mode=mode, options=job.options)

    return backend


@contextmanager
def _provenance(seen: Provenance) -> Iterator[Callable[..., Any]]:
    """A backend that is Inductor, and notes each graph at the backend's hook with the code made of it."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering

    from cudal1_compile.inductor.splice import HOOK, Observe

    observe = Observe(None, lambda _, found: seen.found.append(found))

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        return compile_fx(gm, example_inputs, config_patches={HOOK: observe})

    with mock.patch.object(GraphLowering, "save_output_code", staticmethod(seen.code.append)):
        yield backend
