"""Product kernels of the templates are right on the host target: convolutions, contractions, their chains."""

from __future__ import annotations

import pytest
from codegen_checks import run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.products.sides import HALO_TILE, MULTISTAGE, OFFSET_TABLE, WARP_GROUPS
from cudal1_compile.codegen.templates import Schedule, variants
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import GPU_ARCHES, Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant, write_variants

pytestmark = pytest.mark.usefixtures("built_quickly")

PROGRAMS = {
    "convolution, bias, relu": (
        "d0=2 d1=5 d2=9 d3=11 d4=12 d5=5 d6=6 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=2*d5+k0-1, d3=2*d6+k1-1], in1) over d1,k0,k1\n"
        "t1 f32[d0,d4,d5,d6] = add(t0, in2)\nt2 f32[d0,d4,d5,d6] = relu(t1)\nout0 f32[d0,d4,d5,d6] = t2",
    ),
    "a chain before and after, two outputs": (
        "d0=2 d1=4 d2=9 d3=10 d4=8 d5=9 d6=10 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d1]\nin3 f32[d0,d4,d5,d6]",
        "t0 f32[d0,d1,d2,d3] = add(in0, in2)\nt1 f32[d0,d1,d2,d3] = relu(t0)\n"
        "t2 f32[d0,d4,d5,d6] = dot(t1[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "t3 f32[d0,d4,d5,d6] = add(t2, in3)\nout0 f32[d0,d4,d5,d6] = t3\nout1 f32[d0,d4,d5,d6] = t2",
    ),
    "groups": (
        "d0=2 d1=2 d2=3 d3=20 d4=8 d5=20 k0=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,d2,k0]",
        "t0 f32[d0,d1,d4,d5] = dot(in0[d3=d5+k0-1], in1) over d2,k0\nout0 f32[d0,d1,d4,d5] = t0",
    ),
    "depthwise": (
        "d0=2 d1=6 d2=12 d3=70 d4=12 d5=70 k0=3 k1=5",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,k0,k1]",
        "t0 f32[d0,d1,d4,d5] = dot_tf32(in0[d2=d4+k0-1, d3=d5+k1-2], in1) over k0,k1\nout0 f32[d0,d1,d4,d5] = t0",
    ),
    "depthwise in three dimensions, strided, with a tail": (
        "d0=2 d1=4 d2=6 d3=9 d4=8 d5=6 d6=5 d7=4 k0=3 k1=3 k2=3",
        "in0 f16[d0,d1,d2,d3,d4]\nin1 f16[d1,k0,k1,k2]\nin2 f16[d1]",
        "t0 f16[d0,d1,d5,d6,d7] = dot(in0[d2=d5+k0-1, d3=2*d6+k1-1, d4=2*d7+k2-1], in1) over k0,k1,k2\n"
        "t1 f16[d0,d1,d5,d6,d7] = add(t0, in2)\nt2 f16[d0,d1,d5,d6,d7] = relu(t1)\n"
        "out0 f16[d0,d1,d5,d6,d7] = t2",
    ),
    "transposed": (
        "d0=2 d1=6 d2=5 d3=12 d4=9 k0=3",
        "in0 f32[d0,d1,d2]\nin1 f32[d1,d3,k0]",
        "t0 f32[d0,d3,d4] = dot_tf32(in0[d2=(d4-k0+1)/2], in1) over d1,k0\nout0 f32[d0,d3,d4] = t0",
    ),
    "transposed in two dimensions, ragged": (
        "d0=2 d1=3 d2=5 d3=4 d4=8 d5=11 d6=9 k0=3 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+1)/2, d3=(d6-k1)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0",
    ),
    "channels inside, a walk over the window": (
        "d0=2 d1=18 d2=7 d3=6 d4=10 d5=7 d6=6 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d1]",
        "t0 f32[d0,d1,d2,d3] = mul(in0, in2)\n"
        "t1 f32[d0,d4,d5,d6] = dot_tf32(t0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t1",
    ),
    "transposed, a walk over the window": (
        "d0=2 d1=16 d2=5 d3=4 d4=8 d5=11 d6=8 k0=3 k1=4",
        "in0 bf16[d0,d1,d2,d3]\nin1 bf16[d1,d4,k0,k1]",
        "t0 bf16[d0,d4,d5,d6] = dot(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 bf16[d0,d4,d5,d6] = t0",
    ),
    "three dimensions, half": (
        "d0=1 d1=3 d2=4 d3=5 d4=6 d5=16 d6=4 d7=5 d8=6 k0=3 k1=3 k2=3",
        "in0 f16[d1,d2,d3,d4]\nin1 f16[d5,d1,k0,k1,k2]",
        "t0 f16[d5,d6,d7,d8] = dot(in0[d2=d6+k0-1, d3=d7+k1-1, d4=d8+k2-1], in1) over d1,k0,k1,k2\n"
        "out0 f16[d5,d6,d7,d8] = t0",
    ),
    "linear, gelu piece": (
        "d0=70 d1=96 d2=40",
        "in0 f32[d0,d1]\nin1 f32[d2,d1]\nin2 f32[d2]",
        "t0 f32[d0,d2] = dot(in0, in1) over d1\nt1 f32[d0,d2] = add(t0, in2)\nt2 f32[d0,d2] = sigmoid(t1)\n"
        "t3 f32[d0,d2] = mul(t1, t2)\nout0 f32[d0,d2] = t3",
    ),
    "a weight's gradient": (
        "d0=5 d1=3 d2=20 d3=20 d4=7 d5=20 d6=20 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d0,d4,d5,d6]\nin2 f32[d4]",
        "t0 f32[d1,d4,k0,k1] = dot_tf32(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d0,d5,d6\n"
        "t1 f32[d1,d4,k0,k1] = mul(t0, in2)\nout0 f32[d4,d1,k0,k1] = t1",
    ),
    "batched, bf16": (
        "d0=3 d1=33 d2=48 d3=17",
        "in0 bf16[d0,d1,d2]\nin1 bf16[d0,d2,d3]",
        "t0 bf16[d0,d1,d3] = dot(in0, in1) over d2\nout0 bf16[d0,d1,d3] = t0",
    ),
    "double": (
        "d0=10 d1=20 d2=9",
        "in0 f64[d0,d1]\nin1 f64[d2,d1]",
        "t0 f64[d0,d2] = dot(in0, in1) over d1\nout0 f64[d0,d2] = t0",
    ),
    "statistics over the result": (
        "d0=2 d1=4 d2=8 d3=8 d4=8 d5=8 d6=8 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "t1 f32[d0,d4] = mean(t0) over d5,d6\nt2 f32[d0,d4,d5,d6] = sub(t0, t1)\nout0 f32[d0,d4,d5,d6] = t2",
    ),
    "depthwise, strided along an axis without a window": (
        "d0=2 d1=4 d2=9 d3=7 d4=12 d5=5 d6=7 d7=10 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d1,k0,k1]",
        "t0 f32[d0,d1,d5,d6,d7] = dot_tf32(in0[d2=2*d5, d3=d6+k0-1, d4=d7+k1], in1) over k0,k1\n"
        "out0 f32[d0,d1,d5,d6,d7] = t0",
    ),
}
# of few channels: where a term lies is looked up
TABLED = {
    "a stem, strided, padded more on one side, a norm behind it": (
        "d0=2 d1=3 d2=12 d3=17 d4=20 d5=6 d6=9 k0=5 k1=7",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=2*d5+k0-1, d3=2*d6+k1-3], in1) over d1,k0,k1\n"
        "t1 f32[d4] = abs(in2)\nt2 f32[d0,d4,d5,d6] = mul(t0, t1)\nout0 f32[d0,d4,d5,d6] = t2",
    ),
    "a volume of one channel, half, no padding along one axis": (
        "d0=3 d1=6 d2=7 d3=9 d4=12 d5=4 d6=7 d7=9 k0=3 k1=3 k2=3",
        "in0 f16[d0,d1,d2,d3]\nin1 f16[d4,k0,k1,k2]",
        "t0 f16[d0,d4,d5,d6,d7] = dot(in0[d1=d5+k0, d2=d6+k1-1, d3=d7+k2-1], in1) over k0,k1,k2\n"
        "out0 f16[d0,d4,d5,d6,d7] = t0",
    ),
    "groups of two channels, channels last": (
        "d0=2 d1=3 d2=2 d3=30 d4=9 d5=15 k0=5",
        "in0 f32[d0,d3,d1,d2]\nin1 f32[d1,d4,d2,k0]",
        "t0 f32[d0,d1,d4,d5] = dot(in0[d3=2*d5+k0-2], in1) over d2,k0\nout0 f32[d0,d1,d4,d5] = t0",
    ),
    "a window is all that is summed": (
        "d0=2 d1=33 d2=4 d3=43 d4=128 k0=9",
        "in0 f32[d0,d2,d4]\nin1 f32[d1,k0]",
        "t0 f32[d0,d1,d2,d3] = dot_tf32(in0[d4=3*d3+k0-4], in1) over k0\nout0 f32[d0,d1,d2,d3] = t0",
    ),
}
# whose operands can be copied ahead of the tensor cores
COPIED = {
    "weights packed, bias, relu": (
        "d0=2 d1=36 d2=9 d3=7 d4=20 d5=5 d6=7 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=2*d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "t1 f32[d0,d4,d5,d6] = add(t0, in2)\nt2 f32[d0,d4,d5,d6] = relu(t1)\nout0 f32[d0,d4,d5,d6] = t2",
    ),
    "pointwise, vectors of pixels, outputs of no vector": (
        "d0=3 d1=32 d2=6 d3=6 d4=19",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1]",
        "t0 f32[d0,d2,d3,d4] = dot_tf32(in0, in1) over d1\nout0 f32[d0,d4,d2,d3] = t0",
    ),
    "half, elements of two bytes, groups": (
        "d0=2 d1=2 d2=32 d3=9 d4=12 d5=9 k0=3",
        "in0 f16[d0,d1,d2,d3]\nin1 f16[d1,d4,d2,k0]",
        "t0 f16[d0,d1,d4,d5] = dot(in0[d3=d5+k0-1], in1) over d2,k0\nout0 f16[d0,d1,d4,d5] = t0",
    ),
    "channels last, strided rows": (
        "d0=2 d1=24 d2=6 d3=5 d4=16 d5=6 d6=5 k0=3 k1=3",
        "in0 f32[d0,d2,d3,d1] strides(840,140,28,1)\nin1 f32[d4,k0,k1,d1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "out0 f32[d0,d5,d6,d4] = t0",
    ),
    "a volume, planes on patches of their own, a chain before": (
        "d0=2 d1=8 d2=4 d3=12 d4=40 d5=12 d6=4 d7=12 d8=40 k0=3 k1=3 k2=3",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d5,d1,k0,k1,k2]\nin2 f32[d1]\nin3 f32[d0,d1,d2,d3,d4]",
        "t0 f32[d0,d1,d2,d3,d4] = mul(in0, in2)\nt1 f32[d0,d1,d2,d3,d4] = add(t0, in3)\n"
        "t2 f32[d0,d5,d6,d7,d8] = dot_tf32(t1[d2=d6+k0-1, d3=d7+k1-1, d4=d8+k2-1], in1) over d1,k0,k1,k2\n"
        "out0 f32[d0,d5,d6,d7,d8] = t2",
    ),
    "stride and dilation, images smaller than a tile": (
        "d0=7 d1=16 d2=9 d3=8 d4=24 d5=3 d6=4 k0=3 k1=2",
        "in0 bf16[d0,d1,d2,d3]\nin1 bf16[d4,d1,k0,k1]\nin2 bf16[d4]",
        "t0 bf16[d0,d4,d5,d6] = dot(in0[d2=2*d5+2*k0-1, d3=2*d6+k1], in1) over d1,k0,k1\n"
        "t1 bf16[d0,d4,d5,d6] = add(t0, in2)\nout0 bf16[d0,d4,d5,d6] = t1",
    ),
    "a weight's gradient, its windows apart": (
        "d0=3 d1=36 d2=9 d3=12 d4=20 d5=9 d6=6 k0=3 k1=2",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d0,d4,d5,d6]",
        "t0 f32[d1,d4,k0,k1] = dot_tf32(in0[d2=d5+k0-1, d3=2*d6+k1], in1) over d0,d5,d6\n"
        "out0 f32[d4,d1,k0,k1] = t0",
    ),
    "a weight's gradient, half, windows among the rows": (
        "d0=4 d1=3 d2=20 d3=20 d4=34 d5=20 d6=20 k0=3 k1=3",
        "in0 f16[d0,d1,d2,d3]\nin1 f16[d0,d4,d5,d6]",
        "t0 f16[d1,d4,k0,k1] = dot(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d0,d5,d6\nout0 f16[d4,d1,k0,k1] = t0",
    ),
    "transposed, patches of phases, the last ones shorter": (
        "d0=3 d1=16 d2=5 d3=9 d4=12 d5=10 d6=17 k0=3 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0",
    ),
    "transposed, channels enough to cut the sums": (
        "d0=2 d1=128 d2=3 d3=4 d4=10 d5=6 d6=8 k0=4 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "t1 f32[d0,d4,d5,d6] = add(t0, in2)\nout0 f32[d0,d4,d5,d6] = t1",
    ),
    "transposed, three taps and two, ragged": (
        "d0=2 d1=16 d2=5 d3=4 d4=10 d5=11 d6=8 k0=3 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0",
    ),
    "transposed, a window as long as its step, bias": (
        "d0=2 d1=36 d2=6 d3=6 d4=10 d5=12 d6=18 k0=2 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0)/2, d3=(d6-k1)/3], in1) over d1,k0,k1\n"
        "t1 f32[d0,d4,d5,d6] = add(t0, in2)\nout0 f32[d0,d4,d5,d6] = t1",
    ),
    "transposed in three dimensions, half, its window as long as its step": (
        "d0=2 d1=128 d2=3 d3=4 d4=2 d5=5 d6=6 d7=8 d8=4 k0=2 k1=2 k2=2",
        "in0 f16[d0,d1,d2,d3,d4]\nin1 f16[d1,d5,k0,k1,k2]\nin2 f16[d0,d5,d6,d7,d8]",
        "t0 f16[d0,d5,d6,d7,d8] = dot(in0[d2=(d6-k0)/2, d3=(d7-k1)/2, d4=(d8-k2)/2], in1) over d1,k0,k1,k2\n"
        "t1 f16[d0,d5,d6,d7,d8] = mul(t0, in2)\nout0 f16[d0,d5,d6,d7,d8] = t1",
    ),
    "groups, a norm behind the sum whose scale only columns decide, residual": (
        "d0=2 d1=2 d2=16 d3=9 d4=40 d5=9 k0=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,d2,k0]\nin2 f32[d1,d4]\nin3 f32[d1,d4]\nin4 f32[d0,d1,d4,d5]",
        "t0 f32[d0,d1,d4,d5] = dot_tf32(in0[d3=d5+k0-1], in1) over d2,k0\nt1 f32[d1,d4] = abs(in2)\n"
        "t2 f32[d1,d4] = add(t1, 0.5)\nt3 f32[d1,d4] = rsqrt(t2)\nt4 f32[d0,d1,d4,d5] = mul(t0, t3)\n"
        "t5 f32[d1,d4] = mul(in3, t3)\nt6 f32[d0,d1,d4,d5] = sub(t4, t5)\nt7 f32[d0,d1,d4,d5] = add(t6, in4)\n"
        "out0 f32[d0,d1,d4,d5] = t7",
    ),
    "matrices, both along k, long sums": (
        "d0=70 d1=4160 d2=36",
        "in0 f32[d0,d1]\nin1 f32[d2,d1]\nin2 f32[d2]",
        "t0 f32[d0,d2] = dot_tf32(in0, in1) over d1\nt1 f32[d0,d2] = add(t0, in2)\nout0 f32[d0,d2] = t1",
    ),
    "matrices, none along k, float32": (
        "d0=36 d1=130 d2=70",
        "in0 f32[d1,d0]\nin1 f32[d1,d2]",
        "t0 f32[d0,d2] = dot(in0, in1) over d1\nout0 f32[d0,d2] = t0",
    ),
    "half matrices, neither along k, a cast before": (
        "d0=70 d1=256 d2=40",
        "in0 f32[d1,d0]\nin1 bf16[d1,d2]\nin2 bf16[d2]",
        "t0 bf16[d0,d1] = cast(in0)\nt1 bf16[d0,d2] = dot(t0, in1) over d1\nt2 bf16[d0,d2] = add(t1, in2)\n"
        "out0 bf16[d0,d2] = t2",
    ),
    "transposed along one axis, spread apart along another without a window": (
        "d0=33 d1=16 d2=10 d3=9 d4=29 d5=26 k0=3",
        "in0 f32[d1,d2,d3]\nin1 f32[d1,d0,k0]",
        "t0 f32[d0,d4,d5] = dot_tf32(in0[d2=(d4-k0+1)/3, d3=(d5)/3], in1) over d1,k0\nout0 f32[d0,d4,d5] = t0",
    ),
}
FEW = {
    "few filters, bias, tanh": (
        "d0=2 d1=10 d2=9 d3=11 d4=3 d5=9 d6=11 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "t1 f32[d0,d4,d5,d6] = add(t0, in2)\nt2 f32[d0,d4,d5,d6] = tanh(t1)\nout0 f32[d0,d4,d5,d6] = t2",
    ),
    "few filters of half a type, three dimensions, strided": (
        "d0=3 d1=4 d2=5 d3=9 d4=8 d5=2 d6=5 d7=5 d8=4 k0=3 k1=3 k2=3",
        "in0 bf16[d0,d1,d2,d3,d4]\nin1 bf16[d5,d1,k0,k1,k2]",
        "t0 bf16[d0,d5,d6,d7,d8] = dot(in0[d2=d6+k0-1, d3=2*d7+k1-1, d4=2*d8+k2-1], in1) over d1,k0,k1,k2\n"
        "t1 bf16[d0,d5,d6,d7,d8] = sigmoid(t0)\nout0 bf16[d0,d5,d6,d7,d8] = t1",
    ),
    "one filter of many terms": (
        "d0=2 d1=68 d2=7 d3=8 d4=7 d5=8 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,k0,k1]",
        "t0 f32[d0,d4,d5] = dot_tf32(in0[d2=d4+k0-1, d3=d5+k1-1], in1) over d1,k0,k1\nout0 f32[d0,d4,d5] = t0",
    ),
}
PROGRAMS |= TABLED | COPIED | FEW


def program_of(name: str) -> Program:
    return parse_program("region v1\ndims {}\n{}\n{}\n".format(*PROGRAMS[name]))


def copying_variants(program: Program) -> list[Variant]:
    """The likely best of each kind, and of each with its sums cut."""
    first: dict[tuple[bool, bool, bool, bool, bool], Schedule] = {}
    for schedule in variants(program):
        (stage,) = schedule.stages
        kind = MULTISTAGE in stage.kind, HALO_TILE in stage.kind, WARP_GROUPS in stage.kind
        if any(kind):
            first.setdefault((*kind, stage.cached, stage.splits > 1), schedule)
    return [v for s in first.values() if (v := write_variant(program, s)) is not None]


def test_operands_of_every_layout_meet_warp_groups() -> None:
    found = {n for n in COPIED if any(WARP_GROUPS in v.name for v in copying_variants(program_of(n)))}
    assert len(found) == 13


def variants_to_test(name: str, program: Program) -> list[Variant]:
    if name in COPIED:
        return copying_variants(program)
    if name in TABLED:
        found = [v for v in write_variants(program, 32) if OFFSET_TABLE in v.name]
        return [*found[:1], *found[-1:]]
    if name in FEW:
        return [v for v in write_variants(program, 64) if "strip" in v.name]
    return write_variants(program, 12)[::6]


def test_one_filter_of_many_terms_has_templates_without_a_window_along_two_axes() -> None:
    program = parse_program(
        "region v1\ndims d0=2 d1=128 d2=40 d3=37 k0=7\nin0 f32[d0,d1,d2]\nin1 f32[d1,k0]\n"
        "t0 f32[d0,d3] = dot_tf32(in0[d2=d3+k0-2], in1) over d1,k0\nout0 f32[d0,d3] = t0\n"
    )
    candidates = {v.name: v.candidate for v in write_variants(program, 2)}
    assert candidates
    assert run_on_host(program, candidates) == (set(candidates), {})


def test_what_follows_a_product_without_rows_is_never_settled_ahead_of_it() -> None:
    program = parse_program(
        "region v1\ndims d0=3 d1=40 d2=16 d3=9 d4=9 k0=5 k1=5\nin0 f32[d0,d1,d2,k0,k1]\nin1 f32[d0,d2,d3,d4]\n"
        "in2 f32[d1]\nt0 f32[d0,d1] = dot_tf32(in0, in1[d3=2*k0, d4=2*k1]) over d2,k0,k1\n"
        "t1 f32[d0,d1] = mul(t0, in2)\nt2 f32[d0,d1] = relu(t1)\nout0 f32[d0,d1] = t2\n"
    )
    schedules = variants(program)
    written = {v.name: v.candidate for s in schedules if (v := write_variant(program, s)) is not None}
    assert len(written) == len(schedules)  # a template that stumbles writes none
    candidates = dict([*written.items()][::6])
    assert run_on_host(program, candidates) == (set(candidates), {})


# like another program but for a size, an order or a chain
ALIKE = {
    "a chain before and after, two outputs",
    "transposed",
    "channels inside, a walk over the window",
    "batched, bf16",
    "depthwise, strided along an axis without a window",
    "a stem, strided, padded more on one side, a norm behind it",
    "a window is all that is summed",
    "weights packed, bias, relu",
    "a weight's gradient, half, windows among the rows",
    "transposed, channels enough to cut the sums",
    "transposed, three taps and two, ragged",
    "transposed in three dimensions, half, its window as long as its step",
    "groups, a norm behind the sum whose scale only columns decide, residual",
    "matrices, both along k, long sums",
    "transposed along one axis, spread apart along another without a window",
    "few filters of half a type, three dimensions, strided",
}


@pytest.mark.parametrize("name", slow_but([n for n in PROGRAMS if n not in ALIKE], PROGRAMS))
def test_products_are_right(name: str) -> None:
    program = program_of(name)
    written = variants_to_test(name, program)
    candidates = {v.name: v.candidate for v in written}
    assert candidates
    assert run_on_host(program, candidates) == (set(candidates), {})


@pytest.mark.parametrize("name", slow_but([*PROGRAMS][::6], [*PROGRAMS][::3]))
def test_nvrtc_builds_them_without_spills(name: str) -> None:
    program = program_of(name)
    arch = GPU_ARCHES[list(PROGRAMS).index(name) % len(GPU_ARCHES)]
    for variant in write_variants(program, 2):
        target = Target("cuda", "test", arch, 132, 227 * 1024, 50 << 20)
        for resources in build(program, variant.candidate, target).kernels.values():
            assert resources.local_bytes <= 48  # ptxas parks a few registers now and then
