"""Redzones far around a candidate's buffers, which nobody may write: what jumps over their canaries lands in them.

    Redzones(device) -> take(owner, bytes) -> canaries for the buffers of one call; leave() -> whether the rest is

Segments lie far apart in one large allocation, which is compared whole when a candidate is done. What is too large
for a segment, or finds none free, gets an allocation of its own with a margin on both sides. Where nobody else's
memory is in reach (the host target runs candidates in processes of their own) `lone_memory` stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from cudal1_compile.judge.checks.guarded_memory import CANARIES, GUARD, HUGE_PAGE, canaries

SEGMENTS = 6
SEGMENT_BYTES = 2 << 20  # bytes that one has room for
PITCH = 6 << 20  # bytes from one to the next
MARGIN = 16 << 20  # bytes, before the first and behind the last

# (owner, bytes) -> memory of canaries, GUARD bytes before a huge page; what the owner had before is given up
Take = Callable[[Hashable, int], Tensor]


def lone_memory(device: torch.device) -> Take:
    """Memory without redzones."""
    return lambda _, size: _allocate(size, 0, device)[1]


class Redzones:
    """For one candidate at a time, or several that are measured together."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._whole, self._inner = _allocate(SEGMENTS * PITCH, MARGIN, device)
        self._free = set(range(SEGMENTS))
        self._segments: dict[Hashable, tuple[int, Tensor]] = {}  # number, and what is taken of it
        self._own: dict[Hashable, tuple[Tensor, Tensor]] = {}  # allocation, and what is taken of it
        self._broken: list[Tensor] = []  # bool scalars on the device

    def take(self, owner: Hashable, size: int) -> Tensor:
        self._give_up(owner)
        if size > SEGMENT_BYTES or not self._free:
            self._own[owner] = _allocate(size, MARGIN, self._device)
            return self._own[owner][1]
        segment = self._free.pop()
        taken = self._inner.narrow(0, segment * PITCH, size)
        self._segments[owner] = segment, taken
        return taken

    def leave(self) -> bool:
        """Gives up all that is taken. Waits for the device; says whether it is canaries everywhere else."""
        for owner in [*self._segments, *self._own]:
            self._give_up(owner)
        broken = bool(torch.stack([*self._broken, _differs(self._whole)]).any())
        self._broken.clear()
        if broken:
            _refill(self._whole)
        return not broken

    def _give_up(self, owner: Hashable) -> None:
        if (found := self._segments.pop(owner, None)) is not None:
            segment, taken = found
            self._free.add(segment)
            _refill(taken)
        if (own := self._own.pop(owner, None)) is not None:
            whole, taken = own
            _refill(taken)
            self._broken.append(_differs(whole))


def _allocate(size: int, margin: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(all of it, what lies between the margins)."""
    whole = canaries(size + 2 * margin + HUGE_PAGE, device)
    first = margin + -(whole.data_ptr() + margin + GUARD) % HUGE_PAGE
    return whole, whole.narrow(0, first, size)


def _refill(memory: Tensor) -> None:
    memory.view(torch.int64).fill_(CANARIES)


def _differs(memory: Tensor) -> Tensor:
    """A bool scalar on the device. Least and most: half the time of a comparison, which would be written down."""
    least, most = torch.aminmax(memory.view(torch.int64))
    return (least != CANARIES) | (most != CANARIES)
