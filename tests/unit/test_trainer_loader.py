"""Batches: packing, masks, and an order that neither the number of producers nor a restart changes."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest

from cudal1_trainer.data.loader import Batch, Cursor, Feed, Row, pack, producers, targets
from cudal1_trainer.errors import DataError


@dataclass(frozen=True)
class Numbers:
    """Three batches a chunk, each holding the chunk's number and its own."""

    def __call__(self, index: int) -> list[Batch]:
        return [_constant(10 * index + i + 1) for i in range(3)]


@dataclass(frozen=True)
class Failing:
    def __call__(self, index: int) -> list[Batch]:
        raise ValueError("no such template")


@dataclass(frozen=True)
class Dying:
    def __call__(self, index: int) -> list[Batch]:
        os._exit(7)


def _constant(value: int) -> Batch:
    return Batch(np.full((2, 64), value, np.uint16), np.array([[4, 64], [4, 64]], np.int32))


def _first(feed: Feed, count: int) -> list[tuple[int, Cursor]]:
    with feed:
        return [(int(batch.tokens[0, 0]), cursor) for batch, cursor in islice(feed, count)]


def test_rows_are_packed_by_length_and_none_is_cut() -> None:
    rng = random.Random(3)
    rows = [Row(list(range(1, n + 1)), 1 + n // 3) for n in (rng.randrange(8, 900) for _ in range(300))]
    batches = pack(rows, 4096, rng)
    for b in batches:
        assert b.tokens.shape[1] % 64 == 0
        assert b.size <= 4096
        assert b.spans[:, 1].max() > b.tokens.shape[1] - 64
    kept = sorted(int(n) for b in batches for n in b.spans[:, 1])
    assert len(kept) >= 295
    assert set(kept) <= {len(r.ids) for r in rows}
    filled = sum(int(b.spans[:, 1].sum()) for b in batches) / sum(b.size for b in batches)
    assert filled > 0.9


def test_targets_are_the_reply_and_only_the_reply() -> None:
    batch = Batch(
        np.array([[1, 7, 2, 8, 9, 3, 0, 0], [1, 2, 5, 3, 0, 0, 0, 0]], np.uint16), np.array([[3, 6], [2, 4]])
    )
    places, ids = targets(batch)
    assert ids.tolist() == [8, 9, 3, 5, 3]
    assert places.tolist() == [2, 3, 4, 9, 10]


def test_the_order_does_not_depend_on_the_number_of_producers() -> None:
    one = _first(Feed(Numbers(), 1), 8)
    three = _first(Feed(Numbers(), 3), 8)
    assert one == three
    assert [v for v, _ in one] == [1, 2, 3, 11, 12, 13, 21, 22]


def test_a_restart_goes_on_at_the_cursor() -> None:
    whole = _first(Feed(Numbers(), 2), 9)
    rest = _first(Feed(Numbers(), 3, whole[3][1]), 5)
    assert rest == whole[4:]


def test_ranks_share_the_chunks_without_overlap() -> None:
    ranks = [[v for v, _ in _first(Feed(Numbers(), 2, None, r, 2), 6)] for r in range(2)]
    assert ranks == [[1, 2, 3, 21, 22, 23], [11, 12, 13, 31, 32, 33]]


@pytest.mark.parametrize(
    ("cores", "processes", "count"), [(16, 1, 14), (16, 2, 7), (32, 2, 14), (2, 1, 1), (1, 4, 1)]
)
def test_a_machine_with_few_cores_has_fewer_producers(
    cores: int, processes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert producers(14) == count


@pytest.mark.parametrize(("maker", "word"), [(Failing(), "no such template"), (Dying(), "exit code 7")])
def test_a_failed_producer_is_told(maker: Failing | Dying, word: str) -> None:
    with pytest.raises(DataError, match=word):
        _first(Feed(maker, 1), 1)
