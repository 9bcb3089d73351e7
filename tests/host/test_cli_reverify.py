"""Imported kernels before this machine's judge, on the host target: right and cheaper, wrong, too dear, forged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cudal1_cache import Entry, RegionText, Store
from cudal1_cache.bundle import Postponed, Refused, Verified, Verify, export_bundle
from cudal1_compile import cli
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.reverify import judges
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint, shape_agnostic_fingerprint
from cudal1_fx_passes.program.ir import Axis, Input, Op, Output, Program, Ref
from cudal1_fx_passes.program.text import parse_program, print_program


def _program() -> Program:
    axes = ("d0",)
    return canonicalise(
        Program(
            (Axis("d0", 8192),),
            (Input("in0", "f32", axes), Input("in1", "f32", axes)),
            (
                Op("t0", "f32", axes, "add", (Ref("in0"), Ref("in1"))),
                Op("t1", "f32", axes, "relu", (Ref("t0"),)),
            ),
            (Output("out0", "t1", axes),),
        )
    )


PROGRAM = _program()
REGION = RegionText(fingerprint(PROGRAM), shape_agnostic_fingerprint(PROGRAM), print_program(PROGRAM))
CODE = """// launch: add_relu<<<cdiv(d0, 256), 256>>>(in0, in1, out0)
__global__ void add_relu(const f32* in0, const f32* in1, f32* out0 DIMS) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < d0) st(out0 + i, relu(ld(in0 + i) + ld(in1 + i)));
}
"""
WRONG = CODE.replace("+ ld(in1 + i)", "- ld(in1 + i)")
DEAR = CODE.replace(
    "    if (i < d0)",
    "    for (int k = 0; k < 50; ++k) if (i < d0) st(out0 + i, ld(in0 + (i * 97 + k) % d0));\n    if (i < d0)",
)
KERNEL = Entry(
    "imported", REGION.fingerprint, HOST.key, "kernel", code=CODE, image=b"a stranger's binary", speedup=99.0
)


@pytest.fixture(scope="module")
def verify() -> Iterator[Verify]:
    with judges() as found:
        yield found


def test_a_right_kernel_is_built_and_measured_here(verify: Verify) -> None:
    found = verify(REGION, KERNEL)
    assert isinstance(found, Verified)
    assert found.entry.image.startswith(b"\x7fELF")
    assert found.entry.speedup != KERNEL.speedup
    assert found.entry.entry_id != KERNEL.entry_id
    assert not found.entry.quarantined


def test_a_wrong_kernel_is_refused(verify: Verify) -> None:
    found = verify(REGION, replace(KERNEL, code=WRONG))
    assert isinstance(found, Refused)
    assert found.reason.startswith("verify: ")


def test_a_kernel_that_does_not_win_here_is_refused(verify: Verify) -> None:
    found = verify(REGION, replace(KERNEL, code=DEAR))
    assert isinstance(found, Refused)
    assert found.reason.startswith("time: ")


def test_a_kernel_of_another_target_waits(verify: Verify) -> None:
    assert isinstance(verify(REGION, replace(KERNEL, target="another GPU's")), Postponed)


@pytest.mark.parametrize(
    ("region", "code", "says"),
    [
        (replace(REGION, fingerprint="0" * 64), CODE, "fingerprint"),
        (replace(REGION, text="no region at all"), CODE, ""),
        (REGION, "int main() { return 0; }", "launches"),
    ],
)
def test_forged_content_is_refused(verify: Verify, region: RegionText, code: str, says: str) -> None:
    found = verify(region, replace(KERNEL, fingerprint=region.fingerprint, code=code))
    assert isinstance(found, Refused)
    assert says in found.reason


def test_inputs_in_another_order_are_refused(verify: Verify) -> None:
    """Their fingerprint is that of the canonical text, in whose order a kernel gets its operands."""
    text = "region v1\ndims d0=8192\nin0 f32[d0]\nin1 f32[d0]\n"
    text += "t0 f32[d0] = exp({})\nt1 f32[d0] = sub(t0, {})\nout0 f32[d0] = t1\n"
    own, turned = text.format("in0", "in1"), text.format("in1", "in0")
    program = canonicalise(parse_program(own))
    assert fingerprint(parse_program(turned)) == fingerprint(program) and print_program(program) in (own, turned)
    other = turned if print_program(program) == own else own
    body = "expf(ld(in{} + i)) - ld(in{} + i)".format(*("10" if other == turned else "01"))
    code = CODE.replace("relu(ld(in0 + i) + ld(in1 + i))", body)
    region = RegionText(fingerprint(program), shape_agnostic_fingerprint(program), other)
    found = verify(region, replace(KERNEL, fingerprint=region.fingerprint, code=code))
    assert isinstance(found, Refused) and "canonical" in found.reason


def test_import_verifies_and_then_the_kernel_is_found(
    cudal1_cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "kernels.bundle"
    with Store.memory() as store:
        store.add_regions(REGION)
        store.put_entry(KERNEL)
        export_bundle(store, bundle)
    assert cli.main(["cache", "import", str(bundle), "--no-verify"]) == 0
    with open_store(cudal1_cache_dir) as store:
        assert store.find_entry(REGION.fingerprint, HOST.key) is None
    capsys.readouterr()
    assert cli.main(["cache", "verify"]) == 0
    assert "verified 1, refused 0, still unverified 0" in capsys.readouterr().out
    with open_store(cudal1_cache_dir) as store:
        found = store.find_entry(REGION.fingerprint, HOST.key)
        assert found is not None
        assert found.code == CODE
