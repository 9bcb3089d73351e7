"""The floor's measures on a clock that a test reads off: each once, by the first worker that wants it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from cudal1_compile.judge.sandbox.device_lock import DeviceLock
from cudal1_compile.judge.timing import floor as module
from cudal1_compile.judge.timing.clock import Clock, Contender
from cudal1_compile.judge.timing.floor import COPIED_BYTES, Floor
from cudal1_fx_passes.program.text import parse_program

COPY = "region v1\ndims d0=512 d1=512\nin0 f32[d0,d1]\nt0 f32[d0,d1] = neg(in0)\nout0 f32[d0,d1] = t0\n"
PRODUCT = (
    "region v1\ndims d0=512 d1=512 d2=512\nin0 bf16[d0,d2]\nin1 bf16[d2,d1]\n"
    "t0 bf16[d0,d1] = dot(in0, in1) over d2\nout0 bf16[d0,d1] = t0\n"
)


class CountingClock:
    """10 us a measure, whatever is measured; nothing runs."""

    device = torch.device("cpu")
    bytes_per_us = 1e9

    def __init__(self) -> None:
        self.device_lock = DeviceLock.private()
        self.measured: list[str] = []

    def capture(self, call: Callable[[int], object], calls: int) -> Any:
        return None

    def measure(self, contenders: Sequence[Contender], rounds: int, rng: random.Random) -> list[list[float]]:
        self.measured += [c.name for c in contenders]
        return [[10.0] * rounds for _ in contenders]


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIDE", dict.fromkeys(module.SIDE, 64))


def floor(shared: Path | None = None) -> tuple[Floor, CountingClock]:
    clock = CountingClock()
    return Floor(cast(Clock, clock), shared), clock


def test_a_region_without_products_asks_for_copies_alone() -> None:
    found, clock = floor()
    assert found.us(parse_program(COPY)) == 10.0
    assert clock.measured == ["copy"] * len(COPIED_BYTES)


def test_what_is_measured_ahead_is_not_measured_again() -> None:
    found, clock = floor()
    for measure in found.parts():
        measure()
    assert clock.measured.count("product") == 4, "TF32, plain float32, bf16, f16"
    before = len(clock.measured)
    rate = 2 * 64**3 / 10.0
    assert found.us(parse_program(PRODUCT)) == pytest.approx(2 * 512**3 / rate)
    assert len(clock.measured) == before


def test_one_worker_measures_for_all(tmp_path: Path) -> None:
    (one, its), (another, others) = floor(tmp_path), floor(tmp_path)
    assert one.us(parse_program(PRODUCT)) == another.us(parse_program(PRODUCT))
    assert its.measured and not others.measured
    assert "bf16" in json.loads((tmp_path / "floor.json").read_text())
    another.us(parse_program(PRODUCT.replace("bf16", "f16")))
    assert others.measured == ["product"], "what the first did not need"
    assert {"bf16", "f16"} <= json.loads((tmp_path / "floor.json").read_text()).keys()
