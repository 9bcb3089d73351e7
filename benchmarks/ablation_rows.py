"""The ablation's replies before the judge, and from rows to the stages' figures.

    judge_rows(programs, replies, referee, path)    a row a program, appended to `path`
    known_rows(programs, replies, path)             those that are there
    summarise(rows, stages)                         (summary, intervals, detail)

The codes of all runs for one program go to the judge together: gates 1 to 5 and a quick timing for each, then for
every run the first reply's code and the quickest of the others through the finalists' gates, measured side by
side with Inductor. What is refused there is no right reply. A program counts where somebody, teachers included,
has a right kernel (else the judge has no finite reference for it) and Inductor was measured.

Speedups are over Inductor compiling the program alone, 1 where nothing is right; on the host target, which knows
no times, baseline over candidate by declared costs. Intervals: bootstrap over programs, all stages on the same
draws, so that a difference of two stages is paired.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.verdict import Accepted, Verdict
from cudal1_fx_passes.text import parse_program
from cudal1_trainer.heldout import HeldOutProgram
from cudal1_trainer.measure import Mark
from cudal1_trainer.outcome import HACKS, RIGHT, Code, Outcome, classify, conclude
from cudal1_trainer.referee import Group, Job, Referee, Ruling, Rulings

BOOTSTRAP = 2000
TOGETHER = 4  # programs of one job of the judge
LINEAR = ("right_1", "right_8", "hack_rate")
SPEEDS = ("speedup_1", "speedup_best8", "speedup_1_raw", "speedup_best8_raw")
FIGURES = LINEAR + SPEEDS
PAIRS = (
    ("self_supervised", "sft"),
    ("plain_grpo", "self_supervised"),
    ("contrastive_random", "plain_grpo"),
    ("contrastive_buckets", "plain_grpo"),
    ("contrastive_buckets", "contrastive_random"),
)
Sample = tuple[str, float | None]  # kind of outcome, measured speedup
Replies = Mapping[str, Mapping[str, Sequence[str]]]  # run -> fingerprint -> samples


@dataclass(frozen=True, slots=True)
class Contest(Group):
    """A program's distinct codes, and each run's own in the order of its samples, "" for a sample without one."""

    runs: tuple[tuple[str, ...], ...] = ()


def judge_contest(judge: Judge, job: Job, mark: Mark) -> Rulings:
    """In the judge's process, in place of the referee's own rule."""
    found: Rulings = {}
    programs = {group.text: parse_program(group.text) for chunk in job.chunks for group in chunk}
    judge.expect(list(programs.values()))  # Inductor compiles while candidates are tried
    for i, chunk in enumerate(job.chunks):
        mark(str(i))
        tasks = [(programs[group.text], code) for group in chunk for code in group.codes]
        verdicts = iter(judge.judge_tasks(tasks))
        quick = [{code: next(verdicts) for code in group.codes} for group in chunk]
        for group, first in zip(chunk, quick, strict=True):
            mark(str(i))  # each program's finalists may take their own time
            assert isinstance(group, Contest)
            picked = finalists(group, first)
            final = dict(zip(picked, judge.finalists(programs[group.text], picked), strict=True))
            found |= {(group.text, code): Ruling(v, final.get(code)) for code, v in first.items()}
    return found


def finalists(group: Contest, quick: Mapping[str, Verdict]) -> list[str]:
    """Of every run the first sample's code and the quickest of all, where they are right."""
    right = {code: Ruling(v).score for code, v in quick.items() if isinstance(v, Accepted)}
    picked: dict[str, None] = {}
    for codes in group.runs:
        own = [code for code in codes if code in right]
        if own:
            picked |= dict.fromkeys([codes[0]] if codes[0] in right else [])
            picked[max(own, key=right.__getitem__)] = None
    return list(picked)


def judge_rows(programs: Sequence[HeldOutProgram], replies: Replies, referee: Referee, path: Path) -> None:
    """Judges the programs that have no row yet."""
    known = {r["fingerprint"] for r in known_rows(programs, replies, path)}
    todo = [p for p in programs if p.fingerprint not in known]
    with path.open("a") as stream:
        for start in range(0, len(todo), TOGETHER):
            for row in _judge(todo[start : start + TOGETHER], replies, referee, start):
                stream.write(json.dumps(row) + "\n")
            stream.flush()


def known_rows(programs: Sequence[HeldOutProgram], replies: Replies, path: Path) -> list[dict[str, Any]]:
    """In the order of `programs`; a row that lacks a run does not count."""
    rows = {r["fingerprint"]: r for r in read_rows(path) if set(r["runs"]) >= set(replies)}
    return [rows[p.fingerprint] for p in programs if p.fingerprint in rows]


def _judge(
    programs: Sequence[HeldOutProgram],
    replies: Replies,
    referee: Referee,
    key: int,
) -> Iterator[dict[str, Any]]:
    read = [
        {run: [classify(reply, p.text, ()) for reply in found[p.fingerprint]] for run, found in replies.items()}
        for p in programs
    ]
    referee.submit(key, [_contest(p.text, list(runs.values())) for p, runs in zip(programs, read, strict=True)])
    rulings = referee.result(key)
    for p, runs in zip(programs, read, strict=True):
        judged = {run: [_sample(one, p.text, rulings, referee) for one in all_] for run, all_ in runs.items()}
        yield {"fingerprint": p.fingerprint, "source": p.source, "runs": judged}


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _contest(text: str, runs: Sequence[Sequence[Outcome | Code]]) -> Contest:
    codes = tuple(tuple(c.code if isinstance(c, Code) else "" for c in run) for run in runs)
    distinct = tuple(dict.fromkeys(c for run in codes for c in run if c))
    return Contest(text, distinct, None, codes)


def _sample(read: Outcome | Code, text: str, rulings: Rulings, referee: Referee) -> Sample:
    if isinstance(read, Outcome):
        return read.kind, None
    ruling = rulings[text, read.code]
    return conclude(ruling, referee.target).kind, _speedup(ruling)


def _speedup(ruling: Ruling | None) -> float | None:
    """None where the code was no finalist, or Inductor was not measured."""
    if ruling is None or not isinstance(ruling.second, Accepted):
        return None
    timing, cost = ruling.second.proof.timing, ruling.second.proof.host_cost
    if timing is not None:
        return timing.inductor_us / timing.candidate_us if timing.inductor_us else None
    return cost.baseline / max(cost.candidate, 1.0) if cost else None


# from rows to figures


def summarise(
    rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], dict[str, tuple[float, float]], dict[str, Any]]:
    """(summary, intervals, detail); `runs`: names a stage. Raises ValueError where no program counts."""
    left_out = {r["fingerprint"]: why for r in rows if (why := why_left_out(r["runs"])) is not None}
    kept = [row for row in rows if row["fingerprint"] not in left_out]
    if not kept:
        raise ValueError(f"none of {len(rows)} programs says anything: {sorted(set(left_out.values()))}")
    values = {stage: np.array([_mean_of_runs(r["runs"], names) for r in kept]).T for stage, names in runs.items()}
    found = {stage: v_FP.mean(-1) for stage, v_FP in values.items()}
    draws_PB = _draws(len(kept))
    drawn = {stage: v_FP @ draws_PB for stage, v_FP in values.items()}
    spans = {f"{s}.{name}": _interval(name, drawn[s][i]) for s in runs for i, name in enumerate(FIGURES)}
    plain = {s: {name: _plain(name, found[s][i]) for i, name in enumerate(FIGURES)} for s in runs}
    stages = [
        {"stage": s} | {n: plain[s][n] for n in LINEAR + SPEEDS[:2]} | {"interval": spans[f"{s}.speedup_best8"]}
        for s in runs
    ]
    detail = {
        "raw": {s: {n: plain[s][n] for n in SPEEDS[2:]} for s in runs},
        "paired": {
            f"{a} against {b}": _difference(found[a] - found[b], drawn[a] - drawn[b])
            for a, b in PAIRS
            if a in runs and b in runs
        },
        "left_out": left_out,
        "programs": kept,
    }
    return {"stages": stages}, spans, detail


def _draws(count: int) -> Any:
    """Weights of programs [P, BOOTSTRAP]: the same for all stages."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), BOOTSTRAP).T / count


def _difference(found_F: Any, drawn_FB: Any) -> dict[str, tuple[float, float, float]]:
    """Of two stages, for each figure: itself and its interval; a quotient for speedups."""
    return {name: (_plain(name, found_F[i]), *_interval(name, drawn_FB[i])) for i, name in enumerate(FIGURES)}


def why_left_out(runs: Mapping[str, Sequence[Sample]]) -> str | None:
    """Of a program that says nothing about any stage."""
    if any(samples and not _decided(samples) for samples in runs.values()):
        return "undecided"
    every = [sample for samples in runs.values() for sample in samples]
    if not any(kind in RIGHT for kind, _ in every):
        return "nobody is right, not even a teacher"
    if all(speed is None for _, speed in every):
        return "Inductor was not measured"
    return None


def _decided(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if s[0] != "undecided"]


def _mean_of_runs(row: Mapping[str, Sequence[Sample]], names: Sequence[str]) -> list[float]:
    return [fmean(column) for column in zip(*(_figures(row[name]) for name in names), strict=True)]


def _figures(samples: Sequence[Sample]) -> list[float]:
    """In the order of FIGURES."""
    decided = _decided(samples)
    right = [float(kind in RIGHT) for kind, _ in decided] or [0.0]
    hacks = [float(kind in HACKS) for kind, _ in decided] or [0.0]
    first = math.log(samples[0][1] or 1.0) if samples else 0.0
    best = math.log(max((speed for _, speed in samples if speed is not None), default=1.0))
    return [fmean(right), max(right), fmean(hacks), max(0.0, first), max(0.0, best), first, best]


def _plain(name: str, value: float) -> float:
    return math.exp(value) if name in SPEEDS else float(value)


def _interval(name: str, drawn_B: Any) -> tuple[float, float]:
    low, high = np.quantile(drawn_B, (0.025, 0.975))
    return _plain(name, low), _plain(name, high)
