"""`cudal1 replay`: a proof is repeated with fresh seeds; one that does not hold takes its kernel out of use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cudal1_cache import Entry, RegionText, Store
from cudal1_cache.bundle import Verified
from cudal1_compile import cli
from cudal1_compile.cli.replay import figures
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.errors import BuildError
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis import reverify
from cudal1_compile.synthesis.reverify import judges
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint, shape_agnostic_fingerprint
from cudal1_fx_passes.program.text import parse_program, print_program

pytestmark = pytest.mark.host

PROGRAM = canonicalise(
    parse_program(
        "region v1\ndims d0=4096\nin0 f32[d0]\nin1 f32[d0]\n"
        "t0 f32[d0] = add(in0, in1)\nt1 f32[d0] = relu(t0)\nout0 f32[d0] = t1\n"
    )
)
REGION = RegionText(fingerprint(PROGRAM), shape_agnostic_fingerprint(PROGRAM), print_program(PROGRAM))
CODE = """// launch: k<<<cdiv(d0, 256), 256>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < d0) st(out0 + i, relu(ld(in0 + i) + ld(in1 + i)));
}
"""


@pytest.fixture(scope="module")
def proven() -> Entry:
    with judges() as verify:
        found = verify(REGION, Entry("given", REGION.fingerprint, HOST.key, "kernel", code=CODE))
    assert isinstance(found, Verified)
    return found.entry


def _stored(place: Path, entry: Entry) -> None:
    with open_store(place) as store:
        store.add_regions(REGION)
        store.put_entry(entry)


def _usable(place: Path) -> Entry | None:
    with open_store(place) as store:
        return store.find_entry(REGION.fingerprint, HOST.key)


def test_a_proof_that_holds_changes_nothing(
    proven: Entry, cudal1_cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _stored(cudal1_cache_dir, proven)
    before = _usable(cudal1_cache_dir)
    assert cli.main(["replay", proven.entry_id[:10]]) == 0
    shown = capsys.readouterr().out
    assert "the proof holds" in shown and "error normal" in shown
    seeds = next(line for line in shown.splitlines() if "seed" in line).replace("│", " ").split()
    assert seeds[1] == figures(proven.proof_json)["seed"] != seeds[2]
    assert _usable(cudal1_cache_dir) == before is not None


def test_a_proof_that_no_longer_holds_takes_the_kernel_out_of_use(
    proven: Entry, cudal1_cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _stored(cudal1_cache_dir, replace(proven, code=CODE.replace("+ ld(in1 + i)", "- ld(in1 + i)")))
    assert cli.main(["replay", proven.entry_id]) == 1
    assert "no longer holds" in capsys.readouterr().out
    assert _usable(cudal1_cache_dir) is None
    assert cli.main(["replay", proven.entry_id]) == 1
    assert "not in use (refused: verify" in capsys.readouterr().err


def test_no_verdict_is_no_refusal(
    proven: Entry, cudal1_cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _stored(cudal1_cache_dir, replace(proven, target="another GPU's"))
    assert cli.main(["replay", proven.entry_id]) == 2
    assert "another GPU" in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_is_said(
    proven: Entry, cudal1_cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _stored(cudal1_cache_dir, replace(proven, code=CODE.replace("+ ld(in1 + i)", "- ld(in1 + i)")))
    monkeypatch.setattr(Store, "path", None)
    assert cli.main(["replay", proven.entry_id]) == 1
    assert "stays in use, since the cache cannot be written" in capsys.readouterr().out


def test_without_a_compiler_there_is_no_verdict(
    proven: Entry, cudal1_cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_judge(target: object) -> None:
        raise BuildError("no g++ on PATH")

    monkeypatch.setattr(reverify, "Judge", no_judge)
    _stored(cudal1_cache_dir, proven)
    assert cli.main(["replay", proven.entry_id]) == 2
    assert "nothing can be built here: no g++ on PATH" in capsys.readouterr().out
    assert _usable(cudal1_cache_dir) is not None


def test_what_has_no_proof_is_named(cudal1_cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _stored(cudal1_cache_dir, Entry("nothing", REGION.fingerprint, HOST.key, "unprofitable"))
    assert cli.main(["replay", "nothing"]) == 1
    assert "no kernel" in capsys.readouterr().err
