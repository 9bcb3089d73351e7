"""The checksum over what candidates are held against."""

from __future__ import annotations

import torch

from cudal1_compile.judge.checks.checksum import Checksum


def test_any_write_into_a_storage_breaks_it() -> None:
    stacked = torch.randn(3, 40, dtype=torch.float64)
    large, whole = torch.zeros(1 << 18), torch.zeros(7, dtype=torch.bool)
    checksum = Checksum([stacked[1].t(), large, whole, torch.empty(0)])
    assert checksum.intact
    for x in (stacked, large, whole):  # the first beside the part that was given
        kept = x.clone()
        x.view(-1)[-1] = 1
        assert not checksum.intact
        x.copy_(kept)
        assert checksum.intact


def test_of_nothing() -> None:
    assert Checksum([]).intact
