"""Small kernels that use every function of the device header, with what torch says they must give.

tests/host runs them on the host target and builds them for five GPUs; tests/gpu runs them on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

INT_LIMITS = {"i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}


@dataclass(frozen=True)
class Case:
    """A kernel `k` over in0 (and in1), which writes out0."""

    name: str
    dtypes: tuple[str, ...]  # of the inputs, then of the output
    body: str
    inputs: Callable[[], list[Tensor]]  # flat tensors of one length
    want: Callable[..., Tensor]
    block: int = 256
    per_thread: int = 1  # elements
    one_block: bool = False
    atol: float = 0.0
    rtol: float = 0.0

    def program(self, n: int) -> Program:
        ins = [f"in{i} {d}[d0]" for i, d in enumerate(self.dtypes[:-1])]
        out = self.dtypes[-1]
        body = [f"t0 {out}[d0] = cast(in0)", f"out0 {out}[d0] = t0"]
        return parse_program("\n".join(["region v1", f"dims d0={n}", *ins, *body]))

    def candidate(self, program: Program) -> Candidate:
        n = program.axes[0].size
        names = [f"in{i}" for i in range(len(self.dtypes) - 1)]
        grid = 1 if self.one_block else -(-n // (self.block * self.per_thread))
        params = ", ".join([*(f"const {x}_t* __restrict__ {x}" for x in names), "out0_t* out0"])
        plan = f"// launch: k<<<{grid}, {self.block}>>>({', '.join([*names, 'out0'])})\n"
        head = f"__global__ void k({params} DIMS) {{\n  const int i = (blockIdx.x * {self.block} + threadIdx.x)"
        head += f" * {self.per_thread};\n"
        return parse_candidate(f"{plan}{head}{self.body}\n}}\n", program)

    def out_dtype(self) -> torch.dtype:
        return TORCH_DTYPE[self.dtypes[-1]]


def cases() -> Iterator[Case]:
    yield from _conversions()
    yield from _vectors()
    yield from _pointwise()
    yield from _reductions()
    yield from _arg_reductions()
    yield from _scans()
    yield from _others()


def patterns(dtype: torch.dtype) -> Tensor:
    """All 65536 values of a 16-bit dtype."""
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def ties(dtype: torch.dtype) -> Tensor:
    """Floats at, just below and just above the middle between every two neighbours, and the extremes."""
    x = patterns(dtype).float()
    x = x[torch.isfinite(x)].unique()
    step = x[1:].double() - x[:-1].double()
    middle = (x[:-1].double() + step / 2).float()  # exact: one more bit than the 16-bit dtype has
    low, high = torch.tensor(float("-inf")), torch.tensor(float("inf"))
    extremes = [65504.0, 65519.996, 65520.0, 1e6, 3.3895e38, 3.39e38, 3.4028e38, 1e-8, 1e-45, 0.0]
    special = torch.tensor([*extremes, *(-e for e in extremes), float("inf"), float("-inf"), float("nan")])
    return torch.cat([middle, torch.nextafter(middle, low), torch.nextafter(middle, high), special])


def special_floats(dtype: torch.dtype = torch.float32) -> Tensor:
    nan, inf = float("nan"), float("inf")
    fixed = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -1.5,
        -2.5,
        1.0,
        -1.0,
        nan,
        inf,
        -inf,
        1e-40,
        1e30,
        -1e30,
        88.0,
        -104.0,
    ]
    generator = torch.Generator().manual_seed(1)
    return torch.cat([torch.tensor(fixed), torch.randn(1024 - len(fixed), generator=generator) * 10]).to(dtype)


def _numbers(dtype: str, n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.rand(n, generator=generator) > 0.5
    if dtype in INT_LIMITS:
        info = torch.iinfo(INT_LIMITS[dtype])
        low, high = max(info.min, -(2**40)), min(info.max, 2**40)
        return torch.randint(low, high, (n,), generator=generator, dtype=torch.int64).to(INT_LIMITS[dtype])
    return torch.randn(n, generator=generator, dtype=torch.float64).to(TORCH_DTYPE[dtype])


def _conversions() -> Iterator[Case]:
    for name in ("f16", "bf16"):
        dtype = TORCH_DTYPE[name]
        yield Case(
            f"ld_{name}",
            (name, "f32"),
            "st(out0 + i, ld(in0 + i));",
            lambda d=dtype: [patterns(d)],
            lambda x: x.float(),
        )
        yield Case(
            f"st_{name}",
            ("f32", name),
            "if (i < d0) st(out0 + i, ld(in0 + i));",
            lambda d=dtype: [torch.cat([patterns(d).float(), ties(d)])],
            lambda x, d=dtype: x.to(d),
        )
        yield Case(
            f"round_to_{name}",
            ("f32", "f32"),
            f"if (i < d0) out0[i] = round_to<{name}>(in0[i]);",
            lambda d=dtype: [ties(d)],
            lambda x, d=dtype: x.to(d).float(),
        )
    for name in ("f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"):
        yield Case(
            f"copy_{name}",
            (name, name),
            "st(out0 + i, ld(in0 + i));",
            lambda n=name: [_numbers(n, 512)],
            lambda x: x,
        )
    for name in ("i32", "i16", "i8", "u8", "bool"):
        yield Case(
            f"float_to_{name}",
            ("f32", name),
            "st(out0 + i, ld(in0 + i));",
            lambda: [torch.arange(256, dtype=torch.float32) / 2.5],
            lambda x, d=TORCH_DTYPE[name]: x.to(d),
        )
        yield Case(
            f"i32_to_{name}",
            ("i32", name),
            "st(out0 + i, ld(in0 + i));",
            lambda: [_numbers("i32", 512)],
            lambda x, d=TORCH_DTYPE[name]: x.to(d),
        )


def _vectors() -> Iterator[Case]:
    for name in ("f32", "f16", "bf16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"):
        for v in (1, 2, 4, 8, 16):
            body = f"compute<in0_t> v[{v}];\nvload<{v}>(in0 + i, v);\nvstore<{v}>(out0 + i, v);"
            yield Case(
                f"vector_{name}_{v}",
                (name, name),
                body,
                lambda n=name, v=v: [_numbers(n, 64 * v)],
                lambda x: x,
                block=32,
                per_thread=v,
            )
        body = "compute<in0_t> v[4];\nvload<4>(in0 + i, v);\nvstore<4>(out0 + i, v, i % 12 == 4);"
        yield Case(
            f"vector_{name}_inside",
            (name, name),
            body,
            lambda n=name: [_numbers(n, 256)],
            lambda x: torch.where(torch.arange(len(x), device=x.device) // 4 % 3 == 1, x, 0).to(x.dtype),
            block=32,
            per_thread=4,
        )
    body = "float v[8];\nvload<8>(in0 + i, v);\nfor (int k = 0; k < 8; k++) v[k] *= 2.0f;\nvstore<8>(out0 + i, v);"
    yield Case(
        "vector_bf16_to_f16",
        ("bf16", "f16"),
        body,
        lambda: [_numbers("bf16", 2048)],
        lambda x: (x.float() * 2).half(),
        per_thread=8,
    )


def _pointwise() -> Iterator[Case]:
    unary: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
        "relu": (torch.relu, 0.0),
        "sign": (torch.sign, 0.0),
        "sigmoid": (torch.sigmoid, 1e-6),
        "reciprocal": (torch.reciprocal, 1e-6),
        "round_even": (torch.round, 0.0),
    }
    for name, (run, rtol) in unary.items():
        for dtype in ("f32", "f64"):
            yield Case(
                f"{name}_{dtype}",
                (dtype, dtype),
                f"out0[i] = {name}(in0[i]);",
                lambda d=dtype: [special_floats(TORCH_DTYPE[d])],
                run,
                rtol=rtol,
                atol=rtol and 1e-37,
            )
    binary: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "remainder_": torch.remainder,
    }
    for name, fold in binary.items():
        for dtype in ("f32", "f64", "i32", "i64"):
            yield Case(
                f"{name}{dtype}", (dtype, dtype, dtype), f"out0[i] = {name}(in0[i], in1[i]);", _pairs(dtype), fold
            )
    for dtypes in (("i64", "i32", "i64"), ("i32", "i64", "i64")):
        yield Case(
            f"remainder_{dtypes[0]}_by_{dtypes[1]}",
            dtypes,
            "out0[i] = remainder_(in0[i], in1[i]);",
            lambda d=dtypes: [_numbers(d[0], 256), _numbers(d[1], 256, 7)],
            torch.remainder,
        )
    yield Case("relu_i32", ("i32", "i32"), "out0[i] = relu(in0[i]);", lambda: [_numbers("i32", 256)], torch.relu)
    yield Case(
        "int_pow",
        ("i64", "i64", "i64"),
        "out0[i] = int_pow(in0[i], in1[i]);",
        lambda: [torch.arange(256) % 16 - 8, torch.arange(256) // 16],
        torch.pow,
    )
    yield Case(
        "limits",
        ("f32", "f32"),
        "out0[i] = i == 0 ? lowest<bf16>() : i == 1 ? highest<f32>() : i == 2 ? (float)lowest<i8>() : "
        "i == 3 ? (float)highest<u8>() : i == 4 ? INFINITY : i == 5 ? NAN : (float)cdiv(i, 4);",
        lambda: [torch.zeros(256)],
        lambda x: torch.tensor(
            [
                float("-inf"),
                float("inf"),
                -128.0,
                255.0,
                float("inf"),
                float("nan"),
                *(-(-i // 4) for i in range(6, 256)),
            ]
        ),
    )


def _pairs(dtype: str) -> Callable[[], list[Tensor]]:
    def make() -> list[Tensor]:
        if dtype in ("f32", "f64"):
            x = special_floats(TORCH_DTYPE[dtype])
            y = x.roll(7)
            return [x, torch.where(y.abs() < 1e-30, 3.0, y)]  # torch gives NaN for a tiny divisor
        x, y = _numbers(dtype, 512, 1), _numbers(dtype, 512, 2)
        return [x, torch.where(y == 0, 3, y)]

    return make


def _rows(dtype: str, block: int, with_nan: bool = False) -> Callable[[], list[Tensor]]:
    def make() -> list[Tensor]:
        if dtype in ("i32", "i64"):
            x = torch.randint(-50, 50, (4 * block,), generator=torch.Generator().manual_seed(block))
            return [x.to(TORCH_DTYPE[dtype])]
        x = _numbers(dtype, 4 * block, block)
        if with_nan:
            x[block + 5] = float("nan")
            x[2 * block] = float("-inf")
        return [x]

    return make


def _over_rows(run: Callable[[Tensor], Tensor], width: int) -> Callable[[Tensor], Tensor]:
    """Applies a function to rows of `width` and gives every element of a row its row's result."""

    def want(x: Tensor) -> Tensor:
        rows = x.view(-1, width)
        return run(rows).to(x.dtype).expand_as(rows).reshape(-1)

    return want


def _reductions() -> Iterator[Case]:
    folds: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda r: r.sum(1, keepdim=True),
        "max": lambda r: r.amax(1, keepdim=True),
        "min": lambda r: r.amin(1, keepdim=True),
    }
    for name, fold in folds.items():
        for dtype in ("f32", "f64", "i32", "i64"):
            exact = dtype in ("i32", "i64") or name != "sum"
            for block in (32, 96, 256, 1024):
                yield Case(
                    f"block_{name}_{dtype}_{block}",
                    (dtype, dtype),
                    f"out0[i] = block_{name}(in0[i]);",
                    _rows(dtype, block, with_nan=name != "sum" and dtype in ("f32", "f64")),
                    _over_rows(fold, block),
                    block=block,
                    rtol=0.0 if exact else 1e-4,
                    atol=0.0 if exact else 1e-4,
                )
            yield Case(
                f"warp_{name}_{dtype}",
                (dtype, dtype),
                f"out0[i] = warp_{name}(in0[i]);",
                _rows(dtype, 64),
                _over_rows(fold, 32),
                block=64,
                rtol=0.0 if exact else 1e-4,
                atol=0.0 if exact else 1e-4,
            )
    yield Case(
        "block_prod_f32",
        ("f32", "f32"),
        "out0[i] = block_prod(1.0f + 0.01f * in0[i]);",
        _rows("f32", 256),
        _over_rows(lambda r: (1 + 0.01 * r).prod(1, keepdim=True), 256),
        rtol=1e-4,
    )
    yield Case(
        "warp_prod_i64",
        ("i64", "i64"),
        "out0[i] = warp_prod(2 - in0[i] % 2);",
        _rows("i64", 64),
        _over_rows(lambda r: (2 - torch.fmod(r, 2)).prod(1, keepdim=True), 32),
        block=64,
    )
    yield Case(
        "all_and_any",
        ("bool", "i32"),
        "out0[i] = block_all(in0[i]) + 2 * block_any(in0[i]) + 4 * warp_all(in0[i]) + 8 * warp_any(in0[i]);",
        lambda: [torch.cat([torch.zeros(64), torch.ones(64), torch.ones(32), torch.zeros(32)]).bool()],
        lambda x: torch.tensor([0] * 64 + [15] * 64 + [14] * 32 + [2] * 32, dtype=torch.int32),
        block=64,
    )
    yield Case(
        "back_to_back",
        ("f32", "f32"),
        "float a = block_max(in0[i]), b = block_sum(in0[i]);\n"
        "float c = block_sum(a), d = block_min(b);\nout0[i] = a + c + d;",
        _rows("f32", 256),
        _over_rows(lambda r: r.amax(1, keepdim=True) * 257 + r.sum(1, keepdim=True), 256),
        rtol=1e-4,
        atol=1e-3,
    )


def _arg_reductions() -> Iterator[Case]:
    def with_ties(width: int) -> Callable[[], list[Tensor]]:
        def make() -> list[Tensor]:
            x = torch.randint(-3, 3, (4 * width,), generator=torch.Generator().manual_seed(width)).float()
            x[width + 3] = x[width + 9] = float("nan")
            x[2 * width :].clamp_(min=2.0, max=2.0)
            return [x]

        return make

    for name, find in (("argmax", torch.argmax), ("argmin", torch.argmin)):
        for scope, block, width in (("warp", 64, 32), ("block", 32, 32), ("block", 96, 96), ("block", 1024, 1024)):
            yield Case(
                f"{scope}_{name}_{block}",
                ("f32", "i32"),
                f"float v = in0[i];\nint j = threadIdx.x % {width};\n{scope}_{name}(v, j);\nout0[i] = j;",
                with_ties(width if scope == "block" else 64),
                lambda x, f=find, w=width: f(x.view(-1, w), 1, keepdim=True).int().expand(-1, w).reshape(-1),
                block=block,
            )


def _scans() -> Iterator[Case]:
    for dtype in ("f32", "f64", "i32", "i64"):
        exact = dtype in ("i32", "i64")
        for scope, block, width in (("warp", 64, 32), ("block", 32, 32), ("block", 96, 96), ("block", 1024, 1024)):
            yield Case(
                f"{scope}_scan_sum_{dtype}_{block}",
                (dtype, dtype),
                f"out0[i] = {scope}_scan_sum(in0[i]);",
                _rows(dtype, block),
                lambda x, w=width: x.view(-1, w).cumsum(1).to(x.dtype).reshape(-1),
                block=block,
                rtol=0.0 if exact else 1e-4,
                atol=0.0 if exact else 1e-3,
            )
    yield Case(
        "scan_with_an_int_total",
        ("i32", "i32"),
        "int total;\nint x = block_scan_sum(in0[i], total);\nout0[i] = x + 1000 * total;",
        _rows("i32", 128),
        lambda x: (x.view(-1, 128).cumsum(1) + 1000 * x.view(-1, 128).sum(1, keepdim=True)).int().reshape(-1),
        block=128,
    )
    for scope, width in (("thread", 1), ("warp", 32), ("block", 96)):
        row = 8 * width
        yield Case(
            f"{scope}_scan_of_vectors",
            ("i32", "i32"),
            f"const int lane = threadIdx.x % {width}, at = i / 8 / {width} * {row};\nint q[2][4], carry = 5;\n"
            f"for (int k = 0; k < 8; k++) q[k / 4][k % 4] = in0[at + (k / 4 * {width} + lane) * 4 + k % 4];\n"
            f"{scope}_scan_sum(q, carry);\n"
            f"for (int k = 0; k < 8; k++)\n"
            f"  out0[at + (k / 4 * {width} + lane) * 4 + k % 4] = q[k / 4][k % 4] + carry;",
            _rows("i32", 768),
            lambda x, w=row: (
                (x.view(-1, w).cumsum(1) + 5 + (5 + x.view(-1, w).sum(1, keepdim=True))).int().reshape(-1)
            ),
            block=96,
            per_thread=8,
        )
    yield Case(
        "scan_prod_and_total",
        ("f64", "f64"),
        "double total;\ndouble x = block_scan_prod(1.0 + 0.01 * in0[i], total);\n"
        "out0[i] = warp_scan_prod(1.0 + 0.01 * in0[i]) + x + total;",
        _rows("f64", 128),
        lambda x: (
            (1 + 0.01 * x.view(-1, 4, 32)).cumprod(2).view(-1, 128)
            + (1 + 0.01 * x.view(-1, 128)).cumprod(1)
            + (1 + 0.01 * x.view(-1, 128)).prod(1, keepdim=True)
        ).reshape(-1),
        block=128,
        rtol=1e-12,
    )


def _others() -> Iterator[Case]:
    yield Case(
        "atomics",
        ("f32", "f32"),
        "__shared__ float most, least, sum;\n__shared__ long long count;\n__shared__ int top;\n"
        "if (i == 0) { most = lowest<f32>(); least = highest<f32>(); sum = 0.0f; count = 0; top = 0; }\n"
        "__syncthreads();\natomic_max(&most, in0[i]);\natomic_min(&least, in0[i]);\natomic_add(&sum, 1.0f);\n"
        "atomic_add(&count, 2ll);\natomic_max(&top, i);\n__syncthreads();\n"
        "out0[i] = i == 0 ? most : i == 1 ? least : i == 2 ? sum : i == 3 ? (float)count : (float)top;",
        lambda: [_numbers("f32", 256)],
        lambda x: torch.cat([torch.stack([x.max(), x.min()]), torch.tensor([256.0, 512.0] + [255.0] * 252)]),
    )
    yield Case(
        "thread_numbers",
        ("f32", "i32"),
        "out0[i] = lane_id() + 100 * warp_id() + 10000 * (thread_id() == i) + 100000 * (block_threads() == 256);",
        lambda: [torch.zeros(256)],
        lambda x: (torch.arange(256) % 32 + 100 * (torch.arange(256) // 32) + 110000).int(),
    )
    maths = [
        "expf",
        "exp2f",
        "expm1f",
        "log1pf",
        "sinf",
        "cosf",
        "tanhf",
        "erff",
        "floorf",
        "ceilf",
        "truncf",
        "fabsf",
    ]
    for name in maths:
        yield Case(
            name,
            ("f32", "f32"),
            f"out0[i] = {name}(in0[i]);",
            lambda: [_numbers("f32", 512).clamp(min=-0.99)],
            getattr(torch, {"fabsf": "abs"}.get(name, name.removesuffix("f"))),
            rtol=2e-6,
            atol=1e-6,
        )
    for name in ("logf", "log2f", "sqrtf", "rsqrtf"):
        yield Case(
            name,
            ("f32", "f32"),
            f"out0[i] = {name}(in0[i]);",
            lambda: [_numbers("f32", 512).abs() + 1e-3],
            getattr(torch, name.removesuffix("f")),
            rtol=2e-6,
            atol=1e-6,
        )
    double = (
        "exp(x) + log(fabs(x)) + sqrt(fabs(x)) + tanh(x) + erf(x) + rsqrt(fabs(x)) + fmod(x, 0.3) + pow(2.0, x)"
    )
    yield Case(
        "double_maths",
        ("f64", "f64"),
        f"const double x = in0[i];\nout0[i] = {double};",
        lambda: [_numbers("f64", 512)],
        lambda x: (
            x.exp() + x.abs().log() + x.abs().sqrt() + x.tanh() + x.erf() + x.abs().rsqrt() + x.fmod(0.3) + 2**x
        ),
        rtol=1e-12,
    )
    yield Case(
        "float_overloads",
        ("f32", "f32"),
        "const float x = in0[i];\n"
        "out0[i] = exp(x) + max(x, 0.5f) + min(x, 0.0f) + abs(x) + powf(2.0f, x) + fmodf(x, 0.3f)"
        " + fmaf(x, x, 1.0f) + (isnan(x) ? 1.0f : 0.0f);",
        lambda: [_numbers("f32", 512)],
        lambda x: x.exp() + x.clamp(min=0.5) + x.clamp(max=0.0) + x.abs() + 2.0**x + x.fmod(0.3) + x * x + 1.0,
        rtol=1e-5,
        atol=1e-5,
    )


# `grown`: each function calls the one before three times, all inlined, 3^13 copies: hours of work for a compiler
BOMB = "__device__ __forceinline__ float f0(float x) { return sinf(x) + x; }\n"
for _i in range(13):
    BOMB += f"__device__ __forceinline__ float f{_i + 1}(float x) {{ "
    BOMB += f"return f{_i}(x) + f{_i}(x * 1.1f) + f{_i}(x * 2.0f); }}\n"
BOMB += "#define grown f13\n"
