"""`cudal1 demo`: the main job on this machine. Compiles small models, compares with eager, prints one total.

Kernels that are not in the cache are written by the generator, so a second run writes none. Without a GPU it
runs on the host target: the same device code as native CPU code, in fibers; a declared cost, no speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from cudal1_compile.cli.demo_models import DEMOS, Demo
from cudal1_compile.cli.errors import CommandFailed
from cudal1_compile.cli.workload import device_of
from cudal1_compile.errors import OptionError
from cudal1_compile.generate.bundled import MODEL_DIR, check_model_dir
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.protocol import Generator
from cudal1_compile.options import parse_options
from cudal1_compile.pipeline.choice import SETTLED
from cudal1_compile.pipeline.process_state import SESSION
from cudal1_compile.pipeline.summary import total_line

TOLERANCE = 1e-3  # of the largest value; eager itself is only so exact


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
    """Whether every model gave what eager gives. The total is the last line on stdout."""
    print(_where(target))
    options = {"target": target, "generator": generator, "budget_s": budget_s, "process_budget_s": 1e9}
    all_equal = True
    for item in demos:
        difference = run_one(item, target, options)
        equal = difference <= TOLERANCE
        all_equal &= equal
        print(f"{item.name}: {'equal to eager' if equal else 'WRONG'} (largest difference {difference:.1e})")
    print(f"replies from the generator: {SESSION.replies}")
    print(total_line(SESSION.totals))
    if SESSION.totals.untuned and SESSION.replies == 0:
        raise CommandFailed(
            "no kernel was written, the warnings above say why: expected replies from the generator"
        )
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
