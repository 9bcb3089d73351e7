"""One model in one direction, compiled in several ways, called side by side.

    compile_contender(...)  compiles without running, so that many processes may do it at once on one device
    results(...)            what a call gives: outputs and all gradients
    errors(...)             of one contender against float64, tensor by tensor
    time_rounds(...)        interleaved calls in an order drawn for each round, host time included

A gate holds every compiled contender back until it is opened: Inductor tunes its kernels at their first run, and
that must not happen while others use the device. Forward and backward are both compiled before the first run.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from benchmarks.zoo import Loss

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]

GRAPHS = "cudal1_reduce_overhead"  # a contender that is measured where the run was asked to
MIN_ROUNDS = 3
FLOOR = 1e-3  # a gradient smaller than this share of the typical one is judged on the typical one's scale


class NotYet(Exception):
    """Raised where compiled code would run before its gate is open."""


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
    graphs: bool = False  # cudal1 in reduce-overhead too
    products: bool = False  # they may begin regions
    lean: bool = False  # contenders share their compile caches, Inductor's kernels are not traced to regions

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
            "products": self.products,
            "cache_dir": str(self.store),
            "target": "host" if self.dry else "auto",
        }

    def caches(self, contender: str) -> Path:
        return self.work / "caches" / self.name / ("shared" if self.lean else contender)


@dataclass
class Gate:
    is_open: bool = False

    def guard(self, backend: Backend) -> Backend:
        def compile_only(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            compiled = backend(gm, example_inputs)

            def run(*args: Any) -> Any:
                if not self.is_open:
                    raise NotYet
                return compiled(*args)

            return run

        return compile_only


@dataclass
class Contender:
    """One way to run the model. `caches`: the folder of Inductor's caches that this contender uses."""

    name: str
    call: Callable[..., Any]
    gate: Gate = field(default_factory=Gate)
    caches: Path | None = None
    compile_s: float = 0.0
    first_run_s: float = 0.0


class WithLogits(nn.Module):
    """A transformers model that returns its logits beside the loss, so that an inference has more to check."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model(input_ids=ids, labels=labels, return_dict=False)
        return found[0], found[1]


@dataclass
class Step:
    """One call of the model: an inference, or forward and backward."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    train: bool
    outputs: Any = None

    @classmethod
    def of(cls, module: nn.Module, inputs: tuple[Tensor, ...], train: bool) -> Step:
        if not train and isinstance(module, Loss):
            module = WithLogits(module.model)
        return cls(module.train(train), inputs, train)

    def clear(self) -> None:
        """Drops what the last call left; gradients are then written, not added to."""
        self.outputs = None
        for parameter in self.module.parameters():
            parameter.grad = None

    def forward(self, call: Callable[..., Any]) -> None:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.set_grad_enabled(self.train):
            self.outputs = call(*self.inputs)

    def backward(self) -> None:
        if self.train:
            self.outputs.backward()

    def run(self, call: Callable[..., Any]) -> None:
        self.forward(call)
        self.backward()


def results(step: Step, call: Callable[..., Any]) -> dict[str, Tensor]:
    """Outputs and gradients of one call, as copies."""
    step.clear()
    step.run(call)
    outputs = step.outputs if isinstance(step.outputs, tuple) else (step.outputs,)
    found = {f"output {i}": o.detach().clone() for i, o in enumerate(outputs)}
    for name, parameter in step.module.named_parameters():
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad.detach().clone()
    step.clear()
    return found


def exact_results(step: Step) -> dict[str, Tensor]:
    """What a call of the same model gives in float64."""
    inputs = tuple(x.double() if x.is_floating_point() else x for x in step.inputs)
    exact = Step(copy.deepcopy(step.module).double(), inputs, step.train)
    return results(exact, exact.module)


def errors(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    """|x - exact| / |exact| of each tensor (Frobenius norms); infinite where one is missing or not finite."""
    gradients = [t for name, t in exact.items() if name.startswith("gradient")]
    square = sum(float(t.double().square().sum()) for t in gradients)
    typical = math.sqrt(square / max(1, sum(t.numel() for t in gradients)))
    relative: dict[str, float] = {}
    for name, right in exact.items():
        if name not in found:
            relative[name] = math.inf
            continue
        right = right.double()
        norm = float(right.norm())
        if name.startswith("gradient"):
            norm = max(norm, FLOOR * typical * math.sqrt(right.numel()))
        error = float((found[name].double() - right).norm()) / max(norm, 1e-300)
        relative[name] = error if math.isfinite(error) else math.inf
    return relative


def time_rounds(
    step: Step, contenders: Sequence[Contender], rounds: int, limit_s: float, seed: int = 0
) -> dict[str, list[float]]:
    """Milliseconds of each contender, one figure a round; ends early, between rounds, when the limit is over."""
    found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for contender in drawn_rounds(contenders, rounds, MIN_ROUNDS, limit_s, seed):
        step.clear()
        found[contender.name].append(timed_ms(step, contender))
    step.clear()
    return found


def drawn_rounds(
    contenders: Sequence[Contender], most: int, least: int, limit_s: float, seed: int = 0
) -> Iterator[Contender]:
    """Round by round, in an order drawn for each, so that drift cancels.

    Ends between two rounds: after `most`, or when the limit is over and there were `least`.
    """
    rng, order = random.Random(seed), list(contenders)
    end = time.monotonic() + limit_s
    for done in range(most):
        if time.monotonic() > end and done >= least:
            return
        rng.shuffle(order)
        yield from order


def timed_ms(step: Step, contender: Contender) -> float:
    """One call, from an idle device to an idle device."""
    wait(step)
    start = time.perf_counter()
    step.run(contender.call)
    wait(step)
    return (time.perf_counter() - start) * 1e3


def wait(step: Step) -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def compile_contender(name: str, step: Step, backend: Backend, caches: Path) -> Contender:
    """Compiles forward and backward, runs neither, and takes the time of it."""
    gate = Gate()
    compiled: Any = torch.compile(step.module, backend=gate.guard(backend), dynamic=False)
    contender = Contender(name, compiled, gate, caches)
    start = time.monotonic()
    forget_compiled()
    with cache_folder(caches), both_directions(), contextlib.suppress(NotYet):
        step.forward(contender.call)
        raise RuntimeError(f"Dynamo compiled nothing of the model for {name}")
    contender.compile_s = time.monotonic() - start
    return contender


def run_first(step: Step, contender: Contender) -> None:
    """Takes the time of the first run: kernels are loaded and Inductor tunes its own. Only once."""
    if contender.gate.is_open:
        return
    contender.gate.is_open = True
    step.clear()
    with cache_folder(contender.caches) if contender.caches is not None else contextlib.nullcontext():
        contender.first_run_s = timed_ms(step, contender) / 1e3


@contextlib.contextmanager
def both_directions() -> Iterator[None]:
    """The backward is compiled with the forward, not when it is first run."""
    import torch._functorch.config as functorch_config

    with functorch_config.patch(force_non_lazy_backward_lowering=True):
        yield


@contextlib.contextmanager
def cache_folder(folder: Path) -> Iterator[None]:
    """Inductor and Triton keep their caches in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def forget_compiled() -> None:
    """What Inductor keeps in memory between compiles would make the next one look faster than it is."""
    import torch._inductor.utils as inductor

    clear = getattr(inductor, "clear_caches", None) or getattr(inductor, "clear_inductor_caches", None)
    if clear is not None:
        clear()


def inductor_backend(mode: str | None) -> Backend:
    """Inductor as torch.compile would call it in a mode."""

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        patches = dict(list_mode_options()[mode]) if mode is not None else None
        compiled: Any = compile_fx(gm, example_inputs, config_patches=patches)
        return compiled  # type: ignore[no-any-return]

    return backend
