"""The check build finds every planted fault, with its line, and leaves right kernels alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, HostRun, run_isolated
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.text import parse_program

pytestmark = pytest.mark.host

PROGRAM = parse_program("""region v1
dims d0=256
in0 f32[d0]
in1 f32[d0]
t0 f32[d0] = add(in0, in1)
out0 f32[d0] = t0
""")
HEAD = "__global__ void k(const f32* __restrict__ in0, const f32* __restrict__ in1, f32* out0 DIMS) {\n"
TID = "const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"


@dataclass(frozen=True)
class Planted:
    name: str
    kind: str
    body: str  # of a kernel over in0, in1, out0; the faulty line ends in // FAULT
    launch: str = "k<<<1, 256>>>(in0, in1, out0)"
    scratch: str = ""
    head: str = HEAD


SCRATCH_HEAD = HEAD.replace("f32* out0", "f32* out0, f32* s0")
SCRATCH_LAUNCH = "k<<<2, 128>>>(in0, in1, out0, s0)"

FAULTS = [
    Planted("read_past_input", "out_of_bounds", TID + "out0[i] = in0[i + 1] + in1[i]; // FAULT"),
    Planted("read_before_input", "out_of_bounds", TID + "out0[i] = in0[i - 1] + in1[i]; // FAULT"),
    Planted("write_past_output", "out_of_bounds", TID + "out0[i + (i == 255)] = in0[i] + in1[i]; // FAULT"),
    Planted("far_write", "out_of_bounds", TID + "out0[i + 10000000] = in0[i]; // FAULT"),
    Planted("write_to_input", "input_written", TID + "((f32*)in0)[i] = 0.0f; // FAULT\nout0[i] = in1[i];"),
    Planted(
        "shared_past_the_end",
        "out_of_bounds",
        TID + "__shared__ f32 s[256];\nf32* p = s;\np[i + 100 * (i == 200)] = in0[i]; // FAULT\n"
        "__syncthreads();\nout0[i] = s[i];",
    ),
    Planted(
        "dynamic_shared_past_the_end",
        "out_of_bounds",
        TID + "extern __shared__ f32 s[];\ns[i] = in0[i]; // FAULT\n__syncthreads();\nout0[i] = s[255 - i];",
        launch="k<<<1, 256, 1020>>>(in0, in1, out0)",
    ),
    Planted("local_array_index", "out_of_bounds", TID + "f32 v[4];\nv[0] = in0[i];\nout0[i] = v[i % 8]; // FAULT"),
    Planted(
        "stack_smash",
        "out_of_bounds",
        TID + "f32 v[4];\nf32* p = v;\nfor (int j = 0; j < 4 + i % 64; j++) p[j] = in0[j];\nout0[i] = v[i % 4];",
    ),
    Planted(
        "missing_barrier",
        "uninitialised",
        TID + "__shared__ f32 s[256];\ns[i] = in0[i];\nout0[i] = s[255 - i] + in1[i]; // FAULT",
    ),
    Planted(
        "second_barrier_missing",
        "race",
        TID + "__shared__ f32 s[256];\nf32 r = 0.0f;\nfor (int j = 0; j < 2; j++) {\n"
        "s[i] = in0[i] * j;\n__syncthreads();\nr += s[255 - i]; // FAULT\n}\nout0[i] = r;",
    ),
    Planted(
        "warp_neighbours_without_syncwarp",
        "uninitialised",
        TID + "__shared__ f32 s[256];\ns[i] = in0[i];\nout0[i] = s[i ^ 1]; // FAULT",
    ),
    Planted("all_write_one_place", "race", TID + "out0[i] = in0[i];\nout0[0] = in1[i]; // FAULT"),
    Planted(
        "race_between_blocks",
        "race",
        "const int i = threadIdx.x;\nout0[i] = in0[i] + blockIdx.x; // FAULT",
        launch="k<<<2, 256>>>(in0, in1, out0)",
    ),
    Planted(
        "atomic_and_plain_write",
        "race",
        TID + "out0[i] = in0[i];\n__syncthreads();\nif (i < 128) atomicAdd(out0, 1.0f);\n"
        "else out0[0] = 2.0f; // FAULT",
    ),
    Planted(
        "shared_never_written",
        "uninitialised",
        TID + "__shared__ f32 s[256];\nif (i < 255) s[i] = in0[i];\n__syncthreads();\nout0[i] = s[i]; // FAULT",
    ),
    Planted(
        "last_block_counts_before_its_warps_have_written",
        "race",
        TID + "__shared__ bool last;\ns0[1 + i] = in0[i] + in1[i];\n__threadfence();\n"
        "if (threadIdx.x == 0) last = atomicAdd(s0, 1.0f) == 1.0f;\n__syncthreads();\nif (!last) return;\n"
        "for (int j = threadIdx.x; j < d0; j += 128)\nout0[j] = s0[1 + j]; // FAULT",
        launch=SCRATCH_LAUNCH,
        scratch="// scratch: s0 f32[d0 + 1] = 0\n",
        head=SCRATCH_HEAD,
    ),
    Planted("output_read_first", "uninitialised", TID + "out0[i] += in0[i]; // FAULT"),
    Planted(
        "scratch_read_first",
        "uninitialised",
        TID + "out0[i] = s0[i] + in0[i]; // FAULT",
        launch=SCRATCH_LAUNCH,
        scratch="// scratch: s0 f32[d0]\n",
        head=SCRATCH_HEAD,
    ),
    Planted(
        "barrier_in_a_branch",
        "barrier_divergence",
        TID + "if (i < 100) {\n__syncthreads();\nout0[i] = 1.0f;\n} else {\n__syncthreads(); // FAULT\n"
        "out0[i] = 2.0f;\n}",
    ),
    Planted(
        "barrier_for_some_then_shuffle",
        "deadlock",
        TID
        + "f32 v = in0[i];\nif (i < 16) __syncthreads();\nv += __shfl_xor_sync(~0u, v, 1); // FAULT\nout0[i] = v;",
    ),
    Planted(
        "shuffle_after_exit",
        "warp_misuse",
        TID + "out0[i] = 0.0f;\nif (i % 32 == 5) return;\nout0[i] = warp_sum(in0[i]); // FAULT",
    ),
    Planted(
        "mask_without_the_caller",
        "warp_misuse",
        TID + "out0[i] = __shfl_sync(0x0000ffffu, in0[i], 0); // FAULT",
    ),
    Planted(
        "different_collectives",
        "warp_misuse",
        TID
        + "f32 v;\nif (i % 2) v = __shfl_xor_sync(~0u, in0[i], 2);\nelse v = __shfl_down_sync(~0u, in0[i], 2);\n"
        "out0[i] = v;",
    ),
    Planted(
        "warp_sum_in_two_branches",
        "warp_misuse",
        TID + "f32 v;\nif (i % 2) v = warp_sum(in0[i]);\nelse v = warp_sum(in1[i]);\nout0[i] = v;",
    ),
    Planted(
        "block_sum_in_two_branches",
        "barrier_divergence",
        TID + "f32 v;\nif (i < 128)\nv = block_sum(in0[i]);\nelse\nv = block_sum(in1[i]); // FAULT\nout0[i] = v;",
    ),
    Planted(
        "misaligned_vector",
        "misaligned",
        TID + "float v[4];\nif (i < 8) vload<4>(in0 + i * 4 + 1, v); // FAULT\nout0[i] = in0[i];",
    ),
    Planted(
        "misaligned_float4",
        "misaligned",
        TID + "if (i < 8) ((float4*)(out0 + 2))[i] = make_float4(1, 2, 3, 4); // FAULT\nelse out0[i] = 0.0f;",
    ),
    Planted("null_pointer", "out_of_bounds", TID + "out0[i] = *(const f32*)(i * 4ll); // FAULT"),
    Planted("division_by_zero", "arithmetic", TID + "out0[i] = in0[i] + 100 / (i - 7); // FAULT"),
    Planted("trap", "trap", TID + "out0[i] = in0[i];\nif (i == 3) __trap(); // FAULT"),
    Planted(
        "endless_loop",
        "timeout",
        TID + "out0[i] = 0;\nwhile (out0[i] >= 0) out0[i] = out0[i] < 1e6f ? out0[i] + 1 : 0; // FAULT",
    ),
    Planted(
        "endless_wait", "deadlock", TID + "out0[i] = in0[i];\nwhile (out0[i] >= -1.0f) out0[i] = 1.0f; // FAULT"
    ),
    Planted("endless_empty_loop", "timeout", TID + "volatile int x = i;\nwhile (x >= 0) x = x; // FAULT"),
    Planted("endless_recursion", "memory_fault", TID + "out0[i] = deep(i);"),
    Planted(
        "too_much_shared", "bad_launch", TID + "out0[i] = in0[i];", launch="k<<<1, 256, 300000>>>(in0, in1, out0)"
    ),
]
DEEP = """__device__ __noinline__ int deep(int i) {
  volatile int a[64];
  a[i % 64] = i;
  return i < 0 ? 0 : deep(i + 1) + a[i % 64];
}
"""

RIGHT = [
    Planted("pointwise", "", TID + "out0[i] = in0[i] + in1[i];"),
    Planted(
        "tail_guard", "", TID + "if (i < d0) out0[i] = in0[i] + in1[i];", launch="k<<<3, 96>>>(in0, in1, out0)"
    ),
    Planted(
        "early_exit_then_barrier",
        "",
        TID + "if (i >= d0) return;\n__syncthreads();\nout0[i] = in0[i] + in1[i];",
        launch="k<<<3, 96>>>(in0, in1, out0)",
    ),
    Planted(
        "vectors",
        "",
        TID + "float a[4], b[4];\nvload<4>(in0 + 4 * i, a);\nvload<4>(in1 + 4 * i, b);\n"
        "for (int j = 0; j < 4; j++) a[j] += b[j];\nvstore<4>(out0 + 4 * i, a);",
        launch="k<<<1, 64>>>(in0, in1, out0)",
    ),
    Planted(
        "shared_with_barriers",
        "",
        TID + "__shared__ f32 s[256];\nfor (int j = 0; j < 3; j++) {\ns[i] = in0[i] + in1[i];\n__syncthreads();\n"
        "out0[255 - i] = s[255 - i];\n__syncthreads();\n}",
    ),
    Planted(
        "dynamic_shared",
        "",
        TID
        + "extern __shared__ __align__(16) f32 s[];\ns[i] = in0[i];\n__syncthreads();\nout0[255 - i] = s[255 - i] "
        "+ in1[255 - i];",
        launch="k<<<1, 256, 1024>>>(in0, in1, out0)",
    ),
    Planted(
        "warp_exchange_with_syncwarp",
        "",
        TID
        + "__shared__ f32 s[256];\ns[i ^ 1] = in0[i];\n__syncwarp();\nf32 v = s[i];\n__syncwarp();\ns[i] = 0.0f;\n"
        "out0[i ^ 1] = v + in1[i ^ 1];",
    ),
    Planted(
        "block_reductions_back_to_back",
        "",
        TID + "f32 a = block_sum(in0[i]);\nf32 b = block_max(in1[i]);\nf32 c = block_sum(a);\nf32 t;\n"
        "block_scan_sum(c, t);\nint j = i;\nf32 v = in0[i];\nblock_argmax(v, j);\n"
        "out0[i] = in0[i] + in1[i] + 0.0f * (a + b + c + t + v + j);",
    ),
    Planted(
        "partial_mask",
        "",
        TID + "f32 v = in0[i] + in1[i];\nif (i % 32 < 16) {\nf32 w = __shfl_down_sync(0xffffu, v, 8);\n"
        "if (i % 32 < 8) v += 0.0f * w;\n}\nout0[i] = v;",
    ),
    Planted(
        "atomics",
        "",
        TID + "atomicAdd(s0, 0.0f);\natomic_max(s0, -1.0f);\nout0[i] = in0[i] + in1[i];",
        launch=SCRATCH_LAUNCH,
        scratch="// scratch: s0 f32[1] = 0\n",
        head=SCRATCH_HEAD,
    ),
    Planted(
        "last_block_pattern",
        "",
        TID + "__shared__ bool last;\ns0[1 + i] = in0[i] + in1[i];\n__threadfence();\n__syncthreads();\n"
        "if (threadIdx.x == 0) last = atomicAdd(s0, 1.0f) == 1.0f;\n__syncthreads();\nif (!last) return;\n"
        "for (int j = threadIdx.x; j < d0; j += 128) out0[j] = s0[1 + j];",
        launch=SCRATCH_LAUNCH,
        scratch="// scratch: s0 f32[d0 + 1] = 0\n",
        head=SCRATCH_HEAD,
    ),
    Planted(
        "last_thread_pattern",
        "",
        TID + "s0[1 + i] = in0[i] + in1[i];\n__threadfence();\nif (atomicAdd(s0, 1.0f) < 255.0f) return;\n"
        "__threadfence();\nfor (int j = 0; j < d0; j++) out0[j] = s0[1 + j];",
        launch=SCRATCH_LAUNCH.replace("2, 128", "256, 1"),
        scratch="// scratch: s0 f32[d0 + 1] = 0\n",
        head=SCRATCH_HEAD,
    ),
    Planted(
        "last_warp_pattern",
        "",
        TID + "bool last = false;\ns0[1 + i] = in0[i] + in1[i];\n__threadfence();\n__syncwarp();\n"
        "if (i % 32 == 0) last = atomicAdd(s0, 1.0f) == 7.0f;\nif (!__any_sync(~0u, last)) return;\n"
        "__threadfence();\nfor (int j = i % 32; j < d0; j += 32) out0[j] = s0[1 + j];",
        launch=SCRATCH_LAUNCH.replace("2, 128", "8, 32"),
        scratch="// scratch: s0 f32[d0 + 1] = 0\n",
        head=SCRATCH_HEAD,
    ),
    Planted(
        "square_block",
        "",
        "const int i = threadIdx.y * 16 + threadIdx.x;\n__shared__ f32 s[16][17];\n"
        "s[threadIdx.y][threadIdx.x] = in0[i];\n"
        "__syncthreads();\nconst int j = threadIdx.x * 16 + threadIdx.y;\n"
        "out0[j] = s[threadIdx.x][threadIdx.y] + in1[j];",
        launch="k<<<1, dim3(16, 16)>>>(in0, in1, out0)",
    ),
]


def code_of(case: Planted) -> str:
    helper = DEEP if "deep(" in case.body else ""
    return f"{case.scratch}// launch: {case.launch}\n{helper}{case.head}{case.body}\n}}\n"


def run(
    case: Planted, check: bool = True, limits: HostLimits | None = None
) -> tuple[HostRun, torch.Tensor, torch.Tensor]:
    candidate = parse_candidate(code_of(case), PROGRAM)
    binary = build(PROGRAM, candidate, HOST, check=check)
    generator = torch.Generator().manual_seed(0)
    buffers = {name: torch.rand(256, generator=generator) for name in ("in0", "in1")}
    buffers["out0"] = torch.full((256,), float("nan"))
    if candidate.scratch:
        size = candidate.scratch[0].size_bytes({"d0": 256}) // 4
        buffers["s0"] = torch.full((size,), float("nan"))
    found = run_isolated(PROGRAM, candidate, binary.image, buffers, limits or HostLimits(seconds=1.5))
    return found, buffers["out0"], buffers["in0"] + buffers["in1"]


@pytest.mark.parametrize("case", FAULTS, ids=lambda c: c.name)
def test_a_planted_fault_is_found(case: Planted) -> None:
    if case.name == "too_much_shared":
        with pytest.raises(BuildError, match="shared memory"):
            run(case)
        return
    found, _, _ = run(case)
    assert found.status == ("timeout" if case.kind == "timeout" else "fault"), found
    assert found.kind == case.kind, found
    assert found.cost is None
    lines = [n for n, line in enumerate(code_of(case).splitlines(), 1) if line.endswith("// FAULT")]
    if lines:
        assert found.line == lines[0], found


def test_static_shared_memory_is_limited_by_the_kernel() -> None:
    """Two kernels of 30,000 bytes each are no kernel of 60,000, alone or beside what is dynamic."""
    kernel = (
        "__global__ void {}(const f32* in0, const f32* in1, f32* out0 DIMS) {{\n__shared__ f32 s[{}];\n"
        "s[threadIdx.x] = in0[threadIdx.x];\n__syncthreads();\n"
        "out0[threadIdx.x] = s[threadIdx.x] + in1[threadIdx.x];\n}}\n"
    )
    launches = "// launch: {}<<<1, 256, 200000>>>(in0, in1, out0)\n"
    head = launches.format("k") + launches.format("l")
    candidate = parse_candidate(head + kernel.format("k", 7500) + kernel.format("l", 7500), PROGRAM)
    build(PROGRAM, candidate, HOST, check=True)
    with pytest.raises(BuildError, match="static shared memory in 2 kernels"):
        build(PROGRAM, parse_candidate(head + kernel.format("k", 7500) + kernel.format("l", 20000), PROGRAM), HOST)


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c.name)
def test_a_right_kernel_passes_in_every_order_at_one_cost(case: Planted) -> None:
    costs = set()
    for order in ("forward", "reverse", "random"):
        found, got, want = run(case, limits=HostLimits(order=order, seed=7))  # type: ignore[arg-type]
        assert found.ok, found
        torch.testing.assert_close(got, want)
        costs.add(found.cost)
    if case.name not in ("last_block_pattern", "atomics"):  # theirs depends on who comes last
        assert len(costs) == 1, costs
    found, got, want = run(case, check=False)
    assert found.ok and found.cost is None
    torch.testing.assert_close(got, want)


REFUSED = {
    "exit": ("out0[0] = 0.0f; exit(0);", "exit"),
    "fork": ("out0[0] = (f32)fork();", "fork"),
    "system": ('out0[0] = (f32)system("true");', "system"),
    "printf": ('printf("%d", 1);', "printf"),
    "builtin_printf": ('__builtin_printf("x%d", 1);', "printf"),
    "malloc": ("out0[0] = *(f32*)__builtin_malloc(4);", "malloc"),
    "include": ("}\n#include <stdlib.h>\n__global__ void k2() {", "includes"),
    "asm": ('asm("nop");', "inline assembly"),
    "split_asm": ('as\\\nm("nop");', "inline assembly"),
    "pasted_asm": ('}\n#define A as##m\n__global__ void k2() { A("nop");', "token pasting"),
    "hidden_by_a_number": ("int n = 1'0; asm(\"nop\"); n = 1'0;", "inline assembly"),
    "section": ('__attribute__((section("x"))) static int x;', "attributes"),
    "runtime_initialiser": (
        "}\nstatic float x = expf(threadIdx.x);\n__global__ void k2(f32* out0) { out0[0] = x;",
        "run time",
    ),
    "libc_by_declaration": (
        '}\nextern "C" int getpid();\n__global__ void k2(f32* out0) { out0[0] = getpid();',
        "getpid",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("check", [False, True])
def test_the_build_refuses_what_device_code_may_not_hold(name: str, check: bool) -> None:
    body, word = REFUSED[name]
    if name in ("exit", "fork", "system", "printf"):
        declared = "void exit(int); int fork(); int system(const char*); int printf(const char*, ...);"
        body = f'}}\nextern "C" {{ {declared} }}\n{HEAD.replace("k(", "k3(")}{body}'
    code = f"// launch: k<<<1, 32>>>(in0, in1, out0)\n{HEAD}{body}\n}}\n"
    with pytest.raises(BuildError, match=word):
        build(PROGRAM, parse_candidate(code, PROGRAM), HOST, check=check)


def test_the_plain_build_survives_crashes_and_hangs() -> None:
    for name, status in (("far_write", "fault"), ("null_pointer", "fault"), ("endless_empty_loop", "timeout")):
        case = next(c for c in FAULTS if c.name == name)
        found, _, _ = run(case, check=False, limits=HostLimits(seconds=1.0))
        assert found.status == status, found


def test_a_near_write_touches_the_canaries_of_a_plain_build() -> None:
    case = next(c for c in FAULTS if c.name == "write_past_output")
    found, _, _ = run(case, check=False)
    assert (found.status, found.kind) == ("fault", "out_of_bounds")


def test_the_child_gives_up_its_system_calls() -> None:
    found, _, _ = run(RIGHT[0])
    assert dict(found.seal)["no_system_calls"]


def test_cost_counts_lines_and_barriers() -> None:
    found, _, _ = run(RIGHT[0])
    assert found.cost == 3 * 256 * 4 // 128  # two inputs and one output, each line once
    strided = Planted("", "", "const int i = threadIdx.x % 8 * 32 + threadIdx.x / 8;\nout0[i] = in0[i] + in1[i];")
    found, _, _ = run(strided)
    assert found.cost == 3 * 8 * 8  # each of 8 warps touches 8 lines in every access
    vectors = "float a[8], b[8];\nvload<8>(in0 + 8 * i, a);\nvload<8>(in1 + 8 * i, b);\n"
    vectors += "for (int j = 0; j < 8; j++) a[j] += b[j];\nvstore<8>(out0 + 8 * i, a);"
    found, _, _ = run(Planted("", "", TID + vectors, launch="k<<<1, 32>>>(in0, in1, out0)"))
    assert found.cost == 3 * 8  # both halves of a vector are one access
    asked = TID + vectors.replace("vstore<8>(out0 + 8 * i, a)", "vstore<8>(out0 + 8 * i, a, i >= 0)")
    found, _, _ = run(Planted("", "", asked, launch="k<<<1, 32>>>(in0, in1, out0)"))
    assert found.cost == 3 * 8  # as are those of one that asks whether to store
    halves = TID + "for (int j = 0; j < 8; j++) out0[8 * i + j] = in0[8 * i + j] + in1[8 * i + j];"
    found, _, _ = run(Planted("", "", halves, launch="k<<<1, 32>>>(in0, in1, out0)"))
    assert found.cost == 3 * 8 * 8  # scalars far apart are not
    barriers, _, _ = run(next(c for c in RIGHT if c.name == "shared_with_barriers"))
    assert barriers.cost == 3 * (3 * 8 + 2)
