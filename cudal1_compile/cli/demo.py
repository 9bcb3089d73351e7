"""`cudal1 demo`: the main job on this machine. Compiles small models, compares with eager, prints one total.

Kernels that are not in the cache are written by the generator, so a second run writes none. Without a GPU it
runs on the host target: the same device code as native CPU code, in fibers; a declared cost, no speed.
Each step is said before it begins, into a pipe too; what synthesis does meanwhile is on stderr.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from cudal1_compile.cli.demo_models import DEMOS, Demo, mlp
from cudal1_compile.cli.errors import CommandFailed
from cudal1_compile.cli.workload import device_of
from cudal1_compile.errors import OptionError
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.model_files import MODEL_DIR, check_model_dir
from cudal1_compile.generate.protocol import Generator
from cudal1_compile.options import parse_options
from cudal1_compile.pipeline.choice import SETTLED
from cudal1_compile.pipeline.process_state import SESSION
from cudal1_compile.pipeline.summary import total_line

TOLERANCE = 1e-3  # of the largest value; eager itself is only so exact
NEXT = """where to look next:
- each region of a model, its decision and why: cudal1 explain {workload}
- what is stored, a kernel's source and proof: cudal1 cache stats, cudal1 cache show ENTRY
- kernels for a model of your own, ahead of time: cudal1 warm MODULE:FACTORY
- how it works, what can be set, what is trusted: docs/architecture.md, docs/options.md, docs/security.md"""

# factories give tensors on the CPU, which a GPU's kernels are not for
EXPLAINED = {"host": f"{mlp.__module__}:{mlp.__name__}", "cuda": "MODULE:FACTORY"}

say = partial(print, flush=True)


def demo(
    generator: Annotated[str, typer.Option(help="bundled, a checkpoint, a server's URL, vllm:PATH")] = "bundled",
    budget_s: Annotated[float, typer.Option(help="seconds of synthesis for each graph")] = 300.0,
    target: Annotated[str, typer.Option(help="auto, host or cuda")] = "auto",
) -> None:
    """Compiles small models and compares each with eager mode; without a GPU on the host target."""
    chosen = target if target != "auto" else "cuda" if torch.cuda.is_available() else "host"
    check(chosen, generator, budget_s)
    if not run(chosen, generator, budget_s):
        raise typer.Exit(1)


def check(target: str, generator: str, budget_s: float) -> None:
    """Raises OptionError or CommandFailed where no kernel could be written or run."""
    parse_options(None, {"target": target, "budget_s": budget_s})
    if target == "cuda" and not torch.cuda.is_available():
        raise CommandFailed("target cuda, but torch finds no CUDA device; --target host needs none")
    try:
        if generator == "bundled":  # loaded when something is missing
            check_model_dir(MODEL_DIR)
        else:
            SESSION.generator(generator, device_of(target))
    except ValueError as error:
        raise OptionError(str(error)) from None
    except GeneratorError as error:
        raise CommandFailed(str(error)) from None


def run(target: str, generator: str | Generator, budget_s: float, demos: Sequence[Demo] = DEMOS) -> bool:
    """Whether every model gave what eager gives. The total and where to look next are the last lines on stdout."""
    say(_where(target))
    options = {"target": target, "generator": generator, "budget_s": budget_s, "process_budget_s": 1e9}
    all_equal = True
    for number, item in enumerate(demos, 1):
        passes = "forward and backward" if item.trains else "inference"
        say(f"model {number} of {len(demos)}: {item.name}, {passes}; Inductor compiles what no kernel runs")
        begun_s = time.monotonic()
        difference = run_one(item, target, options)
        equal = difference <= TOLERANCE
        all_equal &= equal
        verdict = "equal to eager" if equal else "WRONG"
        spent_s = time.monotonic() - begun_s
        say(f"{item.name}: {verdict} (largest difference {difference:.1e}), {spent_s:.0f} s")
    say(f"replies from the generator: {SESSION.replies}")
    say(total_line(SESSION.totals))
    if SESSION.totals.untuned and SESSION.replies == 0:
        raise CommandFailed(
            "no kernel was written, the warnings above say why: expected replies from the generator"
        )
    say(NEXT.format(workload=EXPLAINED[target]))
    return all_equal


def run_one(item: Demo, target: str, options: dict[str, Any]) -> float:
    """The largest difference from eager, as a share of the largest value; gradients included if it trains."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = item.make()
    if target == "cuda":
        model, inputs = model.cuda(), tuple(x.cuda() for x in inputs)
    compiled = torch.compile(model, backend="cudal1", options=options)
    results = _call(compiled, model, inputs, item.trains)
    SESSION.end_if_interrupted()
    SESSION.first_calls.end()
    for _ in range(SETTLED if target == "cuda" else 0):  # until the choice is made
        results = _call(compiled, model, inputs, item.trains)
        torch.cuda.synchronize()
    expected = _call(model, model, inputs, item.trains)
    return max(_difference(a, b) for a, b in zip(results, expected, strict=True))


def _call(fn: Callable[..., Any], model: nn.Module, inputs: tuple[Tensor, ...], trains: bool) -> list[Tensor]:
    with torch.set_grad_enabled(trains):
        out = fn(*inputs)
    if not trains:
        return [out]
    model.zero_grad()
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-6))


def _where(target: str) -> str:
    if target == "cuda":
        return f"on {torch.cuda.get_device_name()}"
    return "no GPU is used: host target, the kernels' device code as CPU code (a declared cost, no speed)"
