"""The moat: whatever is written between the berths is seen, once, and what is written into them is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cudal1_compile.judge.checks.guarded_memory import GUARD, HUGE_PAGE
from cudal1_compile.judge.checks.redzones import BERTH, BERTHS, MARGIN, Moat

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def moat() -> Moat:
    return Moat(CPU)


def at(memory: Tensor, offset: int) -> Tensor:
    """The byte so far from the first one of some memory."""
    return torch.as_strided(memory, (1,), (1,), memory.storage_offset() + offset)


@pytest.mark.parametrize("size", [4096, BERTH + 4096])
@pytest.mark.parametrize("offset", [-MARGIN // 2, -1, 0, 4095, "end", 1 << 20, MARGIN // 2])
def test_only_what_lies_outside_is_looked_at(moat: Moat, size: int, offset: int | str) -> None:
    memory, other = moat.take("a", size), moat.take("b", 512)
    assert (memory.data_ptr() + GUARD) % HUGE_PAGE == 0
    other.fill_(7)
    place = size if offset == "end" else int(offset)
    at(memory, place).fill_(7)
    assert moat.leave() == (0 <= place < size)
    assert moat.leave()


def test_owners_are_apart_and_memory_is_canaries_again(moat: Moat) -> None:
    owned = [moat.take(owner, 4096) for owner in range(BERTHS + 2)]
    starts = sorted(x.data_ptr() for x in owned)
    assert all(b - a > BERTH for a, b in zip(starts, starts[1:], strict=False))
    untouched = owned[0].clone()
    for x in owned:
        x.fill_(7)
    again = moat.take(3, 4096)
    assert torch.equal(again, untouched)
    at(moat.take(BERTHS + 1, 4096), -1).fill_(7)  # in an allocation of its own, which it then gives up
    moat.take(BERTHS + 1, 4096)
    assert not moat.leave()
    assert all(torch.equal(moat.take(owner, 4096), untouched) for owner in range(BERTHS + 2))
    assert moat.leave()
