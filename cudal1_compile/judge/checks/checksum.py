"""A checksum over what the judge holds in a device's memory: whether anybody wrote into it.

    Checksum(tensors) -> intact

A candidate runs in the judge's own context and may write anywhere in it. Canaries see what lies next to its
buffers; expectations that a wild write has reached would accept or refuse whatever comes next.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_JOINED_BYTES = 1 << 20  # storages up to this are summed together


class Checksum:
    """Over the whole storages of some tensors, which stay as they are."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        storages = {t.untyped_storage().data_ptr(): t for t in tensors if t.numel()}
        held = [_bytes(t) for t in storages.values()]
        self._small = [x for x in held if x.numel() <= _JOINED_BYTES]
        self._large = [x for x in held if x.numel() > _JOINED_BYTES]
        self._sums = self._read()

    @property
    def intact(self) -> bool:
        """Waits for the device."""
        return self._read() == self._sums

    def _read(self) -> list[int]:
        parts = [torch.cat(self._small)] if self._small else []
        sums = [_sum(x) for x in (*parts, *self._large)]
        return [int(s) for s in torch.stack(sums).tolist()] if sums else []


def _sum(x: Tensor) -> Tensor:
    """Of words of eight bytes, which wraps, and of what is left: on a CPU bytes alone take 80 times as long."""
    whole = x.numel() // 8 * 8
    words = x[:whole].view(torch.int64).sum()
    return words + x[whole:].sum() if whole < x.numel() else words


def _bytes(t: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
