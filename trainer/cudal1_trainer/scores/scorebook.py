"""The score file: how fast each variant of each task ran on one GPU, as JSON lines that later runs reuse.

    {"target": {...}, "facts": "target sm_90a, 132 SMs, ...", "versions": {...}}     first line
    {"seed": 7, "text": "region v1...", "aten_us": 31.2, "variants": [["grouped/block.4.256", "<digest>", 4.71]]}
    {"seed": 9, "text": "region v1...", "aten_us": null, "variants": [["split/...", "<digest>", "wrong: ..."]]}

The third item of a variant is its GPU time in microseconds, or why it has none. Programs stand there as text, so
that scores outlive changes of the task generator. A file is appended to line by line, so a kill costs at most
one line; `pack` writes it as gzip parts that fit the repository. Reading drops a torn last line. This module
measures nothing (collect.py does).
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudal1_compile.errors import damage_named

log = logging.getLogger(__name__)

PART_BYTES = 14 * 2**20


@dataclass(frozen=True, slots=True)
class VariantScore:
    name: str
    digest: str
    us: float | None  # GPU-busy time of one call
    failure: str | None = None  # stage and reason where `us` is None


@dataclass(frozen=True, slots=True)
class TaskScore:
    seed: int
    text: str  # of the program, in canonical form when it was measured
    aten_us: float | None  # the program run by aten, one operation at a time, in a CUDA graph
    variants: tuple[VariantScore, ...]

    @property
    def right(self) -> list[VariantScore]:
        return [v for v in self.variants if v.us is not None]


@dataclass(frozen=True)
class ScoreBook:
    """All tasks measured on one GPU model."""

    facts: str  # the facts line of a prompt for that GPU
    tasks: tuple[TaskScore, ...]


def print_score(score: TaskScore) -> str:
    variants = [[v.name, v.digest, v.us if v.us is not None else v.failure] for v in score.variants]
    aten = score.aten_us
    row = {"seed": score.seed, "text": score.text, "aten_us": aten, "variants": variants}
    return json.dumps(row, separators=(",", ":"))


def parse_score(raw: dict[str, Any]) -> TaskScore:
    variants = tuple(
        VariantScore(name, digest, None, got) if isinstance(got, str) else VariantScore(name, digest, got)
        for name, digest, got in raw["variants"]
    )
    return TaskScore(raw["seed"], raw["text"], raw["aten_us"], variants)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Parsed lines of a plain or gzip file; a torn last line is left out."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
        for line in stream:
            if not line.endswith("\n"):
                log.warning("%s: the last line is torn and left out", path.name)
                return
            yield json.loads(line)


def drop_torn_line(path: Path) -> None:
    """Cuts what a kill left behind the last line break."""
    if path.is_file():
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.rfind(b"\n") + 1])


def score_files(directory: Path) -> list[Path]:
    return sorted([*directory.glob("scores*.jsonl"), *directory.glob("scores*.jsonl.gz")])


def read_scores(paths: Iterable[Path]) -> ScoreBook | None:
    """One book from all files; a task measured twice counts once, the later file wins. None without files."""
    facts = ""
    tasks: dict[str, TaskScore] = {}
    for path in paths:
        with damage_named(path):
            lines = list(read_lines(path))
            scores = [parse_score(raw) for raw in lines if "facts" not in raw]
        for raw in lines:
            if facts and facts != raw.get("facts", facts):
                raise ValueError(f"{path.name}: scores of {raw['facts']!r} beside those of {facts!r}")
            facts = raw.get("facts", facts)
        tasks |= {score.text: score for score in scores}
    return ScoreBook(facts, tuple(tasks.values())) if facts else None


def pack(source: Path, directory: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Writes `source` as gzip parts of at most about `part_bytes`, the first line repeated in each."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(raw, separators=(",", ":")) + "\n" for raw in read_lines(source)]
    head, body = lines[0], lines[1:]
    # each line compresses to less than itself, so a part is cut by its plain size over a cautious ratio
    limit, parts, current, size = part_bytes * 2, [], [head], 0
    for line in body:
        if size + len(line) > limit:
            parts.append(current)
            current, size = [head], 0
        current.append(line)
        size += len(line)
    parts.append(current)
    written = []
    for i, part in enumerate(parts):
        path = directory / f"{source.stem}.{i:02d}.jsonl.gz"
        path.write_bytes(gzip.compress("".join(part).encode(), 9, mtime=0))
        if path.stat().st_size > 15 * 2**20:
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes, more than the 15 MiB of a file")
        written.append(path)
    return written
