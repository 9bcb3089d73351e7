"""Loads and launches real kernels: results, streams, CUDA graphs, threads, alignment, and what a call costs.

Run `pytest tests/gpu/test_runtime_gpu.py -s` to see the measured microseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cudal1_compile.errors import LaunchError
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime import driver, launch_table
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.launcher import LoadedKernel, allocate, load
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

POINTWISE = """region v1
dims d0=1000 d1=1024
in0 bf16[d0,d1]
in1 bf16[d1]
t0 bf16[d0,d1] = add(in0, in1)
t1 bf16[d0,d1] = relu(t0)
out0 bf16[d0,d1] = t1
"""
POINTWISE_CODE = """// launch: add_relu<<<cdiv(d0 * d1, 2048), 256>>>(in0, in1, out0)
__global__ void add_relu(const in0_t* __restrict__ in0, const in1_t* __restrict__ in1, out0_t* out0 DIMS) {
  const int i = (blockIdx.x * 256 + threadIdx.x) * 8;
  if (i >= d0 * d1) return;
  float a[8], b[8];
  vload<8>(in0 + i, a);
  vload<8>(in1 + i % d1, b);
#pragma unroll
  for (int k = 0; k < 8; k++) a[k] = relu(round_to<bf16>(a[k] + b[k]));
  vstore<8>(out0 + i, a);
}
"""
# Two launches that share scratch: column sums by atomics into zeroed memory, then a division by them.
COLUMNS = """region v1
dims d0=777 d1=640
in0 f32[d0,d1]
t0 f32[d1] = sum(in0) over d0
t1 f32[d0,d1] = div(in0, t0)
out0 f32[d0,d1] = t1
out1 f32[d1] = t0
"""
COLUMNS_CODE = """// scratch: s0 f32[d1] = 0
// launch: sums<<<dim3(cdiv(d1, 128), 8), 128>>>(in0, s0)
// launch: divide<<<dim3(cdiv(d1, 128), d0), 128>>>(in0, s0, out0, out1)
__global__ void sums(const f32* __restrict__ in0, f32* s0 DIMS) {
  const int column = blockIdx.x * 128 + threadIdx.x;
  if (column >= d1) return;
  float total = 0.0f;
  for (int row = blockIdx.y; row < d0; row += 8) total += in0[row * d1 + column];
  atomic_add(s0 + column, total);
}
__global__ void divide(const f32* __restrict__ in0, const f32* __restrict__ s0, f32* out0, f32* out1 DIMS) {
  const int column = blockIdx.x * 128 + threadIdx.x;
  if (column >= d1) return;
  const int i = blockIdx.y * d1 + column;
  out0[i] = in0[i] / s0[column];
  if (blockIdx.y == 0) out1[column] = s0[column];
}
"""
SOFTMAX = """region v1
dims d0=?37 d1=1024
in0 f16[d0,d1]
t0 f32[d0,d1] = cast(in0)
t1 f32[d0] = amax(t0) over d1
t2 f32[d0,d1] = sub(t0, t1)
t3 f32[d0,d1] = exp(t2)
t4 f32[d0] = sum(t3) over d1
t5 f32[d0,d1] = div(t3, t4)
out0 f32[d0,d1] = t5
"""
SOFTMAX_CODE = """// launch: softmax<<<d0, 256>>>(in0, out0)
__global__ void softmax(const f16* __restrict__ in0, f32* __restrict__ out0 DIMS) {
  const int i = blockIdx.x * d1 + threadIdx.x * 4;
  if (blockIdx.x >= d0) return;
  float v[4];
  vload<4>(in0 + i, v);
  float top = block_max(maximum(maximum(v[0], v[1]), maximum(v[2], v[3])));
  float total = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; k++) total += v[k] = expf(v[k] - top);
  total = block_sum(total);
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] /= total;
  vstore<4>(out0 + i, v);
}
"""
# 100 KiB of dynamic shared memory: more than a launch gets without the attribute set at load.
REVERSE = """region v1
dims d0=25600
in0 f32[d0]
t0 i64[d0] = iota() along d0
t1 f32[d0] = neg(in0)
out0 f32[d0] = t1
"""
REVERSE_CODE = """// launch: through_shared<<<1, 1024, d0 * 4>>>(in0, out0)
__global__ void through_shared(const f32* __restrict__ in0, f32* out0 DIMS) {
  extern __shared__ f32 whole[];
  for (int i = threadIdx.x; i < d0; i += 1024) whole[d0 - 1 - i] = -in0[i];
  __syncthreads();
  for (int i = threadIdx.x; i < d0; i += 1024) out0[i] = whole[d0 - 1 - i];
}
"""


@pytest.fixture(scope="module")
def target() -> Target:
    return detect_target(torch.device("cuda"))


def loaded(text: str, code: str, target: Target) -> tuple[Program, Candidate, LoadedKernel]:
    program = parse_program(text)
    candidate = parse_candidate(code, program)
    return program, candidate, load(program, candidate, build(program, candidate, target))


def call(
    program: Program, candidate: Candidate, kernel: LoadedKernel, inputs: list[Tensor], sizes: dict[str, int]
) -> list[Tensor]:
    outputs, scratch = allocate(program, candidate, torch.device("cuda"), sizes)
    for tensor in (*outputs, *scratch):
        tensor.fill_(float("nan"))
    stream = torch.cuda.current_stream().cuda_stream
    kernel(*outputs, *scratch, *inputs, *sizes.values(), stream)
    return outputs


def test_pointwise(target: Target) -> None:
    program, candidate, kernel = loaded(POINTWISE, POINTWISE_CODE, target)
    a = torch.randn(1000, 1024, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1024, device="cuda", dtype=torch.bfloat16)
    a[3, 5] = float("nan")
    (got,) = call(program, candidate, kernel, [a, b], {})
    torch.testing.assert_close(got, torch.relu(a + b), rtol=0, atol=0, equal_nan=True)
    kernel.close()
    with pytest.raises(LaunchError, match="closed"):
        kernel(got, a, b, 0)


def test_two_launches_with_zeroed_scratch(target: Target) -> None:
    program, candidate, kernel = loaded(COLUMNS, COLUMNS_CODE, target)
    x = torch.rand(777, 640, device="cuda") + 0.5
    for _ in range(3):  # the scratch is zeroed before every call
        got, sums = call(program, candidate, kernel, [x], {})
        torch.testing.assert_close(sums, x.double().sum(0).float())
        torch.testing.assert_close(got, x / x.sum(0))


def test_a_symbolic_dim(target: Target) -> None:
    program, candidate, kernel = loaded(SOFTMAX, SOFTMAX_CODE, target)
    for rows in (37, 1, 500, 37):
        x = torch.randn(rows, 1024, device="cuda").half()
        (got,) = call(program, candidate, kernel, [x], {"d0": rows})
        torch.testing.assert_close(got, torch.softmax(x.float(), 1))


def test_much_dynamic_shared_memory(target: Target) -> None:
    program, candidate, kernel = loaded(REVERSE, REVERSE_CODE, target)
    x = torch.randn(25600, device="cuda")
    (got,) = call(program, candidate, kernel, [x], {})
    torch.testing.assert_close(got, -x)


def test_another_stream(target: Target) -> None:
    program, candidate, kernel = loaded(COLUMNS, COLUMNS_CODE, target)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.rand(777, 640, device="cuda") + 0.5
        torch.cuda._sleep(20_000_000)  # what follows is only right when it waits for its own stream
        x.mul_(2.0)
        got, _ = call(program, candidate, kernel, [x], {})
        want = x / x.sum(0)
    stream.synchronize()
    torch.testing.assert_close(got, want)


def test_capture_and_replay(target: Target) -> None:
    program, candidate, kernel = loaded(COLUMNS, COLUMNS_CODE, target)
    x = torch.rand(777, 640, device="cuda") + 0.5
    outputs, scratch = allocate(program, candidate, torch.device("cuda"))
    graph = torch.cuda.CUDAGraph()
    # no warm-up: the first launch of a kernel may itself be captured
    with torch.cuda.graph(graph):
        kernel(*outputs, *scratch, x, torch.cuda.current_stream().cuda_stream)
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.rand(777, 640, device="cuda") + 0.5)
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(outputs[0], x / x.sum(0))


def test_a_thread_that_never_used_the_device(target: Target) -> None:
    program, candidate, kernel = loaded(POINTWISE, POINTWISE_CODE, target)
    a = torch.randn(1000, 1024, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1024, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            kernel(out, a, b, 0)
        except LaunchError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures, failures
    torch.testing.assert_close(out, torch.relu(a + b), rtol=0, atol=0)


def test_pointers_that_are_not_aligned(target: Target) -> None:
    program, candidate, kernel = loaded(SOFTMAX, SOFTMAX_CODE, target)
    store = torch.randn(5 * 1024 + 1, device="cuda").half()
    x = store[1:].view(5, 1024)
    out_store = torch.zeros(5 * 1024 + 1, device="cuda")
    out = out_store[1:].view(5, 1024)
    kernel(out, x, 5, torch.cuda.current_stream().cuda_stream)
    torch.testing.assert_close(out, torch.softmax(x.float(), 1))
    assert out_store[0] == 0
    with pytest.raises(LaunchError, match="aligned"):
        kernel(out.data_ptr(), x.data_ptr(), 5, 0)


def test_a_launch_that_the_driver_refuses(target: Target) -> None:
    program, candidate, kernel = loaded(SOFTMAX, SOFTMAX_CODE, target)
    x = torch.randn(5, 1024, device="cuda").half()
    with pytest.raises(LaunchError, match="grid"):
        kernel(torch.empty(5, 1024, device="cuda"), x, 0, 0)
    table = kernel._resolve((5,))
    broken = tuple((*row[:4], 4096, *row[5:]) for row in table[0])  # 4096 threads a block
    functions = driver.functions()
    shape = launch_table.CallShape(2, 1, lambda _: (broken, ()), kernel._call_unaligned, kernel._failed)
    for launcher in (launch_table.make_launcher(shape, functions), launch_table.CtypesLauncher(shape, functions)):
        with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"):
            launcher(torch.empty(5, 1024, device="cuda"), x, 5, 0)


def test_the_ctypes_launcher_is_as_right(target: Target) -> None:
    program, candidate, kernel = loaded(COLUMNS, COLUMNS_CODE, target)
    shape = launch_table.CallShape(4, 0, kernel._resolve, kernel._call_unaligned, kernel._failed)
    kernel.launch = launch_table.CtypesLauncher(shape, driver.functions())
    x = torch.rand(777, 640, device="cuda") + 0.5
    got, _ = call(program, candidate, kernel, [x], {})
    torch.testing.assert_close(got, x / x.sum(0))


def microseconds(act: Callable[[], object], calls: int = 2000) -> float:
    """Host time of one call, the GPU's queue never full."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls // 5):
            act()
        best = min(best, (time.perf_counter() - begin) / (calls // 5))
    torch.cuda.synchronize()
    return best * 1e6


def test_what_a_call_costs(target: Target) -> None:
    text = "region v1\ndims d0=256\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n"
    code = "// launch: k<<<1, 256>>>(in0, out0)\n__global__ void k(const f32* in0, f32* out0 DIMS) {\n"
    code += "  out0[threadIdx.x] = -in0[threadIdx.x];\n}\n"
    _, _, kernel = loaded(text, code, target)
    x, out = torch.randn(256, device="cuda"), torch.empty(256, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    out_address, x_address = out.data_ptr(), x.data_ptr()
    shape = launch_table.CallShape(2, 0, kernel._resolve, kernel._call_unaligned, kernel._failed)
    plain = launch_table.CtypesLauncher(shape, driver.functions())
    costs = {
        "launch(tensors)": microseconds(lambda: kernel.launch(out, x, stream)),
        "launch(addresses)": microseconds(lambda: kernel.launch(out_address, x_address, stream)),
        "__call__": microseconds(lambda: kernel(out, x, stream)),
        "ctypes": microseconds(lambda: plain(out, x, stream), 500),
        "torch.neg(out=)": microseconds(lambda: torch.neg(x, out=out)),
    }
    print("\nmicroseconds a call: " + ", ".join(f"{name} {us:.2f}" for name, us in costs.items()))
    torch.testing.assert_close(out, -x)
    assert costs["launch(tensors)"] < 20.0
