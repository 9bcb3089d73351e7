"""Chunks of the corpus made ahead of training, on CPUs, before a GPU is held.

Stage 1 learns by how many programs it sees: one reply a program leaves half the loss of two after as many tokens.
But so a core makes 65,000 tokens a second, and one GPU takes 1.5 million.

    python -m cudal1_trainer.data.chunks --recipe h100 --data trainer/data --out FOLDER
    python -m cudal1_trainer.sft.supervised --chunks FOLDER ...

Chunk c is a function of (recipe, data folder, c): training reads those that the folder has, and its producers make
the others meanwhile, from the measured programs that are written out beside them. They are made in an order that
spreads any number of them over the run. Interrupted, the same command goes on. The folder says in stamp.json what
it was made from, and is refused where recipe or data differ; templates that were changed since are not noticed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import logging
import lzma
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from cudal1_trainer.data.corpus import CorpusMaker
from cudal1_trainer.data.loader import Batch, ChunkMaker, producers
from cudal1_trainer.data.scored import SCORED, write_scored
from cudal1_trainer.recipe import Recipe, load_recipe
from cudal1_trainer.scores.fit_prior import build_prior, is_current, prior_file

log = logging.getLogger(__name__)

STAMP = "stamp.json"
GOLDEN = (5**0.5 - 1) / 2
# ids are of two bytes; the dictionary holds a whole chunk
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2**24, "lp": 1, "lc": 0, "pb": 1}]


@dataclass(frozen=True)
class Stored:
    """The loader's ChunkMaker: chunks of the folder, and those of `maker` where it has none."""

    maker: ChunkMaker
    folder: Path

    def __call__(self, index: int) -> list[Batch]:
        path = chunk_path(self.folder, index)
        return read_chunk(path) if path.is_file() else self.maker(index)


def chunk_path(folder: Path, index: int) -> Path:
    return folder / f"chunk.{index:06}.xz"


def write_chunk(path: Path, batches: list[Batch]) -> None:
    """Whole or not at all."""
    ids = np.concatenate([b.tokens.reshape(-1) for b in batches])
    held = io.BytesIO()
    np.savez(
        held,
        tokens=ids.astype(np.uint16) if ids.max() < 2**16 else ids,
        shapes=np.array([b.tokens.shape for b in batches]),
        spans=np.concatenate([b.spans for b in batches]),
    )
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_bytes(lzma.compress(held.getvalue(), filters=_FILTERS))
    unfinished.replace(path)


def read_chunk(path: Path) -> list[Batch]:
    """Raises ValueError for a damaged file."""
    try:
        with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as held:
            tokens, shapes, spans = held["tokens"], held["shapes"], held["spans"]
    except (lzma.LZMAError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no chunk ({error}): remove it, it is then made again") from None
    sizes, rows = np.cumsum(shapes.prod(1))[:-1], np.cumsum(shapes[:, 0])[:-1]
    parts = zip(np.split(tokens, sizes), shapes, np.split(spans, rows), strict=True)
    return [Batch(ids.reshape(shape).astype(np.int32), span) for ids, shape, span in parts]


def stamp_of(recipe: Recipe, data: Path) -> dict[str, object]:
    """What chunks are a function of."""
    files = [*sorted(data.glob("*.json*")), prior_file(data), data / "tokenizer" / "tokenizer.json"]
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in files if p.is_file()}
    numbers = {k: v for k, v in asdict(recipe.data).items() if k not in ("workers", "ahead")}
    return {
        "seed": recipe.seed,
        "tokens_per_step": recipe.train.tokens_per_step,
        "data": numbers,
        "files": digests,
    }


def check_stamp(folder: Path, recipe: Recipe, data: Path) -> None:
    """Writes the folder's stamp where it has none. Raises ValueError where it differs."""
    path, wanted = folder / STAMP, stamp_of(recipe, data)
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(wanted, indent=1) + "\n")
        return
    found = json.loads(path.read_text())
    other = [name for name in wanted if found.get(name) != wanted[name]]
    if other:
        raise ValueError(f"{folder} holds chunks of another {', '.join(other)}: name another folder, or empty it")


def make_chunks(
    recipe: Recipe, data: Path, folder: Path, count: int, workers: int, seconds: float = math.inf
) -> int:
    """Makes those of the first `count` that are missing and returns how many; begins none after `seconds`."""
    if not is_current(data):
        build_prior(data)
    check_stamp(folder, recipe, data)
    missing = [i for i in spread(count) if not chunk_path(folder, i).is_file()]
    end = time.time() + seconds
    scored = folder / SCORED if (folder / SCORED).is_file() else write_scored(data, folder / SCORED, workers)
    maker = CorpusMaker(recipe, data, scored)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        made = sum(pool.map(partial(_make, maker, folder, end), missing))
    log.info("%d chunks made, %d of %d there", made, count - len(missing) + made, count)
    return made


def spread(count: int) -> list[int]:
    """0 to count - 1 in an order of which every beginning lies evenly over the whole."""
    return sorted(range(count), key=lambda i: i * GOLDEN % 1)


def _make(maker: CorpusMaker, folder: Path, end: float, index: int) -> bool:
    if time.time() >= end:
        return False
    write_chunk(chunk_path(folder, index), maker(index))
    return True


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description="Makes chunks of the training corpus ahead of training.")
    parser.add_argument("--recipe", default="h100", help="name of a built-in recipe, or a YAML file")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, help="chunks; the recipe's data.ahead without it")
    parser.add_argument("--workers", type=int, help="processes; as many as the cores allow without it")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no chunk is begun after these")
    a = parser.parse_args(argv)
    recipe = load_recipe(a.recipe)
    workers = a.workers or producers(recipe.data.workers)
    make_chunks(recipe, a.data, a.out, a.count or recipe.data.ahead, workers, a.seconds)


if __name__ == "__main__":
    from cudal1_trainer.errors import mistakes_told

    with mistakes_told():
        main()
