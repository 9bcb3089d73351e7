"""What each rule of the algebra wins: Inductor with the rules at its hook, beside Inductor without.

    python -m benchmarks.algebra --out OUT          on a GPU; a case takes some 5 s
    python -m benchmarks.algebra --out OUT --dry    on a CPU, tiny: proves the script

No kernel of ours takes part. Every case is a small module that people write, at one size, in inference. `ms` is a
call with the host's time, `gpu_ms` one replay of it as a CUDA graph: medians of interleaved rounds. `error`: the
largest |y - y64| / max |y64| with and without; none where float64 does not fit. A rule that loses is the finding.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from benchmarks.model_contenders import Contender, Step, drawn_rounds, timed_ms
from benchmarks.result_file import geomean, write_result
from cudal1_compile.inductor.splice import HOOK
from cudal1_compile.options import NumericsLabel
from cudal1_fx_passes.algebra import rewrite

ROUNDS, LEAST_ROUNDS, LIMIT_S = 40, 7, 1.5
TINY = 16
SQUARE = (4096, 4096)


@dataclass(frozen=True, slots=True)
class Case:
    """run(layer, *inputs); layer: a module that it needs, made by `layer`."""

    name: str
    run: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    layer: Callable[[], nn.Module] = nn.Identity
    dtype: torch.dtype = torch.float32


def _sum_of_linear(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x).sum(1, keepdim=True).mean(1, keepdim=True)
    return torch.logsumexp(torch.logsumexp(y, 1, keepdim=True), 1, keepdim=True) * 2


def _centred(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x).amax(1, keepdim=True)
    return F.gelu(y - y.mean(1, keepdim=True))


TRIANGLES: dict[str, Callable[..., Tensor]] = {
    "both_lower": lambda _, a, b: torch.tril(a) @ torch.tril(b),
    "upper_left": lambda _, a, b: torch.triu(a) @ b,
    "lower_right": lambda _, a, b: a @ torch.tril(b),
    "kept_half": lambda _, a, b: torch.tril(a @ b),
}
IMAGE = (64, 64, 112, 112)
CASES = (
    Case("sum_of_linear", _sum_of_linear, (SQUARE,), lambda: nn.Linear(4096, 4096)),
    Case("mean_of_conv2d", lambda c, x: c(x).mean((2, 3)), (IMAGE,), lambda: nn.Conv2d(64, 128, 3, padding=1)),
    Case(
        "mean_of_transposed2d",
        lambda c, x: (c(x) * 0.5).mean((2, 3)),
        (IMAGE,),
        lambda: nn.ConvTranspose2d(64, 128, 4, 2, 1),
    ),
    Case(
        "mean_of_conv3d",
        lambda c, x: c(x).mean((2, 3, 4)),
        ((16, 32, 24, 48, 48),),
        lambda: nn.Conv3d(32, 64, 3),
    ),
    Case("diagonal", lambda _, s, b: torch.diag(s) @ b, ((4096,), SQUARE)),
    Case("chain", lambda _, a, b, c: (a @ b) @ c, (SQUARE, SQUARE, (4096, 16))),
    Case("linear_twice", lambda c, x: F.relu(c(x)) + c(x).sigmoid(), (SQUARE,), lambda: nn.Linear(4096, 4096)),
    Case("centred_maximum", _centred, (SQUARE,), lambda: nn.Linear(4096, 4096)),
    Case(
        "clamped_away",
        lambda c, x: c(x).clamp(max=0.0).clamp(0.0, 1.0),
        ((16, 32, 32, 64, 64),),
        lambda: nn.Conv3d(32, 64, 3, padding=1),
    ),
    Case(
        "linear_norm",
        lambda c, x: c(x),
        ((65536, 512),),
        lambda: nn.Sequential(nn.Linear(512, 4096), nn.BatchNorm1d(4096)),
    ),
    Case(
        "scaled_conv2d",
        lambda c, x: F.max_pool2d(c(x) * 0.125, 2),
        ((64, 64, 128, 128),),
        lambda: nn.Conv2d(64, 128, 3, padding=1, bias=False),
    ),
    *(Case(name, run, (SQUARE, SQUARE)) for name, run in TRIANGLES.items()),
    *(Case(f"{name}_bf16", run, ((8192, 8192),) * 2, dtype=torch.bfloat16) for name, run in TRIANGLES.items()),
    Case("own_transpose", lambda _, a: a @ a.t(), (SQUARE,)),
)


class Rules(CustomGraphPass):  # type: ignore[misc]
    """At the hook. `fired`: their names."""

    def __init__(self) -> None:
        self.fired: list[str] = []

    def __call__(self, graph: fx.Graph) -> None:
        self.fired += rewrite(graph, get_args(NumericsLabel))

    def uuid(self) -> None:
        return


class Module(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer, self.run = case.layer(), case.run

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self.layer, *inputs)


def measure(case: Case, device: torch.device, dry: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    module = Module(case).to(device=device, dtype=case.dtype).eval()
    shapes = [_tiny(case, s) for s in case.shapes] if dry else case.shapes
    step = Step(module, tuple(torch.randn(s, device=device, dtype=case.dtype) for s in shapes), False)
    rules = Rules()
    arms = [  # with options of their own: Dynamo would run the first's code for the second, too
        Contender("algebra", torch.compile(module, dynamic=False, options={HOOK: rules})),
        Contender("inductor", torch.compile(copy.deepcopy(module), dynamic=False)),
    ]
    for arm in arms:
        step.run(arm.call)
    row = {"case": case.name, "fired": rules.fired, "error": _errors(step, arms), "ms": _times(step, arms)}
    return row if dry else row | {"gpu_ms": _times(step, [_recorded(step, arm) for arm in arms])}


def _tiny(case: Case, shape: Sequence[int]) -> tuple[int, ...]:
    """But for the features that a layer was made for."""
    return tuple(n if i == 1 and case.layer is not nn.Identity else min(n, TINY) for i, n in enumerate(shape))


def _times(step: Step, arms: Sequence[Contender]) -> dict[str, float]:
    found: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in drawn_rounds(arms, ROUNDS, LEAST_ROUNDS, LIMIT_S):
        found[arm.name].append(timed_ms(step, arm))
    return {name: median(ms) for name, ms in found.items()}


def _recorded(step: Step, arm: Contender) -> Contender:
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        arm.call(*step.inputs)
    return Contender(arm.name, lambda *_: graph.replay())


def _errors(step: Step, arms: Sequence[Contender]) -> dict[str, float]:
    try:
        due = copy.deepcopy(step.module).double()(*(x.double() for x in step.inputs)).detach()
    except torch.OutOfMemoryError:
        return {}
    most = float(due.abs().max()) or 1.0
    found = {}
    for arm in arms:
        step.run(arm.call)
        found[arm.name] = float((step.outputs.double() - due).abs().max()) / most
    step.clear()
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What each rule of the algebra wins over Inductor.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    a = parser.parse_args(argv)
    a.out.mkdir(parents=True, exist_ok=True)
    torch._dynamo.config.recompile_limit = 8 * len(CASES)
    rows = []
    for case in CASES:
        rows.append(measure(case, torch.device("cpu" if a.dry else "cuda"), a.dry))
        print(rows[-1], flush=True)
    ratios = {r["case"]: r["ms"]["inductor"] / r["ms"]["algebra"] for r in rows}
    gpu = [r["gpu_ms"]["inductor"] / r["gpu_ms"]["algebra"] for r in rows if "gpu_ms" in r]
    summary = {
        "speedup_over_inductor": geomean(list(ratios.values())),
        "speedup_of_gpu": geomean(gpu) if gpu else None,
        "losses": sorted(name for name, ratio in ratios.items() if ratio < 0.97),
        "not_fired": sorted(r["case"] for r in rows if not r["fired"]),
    }
    print(write_result(a.out, "algebra", summary, len(rows), {}, {r["case"]: r for r in rows}, a.dry), summary)


if __name__ == "__main__":
    main()
