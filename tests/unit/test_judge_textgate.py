"""Gate 1: what honest kernels need passes, state and host code and hidden words do not."""

from __future__ import annotations

import pytest

from benchmarks.redteam.attacks import ATTACKS
from benchmarks.redteam.honest import HONEST
from cudal1_compile.judge.static.text_gate import MAX_BYTES, CleanText, RefusedText, check_text, strip_comments

KERNEL = "__global__ void k(const f32* in0, f32* out0 DIMS) { st(out0, ld(in0)); }\n"


@pytest.mark.parametrize("honest", HONEST, ids=lambda h: h.name)
def test_passes_honest_kernels_unchanged_but_for_comments(honest: object) -> None:
    item = next(h for h in HONEST if h is honest)
    found = check_text(item.code)
    assert isinstance(found, CleanText)
    assert found.code.split() == item.code.split()


@pytest.mark.parametrize(
    "code",
    [
        "constexpr int N = d0 * 4;\n" + KERNEL,
        "// \u2264 4 rows \u2014 one a warp\r\n" + KERNEL,
        "template <int V> __device__ float g(const float (&v)[V]) { return v[0]; }\n" + KERNEL,
        "static __device__ __forceinline__ float f(float x) { return x; }\n" + KERNEL,
        "struct Pair { float a; int b; __device__ float sum() const { return a + b; } };\n" + KERNEL,
        "extern __shared__ float buffer[];\n" + KERNEL,
        "using word = unsigned int;\ntypedef float real;\n" + KERNEL,
        "__global__ void k(f32* out0 DIMS) { constexpr float taps[2] = {0.25f, 0.5f}; st(out0, taps[1]); }\n",
        "#define TWICE(x) ((x) * 2)\n" + KERNEL,
        'extern "C" ' + KERNEL,
        "constexpr int N = d0;\n__global__ void k(f32* out0 DIMS) { st(out0, (7 & N) + (blockIdx.x & d0)); }\n",
        "__global__ void k(f32* out0 DIMS) { if (out0 && d0) st(out0, 1.0f); }\n",
        KERNEL.replace("{", f"{{ float {', '.join(f't{i}' for i in range(99))}; t0 = d0;"),
        "__global__ void k(f32* out0 DIMS) { static constexpr int Q = 4; auto f = [&](int i) { return i; }; }\n",
    ],
)
def test_passes_what_device_code_needs(code: str) -> None:
    assert isinstance(check_text(code), CleanText)


TEXTUAL = [
    a for a in ATTACKS if a.stages == ("text",) and "plan" not in a.name and a.name != "a launch of nothing"
]


@pytest.mark.parametrize("attack", TEXTUAL, ids=lambda a: a.name)
def test_refuses_textual_attacks(attack: object) -> None:
    item = next(a for a in TEXTUAL if a is attack)
    assert isinstance(check_text(item.code), RefusedText)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("__device__ int calls;", "__device__"),
        ("__device__ int calls(0);", "without a body"),
        ("__device__ decltype(0) calls {1};", "__device__"),
        ("__device__ const int calls = 0;", "__device__"),
        ("__device__ alignas(16) int calls[4];", "without a body"),
        ("struct A { int n; } __device__ a;", "type"),
        ("template <int I> __device__ int calls;", "__device__"),
        ("__global__ void k() { static int n; }", "static"),
        ("__global__ void k() { __device__ int n; }", "__device__"),
        ("__global__ void k() { __device__ int n(0); }", "__device__"),
        ("int helper() { return 1; }", "host code"),
        ("inline int counter;", "constexpr"),
        ("#include <cstdio>", "preprocessor"),
        ("#if 1\n#endif", "preprocessor"),
        ("#define A __device__", "macro"),
        ("%:include <x>", "%:"),
        ("__global__ void k() <% %>", "<%"),
        ("#define static_assert(...)", "redefined"),
        ("#define bytes pointers * 0 + 24", "redefined"),
        ("#undef DIMS", "redefined"),
        ("#define __launch_bounds__(x)", "redefined"),
        ("__constant__ float taps[3] = {0.25f, 0.5f, 0.25f};", "constant memory"),
        ("template <> struct cudal1::Signature<void()> { enum { pointers = 3 }; };", "cudal1"),
        ("constexpr float taps[3] = {0.25f, 0.5f, 0.25f};", "constant array"),
        ("__global__ void k() { static constexpr int n[2] = {0, 0}; ((int*)n)[0]++; }", "constant array"),
        ("struct S { static constexpr int n[1] = {0}; };", "constant array"),
        ("constexpr int calls = 0;\n__global__ void k() { ++*(int*)&calls; }", "address"),
        ("typedef int* P;\nconstexpr int calls = 0;\n__global__ void k() { ++*(P)&calls; }", "address"),
        ("__global__ void k() { ++(int&)d0; }", "address"),
        ("__global__ void k() { ++(int&&)d0; }", "address"),
        ("__global__ void k() { int* p = (int*)(&(in0_d1)); }", "address"),
        ("__global__ void k() { __assertfail(0, 0, 0, 0, 1); }", "assert"),
        ("__global__ void k() { asm volatile (0); }", "assembly"),
        ('__global__ void k() { char* s = "a"; }', "string"),
        ("__global__ void k() { a\\\nb; }", "backslash"),
        ("__global__ void k() {", "braces"),
        ("}", "braces"),
        ("__global__ void k() { cudaMalloc(0, 1); }", "CUDA runtime"),
        ("__global__ void k() { long long t = clock64(); }", "clock"),
        ("__global__ void caf\u00e9() {}", "ASCII"),
        ("// \ud800\n" + KERNEL, "U+D800"),
        ("// \u202e\n" + KERNEL, "U+202E"),
        ("// \0\n" + KERNEL, "U+0000"),
        ("constexpr int n = 1" + "0" * 99 + ";", "number of 100 characters"),
        ("__global__ void k() { float x = .5" + "0" * 99 + "f; }", "number of 101 characters"),
        ("__global__ void k() {" + "/**/" * 2500 + "}", "a line of 2522 characters"),
        ("__thread int calls;", "thread_local"),
        ("const int&& calls = 0;", "constexpr"),
        ("constexpr int t[99] = {" + "1," * 98 + "1};", "table"),
        ("__global__ void k() { const int t[99] = {" + "1," * 98 + "1}; }", "table"),
    ],
)
def test_names_the_reason(code: str, word: str) -> None:
    found = check_text(code)
    assert isinstance(found, RefusedText)
    assert word in found.reason


def test_refuses_by_size_before_anything_else() -> None:
    assert isinstance(check_text("x" * (MAX_BYTES + 1)), RefusedText)
    assert isinstance(check_text("\n" * 5000), RefusedText)


def test_comments_go_and_the_plan_stays() -> None:
    code = "// launch: k<<<1, 32>>>(in0)\n/* a // b */ int x; // /* c\nint y; /* open"
    assert strip_comments(code) == "// launch: k<<<1, 32>>>(in0)\n  int x;\nint y;\n"


def test_a_comment_cannot_hide_code_from_the_gate() -> None:
    code = "/* // */ __device__ int calls;\n"
    assert isinstance(check_text(code), RefusedText)


def test_a_block_without_code_is_left_to_the_plan_s_parser() -> None:
    assert isinstance(check_text(""), CleanText)
