"""A case suite that another process made is the same case suite."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from benchmarks.redteam.regions import region, region_names
from cudal1_compile.judge.checks import case_suite_file as suite_file
from cudal1_compile.judge.checks.case_suite import CaseSuite, Unverifiable, prepare_suite
from cudal1_compile.judge.checks.case_suite_file import ROOM_BYTES, can_make_ahead, make_ahead, read_suite
from cudal1_compile.judge.checks.cases import Case
from cudal1_compile.judge.checks.checksum import Checksum
from cudal1_fx_passes.program.text import parse_program, print_program

CPU = torch.device("cpu")
STRIDED_HALF = """region v1
dims d0=?6 d1=7
in0 f16[d0,d1] strides(21,2)
in1 bool[d1]
t0 f16[d0,d1] = where(in1, in0, 0.5)
t1 f16[d0,d1] = sigmoid(t0)
t2 bool[d0,d1] = gt(t1, 0.25)
out0 f16[d0,d1] = t1
out1 bool[d0,d1] = t2
"""
CASTS = """region v1
dims d0=6
in0 f32[d0]
t0 i32[d0] = cast(in0)
out0 i32[d0] = t0
"""
ALONE = """region v1
dims d0=6
t0 i64[d0] = iota() over d0
t1 f32[d0] = cast(t0)
out0 f32[d0] = t1
"""

INADEQUATE = """region v1
dims d0=6
in0 f32[d0]
t0 f32[d0] = mul(in0, 0.0)
t1 bool[d0] = gt(t0, 1.0)
out0 bool[d0] = t1
"""


def _check(text: str, folder: Path) -> None:
    program = parse_program(text)
    suite = prepare_suite(program, 5, CPU, ROOM_BYTES)
    path = folder / "suite"
    assert make_ahead(program, 5, (), path)
    found = read_suite(path, program, CPU)
    if not isinstance(suite, CaseSuite):
        assert found == suite
        return
    assert isinstance(found, CaseSuite)
    assert (found.seed, found.left_out, found.program) == (suite.seed, suite.left_out, suite.program)
    for mine, wanted in ((found.cases, suite.cases), (found.f32_cases, suite.f32_cases)):
        for a, b in zip(mine, wanted, strict=True):
            _check_case(a, b)


def _check_case(mine: Case, wanted: Case) -> None:
    assert (mine.name, mine.sizes, mine.wide) == (wanted.name, wanted.sizes, wanted.wide)
    assert mine.image.specs == wanted.image.specs and torch.equal(mine.image.bytes, wanted.image.bytes)
    assert mine.expected is not None and wanted.expected is not None
    for a, b in zip(mine.expected, wanted.expected, strict=True):
        assert (a.name, a.nonfinite_share, a.rms_limit) == (b.name, b.nonfinite_share, b.rms_limit)
        for x, y in ((a.want, b.want), (a.tolerance, b.tolerance), (a.other, b.other)):
            assert (x is None) == (y is None)
            if x is not None and y is not None:
                torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["softmax", "layernorm", "argmax"])
def test_what_is_read_is_what_was_written(name: str, tmp_path: Path) -> None:
    assert name in region_names()
    _check(print_program(region(name)), tmp_path)


@pytest.mark.parametrize("text", [STRIDED_HALF, ALONE, INADEQUATE])
def test_strides_half_types_symbolic_sizes_and_refusals_come_through(text: str, tmp_path: Path) -> None:
    _check(text, tmp_path)


def test_a_checksum_over_it_is_one_sum(tmp_path: Path) -> None:
    make_ahead(region("softmax"), 5, (), tmp_path / "suite")
    suite = read_suite(tmp_path / "suite", region("softmax"), CPU)
    assert isinstance(suite, CaseSuite)
    checksum = Checksum(suite.tensors())
    assert len(checksum._small) + len(checksum._large) == 1
    assert checksum.intact
    expected = suite.cases[-1].expected
    assert expected is not None and expected[0].tolerance is not None
    expected[0].tolerance.view(-1)[-1] = torch.inf
    assert not checksum.intact


def test_a_file_that_is_gone_or_cut_short_is_no_case_suite(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        read_suite(tmp_path / "suite", region("softmax"), CPU)
    (tmp_path / "suite").write_bytes(b"cut")
    with pytest.raises(SafetensorError):
        read_suite(tmp_path / "suite", region("softmax"), CPU)


def test_casts_to_integers_and_products_are_left_to_the_device() -> None:
    assert not can_make_ahead(parse_program(CASTS))
    assert can_make_ahead(parse_program(STRIDED_HALF))


def test_a_refusal_and_no_room_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(prepare_suite(parse_program(INADEQUATE), 5, CPU, ROOM_BYTES), Unverifiable)
    monkeypatch.setattr(suite_file, "ROOM_BYTES", 1)
    assert not make_ahead(region("softmax"), 5, (), tmp_path / "suite")
    assert not (tmp_path / "suite").exists()
