"""A checksum over what the judge holds in a device's memory: whether anybody wrote into it.

    Checksum(tensors) -> intact
    Digest(device).of(tensors) -> the same for the same contents at the same places

A candidate runs in the judge's own context and may write anywhere in it. Canaries see what lies next to its
buffers; expectations that a wild write has reached would accept or refuse whatever comes next.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_JOINED_BYTES = 1 << 20  # storages up to this are summed together
WORD = 8  # bytes
DIGEST_WORDS = 1 << 23
CHUNK = DIGEST_WORDS * WORD  # bytes at a time


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


class Digest:
    """By secret factors, another one for each of DIGEST_WORDS places: values that change places show."""

    def __init__(self, device: torch.device) -> None:
        rng = torch.Generator(device).manual_seed(secrets.randbits(63))
        self._factors = torch.randint(-(1 << 63), (1 << 63) - 1, (DIGEST_WORDS,), generator=rng, device=device)

    def of(self, tensors: Sequence[Tensor]) -> list[int]:
        """Of tensors that lie densely. Waits for the device."""
        sums = [
            self._sum(x) for t in tensors if t.numel() for x in torch.split(t.view(-1).view(torch.uint8), CHUNK)
        ]
        return [int(s) for s in torch.stack(sums).tolist()] if sums else []

    def _sum(self, x: Tensor) -> Tensor:
        count = x.numel() // WORD
        words = x[: count * WORD].view(torch.int64) * self._factors[:count]
        return words.sum() + (x[count * WORD :] * self._factors[: x.numel() % WORD]).sum()


def _sum(x: Tensor) -> Tensor:
    """Of words of eight bytes, which wraps, and of what is left: on a CPU bytes alone take 80 times as long."""
    whole = x.numel() // 8 * 8
    words = x[:whole].view(torch.int64).sum()
    return words + x[whole:].sum() if whole < x.numel() else words


def _bytes(t: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
