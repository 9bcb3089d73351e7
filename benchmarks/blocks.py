"""Roofline figures of the device header's building blocks: what share of the physical floor each one reaches.

    python -m benchmarks.blocks --out OUT --seconds 120

A short kernel over each block (block_kernels.py) is checked against the float64 oracle on several distributions; a
wrong one is reported and never timed. Right ones are timed beside aten by benchmarks/duel.py: GPU-busy, L2 flushed
before every call, packing of operands included. The floor (floor.py) is that of the work, not of the block: bytes
at the bandwidth of a copy, which reads alone may pass, and multiplications at the published peak, those of f32 at
the rate of three TF32 products, which `f32` on the plain units cannot reach. aten's matrix products beside `tf32`
are without TF32, as torch's default is.

    share_of_floor    the floor over the kernel's time
    bound             what the floor is made of: bytes (memory) or multiplications (arithmetic)

`summary` has geomeans over the right blocks of either kind. --dry runs small sizes on the host target's check
build: right or wrong, no times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.block import Block
from benchmarks.block_kernels import blocks
from benchmarks.duel import Config, Job, Row, duel
from benchmarks.floor import Floor, measure_floor
from benchmarks.result_file import bootstrap, geomean, write_result
from cudal1_compile.judge.timing.least_bytes import least_bytes
from cudal1_compile.runtime.cores import usable_cores
from cudal1_fx_passes.program.text import parse_program

Bound = Literal["memory", "arithmetic"]
BOUNDS: tuple[Bound, ...] = ("memory", "arithmetic")
CLOSING_S = 5.0  # kept of the time for the file and the processes' ends
NOT_REACHED = "the time ended before it"


@dataclass(frozen=True, slots=True)
class Figure:
    """One block at one size. Without times where it is wrong, was not reached, or ran on the host target."""

    block: str
    work: str
    size: str
    dtype: str
    us: float | None
    floor_us: float | None
    share_of_floor: float | None
    bound: Bound | None
    aten_us: float | None
    right: bool | None  # None: not reached
    reason: str | None  # why it is not right

    def line(self) -> str:
        named = f"{self.block} {self.dtype}, {self.work} {self.size}"
        if not self.right:
            return f"{named}: {'not run' if self.right is None else 'WRONG'}, {self.reason}"
        if self.us is None or self.share_of_floor is None:
            return f"{named}: right"
        times = f"{self.us:.1f} us, floor {self.floor_us:.1f} us, aten {self.aten_us or 0:.1f} us"
        return f"{named}: {times}, {self.share_of_floor:.2f} of the floor ({self.bound})"


def make_jobs(found: Sequence[Block]) -> dict[str, tuple[Job, list[Block]]]:
    """One job for the blocks that do the same work, by the text of its program."""
    by_text: dict[str, list[Block]] = {}
    for block in found:
        by_text.setdefault(block.work.region, []).append(block)
    return {
        text: (Job(text, text, tuple((b.ident, b.code) for b in same)), same) for text, same in by_text.items()
    }


def read_row(same: Sequence[Block], row: Row | None, floor: Floor | None, dry: bool = False) -> Iterator[Figure]:
    """Of the blocks of one job; `row`: what was measured, None where the time ended before."""
    for block in same:
        right = block.ident in row.busy if row else None
        us = row.us(block.ident) if row and not dry else None
        aten_us = row.us("aten") if row and not dry else None
        floor_us, bound = _floor(block.work.region, floor)
        share = floor_us / us if floor_us and us else None
        reason = None if right else _reason(block, row)
        work = (block.name, block.work.name, block.work.size, block.dtype)
        yield Figure(*work, us, floor_us, share, bound, aten_us, right, reason)


def _floor(text: str, floor: Floor | None) -> tuple[float | None, Bound | None]:
    if floor is None:
        return None, None
    program = parse_program(text)
    us = floor.us(program)
    return us, "arithmetic" if us > least_bytes(program) / floor.bytes_per_us else "memory"


def _reason(block: Block, row: Row | None) -> str:
    if row is None:
        return NOT_REACHED
    return row.failures.get(block.ident) or row.failures.get("program") or "no time and no reason"


def summarise(figures: Sequence[Figure]) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    summary: dict[str, Any] = {}
    intervals = {}
    for bound in BOUNDS:
        shares = [f.share_of_floor for f in figures if f.bound == bound and f.share_of_floor is not None]
        summary[f"share_of_floor_{bound}"] = geomean(shares)
        intervals[f"share_of_floor_{bound}"] = bootstrap(shares, geomean)
    counts: Mapping[str, bool | None] = {"right": True, "wrong": False, "not_run": None}
    return summary | {name: sum(f.right is kind for f in figures) for name, kind in counts.items()}, intervals


def run(found: Sequence[Block], config: Config, floor: Floor | None, deadline: float) -> list[Figure]:
    """Prints a line a block as it comes."""
    jobs = make_jobs(found)
    figures: dict[str, list[Figure]] = {}
    for row in duel([job for job, _ in jobs.values()], config, deadline):
        figures[row.ident] = list(read_row(jobs[row.ident][1], row, floor, config.dry))
        for figure in figures[row.ident]:
            print(figure.line(), flush=True)
    for text in jobs.keys() - figures.keys():
        figures[text] = list(read_row(jobs[text][1], None, floor))
        for figure in figures[text]:
            print(figure.line(), flush=True)
    return [figure for text in jobs for figure in figures[text]]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Roofline figures of the device header's building blocks.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the whole run")
    parser.add_argument("--workers", type=int, default=min(8, usable_cores()), help="processes that build")
    parser.add_argument("--dry", action="store_true", help="small sizes on the host target, no times")
    arguments = parser.parse_args(argv)
    start = time.monotonic()
    device = torch.device("cpu" if arguments.dry else "cuda")
    floor = measure_floor(device)
    config = Config(arguments.workers, inductor=False, dry=arguments.dry, cold=True)
    figures = run(list(blocks(arguments.dry)), config, floor, start + arguments.seconds - CLOSING_S)
    summary, intervals = summarise(figures)
    detail = {"bytes_per_us": floor.bytes_per_us if floor else None, "blocks": [asdict(f) for f in figures]}
    path = write_result(arguments.out, "blocks", summary, len(figures), intervals, detail, arguments.dry)
    print(json.dumps(summary | {"n": len(figures)}, indent=1))
    print(path, f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
