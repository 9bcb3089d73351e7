"""Batches for training: rows of ids, packed by length, made by producer processes in a fixed order.

A chunk is some hundred thousand tokens of rows made from one seed, sorted by length and cut into batches of
about `tokens_per_step` padded tokens; the batches of a chunk come in a shuffled order. Chunk c is a function of
(recipe, c) alone, so the order of the data does not depend on the number of producers or their speed, and a
run that was killed goes on exactly where its checkpoint stood: a Cursor is (chunk, batch within it).

This module knows nothing of programs or pairs: `ChunkMaker` is a protocol, corpus.py has the real one.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cudal1_compile.judge.sandbox.isolation import die_with_parent
from cudal1_compile.runtime.cores import usable_cores
from cudal1_trainer.errors import DataError

LENGTH_STEP = 64  # rows of a batch are padded to a multiple of this
AHEAD = 3  # chunks that a producer may have finished before they are asked for
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One pair as ids: prompt (<bos> ... <sep>), then the reply (... <eos>)."""

    ids: Sequence[int]
    prompt: int  # ids that belong to the prompt and are masked from the loss


@dataclass(frozen=True, slots=True)
class Batch:
    tokens: NDArray[np.int32]  # [rows, length], padded with 0
    spans: NDArray[np.int32]  # [rows, 2]: ids in the prompt, ids in all

    @property
    def size(self) -> int:
        """Padded tokens."""
        return int(self.tokens.size)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next batch to train on."""

    chunk: int = 0
    batch: int = 0


class ChunkMaker(Protocol):
    """Makes chunk number `index`; called in a producer process, so it must pickle."""

    def __call__(self, index: int) -> list[Batch]: ...


def producers(wanted: int) -> int:
    """As many as there are cores for, beside this process and the others of its launch on this machine."""
    return max(1, min(wanted, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1))


def pack(rows: Sequence[Row], tokens_per_step: int, rng: random.Random) -> list[Batch]:
    """Sorts by length and cuts into batches of at most `tokens_per_step` padded tokens, then shuffles them.

    The last, partly filled batch is kept where it holds half the tokens of a full one or more, or is alone.
    """
    ordered = sorted(rows, key=lambda r: len(r.ids), reverse=True)
    batches: list[Batch] = []
    at = 0
    while at < len(ordered):
        length = padded_length(len(ordered[at].ids))
        count = max(1, tokens_per_step // length)
        group = ordered[at : at + count]
        if len(group) * 2 >= count or not batches:
            batches.append(make_batch(group, length))
        at += count
    rng.shuffle(batches)
    return batches


def targets(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Flat places whose next id belongs to a reply, and those ids."""
    length = batch.tokens.shape[1]
    column = np.arange(length)[None]
    first, end = batch.spans[:, :1], batch.spans[:, 1:]
    places = np.flatnonzero((column >= first - 1) & (column < end - 1))
    return places, batch.tokens.reshape(-1)[places + 1].astype(np.int64)


class Feed:
    """Producer processes and the batches that they make, in order, from `cursor` on.

    Rank r of `ranks` sees chunks r, r + ranks, ...; its cursor counts its own chunks. Iterating yields
    (batch, cursor after it). A failed producer raises DataError here.
    """

    def __init__(
        self, make: ChunkMaker, workers: int, cursor: Cursor | None = None, rank: int = 0, ranks: int = 1
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._start = cursor or Cursor()
        self._stop: Event = context.Event()
        self._queues: list[Any] = [context.Queue(maxsize=AHEAD) for _ in range(workers)]
        self._processes: list[BaseProcess] = []
        for w, q in enumerate(self._queues):
            first = (self._start.chunk + w) * ranks + rank
            arguments = (make, first, workers * ranks, q, self._stop)
            process = context.Process(target=_produce, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Batch, Cursor]]:
        chunk, skip = self._start.chunk, self._start.batch
        while True:
            batches = self._next_chunk((chunk - self._start.chunk) % len(self._queues))
            for i in range(skip, len(batches)):
                after = Cursor(chunk, i + 1) if i + 1 < len(batches) else Cursor(chunk + 1)
                yield batches[i], after
            chunk, skip = chunk + 1, 0

    def close(self) -> None:
        self._stop.set()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def _next_chunk(self, worker: int) -> list[Batch]:
        while True:
            try:
                got = self._queues[worker].get(timeout=_POLL_S)
            except queue.Empty:
                code = self._processes[worker].exitcode
                if code is not None:
                    raise DataError(f"producer {worker} ended with exit code {code}") from None
                continue
            if isinstance(got, str):
                raise DataError(f"producer {worker} failed:\n{got}")
            chunk: list[Batch] = got
            return chunk


def _produce(make: ChunkMaker, first: int, stride: int, out: Any, stop: Event) -> None:
    die_with_parent()
    os.nice(10)  # the process that launches the GPU's work must not wait for a core
    index = first
    try:
        while not stop.is_set():
            out.put(make(index))
            index += stride
    except BaseException:
        # a process boundary: whatever ended the producer is handed to the trainer as text
        out.put(traceback.format_exc())
        raise


def make_batch(group: Sequence[Row], length: int) -> Batch:
    tokens = np.zeros((len(group), length), np.int32)
    spans = np.zeros((len(group), 2), np.int32)
    for i, row in enumerate(group):
        tokens[i, : len(row.ids)] = row.ids
        spans[i] = row.prompt, len(row.ids)
    return Batch(tokens, spans)


def padded_length(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP
