"""Softmax kernels that a scripted generator writes: for tests of synthesis, and the processes that they start."""

from __future__ import annotations

from judge_checks import softmax
from synthesis_doubles import ScriptedGenerator

from cudal1_compile.kernel.candidate import Reply, print_reply
from cudal1_compile.synthesis.budget import Budget
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

TEXT = softmax(6, 96)
KERNEL = """// launch: softmax<<<d0, {block}>>>(in0, out0)
__global__ void softmax(const f32* in0, f32* out0 DIMS) {{
    const f32* row = in0 + blockIdx.x * d1;
    float top = -INFINITY;
    for (int i = threadIdx.x; i < d1; i += blockDim.x) top = maximum(top, ld(row + i));
    top = block_max(top);
    float total = 0.0f;
    for (int i = threadIdx.x; i < d1; i += blockDim.x) total += expf(ld(row + i) - {shift});
    total = block_sum(total);
    for (int i = threadIdx.x; i < d1; i += blockDim.x)
        st(out0 + blockIdx.x * d1 + i, expf(ld(row + i) - {shift}) / {divisor});
}}
"""
BUDGET = Budget(seconds=90, rounds=2, samples_per_round=3, prompts_per_round=1)


def program() -> Program:
    return canonicalise(parse_program(TEXT))


def code(block: int = 96, shift: str = "top", divisor: str = "total") -> str:
    return KERNEL.format(block=block, shift=shift, divisor=divisor)


def as_reply(text: str) -> str:
    return print_reply(Reply("the rows are short", "one block a row", text))


def scripted(*rounds: list[str]) -> ScriptedGenerator:
    texts = [[as_reply(c) for c in codes] for codes in rounds]
    return ScriptedGenerator(lambda call, prompts, n: [texts[min(call, len(texts) - 1)] for _ in prompts])
