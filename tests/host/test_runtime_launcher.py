"""The launcher: the C and the ctypes form against a driver that writes down what it was asked, and on the host."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cudal1_compile.errors import LaunchError
from cudal1_compile.kernel.candidate import MAX_LAUNCHES, MAX_SCRATCH, parse_candidate
from cudal1_compile.runtime import launch_table, toolchain
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import run_isolated
from cudal1_compile.runtime.launch_table import CallShape, CtypesLauncher, DriverFunctions, Table
from cudal1_compile.runtime.launcher import LoadedKernel, allocate, load
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.text import parse_program

pytestmark = pytest.mark.host

FAKE_DRIVER = """
#include <stdint.h>
#include <stddef.h>
static long long log[512]; static int n, fail_next;
static void note(long long x) { if (n < 512) log[n++] = x; }
int launch(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
           void* stream, void** params, void** extra) {
  if (fail_next) { int code = fail_next; fail_next = 0; return code; }
  note(1000); note((long long)f); note(gx); note(gy); note(gz); note(bx); note(by); note(bz); note(shared);
  note((long long)stream); note(*(long long*)params[0]); note(*(long long*)params[1]);
  if ((long long)f == 2) note(*(int*)params[2]);
  return extra != 0;
}
int clear(uint64_t p, unsigned char v, size_t bytes, void* stream) {
  note(2000); note((long long)p); note(v); note((long long)bytes); note((long long)stream); return 0;
}
int read_log(long long* out) { int m = n; for (int i = 0; i < n; i++) out[i] = log[i]; n = 0; return m; }
void fail(int code) { fail_next = code; }
"""


class FakeDriver:
    def __init__(self, folder: Path) -> None:
        source, image = folder / "fake.c", folder / "fake.so"
        source.write_text(FAKE_DRIVER)
        subprocess.run([toolchain.compiler("c"), "-shared", "-fPIC", str(source), "-o", str(image)], check=True)
        self._library = ctypes.CDLL(str(image))
        self.functions = DriverFunctions(self._address("launch"), self._address("clear"))

    def _address(self, name: str) -> int:
        value = ctypes.cast(self._library[name], ctypes.c_void_p).value
        assert value is not None
        return value

    def log(self) -> list[int]:
        out = (ctypes.c_longlong * 512)()
        return list(out[: self._library.read_log(out)])

    def fail(self, code: int) -> None:
        self._library.fail(code)


Maker = Callable[[CallShape, DriverFunctions], Callable[..., None]]


@pytest.fixture(params=["c", "ctypes"])
def maker(request: pytest.FixtureRequest) -> Maker:
    if request.param == "ctypes":
        return CtypesLauncher
    assert launch_table.load_extension() is not None
    return launch_table.make_launcher


def shape_of(
    resolve: Callable[[tuple[int, ...]], Table], n_sizes: int = 0, calls: list[object] | None = None
) -> CallShape:
    def slow(*args: object) -> None:
        assert calls is not None
        calls.append(args)

    def failed(code: int, which: int) -> bool:
        if code == 201:
            return True
        raise LaunchError(f"code {code} in {which}")

    return CallShape(2, n_sizes, resolve, slow, failed)


STATIC: Table = (((1, 4, 5, 6, 32, 2, 1, 512, (1, 0)), (1, 7, 1, 1, 64, 1, 1, 0, (0, 0))), ((1, 4096),))


def test_launches_in_order_with_pointers_and_stream(tmp_path: Path, maker: Maker) -> None:
    driver = FakeDriver(tmp_path)
    launcher = maker(shape_of(lambda sizes: STATIC), driver.functions)
    a, b = torch.zeros(8), torch.zeros(8)
    launcher(a, b, 77)
    p, q = a.data_ptr(), b.data_ptr()
    clear = [2000, q, 0, 4096, 77]
    first = [1000, 1, 4, 5, 6, 32, 2, 1, 512, 77, q, p]
    second = [1000, 1, 7, 1, 1, 64, 1, 1, 0, 77, p, p]
    assert driver.log() == clear + first + second
    launcher(p, q, 0)  # addresses do as well
    assert driver.log()[9 + 5 :][:3] == [0, q, p]


def test_as_many_launches_and_buffers_as_a_candidate_may_have(tmp_path: Path, maker: Maker) -> None:
    driver = FakeDriver(tmp_path)
    table: Table = (STATIC[0][:1] * MAX_LAUNCHES, STATIC[1] * MAX_SCRATCH)
    launcher = maker(shape_of(lambda sizes: table), driver.functions)
    a = torch.zeros(8)
    launcher(a, a, 0)
    log = driver.log()
    assert (log.count(1000), log.count(2000)) == (MAX_LAUNCHES, MAX_SCRATCH)


def test_symbolic_sizes_are_resolved_once_and_passed(tmp_path: Path, maker: Maker) -> None:
    driver = FakeDriver(tmp_path)
    seen = []

    def resolve(sizes: tuple[int, ...]) -> Table:
        seen.append(sizes)
        return ((2, sizes[0], 1, 1, 32, 1, 1, 0, (0, 1)),), ()

    launcher = maker(shape_of(resolve, n_sizes=1), driver.functions)
    a, b = torch.zeros(8), torch.zeros(8)
    grids, passed = [], []
    for size in (3, 3, 9, 9):
        launcher(a, b, size, 0)
        log = driver.log()
        grids.append(log[2])
        passed.append(log[-1])
    assert grids == passed == [3, 3, 9, 9]
    assert seen == [(3,), (9,)]


def test_unaligned_pointers_take_the_slow_way(tmp_path: Path, maker: Maker) -> None:
    driver = FakeDriver(tmp_path)
    calls: list[object] = []
    launcher = maker(shape_of(lambda sizes: STATIC, calls=calls), driver.functions)
    store = torch.zeros(9)
    launcher(store[1:], store, 5)
    assert len(calls) == 1 and driver.log() == []


def test_errors_are_reported_and_may_be_retried(tmp_path: Path, maker: Maker) -> None:
    driver = FakeDriver(tmp_path)
    launcher = maker(shape_of(lambda sizes: STATIC), driver.functions)
    a = torch.zeros(8)
    driver.fail(700)
    with pytest.raises(LaunchError, match="code 700 in 0"):
        launcher(a, a, 0)
    driver.log()
    driver.fail(201)  # failed() says: again
    launcher(a, a, 0)
    assert driver.log().count(1000) == 2


def test_wrong_calls_are_refused(tmp_path: Path, maker: Maker) -> None:
    driver = FakeDriver(tmp_path)
    launcher = maker(shape_of(lambda sizes: STATIC), driver.functions)
    a = torch.zeros(8)
    with pytest.raises(TypeError, match="2 tensors, 0 sizes and a stream"):
        launcher(a, a)
    with pytest.raises(AttributeError):
        launcher(a, "no tensor", 0)
    assert driver.log() == []

    def broken(sizes: tuple[int, ...]) -> Table:
        raise LaunchError("no plan for these")

    launcher = maker(shape_of(broken), driver.functions)
    with pytest.raises(LaunchError, match="no plan"):
        launcher(a, a, 0)


def test_a_bad_table_is_an_error_and_no_crash(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path)
    a = torch.zeros(8)
    bad: list[object] = [
        (((1, 1, 1, 1, 1, 1, 1, 0, (0, 5)),), ()),  # tensor 5 of 2
        (((1, 1, 1),), ()),
        ((), ((9, 16),)),
        (((1, 1, 1, 1, 1, 1, 1, 0, (0,)),) * (MAX_LAUNCHES + 1), ()),
        "nothing",
    ]
    for table in bad:
        launcher = launch_table.make_launcher(shape_of(lambda sizes, t=table: t), driver.functions)  # type: ignore[misc]
        with pytest.raises((ValueError, TypeError)):
            launcher(a, a, 0)
    assert driver.log() == []


ROWS = """region v1
dims d0=?12 d1=256
in0 f32[d0,d1]
t0 f32[d0] = sum(in0) over d1
t1 f32[d0,d1] = div(in0, t0)
out0 f32[d0,d1] = t1
"""
ROWS_CODE = """// scratch: s0 f32[d0] = 0
// launch: totals<<<d0, 128>>>(in0, s0)
// launch: divide<<<d0, 64>>>(in0, s0, out0)
__global__ void totals(const f32* __restrict__ in0, f32* s0 DIMS) {
  const int i = blockIdx.x * d1 + threadIdx.x * 2;
  float v[2];
  vload<2>(in0 + i, v);
  atomic_add(s0 + blockIdx.x, v[0] + v[1]);
}
__global__ void divide(const f32* __restrict__ in0, const f32* __restrict__ s0, f32* out0 DIMS) {
  const int i = blockIdx.x * d1 + threadIdx.x * 4;
  float v[4];
  vload<4>(in0 + i, v);
  for (int k = 0; k < 4; k++) v[k] /= s0[blockIdx.x];
  vstore<4>(out0 + i, v);
}
"""


def rows_kernel() -> LoadedKernel:
    program = parse_program(ROWS)
    candidate = parse_candidate(ROWS_CODE, program)
    return load(program, candidate, build(program, candidate, HOST))


def run_rows(kernel: LoadedKernel, x: torch.Tensor) -> torch.Tensor:
    program = parse_program(ROWS)
    rows = x.shape[0]
    candidate = parse_candidate(ROWS_CODE, program)
    outputs, scratch = allocate(program, candidate, torch.device("cpu"), {"d0": rows})
    scratch[0].fill_(float("nan"))
    kernel(*outputs, *scratch, x, rows, 0)
    return outputs[0]


def test_a_host_kernel_of_as_many_launches_as_may_be() -> None:
    sums = f"t0 f32[d0] = add(in0, {MAX_LAUNCHES}.0)"
    program = parse_program(f"region v1\ndims d0=64\nin0 f32[d0]\n{sums}\nout0 f32[d0] = t0\n")
    again = "// launch: step<<<1, 64>>>(s0, in0, out0)\n" * (MAX_LAUNCHES - 1)
    code = f"""// scratch: s0 f32[d0]
// launch: begin<<<1, 64>>>(s0)
{again}
__global__ void begin(f32* s0) {{ s0[threadIdx.x] = 1; }}
__global__ void step(f32* s0, const f32* __restrict__ in0, f32* out0) {{
  const float n = s0[threadIdx.x] + 1;
  s0[threadIdx.x] = n;
  if (n == {MAX_LAUNCHES}) out0[threadIdx.x] = in0[threadIdx.x] + n;
}}
"""
    candidate = parse_candidate(code, program)
    binary = build(program, candidate, HOST)
    x = torch.randn(64)
    buffers = {"in0": x, "out0": torch.zeros(64), "s0": torch.zeros(64)}
    assert run_isolated(program, candidate, binary.image, buffers).ok
    outputs, scratch = allocate(program, candidate, torch.device("cpu"), {})
    load(program, candidate, binary)(*outputs, *scratch, x, 0)
    assert torch.equal(buffers["out0"], x + MAX_LAUNCHES) and torch.equal(outputs[0], x + MAX_LAUNCHES)


def test_a_host_kernel_in_process() -> None:
    kernel = rows_kernel()
    for rows in (12, 1, 40, 12):
        x = torch.rand(rows, 256) + 0.5
        torch.testing.assert_close(run_rows(kernel, x), x / x.sum(1, keepdim=True))
    kernel.close()
    with pytest.raises(LaunchError, match="closed"):
        run_rows(kernel, torch.rand(12, 256))


def test_two_kernels_do_not_share_their_names() -> None:
    first, second = rows_kernel(), rows_kernel()
    x = torch.rand(12, 256) + 0.5
    first.close()
    torch.testing.assert_close(run_rows(second, x), x / x.sum(1, keepdim=True))


def test_unaligned_tensors_are_copied() -> None:
    kernel = rows_kernel()
    x = torch.rand(12 * 256 + 1)[1:].view(12, 256) + 0.0
    store_in, store_out = torch.rand(12 * 256 + 1), torch.full((12 * 256 + 3,), 5.0)
    x = store_in[1:].view(12, 256)
    out = store_out[1:-2].view(12, 256)
    kernel(out, torch.empty(12), x, 12, 0)
    torch.testing.assert_close(out, x / x.sum(1, keepdim=True))
    assert store_out[0] == 5.0 and (store_out[-2:] == 5.0).all()
    with pytest.raises(LaunchError, match="aligned"):
        kernel(out.data_ptr(), torch.empty(12), x, 12, 0)


def test_a_fault_in_process_is_an_error_with_a_sentence() -> None:
    program = parse_program("region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n")
    code = """// launch: k<<<1, 64>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  if (threadIdx.x < 20) __syncthreads();
  out0[threadIdx.x] = warp_sum(in0[threadIdx.x]);
}
"""
    candidate = parse_candidate(code, program)
    kernel = load(program, candidate, build(program, candidate, HOST))
    x = torch.rand(64)
    for _ in range(2):  # the scheduler is usable after a fault
        with pytest.raises(LaunchError, match="k: deadlock"):
            kernel(torch.empty(64), x, 0)
    other = rows_kernel()
    y = torch.rand(12, 256) + 0.5
    torch.testing.assert_close(run_rows(other, y), y / y.sum(1, keepdim=True))


def test_an_empty_grid_is_an_error() -> None:
    kernel = rows_kernel()
    with pytest.raises(LaunchError, match="grid"):
        kernel(torch.empty(0, 256), torch.empty(0), torch.empty(0, 256), 0, 0)


def test_a_tensor_that_an_int_cannot_count_is_an_error() -> None:
    kernel = rows_kernel()
    with pytest.raises(LaunchError, match="spans 4294967296 elements"):
        kernel(torch.empty(1), torch.empty(1), torch.empty(1), 1 << 24, 0)


def test_a_dropped_kernel_is_collected() -> None:
    kernel = rows_kernel()
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None


def test_without_a_compiler_the_ctypes_launcher_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_table, "load_extension", lambda: None)
    kernel = rows_kernel()
    assert isinstance(kernel.launch, CtypesLauncher)
    x = torch.rand(12, 256) + 0.5
    torch.testing.assert_close(run_rows(kernel, x), x / x.sum(1, keepdim=True))
