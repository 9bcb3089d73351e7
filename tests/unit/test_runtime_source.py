"""Preamble, assembled source, target, launch plans with numbers, the baseline's cost."""

from __future__ import annotations

import pytest
import torch

from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.host_cost import baseline_cost
from cudal1_compile.runtime.launch_plan import buffer_bytes, buffer_names, plan
from cudal1_compile.runtime.preamble import preamble
from cudal1_compile.runtime.source import assemble, refusal
from cudal1_compile.runtime.target import HOST, Target, detect_target
from cudal1_fx_passes.program.text import parse_program

PROGRAM = parse_program("""region v1
dims d0=?8 d1=64
in0 bf16[d0,d1] strides(128,1)
in1 f32[d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d0,d1] = add(t0, in1)
out0 f32[d1,d0] strides(16,1) = t1
""")
CODE = """// scratch: s0 f32[d0 * 2]
// scratch: s1 i32[4] = 0
// launch: a<<<dim3(cdiv(d1, 48), d0), 32, d0 * 4>>>(in0, s0)
// launch: b<<<d0, min(d1, 256)>>>(s0, s1, in1, out0)
__global__ void a(const bf16* in0, f32* s0 DIMS) {}
__global__ void b(const f32* s0, i32* s1, const f32* in1, f32* out0 DIMS) {}
"""
GPU = Target("cuda", "NVIDIA H100", "sm_90a", 132, 227 * 1024, 50 << 20)


def test_preamble_names_sizes_types_and_strides() -> None:
    assert preamble(PROGRAM) == (
        "#define DIMS , const int d0\n"
        "constexpr int d1 = 64;\n"
        "typedef bf16 in0_t;\nconstexpr int in0_d0 = 128;\nconstexpr int in0_d1 = 1;\n"
        "typedef f32 in1_t;\n"
        "typedef f32 out0_t;\nconstexpr int out0_d1 = 16;\nconstexpr int out0_d0 = 1;\n"
    )
    static = parse_program("region v1\ndims d0=4\nin0 i64[d0]\nt0 i64[d0] = neg(in0)\nout0 i64[d0] = t0\n")
    assert preamble(static) == "#define DIMS\nconstexpr int d0 = 4;\ntypedef i64 in0_t;\ntypedef i64 out0_t;\n"


def test_the_source_keeps_the_candidates_lines() -> None:
    candidate = parse_candidate(CODE, PROGRAM)
    host, gpu = assemble(PROGRAM, candidate, HOST), assemble(PROGRAM, candidate, GPU)
    assert host.startswith("#define DIMS") and f'#line 1 "candidate.cu"\n{CODE}static_assert(' in host
    assert gpu.endswith(host) and "block_sum" in gpu
    with pytest.raises(BuildError, match="inline assembly"):
        assemble(PROGRAM, parse_candidate(CODE + 'void f() { asm(""); }\n', PROGRAM), HOST)


REFUSED = {
    "#include <x.h>": "includes",
    "#  include <x.h>": "includes",
    "#import <x.h>": "includes",
    "#line 3": "includes",
    "#pragma GCC optimize(3)": "includes",
    'asm("nop");': "inline assembly",
    '__asm__ volatile ("nop");': "inline assembly",
    'a\\\nsm("nop");': "inline assembly",
    "// a comment \\\nasm(0);\nint x; /* */ asm(0);": "inline assembly",
    "int x = 1'0; asm(0); x = 1'0;": "inline assembly",
    "char c = '\"'; asm(0); c = '\"';": "inline assembly",
    "__attribute__((constructor)) void f();": "attributes",
    "[[gnu::constructor]] void f();": "attributes",
    "[ [gnu::constructor] ] void f();": "attributes",
    "#define J(a, b) a ## b": "token pasting",
    "%:define J(a, b) a %:%: b": "token pasting",
    'const char* s = R"(" asm(0); )";': "raw strings",
    "#if __has_include(<x.h>)": "attributes",
}


@pytest.mark.parametrize("code", REFUSED)
def test_refused_text(code: str) -> None:
    found = refusal(code)
    assert found is not None and REFUSED[code] in found


@pytest.mark.parametrize(
    "code",
    [
        "// asm, #include, __attribute__ and a ## b in a comment",
        "/* asm\n#include <x> */ int x;",
        "#pragma unroll 4\nfor (int i = 0; i < 4; i++) x[y[i]] = 'a';",
        "#define SIZE 4\n#if SIZE > 2\nint basm = 1'000, asm_ = 0x1'f;\n#endif",
        "__device__ __forceinline__ float f(float x) { return x; } // it's fine",
        "x = (a[i])[j]; y = 2'500'000; // two's complement",
    ],
)
def test_honest_text(code: str) -> None:
    assert refusal(code) is None


def test_targets_have_stable_keys_and_facts() -> None:
    assert GPU.key == Target("cuda", "NVIDIA H100", "sm_90a", 132, 227 * 1024, 50 << 20).key
    assert len({GPU.key, HOST.key, Target("cuda", "NVIDIA H100", "sm_90a", 114, 227 * 1024, 50 << 20).key}) == 3
    assert GPU.key == "af247bf457a72b8d27ceaab577dd6a424247466e29b0f2b5e72d6f0c8de02b71"
    assert GPU.facts() == "target sm_90a, 132 SMs, 227 KB shared a block, 50 MB L2"
    assert detect_target(torch.device("cpu")) == HOST
    with pytest.raises(ValueError, match="meta"):
        detect_target(torch.device("meta"))


def test_plans_have_numbers() -> None:
    candidate = parse_candidate(CODE, PROGRAM)
    found = plan(PROGRAM, candidate, {"d0": 10})
    first, second = found.launches
    assert (first.grid, first.block, first.shared_bytes, first.args) == ((2, 10, 1), (32, 1, 1), 40, ("in0", "s0"))
    assert (second.grid, second.block, second.shared_bytes) == ((10, 1, 1), (64, 1, 1), 0)
    assert found.zeroed == (("s1", 16),)
    assert buffer_names(PROGRAM, candidate) == ["out0", "s0", "s1", "in0", "in1"]
    assert buffer_bytes(PROGRAM, candidate, {"d0": 10}) == {
        "out0": (63 * 16 + 9 + 1) * 4,
        "s0": 80,
        "s1": 16,
        "in0": (9 * 128 + 63 + 1) * 2,
        "in1": 256,
    }


def test_plans_refuse_what_cannot_be_launched() -> None:
    candidate = parse_candidate(CODE, PROGRAM)
    with pytest.raises(LaunchError, match="grid"):
        plan(PROGRAM, candidate, {"d0": 0})
    with pytest.raises(LaunchError, match="grid"):
        plan(PROGRAM, candidate, {"d0": 65536})
    with pytest.raises(LaunchError, match="symbolic"):
        plan(PROGRAM, candidate, {"d1": 65})
    divides = parse_candidate(CODE.replace("cdiv(d1, 48)", "cdiv(d1, d0 - 5)"), PROGRAM)
    with pytest.raises(LaunchError, match="division by zero"):
        plan(PROGRAM, divides, {"d0": 5})


def test_baseline_cost_is_one_operation_at_a_time() -> None:
    dense = parse_program("""region v1
dims d0=32 d1=64
in0 bf16[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d0,d1] = add(t0, in1)
t2 f32[d0] = sum(t1) over d1
t3 f32[d0] = mul(t2, 0.5)
out0 f32[d0] = t3
out1 bf16[d0,d1] = in0
""")
    big, half, row, rows = 32 * 64 * 4 // 128, 32 * 64 * 2 // 128, 2, 1
    cast, add, total, scale, copy = half + big, big + row + big, big + rows, rows + rows, 2 * half
    assert baseline_cost(dense) == cast + add + total + scale + copy
    assert baseline_cost(PROGRAM, {"d0": 32}) == cast + add
