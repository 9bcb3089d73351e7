"""How many distinct candidates the judge builds and times a wall second, with templates' kernels.

    python -m benchmarks.coverage_rate --out FILE     {"judged_per_s_small": ..., "judged_per_s_large": ...}

`small`: the usual small regions of benchmarks/judge_rate.py; `large`: regions of 1 GiB. Candidates are drawn
before the clock starts, the judge's workers are up; builds are within. What no clock came to does not count: a
text that is refused, a build that fails, a wrong result, what is put off.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from benchmarks.judge_rate import grown, start_all, template_tasks
from benchmarks.side_by_side import ends_with_parent
from cudal1_compile.codegen.templates import draw_reply
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Deferred, Rejected, Verdict
from cudal1_compile.runtime.target import HOST, detect_target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

Task = tuple[Program, str]

RATE_S = 20.0  # of each rate
DRY_S = 10.0
PER_SECOND = 300  # candidates that are drawn for each second of the small rate
DRAW_S = 90.0  # for drawing them
VARIANTS = 8  # of a small region
LARGE_VARIANTS = 30  # drawn of a region of 1 GiB, most of them twice
AHEAD = 512  # candidates that are submitted and not judged
POLL_S = 0.02

COLUMNS = (1024, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384, 24576, 32768)  # of the large regions
# a text, and its elements in 1 GiB of inputs and outputs
LARGE = (
    (
        """t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = sigmoid(t0)
t2 f32[d0,d1] = mul(t0, t1)
out0 f32[d0,d1] = t2
""",
        1 << 27,
    ),
    (
        """t0 f32[d0] = amax(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = exp(t1)
t3 f32[d0] = sum(t2) over d1
t4 f32[d0,d1] = div(t2, t3)
t5 f32[d0,d1] = mul(t4, in1)
out0 f32[d0,d1] = t5
""",
        1 << 27,
    ),
    (
        """t0 f32[d0,d1] = mul(in0, in0)
t1 f32[d0] = mean(t0) over d1
t2 f32[d0] = add(t1, 1e-05)
t3 f32[d0] = rsqrt(t2)
t4 f32[d0,d1] = mul(in0, t3)
t5 f32[d0,d1] = mul(t4, in1)
out0 f32[d0,d1] = t5
""",
        1 << 27,
    ),
    (
        """t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0] = sum(t0) over d1
out0 f32[d0] = t1
""",
        1 << 28,
    ),
)


def large_regions() -> list[Program]:
    """Of 1 GiB each, no two the same."""
    return [
        parse_program(
            f"region v1\ndims d0={elements // columns} d1={columns}\nin0 f32[d0,d1]\nin1 f32[d1]\n{lines}"
        )
        for columns in COLUMNS
        for lines, elements in LARGE
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a file")
    parser.add_argument("--dry", action="store_true", help="host target: proves the script")
    arguments = parser.parse_args(argv)
    with ends_with_parent():
        arguments.out.write_text(json.dumps(rates(DRY_S if arguments.dry else RATE_S, arguments.dry)) + "\n")
    return 0


def rates(seconds: float, dry: bool) -> dict[str, Any]:
    """On this machine's GPU; on the host target, where 1 GiB would take minutes, of small regions alone."""
    target = HOST if dry else detect_target(torch.device("cuda"))
    limits = Limits()
    small = _draw_small(int(seconds * PER_SECOND))
    large = [] if dry else _draw_large()
    found: dict[str, Any] = {}
    with Judge(target, limits) as judge:
        if not dry:
            start_all(judge, limits.worker_count, found)
        for name, tasks in (("small", small), ("large", large)):
            if tasks:
                before = judge.spent_s
                stages, took_s = _judge_for(judge, tasks, seconds)
                found[f"judged_per_s_{name}"] = stages["timed"] / took_s
                found[f"{name}_stages"] = dict(stages)
                found[f"{name}_spent_s"] = grown(judge, before)
    return found


def _draw_small(count: int) -> list[Task]:
    """As many distinct ones as there is time to draw."""
    end = time.monotonic() + DRAW_S
    found: dict[Task, None] = {}
    for seed in itertools.count(2):
        if len(found) >= count or time.monotonic() > end:
            return list(found)
        found |= dict.fromkeys(template_tasks(20, VARIANTS, seed, small=True))
    raise AssertionError("seeds do not end")


def _draw_large() -> list[Task]:
    """A region's candidates stand together, as a synthesis asks for them."""
    rng = random.Random(1)
    found: list[Task] = []
    for program in large_regions():
        codes = {reply.code for _ in range(LARGE_VARIANTS) if (reply := draw_reply(program, rng)) is not None}
        found += [(program, code) for code in sorted(codes)]
    return found


def _judge_for(judge: Judge, tasks: Sequence[Task], seconds: float) -> tuple[Counter[str], float]:
    """Verdicts by stage, and seconds: until all are judged, or the time is over."""
    submit = getattr(judge, "submit_quick", judge.submit)  # an older tree times what is proven alone
    begin = time.monotonic()
    left: Iterator[Task] = iter(tasks)
    pending: list[Future[Verdict]] = []
    stages: Counter[str] = Counter()
    more = True
    while (more or pending) and time.monotonic() - begin < seconds:
        if more and len(pending) < AHEAD:
            taken = list(itertools.islice(left, AHEAD))
            more = bool(taken)
            pending += submit(taken)
        done = [f for f in pending if f.done()]
        pending = [f for f in pending if not f.done()]
        stages.update(stage_of(f.result()) for f in done)
        time.sleep(POLL_S)
    took_s = time.monotonic() - begin
    for future in pending:
        future.cancel()
    return stages, took_s


def stage_of(verdict: Verdict) -> str:
    if isinstance(verdict, Deferred):
        return "deferred"
    if isinstance(verdict, Rejected) and verdict.stage != "time":
        return verdict.stage
    return "timed"


if __name__ == "__main__":
    sys.exit(main())
