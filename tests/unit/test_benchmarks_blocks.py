"""Roofline figures of blocks: every kernel is right on the host target and builds for an H100."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.block import Block
from benchmarks.block_kernels import blocks
from benchmarks.blocks import NOT_REACHED, Figure, main, make_jobs, read_row, summarise
from benchmarks.duel import Row
from benchmarks.floor import HOPPER, Floor
from cudal1_compile.judge.checks.cases import oracle_bytes
from cudal1_compile.judge.sandbox.builders import Builders
from cudal1_compile.judge.static.text_gate import CleanText, check_text
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import Binary, build
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.text import parse_program
from tests.codegen_checks import LOCAL_BYTES, run_on_host
from tests.toolchain import has_nvrtc

H100 = Target("cuda", "test", "sm_90a", 132, 227 * 1024, 50 << 20)
FLOOR = Floor(3e6, HOPPER)
WORKERS = 3


def test_every_block_and_every_arithmetic_has_a_kernel() -> None:
    full, small = list(blocks()), list(blocks(small=True))
    assert {(b.name, b.dtype, b.work.name) for b in full} == {(b.name, b.dtype, b.work.name) for b in small}
    products = {(b.name, b.dtype) for b in full}
    for name in ("product_tile", "product_taps", "product_pipe", "product_patch"):
        assert {(name, t) for t in ("f32_split", "tf32", "f16", "bf16")} <= products
    for name in ("product_wide", "product_stem", "product_bulk", "product_fill"):
        assert {(name, t) for t in ("tf32", "f16", "bf16")} <= products
    for word in ("vload", "warp_sum", "block_sum", "wait_for_blocks", "block_scan_sum", "block_before_sum"):
        assert any(word in b.code for b in full), word
    for b in full:
        if b.name.startswith("product_"):
            assert f"{b.name}<" in b.code, b.ident
        assert oracle_bytes(parse_program(b.work.region), {}) < 10 << 30, b.work
        assert isinstance(check_text(b.code), CleanText), b.ident


def test_what_runs_side_by_side_has_names_of_its_own() -> None:
    found = list(blocks())
    jobs = make_jobs(found)
    assert sum(len(same) for _, same in jobs.values()) == len(found)
    for job, _ in jobs.values():
        assert len(dict(job.codes)) == len(job.codes), job.ident


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC")
@pytest.mark.slow
def test_every_kernel_builds_for_an_h100_without_spills() -> None:
    builders = Builders(WORKERS)

    def make(block: Block) -> Binary:
        program = parse_program(block.work.region)
        return build(program, parse_candidate(block.code, program), H100, compile_cubin=builders.compile_cubin)

    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            found = list(blocks())
            for block, binary in zip(found, pool.map(make, found), strict=True):
                for name, resources in binary.kernels.items():
                    assert resources.local_bytes <= LOCAL_BYTES, (block.ident, name)
    finally:
        builders.close()


@pytest.mark.host
@pytest.mark.slow
def test_every_kernel_is_right_on_the_host_target() -> None:
    for text, (_, same) in make_jobs(list(blocks(small=True))).items():
        program = parse_program(text)
        right, failures = run_on_host(program, {b.ident: parse_candidate(b.code, program) for b in same})
        assert failures == {} and right == {b.ident for b in same}


@pytest.mark.host
@pytest.mark.slow
def test_no_kernel_breaks_a_rule_in_a_dry_run(tmp_path: Path) -> None:
    """In the host's check build, through the script."""
    rows = _dry_rows(tmp_path, WORKERS)
    assert len(rows) == len(list(blocks(small=True)))
    assert [r["reason"] for r in rows if not r["right"]] == []


@pytest.mark.host
def test_a_dry_run_tells_right_from_wrong_and_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, other = list(blocks(small=True))[:2]
    assert "relu(v[j])" in other.code
    wrong = replace(other, code=other.code.replace("relu(v[j])", "v[j]"))
    monkeypatch.setattr("benchmarks.blocks.blocks", lambda small: [right, wrong])
    rows = _dry_rows(tmp_path, 1)
    assert [r["right"] for r in rows] == [True, False] and str(rows[1]["reason"]).startswith("wrong: ")
    assert {(r["us"], r["floor_us"], r["share_of_floor"], r["aten_us"]) for r in rows} == {(None,) * 4}
    assert "relu bf16 4096: WRONG" in capsys.readouterr().out


def _dry_rows(folder: Path, workers: int) -> list[dict[str, object]]:
    main(["--out", str(folder), "--dry", "--seconds", "280", "--workers", str(workers)])
    written = json.loads((folder / "blocks.dry.json").read_text())
    rows: list[dict[str, object]] = written["detail"]["blocks"]
    assert len(rows) == written["n"] and written["summary"]["right"] == sum(r["right"] is True for r in rows)
    return rows


def test_figures_follow_from_rows() -> None:
    copy = next(b for b in blocks() if b.name == "vload_vstore" and b.dtype == "f32")
    (figure,) = read_row(
        [copy], Row("", {copy.ident: (200.0, 199.0, 201.0), "aten": (190.0, 1.0, 1.0)}, {}), FLOOR
    )
    floor_us = 2 * 4 * 2**26 / 3e6
    assert figure.right and figure.bound == "memory" and figure.aten_us == 190.0
    assert figure.floor_us == pytest.approx(floor_us) and figure.share_of_floor == pytest.approx(floor_us / 200)
    product = next(b for b in blocks() if b.ident == "product_wide bf16" and "4096" in b.work.size)
    (figure,) = read_row([product], Row("", {product.ident: (200.0, 1.0, 1.0)}, {}), FLOOR)
    assert figure.bound == "arithmetic" and figure.floor_us == pytest.approx(2 * 4096**3 / 989.4e6)
    (figure,) = read_row([copy], Row("", {}, {copy.ident: "wrong: out0"}), FLOOR)
    assert figure.right is False and figure.reason == "wrong: out0" and figure.share_of_floor is None
    (late,) = read_row([copy], None, FLOOR)
    assert late.right is None and late.reason == NOT_REACHED and "not run" in late.line()


def test_the_summary_counts_right_ones_only() -> None:
    def made(share: float | None, bound: str, right: bool | None) -> Figure:
        return Figure("b", "w", "1", "f32", 1.0, 1.0, share, bound, None, right, None)  # type: ignore[arg-type]

    found = [made(0.5, "memory", True), made(0.125, "memory", True), made(0.6, "arithmetic", True)]
    summary, intervals = summarise([*found, made(None, "memory", False), made(None, "memory", None)])
    assert summary["share_of_floor_memory"] == pytest.approx(0.25)
    assert summary["share_of_floor_arithmetic"] == pytest.approx(0.6)
    assert (summary["right"], summary["wrong"], summary["not_run"]) == (3, 1, 1)
    low, high = intervals["share_of_floor_memory"]
    assert 0.125 <= low <= high <= 0.5
