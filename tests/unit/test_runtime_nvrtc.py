"""NVRTC without a GPU: cubins for five archs, resources, and errors that a prompt can quote."""

from __future__ import annotations

import pytest
from product_kernels import CASES, NULL_ROWS, NULL_ROWS_REGION

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime import nvrtc
from cudal1_compile.runtime.build import build, max_block_threads
from cudal1_compile.runtime.sass import repair_waits, short_waits
from cudal1_compile.runtime.source import header_text
from cudal1_compile.runtime.target import GPU_ARCHES, Target
from cudal1_fx_passes.program.text import parse_program
from tests.toolchain import has_nvrtc

pytestmark = pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")

PROGRAM = parse_program("region v1\ndims d0=1024\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n")
HEAD = "__global__ void k(const f32* in0, f32* out0 DIMS) {\n"
BODY = "  out0[threadIdx.x] = block_sum(in0[threadIdx.x]);\n}\n"


def gpu(arch: str = "sm_90a", shared: int = 227 * 1024) -> Target:
    return Target("cuda", "test", arch, 132, shared, 50 << 20)


def try_build(code: str, target: Target | None = None) -> None:
    build(PROGRAM, parse_candidate(code, PROGRAM), target or gpu())


@pytest.mark.parametrize("arch", GPU_ARCHES)
def test_every_arch(arch: str) -> None:
    code = f"// launch: k<<<1, 1024>>>(in0, out0)\n{HEAD}{BODY}"
    binary = build(PROGRAM, parse_candidate(code, PROGRAM), gpu(arch))
    found = binary.kernels["k"]
    assert binary.arch == arch and binary.target_kind == "cuda" and binary.image[:4] == b"\x7fELF"
    assert 8 <= found.registers <= 64 and found.shared_bytes == 128 and found.local_bytes == 0
    assert found.max_threads == 1024 and found.symbol == "_Z1kPKfPf"


def test_the_header_alone_costs_little_and_needs_no_include() -> None:
    assert "#include" not in header_text("cudal1.cuh")
    compiled = nvrtc.compile_cubin(header_text("cudal1.cuh") + "__global__ void k() {}", "sm_80", ("k",))
    assert compiled.kernels["k"].symbol == "_Z1kv" and len(compiled.cubin) < 5000


def test_errors_name_the_candidates_line() -> None:
    code = f"// launch: k<<<1, 32>>>(in0, out0)\n{HEAD}  float x = nosuch(in0[0]);\n  out0[0] = x\n}}\n"
    with pytest.raises(BuildError) as error:
        try_build(code)
    lines = str(error.value).splitlines()
    assert lines[0].startswith('candidate.cu(3): error: identifier "nosuch" is undefined')
    assert len(lines) <= nvrtc.MAX_REASON_LINES


def test_a_symbolic_size_cannot_be_an_array_size() -> None:
    program = parse_program("region v1\ndims d0=?64\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n")
    code = f"// launch: k<<<1, 32>>>(in0, out0)\n{HEAD}  float v[d0];\n  out0[0] = v[0];\n}}\n"
    with pytest.raises(BuildError, match="constant"):
        build(program, parse_candidate(code, program), gpu())


@pytest.mark.parametrize(
    "parameters",
    [
        "const f32* in0",
        "const f32* in0, f32* out0, f32* s0",
        "const f32* in0, f32* out0, int n",
        "const f32* in0, long long out0",
    ],
)
def test_parameters_must_fit_the_launch(parameters: str) -> None:
    with pytest.raises(BuildError, match="launch of k passes 2 pointers"):
        try_build(f"// launch: k<<<1, 32>>>(in0, out0)\n__global__ void k({parameters} DIMS) {{}}\n")


def test_parameters_of_other_pointer_types_fit() -> None:
    head = "__global__ void __launch_bounds__(32) k(const float4* __restrict__ const a, void* __restrict__ b DIMS)"
    try_build(f"// launch: k<<<1, 32>>>(in0, out0)\n{head} {{ ((float4*)b)[0] = a[0]; }}\n")
    program = parse_program("region v1\ndims d0=?64\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n")
    for tail, fits in (("DIMS", True), (", int n", True), ("", False), (", long long n", False)):
        code = f"// launch: k<<<1, 32>>>(in0, out0)\n__global__ void k(const f32* in0, f32* out0 {tail}) {{}}\n"
        if fits:
            build(program, parse_candidate(code, program), gpu())
            continue
        with pytest.raises(BuildError, match="DIMS"):
            build(program, parse_candidate(code, program), gpu())


def test_a_block_with_too_many_registers_is_refused() -> None:
    body = "  float v[96];\n  for (int j = 0; j < 96; j++) v[j] = in0[threadIdx.x + j];\n  float s = 0;\n"
    body += "  __syncthreads();\n  for (int r = 0; r < d0; r++)\n"
    body += "    for (int j = 0; j < 96; j++) v[j] = v[j] * v[(j + 7) % 96] + s, s += v[j];\n"
    body += "  for (int j = 0; j < 96; j++) out0[threadIdx.x * 96 + j] = v[j];\n}\n"
    with pytest.raises(BuildError, match="block of 1024 threads"):
        try_build(f"// launch: k<<<1, 1024>>>(in0, out0)\n{HEAD}{body}")
    try_build(f"// launch: k<<<1, 128>>>(in0, out0)\n{HEAD}{body}")


def test_launch_bounds_limit_the_block() -> None:
    head = HEAD.replace("void k", "void __launch_bounds__(256) k")
    with pytest.raises(BuildError, match="allow 256"):
        try_build(f"// launch: k<<<1, 512>>>(in0, out0)\n{head}{BODY}")
    try_build(f"// launch: k<<<1, 256>>>(in0, out0)\n{head}{BODY}")


def test_shared_memory_is_limited_by_the_target() -> None:
    code = f"// launch: k<<<1, 32, 120000>>>(in0, out0)\n{HEAD}{BODY}"
    try_build(code)
    with pytest.raises(BuildError, match="a block has 101376"):
        try_build(code, gpu("sm_86", 99 * 1024))


@pytest.mark.parametrize(
    ("registers", "threads"), [(32, 1024), (64, 1024), (65, 896), (128, 512), (255, 256), (0, 1024)]
)
def test_registers_bound_the_block(registers: int, threads: int) -> None:
    assert max_block_threads(registers) == threads


COUNTED = "__device__ int bump(const int& x) { return atomicAdd((int*)&x, 1); }\n"


@pytest.mark.parametrize(
    ("before", "within"),
    [
        ("constexpr int N = 5;\n" + COUNTED, "bump(N)"),
        ("struct S { static constexpr int N = 5; };\n" + COUNTED, "bump(S::N)"),
        (
            "struct P { int a; __device__ int* at() const { return (int*)this; } };\nconstexpr P N{1};\n",
            "++*N.at()",
        ),
        ("struct S { static constexpr int N[3] = {5, 6, 7}; };\n", "S::N[threadIdx.x % 3]"),
        ("__device__ int N = 5;\n", "++N"),
    ],
)
def test_data_that_outlives_a_launch_is_refused(before: str, within: str) -> None:
    code = f"// launch: k<<<1, 32>>>(in0, out0)\n{before}{HEAD}  out0[0] = {within};\n}}\n"
    with pytest.raises(BuildError, match="outlives a launch"):
        try_build(code)


def test_constants_that_are_folded_and_the_librarys_own_tables_are_not() -> None:
    code = (
        f"// launch: k<<<1, 32>>>(in0, out0)\nconstexpr float N = 5.0f;\n{HEAD}  const int t[8] = {{3, 1, 4}};\n"
        "  float s = sinf(in0[0]) + (float)sin((double)in0[1]);\n"
        "  out0[threadIdx.x] = s + maximum(N, in0[2]) + t[threadIdx.x % 8];\n}\n"
    )
    try_build(code)


def test_zeroed_pointers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas 13.0 reads them a cycle too early; the cubin of this kernel ended in illegal accesses on an H100."""
    program = parse_program(NULL_ROWS_REGION)
    candidate = parse_candidate(NULL_ROWS, program)
    repaired = build(program, candidate, gpu()).image
    assert list(short_waits(repaired)) == []
    monkeypatch.setattr(nvrtc, "repair_waits", lambda cubin: cubin)
    plain = build(program, candidate, gpu()).image
    lacking = list(short_waits(plain))
    if nvrtc.version() == "13.0":
        assert lacking
    assert repaired == repair_waits(plain) and sum(
        a != b for a, b in zip(repaired, plain, strict=True)
    ) <= 2 * len(lacking)


def test_split_products_of_whole_groups_use_wgmma_on_hopper_alone() -> None:
    case = next(c for c in CASES if c.arithmetic == "f32_split" and c.tile == (128, 128, 32))
    program = case.program()
    hopper = build(program, case.candidate(program), Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20))
    ampere = build(program, case.candidate(program), Target("cuda", "test", "sm_80", 108, 163 * 1024, 40 << 20))
    (there,), (not_there,) = hopper.kernels.values(), ampere.kernels.values()
    assert there.shared_bytes == 2 * 128 * 128 and not_there.shared_bytes == 0  # a tile cut in two
    assert there.local_bytes == 0


def test_an_image_beyond_all_measure_is_a_build_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "MAX_IMAGE_BYTES", 1000)
    with pytest.raises(BuildError, match=r"the built code has \d{4,5} bytes, at most 1000 are allowed"):
        try_build(f"// launch: k<<<1, 1024>>>(in0, out0)\n{HEAD}{BODY}")
