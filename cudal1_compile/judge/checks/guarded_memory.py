"""Guarded memory: every buffer of a trial lies in one allocation, with canaries before, between and behind.

    specs -> GuardedMemory -> views (as the program's tensors) ; poison() before a launch ; intact() after it

Poison is a byte pattern: 0xFF is NaN in every float format, 0x7B a large finite number, and neither is a bool.
Canaries are NaN, and no bool, as well; they are drawn once a process, so a suite made by another may hold others.
The gaps of strided buffers count as canaries. Works on CPU and CUDA tensors alike; never synchronises.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import torch
from torch import Tensor

from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.hostrun import CANARY
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Program

ALIGNMENT = 256  # bytes, as the caching allocators give
MIN_ALIGN = 16  # bytes, the least that a caller's tensors are aligned to
GUARD = 256  # bytes of canary on each side of a buffer, at least
HUGE_PAGE = 2 << 20  # bytes
REMEMBERED_BYTES = 1 << 20  # of one; positions of canaries take eight times as much where most of it is gaps
FINITE_POISON = 0x7B
POISONS = (0xFF, FINITE_POISON)
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
CANARIES = int.from_bytes(CANARY, sys.byteorder, signed=True)  # as an i64


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer: shape and strides in elements (None: dense)."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """Strides, those of dense memory too."""
        if self.strides is not None:
            return self.strides
        return tuple(prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        count = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.steps, strict=True))
        return count * self.dtype.itemsize


def output_specs(program: Program, sizes: Mapping[str, int]) -> list[BufferSpec]:
    extent = {a.name: a.size for a in program.axes} | dict(sizes)
    return [
        BufferSpec(o.name, TORCH_DTYPE[program.output_dtype(o)], tuple(extent[a] for a in o.axes), o.strides)
        for o in program.outputs
    ]


def scratch_specs(program: Program, candidate: Candidate, sizes: Mapping[str, int]) -> list[BufferSpec]:
    """Scratch buffers are flat. Raises CandidateError where one would be smaller than nothing."""
    extent = {a.name: a.size for a in program.axes} | dict(sizes)
    found = []
    for s in candidate.scratch:
        dtype = TORCH_DTYPE[s.dtype]
        found.append(BufferSpec(s.name, dtype, (s.size_bytes(extent) // dtype.itemsize,)))
    return found


def input_specs(inputs: Sequence[Tensor]) -> list[BufferSpec]:
    """Buffers with the layout of given tensors."""
    return [BufferSpec(f"in{i}", x.dtype, tuple(x.shape), tuple(x.stride())) for i, x in enumerate(inputs)]


class GuardedMemory:
    """Buffers within one allocation, each aligned, guarded on both sides."""

    def __init__(
        self,
        specs: Sequence[BufferSpec],
        device: torch.device,
        guard_gaps: bool = True,
        within: Tensor | None = None,
        lead: bool = True,
        tail: bool = True,
        ragged: bool = False,
    ) -> None:
        """guard_gaps: the gaps of strided buffers are canaries; not so where whole storages are loaded.

        within: longer memory, of canaries, to lie at the start of. lead, tail: guards before and behind it all.
        ragged: the last buffer comes first, and each is aligned in a way of its own.
        """
        self.specs = tuple(specs)
        self._guard_gaps = guard_gaps
        self._placed = lead, tail, ragged
        self._offsets, total = _place(self.specs, *self._placed)
        self._bytes = canaries(total, device) if within is None else within[:total]

    @cached_property
    def views(self) -> list[Tensor]:
        """The buffers as tensors. One torch operation each: a trial makes some dozens."""
        typed = {dtype: self._bytes.view(dtype) for dtype in {s.dtype for s in self.specs}}
        return [_view(typed[s.dtype], s, o) for s, o in zip(self.specs, self._offsets, strict=True)]

    @cached_property
    def _words(self) -> list[Tensor]:
        """The buffers as integers of their items' size."""
        return [view.view(_INTEGER_OF_SIZE[view.dtype.itemsize]) for view in self.views]

    @property
    def bytes(self) -> Tensor:
        """All of it, guards too."""
        return self._bytes

    @property
    def size_bytes(self) -> int:
        return self._bytes.numel()

    @property
    def device(self) -> torch.device:
        return self._bytes.device

    def poison(self, byte: int, count: int | None = None) -> None:
        """Fills every element (not the gaps, which are canaries) of the first buffers with a byte pattern."""
        for words in self._words[:count]:
            size = words.dtype.itemsize
            words.fill_(int.from_bytes(bytes([byte]) * size, "little", signed=size > 1))

    def fill(self, byte: int) -> None:
        """Poisons every buffer: two writes for any number of them, the second as slow as several."""
        places, expected = self._guards
        self._bytes.fill_(byte)
        self._bytes[places] = expected

    def load(self, tensors: Sequence[Tensor]) -> None:
        """Copies whole storages, gaps included, of tensors with the buffers' layouts."""
        for spec, offset, source in zip(self.specs, self._offsets, tensors, strict=True):
            self._span(spec, offset).copy_(_storage_bytes(source)[: spec.span_bytes])

    def damaged(self) -> Tensor:
        """A bool scalar on the device: whether any canary changed."""
        places, expected = self._guards
        return (self._bytes[places] != expected).any()

    def copy_image(self, other: GuardedMemory) -> None:
        """Becomes equal to memory of the same specs with all guards, as far as it goes, in one copy mostly."""
        for mine, theirs in self._beside(other):
            mine.copy_(theirs)

    def differs_from_image(self, other: GuardedMemory) -> Tensor:
        """A bool scalar on the device: whether anything, canaries included, differs from such memory."""
        differs = [mine != theirs for mine, theirs in self._beside(other)]
        if len(differs) == 1:
            return differs[0].any()
        places, expected = self._guards
        return torch.cat([self._bytes[places] != expected, *differs]).any()

    def _beside(self, image: GuardedMemory) -> list[tuple[Tensor, Tensor]]:
        """Bytes here, and those of an image that belong there: all less missing guards, or buffer by buffer."""
        lead, _, ragged = self._placed
        if ragged:
            places = zip(self.specs, self._offsets, image._offsets, strict=True)
            return [(self._span(s, mine), image._span(s, theirs)) for s, mine, theirs in places]
        start, size = 0 if lead else GUARD, self._bytes.numel()
        whole = image._bytes
        return [(self._bytes, whole if size == whole.numel() else whole.narrow(0, start, size))]

    def _span(self, spec: BufferSpec, offset: int) -> Tensor:
        return self._bytes[offset : offset + spec.span_bytes]

    @cached_property
    def _guards(self) -> tuple[Tensor, Tensor]:
        """Byte positions of all canaries, and what lies there: made once for memory of the same small specs."""
        make = _guards if self.size_bytes <= REMEMBERED_BYTES else _guards.__wrapped__
        return make(self.specs, self.device, self._guard_gaps, *self._placed)


def _view(typed: Tensor, spec: BufferSpec, offset: int) -> Tensor:
    return typed.as_strided(spec.shape, spec.steps, typed.storage_offset() + offset // spec.dtype.itemsize)


@lru_cache(maxsize=256)
def _guards(
    specs: tuple[BufferSpec, ...], device: torch.device, guard_gaps: bool, lead: bool, tail: bool, ragged: bool
) -> tuple[Tensor, Tensor]:
    offsets, total = _place(specs, lead, tail, ragged)
    places = []
    end = 0
    for spec, offset in sorted(zip(specs, offsets, strict=True), key=lambda placed: placed[1]):
        places.append(torch.arange(end, offset))
        if guard_gaps and spec.strides is not None and spec.span_bytes:
            places.append(_gaps(spec) + offset)
        end = offset + spec.span_bytes
    found = torch.cat([*places, torch.arange(end, total)])
    return found.to(device), canaries(8, torch.device("cpu"))[found % 8].to(device)


def _gaps(spec: BufferSpec) -> Tensor:
    """Byte positions, within the span of a strided buffer, that belong to no element."""
    assert spec.strides is not None
    size = spec.dtype.itemsize
    gap = torch.ones(spec.span_bytes // size, dtype=torch.bool)
    gap.as_strided(spec.shape, spec.strides).fill_(False)
    first = gap.nonzero() * size
    return (first + torch.arange(size)).flatten()


def invalid_bools(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Bool scalars on the device, one a bool output: whether it holds a byte that is neither 0 nor 1."""
    return [(x.view(torch.uint8) > 1).any() for x in outputs if x.dtype == torch.bool]


def neighbours(
    first: Sequence[BufferSpec],
    second: Sequence[BufferSpec],
    memory: Tensor,
    gaps: tuple[bool, bool],
    touching: bool,
    ragged: bool = False,
) -> tuple[GuardedMemory, GuardedMemory]:
    """Two side by side in canaries; touching: without a byte between the last buffer of one and the next.

    gaps: whether those of strided buffers are guarded.
    """
    device = memory.device
    before = GuardedMemory(first, device, gaps[0], within=memory, tail=not touching, ragged=ragged)
    after = GuardedMemory(second, device, gaps[1], memory[before.size_bytes :], lead=not touching, ragged=ragged)
    return before, after


def guarded_bytes(specs: Sequence[BufferSpec], ragged: bool = False) -> int:
    """Of memory with all guards."""
    return _place(tuple(specs), ragged=ragged)[1]


def canaries(size: int, device: torch.device) -> Tensor:
    """Bytes, a multiple of eight."""
    return torch.full((size // 8,), CANARIES, dtype=torch.int64, device=device).view(torch.uint8)


@lru_cache(maxsize=1024)
def _place(
    specs: tuple[BufferSpec, ...], lead: bool = True, tail: bool = True, ragged: bool = False
) -> tuple[list[int], int]:
    """Where each buffer starts, and the bytes of it all."""
    offsets = []
    end = 0 if lead else -GUARD
    for i, spec in enumerate(reversed(specs) if ragged else specs):
        start = -(-(end + GUARD) // ALIGNMENT) * ALIGNMENT + (MIN_ALIGN * (2 * i + 1) if ragged and i else 0)
        offsets.append(start)
        end = start + spec.span_bytes
    total = -(-(end + GUARD) // ALIGNMENT) * ALIGNMENT if tail else -(-max(0, end) // MIN_ALIGN) * MIN_ALIGN
    return offsets[::-1] if ragged else offsets, total


def _storage_bytes(x: Tensor) -> Tensor:
    storage = x.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)
    return whole[x.storage_offset() * x.dtype.itemsize :]
