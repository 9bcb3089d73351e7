"""A call in a kernel picks the same overload on the host target as with NVRTC, and computes what it should.

The host target is asked for the type of each call over all arithmetic types, "no such call" among the answers, and
NVRTC has to agree by one static_assert a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime import nvrtc
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import run_isolated
from cudal1_compile.runtime.source import header_text
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.text import parse_program
from tests.toolchain import has_nvrtc

INTEGERS = (
    *("bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned"),
    *("long", "unsigned long", "long long", "unsigned long long"),
)
ARITHMETIC = (*INTEGERS, "float", "double")
PAIRED = tuple(t for t in ARITHMETIC if t not in ("char", "signed char", "short", "unsigned short"))
VECTORS = tuple(
    f"{kind}{n}"
    for kind in ("char", "uchar", "short", "ushort", "int", "uint", "longlong", "ulonglong", "float", "double")
    for n in (1, 2, 3, 4)
)
MATHS = """
    acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp10 exp2 expm1 fabs floor ilogb isfinite
    isinf isnan j0 j1 lgamma llrint llround log log10 log1p log2 logb lrint lround nearbyint rint round rsqrt
    signbit sin sinh sqrt tan tanh tgamma trunc y0 y1
"""
OF_FLOATS = "__expf __exp10f __logf __log2f __log10f __sinf __cosf __tanf __saturatef __frcp_rn rsqrtf normcdff"
OF_BITS = "__popc __popcll __clz __clzll __ffs __brev __float_as_int __int_as_float __double_as_longlong"
CASTS = "__float2int_rn __float2int_rz __float2int_rd __float2int_ru __int2float_rn"
MATHS_OF_TWO = """
    atan2 copysign fdim fmax fmin fmod hypot ldexp max min nextafter pow remainder scalbn __fdividef __powf
    __umulhi __mulhi
"""
POINTERS = ("__ldg", "__ldca", "__ldcg", "__ldcs", "__ldlu", "__ldcv")
STORES = ("__stwb", "__stcg", "__stcs", "__stwt")
ATOMICS = "Add Sub Min Max Exch And Or Xor Inc Dec"

# a call, with a and b of the types that are tried, and those types
OF_ONE = [
    *(
        f"{name}(a)"
        for name in (*MATHS.split(), *OF_FLOATS.split(), *OF_BITS.split(), *CASTS.split(), "abs", "labs")
    ),
    *(f"{name}f(a)" for name in ("exp", "fabs", "ilogb", "llrint", "sqrt")),
    *("fma(a, a, a)", "fma(a, 1.0, 1)", "fma(a, 1.0f, 1)", "sincos(a, (float*)0, (float*)0)"),
    *("pow(a, 2)", "max(a, 0)", "min(a, 1.0f)", "max(a, 1.0)"),
    *(f"atomic{name}(&a, a)" for name in ATOMICS.split()),
    *("atomicCAS(&a, a, a)", "atomicAdd_block(&a, a)", "atomicMax(&a, 0)"),
    *(f"__shfl{name}_sync(~0u, a, 1)" for name in ("", "_up", "_down", "_xor")),
    *("__match_any_sync(~0u, a)", "__ballot_sync(~0u, a)", "__syncthreads_count(a)"),
    *(f"__reduce_{name}_sync(~0u, a)" for name in ("add", "min", "max", "and", "or", "xor")),
]
OF_TWO = [f"{name}(a, b)" for name in MATHS_OF_TWO.split()]
OF_POINTERS = [*(f"{name}(&a)" for name in POINTERS), *(f"{name}(&a, a)" for name in STORES)]

NUMBERED = ("none", *ARITHMETIC, *VECTORS, "void")
TYPES = "struct none {};\ntemplate <class T> struct Number;\n" + "".join(
    f"template <> struct Number<{name}> {{ enum {{ value = {i} }}; }};\n" for i, name in enumerate(NUMBERED)
)


def _probe(number: int, call: str) -> str:
    """`numberN<A, B>(0)` is of the type of the call; `none` where there is no such call or several as good."""
    return f"""
template <class A, class B> __device__ auto number{number}(int, A& a, B& b) -> Number<decltype({call})>;
template <class A, class B> __device__ Number<none> number{number}(long, A& a, B& b);
"""


def _asked(number: int, a: str, b: str) -> str:
    return f"(int)decltype(number{number}(0, *({a}*)0, *({b}*)0))::value"


def _questions() -> list[tuple[str, str, str]]:
    return [
        *((call, a, "int") for call in OF_ONE for a in ARITHMETIC),
        *((call, a, b) for call in OF_TWO for a, b in product(PAIRED, PAIRED)),
        *((call, a, "int") for call in OF_POINTERS for a in (*ARITHMETIC, *VECTORS)),
    ]


def _answers(questions: list[tuple[str, str, str]]) -> list[str]:
    """What the host target makes of each call."""
    calls = list(dict.fromkeys(call for call, _, _ in questions))
    probes = "".join(_probe(i, call) for i, call in enumerate(calls))
    table = ", ".join(_asked(calls.index(call), a, b) for call, a, b in questions)
    before = f"{TYPES}{probes}constexpr int answers[] = {{{table}}};\n"
    body = f"  for (int i = 0; i < {len(questions)}; i++) out0[i] = answers[i];\n"
    found = _run(before, body, torch.zeros(len(questions), dtype=torch.int32), "i32")
    return [NUMBERED[i] for i in found.tolist()]


def _run(before: str, body: str, given: Tensor, dtype: str) -> Tensor:
    """One thread over in0 and out0 of one dtype."""
    n = given.numel()
    program = parse_program(
        f"region v1\ndims d0={n}\nin0 {dtype}[d0]\nt0 {dtype}[d0] = neg(in0)\nout0 {dtype}[d0] = t0"
    )
    kernel = f"__global__ void k(const in0_t* in0, out0_t* out0) {{\n{body}}}\n"
    code = f"// launch: k<<<1, 1>>>(in0, out0)\n{before}{kernel}"
    plan = code.partition("\n")[0]  # the rest is longer than a reply may be
    candidate = replace(parse_candidate(f"{plan}\n__global__ void k() {{}}\n", program), code=code)
    out = torch.zeros(n, dtype=TORCH_DTYPE[dtype])
    image = build(program, candidate, HOST).image
    found = run_isolated(program, candidate, image, {"in0": given, "out0": out})
    assert found.ok, found
    return out


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
def test_nvrtc_gives_every_call_the_same_type() -> None:
    questions = _questions()
    answers = _answers(questions)
    assert {"none", "int", "float", "double", "long long", "float4", "void"} <= set(answers)
    calls = list(dict.fromkeys(call for call, _, _ in questions))
    probes = "".join(_probe(i, call) for i, call in enumerate(calls))
    asserts = "".join(
        f"static_assert({_asked(calls.index(c), a, b)} == {NUMBERED.index(host)}, "
        f'"{c} of {a}, {b}: {host} on the host target");\n'
        for (c, a, b), host in zip(questions, answers, strict=True)
    )
    text = f"{header_text('cudal1.cuh')}{TYPES}{probes}{asserts}__global__ void k() {{}}\n"
    nvrtc.compile_cubin(text, "sm_90a", ("k",))


@pytest.mark.parametrize(
    ("call", "a", "b", "want"),
    [
        ("fabs(a)", "float", "int", "float"),
        ("exp(a)", "double", "int", "double"),
        ("exp(a)", "int", "int", "none"),
        ("pow(a, b)", "float", "int", "float"),
        ("pow(a, b)", "float", "double", "none"),
        ("abs(a)", "short", "int", "int"),
        ("abs(a)", "long long", "int", "long long"),
        ("abs(a)", "unsigned", "int", "none"),
        ("isnan(a)", "double", "int", "int"),
        ("max(a, b)", "int", "unsigned", "unsigned"),
        ("max(a, b)", "int", "long long", "none"),
        ("min(a, b)", "float", "double", "double"),
        ("min(a, b)", "float", "int", "none"),
        ("atomicMax(&a, a)", "float", "int", "none"),
        ("__shfl_xor_sync(~0u, a, 1)", "short", "int", "int"),
    ],
)
def test_the_type_of_a_call(call: str, a: str, b: str, want: str) -> None:
    assert _answers([(call, a, b)]) == [want]


ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "cbrt": lambda x: x.sign() * x.abs() ** (1 / 3),
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": torch.exp,
    "exp10": lambda x: 10**x,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fabs": torch.abs,
    "abs": torch.abs,
    "floor": torch.floor,
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "ilogb": lambda x: torch.frexp(x).exponent - 1,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "lgamma": torch.lgamma,
    "llrint": torch.round,
    "lrint": torch.round,
    "llround": lambda x: (x.abs() + 0.5).floor() * x.sign(),
    "lround": lambda x: (x.abs() + 0.5).floor() * x.sign(),
    "round": lambda x: (x.abs() + 0.5).floor() * x.sign(),
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logb": lambda x: torch.frexp(x).exponent - 1,
    "nearbyint": torch.round,
    "rint": torch.round,
    "rsqrt": torch.rsqrt,
    "signbit": torch.signbit,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "tgamma": lambda x: torch.tensor([math.gamma(v) for v in x.tolist()], dtype=torch.float64),
    "trunc": torch.trunc,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
}
POSITIVE = {"log", "log10", "log2", "y0", "y1", "sqrt", "rsqrt", "lgamma", "tgamma"}
WITHIN_ONE = {"acos", "asin", "atanh", "log1p"}
INTEGER_OR_BOOL = {"ilogb", "llrint", "llround", "lrint", "lround", "isfinite", "isinf", "isnan", "signbit"}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_value_of_a_call(dtype: str) -> None:
    """Each function in the overload of the dtype: of double to a double's precision, too."""
    assert set(ONE) == {*MATHS.split(), "abs"}
    points = torch.tensor([-2.5, -0.75, -0.5, 0.3, 0.5, 1.5, 2.5, 3.7], dtype=TORCH_DTYPE[dtype])
    domain = {name: points.abs() for name in POSITIVE} | dict.fromkeys(WITHIN_ONE, points / 4)
    domain["acosh"] = points.abs() + 1
    given = [domain.get(name, points) for name in ONE]
    body = "".join(
        f"  for (int i = {8 * n}; i < {8 * n + 8}; i++) out0[i] = {name}(in0[i]);\n" for n, name in enumerate(ONE)
    )
    found = _run("", body, torch.cat(given), dtype).view(-1, 8)
    for name, x, got in zip(ONE, given, found, strict=True):
        want = ONE[name](x.double())
        rtol = 1e-12 if dtype == "f64" and name[0] not in "jy" else 2e-6
        torch.testing.assert_close(
            got.double(), want.double(), rtol=rtol, atol=rtol, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(
    ("call", "want"),
    [
        ("max(-1, 1u)", 4294967295.0),
        ("min(-1ll, 1ull)", 1.0),
        ("max(2.5f, 1e-3)", 2.5),
        ("min(0.1f, 0.1)", 0.1),
        ("pow(1.1f, 3)", float(torch.tensor(1.1) ** 3)),
        ("pow(1.1, 3)", 1.1**3),
        ("abs(-3ll << 40)", float(3 << 40)),
        ("abs(-0.5f)", 0.5),
        ("abs((short)-7)", 7.0),
        ("atan2(1.0f, -1)", float(torch.atan2(torch.tensor(1.0), torch.tensor(-1.0)))),
        ("fma(1e-9, 1, 1)", 1.0 + 1e-9),
        ("copysign(2.0f, -1.0)", -2.0),
        ("ldexp(0.75f, 3)", 6.0),
        ("fmax(NAN, 1.0f)", 1.0),
        ("isnan(NAN) + isinf(INFINITY) + isfinite(1.0) + (signbit(-0.0f) != 0)", 4.0),
    ],
)
def test_the_value_of_a_mixed_call(call: str, want: float) -> None:
    found = _run("", f"  out0[0] = {call};\n", torch.zeros(1, dtype=torch.float64), "f64")
    assert found.item() == pytest.approx(want, rel=1e-7 if "f" in call else 1e-15)


@pytest.mark.parametrize(
    "name", ["M_PI", "HUGE_VALF", "strlen", "isinff", "isnormal", "ffs", "memmove", "int64_t"]
)
def test_a_name_of_the_c_library_that_nvrtc_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(BuildError, match=name):
        _run("", f"  out0[0] = sizeof({name});\n", torch.zeros(1), "f32")
