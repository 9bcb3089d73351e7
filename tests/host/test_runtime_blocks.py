"""Every public name of the device header compiles as the only one that a kernel uses: its part comes with it.

What each one computes is tested in test_runtime_header.py, test_runtime_product.py and the templates' tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.source import PARTS, header_text, needed
from cudal1_compile.runtime.target import HOST, Target
from cudal1_fx_passes.program.text import parse_program
from tests.toolchain import has_nvrtc

H100 = Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20)
PROGRAM = parse_program("region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = relu(in0)\nout0 f32[d0] = t0\n")
KERNEL = """__global__ void {kernel}(const f32* in0, f32* out0, i32* s0, f32* s1 DIMS) {{
  const int i = threadIdx.x;
  {body}
}}
"""
ONE = "[&](int) { return [=](int k) { return in0[k]; }; }"
PLACES = "[&](int) { return [=](int) { return in0; }; }"
SUMS = "[&](int m) { return [=](int n, float v) { if (m + n == 0) out0[0] = v; }; }"
PATCH = "[&](int) { return [=](int) { return [=](int k) { return in0[k]; }; }; }"
ZERO = "[](int) { return 0; }"
PLACE = "[&](int) { return [=](int, int tap) { return tap; }; }"


def _bodies() -> Iterator[tuple[str, str]]:
    """A public name, and a body that uses it and nothing else of the header."""
    yield "cdiv", "out0[i] = cdiv(i, 3);"
    yield "compute", "compute<f32> x = in0[i]; out0[i] = x;"
    yield "ld", "out0[i] = ld(in0 + i);"
    yield "st", "st(out0 + i, in0[i]);"
    yield "round_to", "out0[i] = round_to<bf16>(in0[i]);"
    yield "vload", "float v[4]; vload<4>(in0, v); out0[i] = v[3];"
    yield "vstore", "float v[4] = {1, 2, 3, 4}; vstore<4>(out0, v); vstore<4>(out0, v, i == 0);"
    yield from ((name, f"out0[i] = {name}<f32>();") for name in ("lowest", "highest"))
    yield from ((name, f"out0[i] = {name}(in0[i], 2.0f);") for name in ("maximum", "minimum", "remainder_"))
    for name in ("finite_or_zero", "relu", "sign", "reciprocal", "sigmoid", "round_even"):
        yield name, f"out0[i] = {name}(in0[i]);"
    yield "int_pow", "out0[i] = int_pow(i, 3);"
    yield from ((name, f"out0[i] = {name}();") for name in ("thread_id", "block_threads", "lane_id", "warp_id"))
    for scope in ("warp", "block", "tile"):
        yield from ((f"{scope}_{f}", f"out0[i] = {scope}_{f}(in0[i]);") for f in ("sum", "prod", "max", "min"))
    for scope in ("warp", "block"):
        yield from ((f"{scope}_{f}", f"out0[i] = {scope}_{f}(in0[i] > 0);") for f in ("all", "any"))
        for f in ("argmax", "argmin"):
            yield f"{scope}_{f}", f"float v = in0[i]; int at = i; {scope}_{f}(v, at); out0[i] = at;"
    for f in ("argmax", "argmin"):
        yield f"join_{f}", f"float v = in0[i]; int at = i; join_{f}(v, at, 0.5f, 3); out0[i] = at;"
    for f in ("sum", "prod"):
        for scope in ("warp", "block"):
            yield f"{scope}_scan_{f}", f"out0[i] = {scope}_scan_{f}(in0[i]);"
        for scope in ("thread", "warp", "block", "tile"):
            array = f"float q[2] = {{in0[i], 1}}, carry = 0; {scope}_scan_{f}(q, carry); out0[i] = q[1] + carry;"
            yield f"{scope}_scan_{f}", array
        for scope in ("block", "tile"):
            yield f"{scope}_before_{f}", f"out0[i] = {scope}_before_{f}(s1, s0, 0, 1, in0[i]);"
    yield "atomic_add", "atomic_add(out0, in0[i]);"
    yield from ((name, f"{name}(out0, in0[i]);") for name in ("atomic_max", "atomic_min"))
    yield "wait_for_blocks", "wait_for_blocks(s0, 1);"
    yield "tf32", "out0[i] = round_to<tf32>(in0[i]);"
    yield "window_bits", "out0[i] = window_bits(i, d0, 3);"
    yield "larger", "out0[i] = larger(3, 4);"
    stored = "[&](int m, int n, float v) { if (m + n == 0) out0[0] = v; }"
    yield "product_tile", f"product_tile<f32, 64, 64, 16, 1, 1>(16, {ONE}, {ONE}, {stored});"
    tapped = f"[&](int) {{ return {ONE}; }}"
    yield "product_taps", f"product_taps<f32, 64, 64, 16, 1, 1>(2, 16, {tapped}, {tapped}, {stored});"
    yield (
        "product_pipe",
        f"product_pipe<tf32, 64, 64, 16, 32, 16, 3, 4, 1, 4, 1>(1, 16, {PLACES}, {PLACES}, {SUMS});",
    )
    yield (
        "product_patch",
        f"product_patch<tf32, 64, 64, 16, 32, 16, 9, 1, 64, 4, 1>(1, 16, {PATCH}, {PLACE}, {PLACES}, {SUMS});",
    )
    yield (
        "product_stem",
        f"product_stem<tf32, 64, 64, 16, 32, 16, 3, 3, 64, 4, 1>(16, {PATCH}, {ZERO}, {ZERO}, {PLACES}, {SUMS});",
    )
    yield "product_wide", f"product_wide<tf32, 128, 64, 16, 3>(1, 16, {PLACES}, {PLACES}, {SUMS});"
    plane, same = "[&](int o) { return [=](int p) { return in0 + (p + o) * 4; }; }", "[&](int tap) { return tap; }"
    bulk = f"product_bulk<tf32, 64, 64, 16, 4, 9, 20, 2>(1, 16, {plane}, {same}, {plane}, {SUMS});"
    yield "product_bulk", bulk
    number = "[&](int) { return [=](int) { return [=](int) { return 1.0f; }; }; }"
    yield "product_fill", f"product_fill<tf32, 64, 64, 16, 4, 9, 20, 2>(1, 16, {number}, {same}, {plane}, {SUMS});"
    turned = "[&](int r, int c) { return in0[r]; }, [&](int r, int c, float v) { out0[c] = v; }"
    kept = "[&](int n, float rows, float mean, float squares) { out0[n] = rows + mean + squares; }"
    yield "column_moments", f"column_moments<64, 64> q; float v[4] = {{}}; q.add(i, v); q.join({kept});"
    summed = "[&](int n, float sum) { out0[n] = sum; }"
    yield "column_sums", f"column_sums<64, 64> q; float v[4] = {{}}; q.add(i, v); q.join({summed});"
    yield "strip_sums", f"strip_sums<64, 2> q; float v[2] = {{}}; q.add(v); q.join({summed});"
    yield "strip_moments", f"strip_moments<64, 1> q; q.add(in0[i]); q.join({kept});"
    yield "turn_tile", f"turn_tile<32, 32, 256>({turned});"


BODIES = list(_bodies())


def candidate(*bodies: str) -> Candidate:
    """A kernel for each body; the first ones are launched, as many as may be."""
    lines = ["// scratch: s0 i32[1] = 0", "// scratch: s1 f32[64]"]
    lines += [f"// launch: k{at}<<<1, 64, 65536>>>(in0, out0, s0, s1)" for at in range(min(len(bodies), 8))]
    lines += [KERNEL.format(kernel=f"k{at}", body=body) for at, body in enumerate(bodies)]
    return parse_candidate("\n".join(lines), PROGRAM)


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.parametrize("body", [pytest.param(body, id=f"{name}-{at}") for at, (name, body) in enumerate(BODIES)])
def test_nvrtc_builds_each_name_alone(body: str) -> None:
    assert build(PROGRAM, candidate(body), H100).image[:4] == b"\x7fELF"


def test_the_host_target_builds_each_name_alone() -> None:
    assert build(PROGRAM, candidate(*(body for _, body in BODIES)), HOST).image[:4] == b"\x7fELF"


def test_an_image_beyond_all_measure_is_a_build_error() -> None:
    body = "static constexpr int t[1 << 21] = {7};\nst(out0, (float)t[(int)ld(in0)]);"
    with pytest.raises(BuildError, match=r"the built code has \d{7} bytes, at most 4194304 are allowed"):
        build(PROGRAM, candidate(body), HOST)


def test_no_public_name_is_missing_here() -> None:
    declared = {name for part in ("cudal1.cuh", *PARTS) for name in public_names(header_text(part))}
    assert declared <= {name for name, _ in BODIES} and len(declared) > 60


def test_a_part_brings_what_it_stands_on() -> None:
    assert needed("x = block_sum(x);") == []
    assert needed("block_scan_sum(q, carry)") == ["scan.cuh"]
    assert needed("window_bits(0, 3, 3)") == ["product.cuh"]
    assert needed("turn_tile<32, 32, 256>") == ["product.cuh", "product_pipe.cuh", "product_wide.cuh"]
    assert needed("f32_split") == ["product.cuh", "product_pipe.cuh", "product_wide.cuh", "product_split.cuh"]
    assert needed("product_patch product_stem product_bulk f32_split tile_sum strip_moments") == list(PARTS)


def public_names(text: str) -> Iterator[str]:
    """Functions and structs outside namespace cudal1, macros that declare some written out."""
    text = text.replace("\\\n", " ")
    text = re.sub(r"^namespace cudal1 \{.*?^\}  // namespace cudal1$", "", text, flags=re.S | re.M)
    macros = {m[1]: (m[2].split(", "), m[3]) for m in re.finditer(r"#define (\w+)\(([^)]*)\) (.*)", text)}
    for line in text.splitlines():
        use = re.match(r"(\w+)\((.*)\)$", line)
        if use and use[1] in macros:
            words, line = macros[use[1]]
            for word, value in zip(words, use[2].split(", "), strict=True):
                line = re.sub(rf"\b{word}\b", value, line)
        yield from re.findall(r"^template <.*> struct (\w+) ", line)
        if not line.startswith(("#", "//", " ")):
            yield from re.findall(
                r"(?:CUDAL1_FN|constexpr) [\w:<>, ]+?(?<!operator)[*& ]+(\w+)\(", line.replace("##", "")
            )
