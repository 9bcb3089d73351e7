"""Redzones: whatever is written between the segments is seen, once, and what is written into them is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cudal1_compile.judge.checks.guarded_memory import GUARD, HUGE_PAGE
from cudal1_compile.judge.checks.redzones import MARGIN, SEGMENT_BYTES, SEGMENTS, Redzones

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def redzones() -> Redzones:
    return Redzones(CPU)


def at(memory: Tensor, offset: int) -> Tensor:
    """The byte so far from the first one of some memory."""
    return torch.as_strided(memory, (1,), (1,), memory.storage_offset() + offset)


@pytest.mark.parametrize("size", [4096, SEGMENT_BYTES + 4096])
@pytest.mark.parametrize("offset", [-MARGIN // 2, -1, 0, 4095, "end", 1 << 20, MARGIN // 2])
def test_only_what_lies_outside_is_looked_at(redzones: Redzones, size: int, offset: int | str) -> None:
    memory, other = redzones.take("a", size), redzones.take("b", 512)
    assert (memory.data_ptr() + GUARD) % HUGE_PAGE == 0
    other.fill_(7)
    place = size if offset == "end" else int(offset)
    at(memory, place).fill_(7)
    assert redzones.leave() == (0 <= place < size)
    assert redzones.leave()


def test_owners_are_apart_and_memory_is_canaries_again(redzones: Redzones) -> None:
    owned = [redzones.take(owner, 4096) for owner in range(SEGMENTS + 2)]
    starts = sorted(x.data_ptr() for x in owned)
    assert all(b - a > SEGMENT_BYTES for a, b in zip(starts, starts[1:], strict=False))
    untouched = owned[0].clone()
    for x in owned:
        x.fill_(7)
    again = redzones.take(3, 4096)
    assert torch.equal(again, untouched)
    at(redzones.take(SEGMENTS + 1, 4096), -1).fill_(7)  # in an allocation of its own, which it then gives up
    redzones.take(SEGMENTS + 1, 4096)
    assert not redzones.leave()
    assert all(torch.equal(redzones.take(owner, 4096), untouched) for owner in range(SEGMENTS + 2))
    assert redzones.leave()
