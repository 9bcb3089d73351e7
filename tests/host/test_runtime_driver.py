"""The GPU's side of the launcher against a stand-in for libcuda that keeps count: no GPU is needed."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from pathlib import Path

import pytest
import torch

from cudal1_compile.errors import LaunchError
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime import driver, launch_table, toolchain
from cudal1_compile.runtime.build import Binary, Resources
from cudal1_compile.runtime.launcher import LoadedKernel, allocate, load
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

pytestmark = pytest.mark.host

# A context is 0x100, a module 0x200, function k is 0x300; counters are read through `counter`.
LIBCUDA = """
#include <stddef.h>
#include <stdint.h>
#include <string.h>
enum { RETAINED, DEPTH, MODULES, DYNAMIC, LOADED, LAUNCHES, SHARED, GRID, SIZE, CURRENT, STREAM, ZEROED, N };
static long long c[N]; static int fail_load, fail_launch;
long long counter(int i) { return c[i]; }
void set_failures(int load, int launch) { fail_load = load; fail_launch = launch; }
void forget(void) { memset(c, 0, sizeof c); }
int cuInit(unsigned f) { return f; }
int cuGetErrorName(int e, const char** s) {
  *s = e == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_OTHER"; return 0;
}
int cuDeviceGet(int* d, int i) { *d = i; return i > 1 ? 101 : 0; }
int cuDeviceGetAttribute(int* v, int a, int d) { *v = a == 97 ? 232448 : -1; return d; }
int cuDevicePrimaryCtxRetain(void** x, int d) { *x = (void*)0x100; c[RETAINED]++; return d; }
int cuDevicePrimaryCtxRelease(int d) { c[RETAINED]--; return d; }
int cuCtxPushCurrent_v2(void* x) { c[DEPTH]++; return x != (void*)0x100; }
int cuCtxPopCurrent_v2(void** x) { *x = (void*)0x100; c[DEPTH]--; return 0; }
int cuCtxGetCurrent(void** x) { *x = c[CURRENT] ? (void*)0x100 : 0; return 0; }
int cuCtxSetCurrent(void* x) { c[CURRENT] = x == (void*)0x100; return 0; }
int cuModuleLoadData(void** m, const void* image) {
  if (fail_load || c[DEPTH] != 1 || memcmp(image, "\\177ELF", 4)) return 209;
  *m = (void*)0x200; c[MODULES]++; return 0;
}
int cuModuleUnload(void* m) { c[MODULES]--; return m != (void*)0x200; }
int cuModuleGetFunction(void** f, void* m, const char* name) {
  *f = (void*)0x300; return m != (void*)0x200 || c[DEPTH] != 1 || strcmp(name, "_Z1k") ? 500 : 0;
}
int cuFuncSetAttribute(void* f, int a, int v) { if (a == 8) c[DYNAMIC] = v; return f != (void*)0x300; }
int cuFuncLoad(void* f) { c[LOADED]++; return f != (void*)0x300; }
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** p, void** extra) {
  if (!c[CURRENT]) return 201;
  if (fail_launch) return fail_launch;
  c[LAUNCHES]++; c[SHARED] = shared; c[GRID] = gx; c[SIZE] = *(int*)p[3]; c[STREAM] = (long long)stream;
  float* out = *(float**)p[2]; const float* in = *(const float**)p[0];
  for (int i = 0; i < c[SIZE] * 4; i++) out[i] = -in[i];
  return f != (void*)0x300 || extra != 0;
}
int cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, void* s) {
  memset((void*)p, v, n); c[ZEROED] += n; return s != (void*)c[STREAM] && c[LAUNCHES] ? 1 : 0;
}
"""
NAMES = "RETAINED DEPTH MODULES DYNAMIC LOADED LAUNCHES SHARED GRID SIZE CURRENT STREAM ZEROED"
PROGRAM = parse_program(
    "region v1\ndims d0=?8 d1=4\nin0 f32[d0,d1]\nt0 f32[d0,d1] = neg(in0)\nout0 f32[d0,d1] = t0\n"
)
CODE = """// scratch: s0 f32[d0] = 0
// launch: k<<<d0, 32, 64000>>>(in0, s0, out0)
__global__ void k(const f32* in0, f32* s0, f32* out0 DIMS) {}
"""


def _empty_cubin() -> bytes:
    """An ELF object for a GPU with nothing but the names of its sections."""
    names = b"\0.shstrtab\0"
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01", 2, 190, 1, 0, 0, 80, 0, 64, 56, 0, 64, 2, 1)
    table = struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    return header + names.ljust(16, b"\0") + bytes(64) + table


CUBIN = _empty_cubin()


class FakeCuda:
    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.counter.restype = ctypes.c_longlong
        self.library.forget()

    def __getitem__(self, name: str) -> int:
        value: int = self.library.counter(NAMES.split().index(name))
        return value

    def fail(self, load: int = 0, launch: int = 0) -> None:
        self.library.set_failures(load, launch)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    source, built = folder / "fake.c", folder / "libcuda.so"
    source.write_text(LIBCUDA)
    subprocess.run([toolchain.compiler("c"), "-w", "-shared", "-fPIC", str(source), "-o", str(built)], check=True)
    return built


@pytest.fixture(params=["c", "ctypes"])
def cuda(image: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeCuda:
    fake = FakeCuda(image)
    fake.fail()
    monkeypatch.setattr(driver, "libcuda", lambda: fake.library)
    if request.param == "ctypes":
        monkeypatch.setattr(launch_table, "load_extension", lambda: None)
    return fake


def kernel(program: Program = PROGRAM, image: bytes = CUBIN, device_index: int = 0) -> LoadedKernel:
    binary = Binary("cuda", "sm_90a", image, {"k": Resources(32, 1024, 0, 1024, "_Z1k")})
    return load(program, parse_candidate(CODE, program), binary, device_index)


def test_load_call_close(cuda: FakeCuda) -> None:
    loaded = kernel()
    assert (cuda["RETAINED"], cuda["MODULES"], cuda["DEPTH"], cuda["LOADED"]) == (1, 1, 0, 1)
    assert cuda["DYNAMIC"] == 232448 - 1024  # a symbolic size: as much as there is
    outputs, scratch = allocate(PROGRAM, parse_candidate(CODE, PROGRAM), torch.device("cpu"), {"d0": 6})
    scratch[0].fill_(5.0)
    x = torch.rand(6, 4)
    loaded(*outputs, *scratch, x, 6, 99)
    assert (cuda["LAUNCHES"], cuda["GRID"], cuda["SIZE"], cuda["STREAM"], cuda["SHARED"]) == (1, 6, 6, 99, 64000)
    assert cuda["ZEROED"] == 24 and not scratch[0].any()
    assert torch.equal(outputs[0], -x)
    loaded.close()
    loaded.close()
    assert (cuda["RETAINED"], cuda["MODULES"], cuda["DEPTH"]) == (0, 0, 0)


def test_static_sizes_ask_for_what_they_need(cuda: FakeCuda) -> None:
    program = parse_program(
        "region v1\ndims d0=8 d1=4\nin0 f32[d0,d1]\nt0 f32[d0,d1] = neg(in0)\nout0 f32[d0,d1] = t0"
    )
    kernel(program)
    assert cuda["DYNAMIC"] == 64000


def test_a_thread_without_a_context_gets_the_primary_one(cuda: FakeCuda) -> None:
    loaded = kernel()
    assert cuda["CURRENT"] == 0
    loaded(torch.empty(2, 4), torch.empty(2), torch.rand(2, 4), 2, 0)
    assert (cuda["CURRENT"], cuda["LAUNCHES"]) == (1, 1)


def test_unaligned_pointers_are_copied(cuda: FakeCuda) -> None:
    loaded = kernel()
    x, out = torch.rand(9)[1:].view(2, 4), torch.zeros(9)[1:].view(2, 4)
    loaded(out, torch.empty(2), x, 2, 0)
    assert cuda["LAUNCHES"] == 1 and torch.equal(out, -x)


def test_failures_have_sentences_and_leave_nothing_behind(cuda: FakeCuda) -> None:
    cuda.fail(load=1)
    with pytest.raises(LaunchError, match="cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU"):
        kernel()
    assert (cuda["RETAINED"], cuda["DEPTH"]) == (0, 0)
    cuda.fail()
    with pytest.raises(LaunchError, match="device 7"):
        kernel(device_index=7)
    assert cuda["RETAINED"] == 0
    loaded = kernel()
    cuda.fail(launch=700)
    with pytest.raises(LaunchError, match=r"k: CUDA_ERROR_OTHER \(700\)"):
        loaded(torch.empty(2, 4), torch.empty(2), torch.rand(2, 4), 2, 0)


def test_a_missing_symbol_gives_the_context_back(cuda: FakeCuda) -> None:
    binary = Binary("cuda", "sm_90a", CUBIN, {"k": Resources(32, 0, 0, 1024, "_Z5other")})
    with pytest.raises(LaunchError, match="kernel _Z5other"):
        load(PROGRAM, parse_candidate(CODE, PROGRAM), binary)
    assert (cuda["RETAINED"], cuda["MODULES"], cuda["DEPTH"]) == (0, 0, 0)
