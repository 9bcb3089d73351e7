"""A short kernel over each building block of the device header, in Reply V1, with the work that it does.

    for block in blocks(): ...      sizes that fill an H100; blocks(small=True): seconds each on the host target

Blocks that do the same work name the same `Work`, so that they are checked and timed side by side. Operands lie as
the templates lay them: weights, and what wgmma reads, are packed by a launch of their own, which is in the time.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.block import Block
from benchmarks.block_bulk import bulks
from benchmarks.block_convolutions import convolutions, transposed
from benchmarks.block_matrices import matrices, split_sums
from benchmarks.block_memory import rows, vectors
from benchmarks.block_scans import scans
from benchmarks.block_stems import stems
from benchmarks.block_waits import waits
from benchmarks.block_windows import windows


def blocks(small: bool = False) -> Iterator[Block]:
    yield from vectors(small)
    yield from rows(small)
    yield from waits(small)
    yield from scans(small)
    yield from windows(small)
    yield from matrices(small)
    yield from split_sums(small)
    yield from convolutions(small)
    yield from transposed(small)
    yield from stems(small)
    yield from bulks(small)
