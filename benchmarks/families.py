"""Fifteen families of work at shapes that were never trained on: the model's kernels against the better baseline.

    python -m benchmarks.families --model cudal1_compile/generate/model --data trainer/data --out OUT --seconds 300

Every program of families.jsonl (benchmarks/family_cut.py). The model writes 8 replies from the round-1 prompt,
built, checked and timed as in benchmarks/generator.py, beside aten, Inductor compiling the program alone and some
template variants (programs, never called the model); GPU-busy, L2 flushed before every call. `best` is the better
of aten and Inductor. Of a family, geomeans over programs:

    over_best               best over the fastest right reply of 8, 1 where none is faster
    over_best_raw           without that clamp, 1 where none is right
    over_floor              the physical floor (floor.py) over what would run, the reply or the baseline
    best_teacher_over_best  best over the fastest right template variant, 1 where none is right
    right_1, right_8        shares of samples that are right, and of programs with a right one of 8
    novel, novel_form       shares of the winning replies that no template writes, nor with other numbers

OUT/families.replies.jsonl and OUT/families.rows.jsonl grow while it runs; what the time did not reach is named.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.duel import Config, Job, Row, duel_into
from benchmarks.floor import Floor, measure_floor
from benchmarks.generator import (
    TEMPLATE_CONTROL,
    Outcome,
    add_sampling,
    judge_row,
    lost_to_samples,
    make_job,
    sample,
    since,
)
from benchmarks.novelty import Novelty, TemplateCodes, novel_shares
from benchmarks.result_file import bootstrap, geomean, mean, write_result
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.heldout import HeldOutProgram
from cudal1_trainer.tasks.variants import canonical_key

FAMILIES = (
    *("conv2d", "conv3d", "conv_transposed", "conv_depthwise", "conv_chain", "pool", "norm_nchw", "scan"),
    *("product_f32", "product_half", "reduction", "loss", "rows_long", "rotary_embedding", "attention_piece"),
)


@dataclass(frozen=True, slots=True)
class FamilyProgram:
    """One line of families.jsonl."""

    family: str
    name: str
    direction: str
    shape: str  # of the inputs of the layer that it was cut from
    text: str

    @property
    def held_out(self) -> HeldOutProgram:
        return HeldOutProgram(self.family, canonical_key(parse_program(self.text)), "", self.text)


def read_families(path: Path, wanted: Sequence[str] = FAMILIES) -> list[FamilyProgram]:
    found = [FamilyProgram(**json.loads(line)) for line in path.read_text().splitlines()]
    return [p for p in found if p.family in wanted]


@dataclass(frozen=True, slots=True)
class Measured:
    """One program's figures."""

    program: FamilyProgram
    outcome: Outcome
    floor_us: float | None
    teacher: str | None  # name of the fastest right variant
    novelty: Novelty | None  # of the fastest reply; None where the baseline is faster
    failures: Mapping[str, str]

    @property
    def best_us(self) -> float | None:
        """Of the better baseline; None where a sample took every process with it."""
        return min((us for us in (self.outcome.aten_us, self.outcome.inductor_us) if us), default=None)

    def over_best(self, us: float | None) -> float:
        return self.best_us / us if us and self.best_us else 1.0

    @property
    def raw(self) -> float:
        return self.over_best(self.outcome.best_us)

    @property
    def over_floor(self) -> float | None:
        """Of what would run."""
        ours = min((us for us in (self.outcome.best_us, self.best_us) if us), default=None)
        return self.floor_us / ours if ours and self.floor_us else None

    def describe(self) -> dict[str, Any]:
        p = self.program
        named = {"name": p.name, "direction": p.direction, "shape": p.shape}
        named |= {"teacher": self.teacher, "novelty": self.novelty}
        ratios = {"over_best_raw": self.raw, "over_floor": self.over_floor, "floor_us": self.floor_us}
        return named | asdict(self.outcome) | ratios | {"failures": dict(self.failures)}


def read_row(
    item: FamilyProgram, row: Row, job: Job, samples: Mapping[str, str], floor: Floor | None
) -> Measured | None:
    """None where no baseline could be timed, but for the samples' own fault."""
    if not {"aten", "inductor"} & row.busy.keys() and not lost_to_samples(row):
        return None
    templates = {name: us[0] for name, us in row.busy.items() if name.startswith(f"{TEMPLATE_CONTROL}/")}
    best = min(templates, key=templates.__getitem__, default=None)
    floor_us = floor.us(parse_program(item.text)) if floor else None
    found = Measured(item, judge_row(row, dict(samples)), floor_us, best, None, row.failures)
    return replace(found, novelty=_novelty(item, row, job)) if found.raw > 1.0 else found


def _novelty(item: FamilyProgram, row: Row, job: Job) -> Novelty:
    codes = {name: code for name, code in job.codes if not name.startswith(f"{TEMPLATE_CONTROL}/")}
    fastest = min((row.busy[name][0], name) for name in codes if name in row.busy)[1]
    return TemplateCodes.of(parse_program(item.text)).novelty(codes[fastest])


def figures(found: Sequence[Measured]) -> dict[str, Any]:
    right = [m.outcome.right for m in found]
    return {
        "n": len(found),
        "over_best": geomean([max(1.0, m.raw) for m in found]),
        "over_best_raw": geomean([m.raw for m in found]),
        "over_floor": geomean([share for m in found if (share := m.over_floor) is not None]),
        "right_1": mean(right),
        "right_8": mean([float(share > 0) for share in right]),
        "wins": mean([float(m.raw > 1.0) for m in found]),
        **novel_shares([m.novelty for m in found if m.novelty is not None]),
        "best_teacher_over_best": geomean([m.over_best(m.outcome.teacher_us) for m in found]),
        "teacher_right": mean([float(m.outcome.teacher_us is not None) for m in found]),
    }


def summarise(
    found: Sequence[Measured], missing: Mapping[FamilyProgram, str]
) -> tuple[dict[str, Any], dict[str, tuple[float, float]], dict[str, Any]]:
    """(summary, intervals, detail). `missing`: programs that were not measured, and why."""
    whole, detail = figures(found), {}
    intervals = {
        "geomean_over_best": bootstrap([max(1.0, m.raw) for m in found], geomean),
        "wins": bootstrap([float(m.raw > 1.0) for m in found], mean),
    }
    for family in FAMILIES:
        own = [m for m in found if m.program.family == family]
        left = {f"{p.name}, {p.direction}": why for p, why in missing.items() if p.family == family}
        detail[family] = figures(own) | {"shapes": [m.describe() for m in own], "not_measured": left}
        intervals[f"{family}.over_best"] = bootstrap([max(1.0, m.raw) for m in own], geomean)
    summary = {"geomean_over_best": whole.pop("over_best")} | {k: v for k, v in whole.items() if k != "n"}
    return summary, intervals, detail


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Families of work at held-out shapes, against aten and Inductor.")
    add_sampling(parser)
    parser.add_argument("--data", type=Path, required=True, help="folder with families.jsonl")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the whole run, sampling included")
    parser.add_argument("--families", nargs="*", default=FAMILIES, choices=FAMILIES)
    parser.add_argument("--templates", type=int, default=8, help="template variants a program, at most")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    programs = read_families(arguments.data / "families.jsonl", arguments.families)
    random.Random(arguments.seed).shuffle(programs)  # a run that is cut short has measured a fair part
    floor = measure_floor(torch.device("cpu" if arguments.dry else "cuda"))
    replies = arguments.out / "families.replies.jsonl"
    items = sample(arguments, [p.held_out for p in programs], replies)
    print(f"{len(items)} programs sampled, {since(start)}", flush=True)
    made = [make_job(item, arguments.templates) for item in items]
    config = Config(arguments.workers, dry=arguments.dry, cold=True)
    path = arguments.out / "families.rows.jsonl"
    rows = duel_into(path, [job for job, _ in made], config, start, start + arguments.seconds)
    by_ident = {row.ident: row for row in rows}
    found: list[Measured] = []
    missing: dict[FamilyProgram, str] = {}
    for program, (job, names) in zip(programs, made, strict=True):
        row = by_ident.get(job.ident)
        if row is not None and (read := read_row(program, row, job, names, floor)) is not None:
            found.append(read)
        else:
            missing[program] = json.dumps(row.failures) if row else "the time ended before it"
    summary, intervals, detail = summarise(found, missing)
    name = "families.teacher" if str(arguments.model) == TEMPLATE_CONTROL else "families"
    written = write_result(arguments.out, name, summary, len(found), intervals, detail, arguments.dry)
    print(json.dumps(summary | {"n": len(found)}, indent=1))
    for family, row in detail.items():
        print(family, json.dumps({k: v for k, v in row.items() if k != "shapes"}))
    print(written, since(start))


if __name__ == "__main__":
    main()
