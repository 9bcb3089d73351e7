"""Domains of region inputs: what producers promise and what consumers ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fx_trace import trace
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.importer.domain import domain_of, with_demands
from cudal1_fx_passes.program.ir import ANY, Domain
from cudal1_fx_passes.program.text import parse_program

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
POSITIVE, NOT_NEGATIVE, NOT_POSITIVE = Domain(lo=0.0, lo_open=True), Domain(lo=0.0), Domain(hi=0.0)
UNIT, SYMMETRIC = Domain(0.0, 1.0), Domain(-1.0, 1.0)

CASES: dict[str, tuple[Callable[[Tensor], Any], Domain]] = {
    "unknown": (lambda x: x + 1, ANY),
    "relu": (torch.relu, NOT_NEGATIVE),
    "relu times relu": (lambda x: torch.relu(x) * torch.relu(x + 1), NOT_NEGATIVE),
    "square": (lambda x: x * x, NOT_NEGATIVE),
    "power": (lambda x: x.pow(2), NOT_NEGATIVE),
    "sum of squares": (lambda x: (x * x).sum(1), NOT_NEGATIVE),
    "mean of squares plus epsilon": (lambda x: x.pow(2).mean(1) + 1e-6, POSITIVE),
    "variance": (lambda x: x.var(1), NOT_NEGATIVE),
    "variance of var_mean": (lambda x: torch.var_mean(x, 1)[0], NOT_NEGATIVE),
    "mean of var_mean": (lambda x: torch.var_mean(x, 1)[1], ANY),
    "root": (lambda x: x.abs().sqrt(), NOT_NEGATIVE),
    "inverse root": (lambda x: torch.rsqrt(x.var(1) + 1e-5), POSITIVE),
    "exp": (torch.exp, NOT_NEGATIVE),
    "exp of what is below its maximum": (lambda x: (x - x.amax(1, keepdim=True)).exp(), UNIT),
    "softmax written out": (lambda x: x.exp() / x.exp().sum(1, keepdim=True), NOT_NEGATIVE),
    "softmax": (lambda x: torch.ops.aten._softmax.default(x, 1, False), UNIT),
    "log of a probability": (lambda x: torch.sigmoid(x).log(), NOT_POSITIVE),
    "sigmoid": (torch.sigmoid, UNIT),
    "tanh times sine": (lambda x: torch.tanh(x) * torch.sin(x), SYMMETRIC),
    "view of a sigmoid": (lambda x: torch.sigmoid(x).view(8, 6).t()[:, 1:].clone(), UNIT),
    "sigmoid in half": (lambda x: torch.sigmoid(x).half(), UNIT),
    "negated": (lambda x: -x.abs(), NOT_POSITIVE),
    "clamped": (lambda x: x.clamp(0, 1), UNIT),
    "clamped below": (lambda x: x.clamp(min=0), NOT_NEGATIVE),
    "chosen": (lambda x: torch.where(x > 0, torch.sigmoid(x), 0.0), UNIT),
    "joined": (lambda x: torch.cat([torch.sigmoid(x), x.clamp(0, 1)]), UNIT),
    "maximum": (lambda x: torch.maximum(x, x.abs()), NOT_NEGATIVE),
    "minimum": (lambda x: torch.minimum(torch.sigmoid(x), x.abs()), UNIT),
    "pooled": (lambda x: F.max_pool2d(torch.relu(x)[None, None], 2), NOT_NEGATIVE),
    "one minus sigmoid": (lambda x: torch.sigmoid(x) - torch.sigmoid(x), SYMMETRIC),
    "infinite mask": (lambda x: torch.where(x > 0, x, float("-inf")), ANY),
    "integers": (lambda x: (x * 3).int().abs(), ANY),
    "clamped above its range": (lambda x: torch.tanh(x).clamp(min=2.0), POSITIVE),
    "clamped by a tensor": (lambda x: torch.sigmoid(x).clamp(min=x), NOT_NEGATIVE),
    "an average by another divisor": (
        lambda x: F.avg_pool2d(torch.sigmoid(x)[None], 2, divisor_override=1),
        ANY,
    ),
    "below another row's maximum": (lambda x: x[:, :6] - x[:, :6].amax(1), ANY),
    "below the maximum of all": (lambda x: x - x.amax(), NOT_POSITIVE),
    "truth of a negative one": (lambda x: (-x.abs()).bool().float(), UNIT),
    "cut to an integer": (lambda x: (torch.sigmoid(x) + 0.5).int().float(), UNIT),
    "cut to an integer of any size": (lambda x: (torch.relu(x) * 1e20).int().float(), ANY),
    "of bytes": (lambda x: (-torch.sigmoid(x) * 9).to(torch.uint8).float(), ANY),
    "an epsilon that half does not hold": (lambda x: torch.relu(x).half() + 1e-8, NOT_NEGATIVE),
    "a bound that half does not hold": (lambda x: x.half().clamp(min=1e-8), NOT_NEGATIVE),
    "an average with zeros around": (lambda x: F.avg_pool2d(x[None].clamp(min=5), 3, 1, 1) - 4, ANY),
    "an average without": (lambda x: F.avg_pool2d(x[None].clamp(min=5), 3, 1) - 4, POSITIVE),
    "over another row's sum": (lambda x: x[:, :6].abs() / x[:, :6].abs().sum(1), NOT_NEGATIVE),
}


@pytest.mark.parametrize("name", CASES)
def test_what_producers_promise(name: str) -> None:
    run, wanted = CASES[name]
    gm = trace(run, X)
    (result,) = next(n for n in gm.graph.nodes if n.op == "output").all_input_nodes
    assert domain_of(result) == wanted


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_promise_is_kept(name: str, scale: float) -> None:
    run, domain = CASES[name]
    got = run(X * scale).double()
    if domain.lo is not None:
        assert bool((got > domain.lo).all() if domain.lo_open else (got >= domain.lo).all())
    if domain.hi is not None:
        assert bool((got <= domain.hi).all())


HEAD = "region v1\ndims d0=4 d1=8\nin0 f32[d0,d1]\nin1 f32[d1]{}\n"


def _asked(lines: str, given: str = "") -> Domain:
    return with_demands(parse_program(HEAD.format(given) + lines)).inputs[1].domain


def test_what_roots_and_logarithms_ask() -> None:
    tail = "out0 f32[d1] = t1\nout1 f32[d0,d1] = in0\n"
    assert _asked("t0 f32[d1] = add(in1, 1e-05)\nt1 f32[d1] = rsqrt(t0)\n" + tail) == NOT_NEGATIVE
    assert _asked("t0 f32[d1] = neg(in1)\nt1 f32[d1] = rsqrt(t0)\n" + tail) == ANY
    assert _asked("t0 f32[d1] = mul(in1, 2.0)\nt1 f32[d1] = log(t0)\n" + tail) == POSITIVE
    assert _asked("t1 f32[d1] = sqrt(in1)\n" + tail) == NOT_NEGATIVE
    assert _asked("t1 f32[d1] = exp(in1)\n" + tail) == ANY


def test_a_region_that_looks_at_what_it_asks_for_asks_for_less() -> None:
    tail = "out0 f32[d1] = t1\nout1 f32[d0,d1] = in0\n"
    chosen = "t0 bool[d1] = gt(in1, 0.0)\nt2 f32[d1] = log(in1)\nt1 f32[d1] = where(t0, t2, 0.0)\n"
    assert _asked(chosen + tail) == ANY
    times = "t0 bool[d1] = eq(in1, 0.0)\nt2 f32[d1] = log(in1)\nt3 f32[d1] = mul(t2, in1)\n"
    assert _asked(times + "t1 f32[d1] = add(t3, in1)\nout2 bool[d1] = t0\n" + tail) == NOT_NEGATIVE  # zero too
    assert _asked(times + "t1 f32[d1] = where(t0, 0.0, t3)\n" + tail) == NOT_NEGATIVE  # x * log(x)
    masked = times.replace("eq(in1, 0.0)", "eq(in2, 0.0)") + "t1 f32[d1] = where(t0, 0.0, t3)\n"
    assert _asked("in2 f32[d1]\n" + masked + tail) == ANY  # whatever lies under a mask
    assert _asked("t0 f32[d1] = add(in1, 3.0)\nt1 f32[d1] = log(t0)\n" + tail) == ANY  # from -3 on
    rows = "t0 f32[d1] = rsqrt(in1)\nt2 f32[d0,d1] = mul(in0, t0)\nt3 bool[d0,d1] = gt(t2, 0.0)\n"
    rows += "t1 f32[d0,d1] = where(t3, t2, 0.0)\nout0 f32[d0,d1] = t1\nout1 f32[d0,d1] = in0\n"
    assert _asked(rows) == POSITIVE  # a norm, and a relu behind it


@pytest.mark.parametrize("fn", ["sum", "mean", "amax"])
def test_what_a_sum_must_be_says_nothing_of_its_terms(fn: str) -> None:
    program = parse_program(
        f"region v1\ndims d0=4 d1=8\nin0 f32[d0,d1]\nt0 f32[d0] = {fn}(in0) over d1\nt1 f32[d0] = log(t0)\n"
        "out0 f32[d0] = t1\n"
    )
    assert with_demands(program) is program
    least = parse_program(
        "region v1\ndims d0=4 d1=8\nin0 f32[d0,d1]\nt0 f32[d0] = amin(in0) over d1\nt1 f32[d0] = log(t0)\n"
        "out0 f32[d0] = t1\n"
    )
    assert with_demands(least).inputs[0].domain == POSITIVE


@pytest.mark.parametrize(("mode", "wanted"), [("rand", UNIT), ("randn", ANY)])
def test_only_uniform_random_numbers_lie_between_0_and_1(mode: str, wanted: Domain) -> None:
    from torch._inductor import inductor_prims  # the operation

    graph = torch.fx.Graph()
    seed = graph.placeholder("seed")
    made = graph.call_function(inductor_prims.random, ([4, 8], seed, mode))
    made.meta["val"] = torch.empty(4, 8)
    assert domain_of(made) == wanted


def test_what_is_known_is_not_overridden() -> None:
    lines = "t1 f32[d1] = sqrt(in1)\nout0 f32[d1] = t1\nout1 f32[d0,d1] = in0\n"
    assert _asked(lines, " in [0,1]") == UNIT
