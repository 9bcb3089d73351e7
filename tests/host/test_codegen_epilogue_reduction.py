"""Statistics in a product's epilogue are right, also far from zero, and break no rule of memory."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from codegen_checks import (
    assert_no_rule_is_broken,
    assert_registers_hold_all,
    results_on_host,
    run_on_host,
)
from slow_cases import slow_but

from cudal1_compile.codegen.products.epilogue_reduction import EPILOGUE_REDUCED, epilogue_schedule
from cudal1_compile.codegen.products.sides import BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D
from cudal1_compile.codegen.stages.stage import cut_stages
from cudal1_compile.codegen.strategies import stage_schedules
from cudal1_compile.codegen.templates import Schedule, variants
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant
from tests.toolchain import has_nvrtc

pytestmark = pytest.mark.usefixtures("built_quickly")

ROWS, COLUMNS, DEPTH = 700, 136, 32
NORM = (
    "t2 f32[d1] = var({0}, 0.0) over d0\nt3 f32[d1] = add(t2, 1e-05)\nt4 f32[d1] = rsqrt(t3)\n"
    "t5 f32[d1] = mean({0}) over d0\nt6 f32[d0,d1] = sub({0}, t5)\nt7 f32[d0,d1] = mul(t6, t4)\n"
    "out0 f32[d0,d1] = t7\nout1 f32[d1] = t5\nout2 f32[d1] = t2"
)
DIMS = f"dims d0={ROWS} d1={COLUMNS} d2={DEPTH}"
PROGRAMS = {
    "a product and its norm": (DIMS, "in0 f32[d0,d2]\nin1 f32[d1,d2]", "", NORM.format("t0")),
    "a bias and a residual before": (
        DIMS,
        "in0 f32[d0,d2]\nin1 f32[d1,d2]\nin2 f32[d1]\nin3 f32[d0,d1]",
        "t8 f32[d0,d1] = add(t0, in2)\nt1 f32[d0,d1] = add(t8, in3)\n",
        NORM.format("t1") + "\nout3 f32[d0,d1] = t1",
    ),
    "the variance alone, with a correction": (
        DIMS,
        "in0 f32[d0,d2]\nin1 f32[d1,d2]",
        "",
        "t2 f32[d1] = var(t0, 1.0) over d0\nout0 f32[d1] = t2\nout1 f32[d0,d1] = t0",
    ),
    "images of several axes": (
        f"dims d0=3 d1={COLUMNS} d2={DEPTH} d3=15 d4=17",
        "in0 f32[d0,d3,d4,d2]\nin1 f32[d1,d2]",
        "",
        NORM.format("t0")
        .replace("over d0", "over d0,d3,d4")
        .replace("out0 f32[d0,d1] =", "out0 f32[d0,d3,d4,d1] =")
        .replace("[d0,d1] =", "[d0,d1,d3,d4] ="),
    ),
}


DEPTHWISE = (
    "region v1\ndims d0=3 d1=13 d2=18 d3=160 d4=13 d5=18 k0=3 k1=3\n"
    "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]\nin2 f32[d3]\n"
    "t0 f32[d0,d3,d4,d5] = dot_tf32(in0[d1=d4+k0-1, d2=d5+k1-1], in1) over k0,k1\n{}"
    "t1 f32[d3] = mean({value}) over d0,d4,d5\nt2 f32[d3] = var({value}, 0.0) over d0,d4,d5\n"
    "t3 f32[d0,d3,d4,d5] = sub({value}, t1)\nt4 f32[d0,d3,d4,d5] = mul(t3, t2)\n"
    "out0 f32[d0,d4,d5,d3] = t4\nout1 f32[d3] = t1\nout2 f32[d3] = t2\nout3 f32[d0,d4,d5,d3] = {value}\n"
)
REGISTER_TILES = {
    "depthwise": DEPTHWISE.format("", value="t0"),
    "depthwise with a bias": DEPTHWISE.format("t5 f32[d0,d3,d4,d5] = add(t0, in2)\n", value="t5"),
    "depthwise, pairs of channels": DEPTHWISE.format("", value="t0").replace("d3=160", "d3=64"),
}
# an activation's gradient, then a norm's: its sums, of which one is read by nothing else
GRADIENT = (
    "t1 {0} = sub(in2, in3)\nt2 bool{1} = le(t1, 0.0)\nt3 {0} = where(t2, 0.0, t0)\n"
    "t4 {0} = mul(t3, t1)\nt5 f32[{2}] = sum(t4) over {3}\nt6 f32[{2}] = sum(t3) over {3}\n"
    "t7 {0} = mul(t1, t5)\nt8 {0} = sub(t3, t7)\nt9 {0} = mul(t8, t6)\n"
)
PROGRAMS["a norm's gradient"] = (
    DIMS,
    "in0 f32[d0,d2]\nin1 f32[d1,d2]\nin2 f32[d0,d1]\nin3 f32[d1]",
    GRADIENT.format("f32[d0,d1]", "[d0,d1]", "d1", "d0"),
    "out0 f32[d0,d1] = t9\nout1 f32[d1] = t5\nout2 f32[d1] = t6",
)
REGISTER_TILES["depthwise, a norm's gradient"] = (
    "region v1\ndims d0=3 d1=13 d2=18 d3=160 d4=13 d5=18 k0=3 k1=3\n"
    "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]\nin2 f32[d0,d4,d5,d3]\nin3 f32[d3]\n"
    "t0 f32[d0,d3,d4,d5] = dot_tf32(in0[d1=d4+k0-1, d2=d5+k1-1], in1) over k0,k1\n"
    + GRADIENT.format("f32[d0,d3,d4,d5]", "[d0,d3,d4,d5]", "d3", "d0,d4,d5")
    + "out0 f32[d0,d4,d5,d3] = t9\nout1 f32[d3] = t5\nout2 f32[d3] = t6\n"
)
# windows of which some warps of a block compute or copy the patches
DENSE = (
    "region v1\ndims d0=1 d1={1} d2={2} d3={0} d4={3} d5=15 d6=41 k0=3 k1=3\n"
    "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,k0,k1,d3]\nin2 f32[d0,d5,d6,d4]\nin3 f32[d4]\n"
)
DENSE_NORM = (
    "t5 f32[d0,d4,d5,d6] = add(t0, in2)\nt6 f32[d0,d4,d5,d6] = add(t5, in3)\n"
    "t1 f32[d4] = mean(t6) over d0,d5,d6\nt2 f32[d4] = var(t6, 0.0) over d0,d5,d6\n"
    "t3 f32[d0,d4,d5,d6] = sub(t6, t1)\nt4 f32[d0,d4,d5,d6] = mul(t3, t2)\n"
    "out0 f32[d0,d5,d6,d4] = t4\nout1 f32[d4] = t1\nout2 f32[d4] = t2\n"
)
WINDOWS = {
    "windows, a bias and a residual, columns that fill no tile": (
        DENSE.format(16, 15, 41, 72)
        + "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d1=d5+k0-1, d2=d6+k1-1], in1) over d3,k0,k1\n"
        + DENSE_NORM
    ),
    "windows two places apart": (
        DENSE.format(16, 30, 81, 136)
        + "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d1=2*d5+k0-1, d2=2*d6+k1-1], in1) over d3,k0,k1\n"
        + DENSE_NORM
    ),
    "half, statistics of what is not stored": (
        DENSE.format(16, 15, 41, 72).replace("f32", "f16")
        + "t0 f16[d0,d4,d5,d6] = dot(in0[d1=d5+k0-1, d2=d6+k1-1], in1) over d3,k0,k1\n"
        + "t5 f16[d0,d4,d5,d6] = add(t0, in2)\nt6 f32[d0,d4,d5,d6] = cast(t5)\n"
        + "t1 f32[d4] = mean(t6) over d0,d5,d6\nt2 f32[d4] = var(t6, 0.0) over d0,d5,d6\n"
        + "out0 f16[d0,d5,d6,d4] = t5\nout1 f32[d4] = t1\nout2 f32[d4] = t2\n"
    ),
    "an image's gradient, then a norm's": (
        DENSE.format(16, 15, 41, 72).replace("in1 f32[d4,k0,k1,d3]", "in1 f32[d3,k0,k1,d4]")
        + "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d1=d5-k0+1, d2=d6-k1+1], in1) over d3,k0,k1\n"
        + GRADIENT.format("f32[d0,d4,d5,d6]", "[d0,d4,d5,d6]", "d4", "d0,d5,d6")
        + "out0 f32[d0,d5,d6,d4] = t9\nout1 f32[d4] = t5\nout2 f32[d4] = t6\n"
    ),
}
REGISTER_TILES["depthwise, a norm's gradient, pairs"] = REGISTER_TILES["depthwise, a norm's gradient"].replace(
    "d3=160", "d3=64"
)


def program_of(name: str, rows: int = ROWS) -> Program:
    if name in REGISTER_TILES or name in WINDOWS:
        return parse_program((REGISTER_TILES | WINDOWS)[name])
    dims, inputs, before, rest = PROGRAMS[name]
    dims = dims.replace(f"d0={ROWS}", f"d0={rows}")
    result = "[d0,d1,d3,d4]" if "d3" in dims else "[d0,d1]"
    product = f"t0 f32{result} = dot_tf32(in0, in1) over d2\n"
    return parse_program(f"region v1\n{dims}\n{inputs}\n{product}{before}{rest}\n")


@cache
def reducing(program: Program) -> list[Variant]:
    """One for each of the product's schedules that can."""
    plan = cut_stages(program, flat=True)
    assert plan is not None
    product, norm, *rest = plan.stages
    last = [stage_schedules(stage)[0] for stage in rest]
    chosen = [
        (s, m, *last) for s in stage_schedules(product) if (m := epilogue_schedule(product, s, norm)) is not None
    ]
    written = [write_variant(program, Schedule("staged", stages, True)) for stages in chosen]
    return [v for v in written if v is not None]


CASES = [*enumerate([*PROGRAMS, *REGISTER_TILES])]


@pytest.mark.parametrize(("at", "name"), slow_but([CASES[i] for i in (0, 3, 4, 6, 9)], CASES))
def test_statistics_are_right(at: int, name: str) -> None:
    """Three of a program's kernels, in turn."""
    program = program_of(name)
    written = reducing(program)
    assert len(written) >= (2 if name in REGISTER_TILES else 4)
    kind = "_sums<" if "gradient" in name else "_moments<"
    assert all(kind in v.candidate.code for v in written)
    step = max(len(written) // 3, 1)
    candidates = {v.name: v.candidate for v in written[at % step :: step]}
    assert run_on_host(program, candidates) == (set(candidates), {})


def of_forms(program: Program) -> list[Variant]:
    """The first and the last of each form whose warps do not all multiply."""
    forms = [
        [v for v in reducing(program) if f"{form}." in v.name]
        for form in (BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D)
    ]
    return [v for found in forms for v in dict.fromkeys((*found[:1], *found[-1:]))]


@pytest.mark.parametrize("name", slow_but([*WINDOWS][:1], WINDOWS))
def test_statistics_of_windows_are_right(name: str) -> None:
    program = program_of(name)
    candidates = {v.name: v.candidate for v in of_forms(program)}
    forms = (IMPLICIT_GEMM, IMPLICIT_GEMM_2D) if "apart" in name else (BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D)
    assert all(any(f"{form}." in name for name in candidates) for form in forms)
    kind = "_sums<" if "gradient" in name else "_moments<"
    assert all(kind in c.code for c in candidates.values())
    assert run_on_host(program, candidates) == (set(candidates), {})


@pytest.mark.slow
@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("name", WINDOWS)
def test_statistics_of_windows_stay_in_registers(name: str) -> None:
    assert_registers_hold_all(program_of(name), of_forms(program_of(name)))


def test_large_products_are_drawn_with_their_statistics() -> None:
    program = program_of("a product and its norm", rows=25_088)
    found = [s for s in variants(program) if any(x.kind == EPILOGUE_REDUCED for x in s.stages)]
    assert len(found) >= 8
    assert all(s.stages[0].tile and s.stages[0].tile[1] >= 64 and s.flat for s in found)


def test_what_only_a_sum_reads_is_not_stored() -> None:
    """A norm's gradient sums two tensors, of which a later stage reads one."""
    for name in ("a norm's gradient", "depthwise, a norm's gradient"):
        code = reducing(program_of(name))[0].candidate.code
        product = next(k for k in code.split("__global__") if "_sums<" in k)
        assert len(re.findall(r"\bv?st(?:ore<4>)?\(", product.partition(".join(")[0])) == 1


def test_the_mean_of_all_is_not_fused() -> None:
    """A generator's last image has one channel: there are no columns."""
    text = (
        "region v1\ndims d0=32 d1=20 d2=320 d3=64 d4=40 k0=2 k1=2\nin0 f32[d2,k0,k1]\nin1 f32[d0,d1,d2]\n"
        "t0 f32[d3,d4] = dot_tf32(in0, in1[d0=(d3-k0)/2, d1=(d4-k1)/2]) over d2,k0,k1\n"
        "t1 f32[d3,d4] = relu(t0)\nt2 f32[] = mean(t1) over d3,d4\nout0 f32[] = t2\n"
    )
    found = variants(parse_program(text))
    assert found and all(x.kind != EPILOGUE_REDUCED for s in found for x in s.stages)


NOTHING_BROKEN = [
    "a bias and a residual before",
    "depthwise with a bias",
    "a norm's gradient",
    "depthwise, a norm's gradient, pairs",
]


@pytest.mark.parametrize(
    "form", slow_but([BULK_COPY, IMPLICIT_GEMM], [BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D])
)
def test_statistics_of_windows_break_no_rule_of_memory(form: str) -> None:
    program = program_of("an image's gradient, then a norm's")
    assert_no_rule_is_broken(program, [next(v for v in of_forms(program) if f"{form}." in v.name)])


@pytest.mark.parametrize("name", slow_but(NOTHING_BROKEN[1:], NOTHING_BROKEN))
def test_statistics_break_no_rule_of_memory(name: str) -> None:
    program = program_of(name)
    assert_no_rule_is_broken(program, reducing(program)[:1])


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of the columns: a column of the weight takes one of the rows' values."""
    program = program_of("a product and its norm")
    weight = torch.eye(DEPTH).repeat(COLUMNS // DEPTH + 1, 1)[:COLUMNS].contiguous()
    found = results_on_host(program, reducing(program)[0], {"in0": x, "in1": weight})
    return found["out1"], found["out2"]


def test_nothing_is_lost_far_from_zero() -> None:
    """Values about 1,024, the first rows elsewhere: squares about zero or a first element have no digit left."""
    x = torch.randint(-4, 4, (ROWS, DEPTH)) + 1024.0
    x[:8] = -512
    _, variances = statistics(x)
    expected = x.double().var(0, correction=0)
    assert torch.allclose(variances[:DEPTH].double(), expected, rtol=1e-6)


def test_infinite_values_and_variances_are_infinite() -> None:
    x = torch.randn(ROWS, DEPTH)
    x[:, 5] *= 2.0**100
    means, variances = statistics(x)
    assert means.isfinite().all()
    assert variances[5] == torch.inf and variances[:5].isfinite().all()


def window_statistics(
    variant: Variant, x: torch.Tensor, beside: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of x[y, x, channel] + beside: of the window its middle alone is not 0."""
    depth, columns = x.shape[-1], beside.shape[-1]
    weight = torch.zeros(columns, 3, 3, depth)
    weight[:depth, 1, 1] = torch.eye(depth)
    inputs = {"in0": x[None].contiguous(), "in1": weight, "in2": beside[None], "in3": torch.zeros(columns)}
    found = results_on_host(program_of(next(iter(WINDOWS))), variant, inputs)
    return found["out1"][:depth], found["out2"][:depth]


@pytest.mark.parametrize("form", [BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D])
def test_statistics_of_windows_far_from_zero_and_of_infinite_values(form: str) -> None:
    """The last tile of 64 places has none in the image: its part counts for nothing, whatever the others hold."""
    variant = next(v for v in of_forms(program_of(next(iter(WINDOWS)))) if f"{form}." in v.name)
    x, beside = torch.randint(-4, 4, (15, 41, 16)) + 1024.0, torch.zeros(15, 41, 72)
    x[0] = -512
    x[:, :, 5] *= 2.0**100
    beside[3, 3, 6] = torch.inf
    means, variances = window_statistics(variant, x, beside)
    expected = (x + beside[..., :16]).double().flatten(0, 1)
    plain = [c for c in range(16) if c not in (5, 6)]
    assert torch.allclose(variances[plain].double(), expected.var(0, correction=0)[plain], rtol=1e-6)
    assert torch.allclose(means[plain].double(), expected.mean(0)[plain], rtol=1e-6)
    assert means[5].isfinite() and variances[5] == torch.inf
    assert means[6] == torch.inf and variances[6].isnan()
