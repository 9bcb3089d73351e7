"""The ablation's replies before the judge, and from rows to the stages' figures.

    judge_rows(programs, replies, referee, path)    a row a program, appended to `path`
    known_rows(programs, replies, path)             those that are there
    summarise(rows, stages)                         (summary, intervals, detail)

The codes of all runs for one program go to the judge together: gates 1 to 5 and a quick timing for each, then for
every run the first reply's code and the quickest of the others through the finalists' gates, measured side by
side with Inductor. What is refused there is no right reply. A program that nobody gets right, templates included,
counts against all (detail.nobody names them); one is left out where the judge had no verdict, or can have none
since nothing of the program can be verified, or where no right kernel was measured against Inductor.

Speedups are over Inductor compiling the program alone, 1 where nothing is right (over aten: detail.over_aten);
on the host target, which knows no times, baseline over candidate by declared costs. A winner is a best reply
that beats Inductor; it is novel where no template writes its code (novelty.py). Intervals: bootstrap over
programs, all stages on the same draws, so that a difference of two stages is paired.
"""

from __future__ import annotations

import fcntl
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.generator import LENGTHS
from benchmarks.novelty import TemplateCodes, novel_shares
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Verdict
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.measure import Mark
from cudal1_trainer.scores.outcome import HACKS, RIGHT, Code, Outcome, classify, conclude
from cudal1_trainer.scores.referee import SUITES_BYTES, Group, Job, Referee, Ruling, Rulings
from cudal1_trainer.tasks.heldout import HeldOutProgram, pattern, read_heldout

BOOTSTRAP = 2000
TOGETHER = 34  # programs of one job of the judge: their baselines compile while codes are tried
# a third of the usual time for a finalist: figures are means over hundreds of programs, and what these differ by,
# not one program's clock, makes the intervals
CONTEST = Limits(cached_suites_bytes=SUITES_BYTES, final_ms=50.0)
LINEAR = ("right_1", "right_8", "hack_rate")
SPEEDS = ("speedup_1", "speedup_best8", "speedup_1_raw", "speedup_best8_raw")
ATEN = ("aten_1", "aten_best8")
FIGURES = LINEAR + SPEEDS + ATEN
PAIRS = (
    ("self_supervised", "sft"),
    ("plain_grpo", "self_supervised"),
    ("plain_grpo", "sft"),
    ("contrastive_random", "plain_grpo"),
    ("contrastive_buckets", "plain_grpo"),
    ("contrastive_buckets", "contrastive_random"),
    ("contrastive_buckets", "sft"),
    ("contrastive_buckets", "best_teacher"),
)
SILENCE_S = 300.0  # of the judge over a chunk of codes, or over a program's finalists with Inductor's compile
Replies = Mapping[str, Mapping[str, Sequence[str]]]  # run -> fingerprint -> samples


class Sample(NamedTuple):
    """One reply. A list in a row."""

    kind: str  # of its outcome
    speed: float | None = None  # over Inductor, where it was a finalist
    aten: float | None = None
    novelty: str | None = None  # of a finalist


@dataclass(frozen=True, slots=True)
class Contest(Group):
    """A program's distinct codes, and each run's own in the order of its samples, "" for a sample without one."""

    runs: tuple[tuple[str, ...], ...] = ()


def held_out_patterns(data: Path) -> list[HeldOutProgram]:
    """Programs of combinations that nothing was trained on, in an order in which a part is a fair choice."""
    programs = [p for p in read_heldout(data / "heldout.json").programs if pattern(p.program) is not None]
    random.Random(0).shuffle(programs)
    return programs


def judge_contest(judge: Judge, job: Job, mark: Mark) -> Rulings:
    """In the judge's process, in place of the referee's own rule."""
    found: Rulings = {}
    programs = {group.text: parse_program(group.text) for chunk in job.chunks for group in chunk}
    judge.expect(list(programs.values()))  # Inductor compiles while candidates are tried
    for i, chunk in enumerate(job.chunks):
        mark(str(i))
        tasks = [(programs[group.text], code) for group in chunk for code in group.codes]
        verdicts = iter(judge.submit(tasks))
        entered: list[tuple[Group, dict[str, Verdict], dict[str, Future[Verdict]]]] = []
        for group in chunk:  # each program's finalists are measured beside the trials of those behind it
            first = {code: next(verdicts).result() for code in group.codes}
            mark(str(i))
            assert isinstance(group, Contest)
            picked = finalists(group, first)
            final = judge.submit_finalists(programs[group.text], picked)
            entered.append((group, first, dict(zip(picked, final, strict=True))))
        for group, first, measured in entered:
            final_of = {code: verdict.result() for code, verdict in measured.items()}
            mark(str(i))
            found |= {(group.text, code): Ruling(v, final_of.get(code)) for code, v in first.items()}
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
    """Judges what has no row yet. Runs that come later are measured by themselves, against Inductor too."""
    known = {r["fingerprint"]: r["runs"] for r in read_rows(path)}
    todo = [p for p in programs if set(replies) - set(known.get(p.fingerprint, ()))]
    for start in range(0, len(todo), TOGETHER):
        rows = list(_judge(todo[start : start + TOGETHER], replies, referee, start, known))
        with path.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # several processes judge: whole lines, one after the other
            stream.writelines(json.dumps(row) + "\n" for row in rows)


def known_rows(programs: Sequence[HeldOutProgram], replies: Replies, path: Path) -> list[dict[str, Any]]:
    """In the order of `programs`; a row that lacks a run does not count."""
    rows = {r["fingerprint"]: r for r in read_rows(path) if set(r["runs"]) >= set(replies)}
    return [rows[p.fingerprint] for p in programs if p.fingerprint in rows]


def _judge(
    programs: Sequence[HeldOutProgram],
    replies: Replies,
    referee: Referee,
    key: int,
    known: Mapping[str, Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    before = [known.get(p.fingerprint, {}) for p in programs]
    read = [
        {
            run: [classify(reply, p.text, ()) for reply in found[p.fingerprint]]
            for run, found in replies.items()
            if run not in old
        }
        for p, old in zip(programs, before, strict=True)
    ]
    referee.submit(key, [_contest(p.text, list(runs.values())) for p, runs in zip(programs, read, strict=True)])
    template_codes = [TemplateCodes.of(p.program) for p in programs]  # while the judge works
    rulings = referee.result(key)
    for p, runs, old, codes in zip(programs, read, before, template_codes, strict=True):
        new = {
            run: [_sample(one, p.text, rulings, referee, codes) for one in every] for run, every in runs.items()
        }
        yield {"fingerprint": p.fingerprint, "source": p.source, "ops": len(p.program.ops), "runs": {**old, **new}}


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _contest(text: str, runs: Sequence[Sequence[Outcome | Code]]) -> Contest:
    codes = tuple(tuple(c.code if isinstance(c, Code) else "" for c in run) for run in runs)
    distinct = tuple(dict.fromkeys(c for run in codes for c in run if c))
    return Contest(text, distinct, None, runs=codes)


def _sample(
    read: Outcome | Code, text: str, rulings: Rulings, referee: Referee, template_codes: TemplateCodes
) -> Sample:
    if isinstance(read, Outcome):
        return Sample(read.kind)
    ruling = rulings[text, read.code]
    kind, speeds = conclude(ruling, referee.target).kind, _speedups(ruling)
    return Sample(kind) if speeds is None else Sample(kind, *speeds, template_codes.novelty(read.code))


def _speedups(ruling: Ruling | None) -> tuple[float | None, float] | None:
    """Over Inductor, None where it was not measured, and over aten; None where the code was no finalist."""
    if ruling is None or not isinstance(ruling.second, Accepted):
        return None
    timing, cost = ruling.second.proof.timing, ruling.second.proof.host_cost
    if timing is not None:
        over_inductor = timing.inductor_us / timing.candidate_us if timing.inductor_us else None
        return over_inductor, timing.aten_us / timing.candidate_us
    ratio = cost.baseline / max(cost.candidate, 1.0) if cost else 1.0
    return ratio, ratio


# from rows to figures


def summarise(
    rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], dict[str, tuple[float, float]], dict[str, Any]]:
    """(summary, intervals, detail); `runs`: names a stage. Raises ValueError where no program counts."""
    left_out = {r["fingerprint"]: why for r in rows if (why := why_left_out(r["runs"])) is not None}
    kept = [row for row in rows if row["fingerprint"] not in left_out]
    if not kept:
        raise ValueError(f"none of {len(rows)} programs says anything: {sorted(set(left_out.values()))}")
    by_run = {
        name: np.array([_figures(r["runs"][name]) for r in kept]).T for names in runs.values() for name in names
    }
    values = {stage: np.mean([by_run[name] for name in names], 0) for stage, names in runs.items()}
    found = {stage: v_FP.mean(-1) for stage, v_FP in values.items()}
    draws_PB = draws(len(kept))
    drawn = {stage: v_FP @ draws_PB for stage, v_FP in values.items()}
    spans = {f"{s}.{name}": interval(name, drawn[s][i]) for s in runs for i, name in enumerate(FIGURES)}
    plain = {s: {name: _plain(name, found[s][i]) for i, name in enumerate(FIGURES)} for s in runs}
    stages = [
        {"stage": s} | {n: plain[s][n] for n in LINEAR + SPEEDS[:2]} | {"interval": spans[f"{s}.speedup_best8"]}
        for s in runs
    ]
    detail = {
        "raw": {s: {n: plain[s][n] for n in SPEEDS[2:]} for s in runs},
        "over_aten": {s: {n: plain[s][n] for n in ATEN} for s in runs},
        "by_seed": {
            name: {n: _plain(n, v.mean()) for n, v in zip(FIGURES, v_FP, strict=True)}
            for name, v_FP in by_run.items()
        },
        "lengths": {s: _by_length(kept, v_FP) for s, v_FP in values.items()},
        "novelty": {s: _novelty(kept, names) for s, names in runs.items()},
        "paired": {
            f"{a} against {b}": _difference(found[a] - found[b], drawn[a] - drawn[b])
            for a, b in PAIRS
            if a in runs and b in runs
        },
        "nobody": [r["fingerprint"] for r in kept if not _anybody(r["runs"])],
        "left_out": left_out,
        "programs": kept,
    }
    return {"stages": stages}, spans, detail


def _by_length(rows: Sequence[Mapping[str, Any]], values_FP: Any) -> dict[str, dict[str, float]]:
    """By operations: upper ends of the bins as in benchmarks/generator.py."""
    found = {}
    ops_P = np.array([r["ops"] for r in rows])
    for low, top in pairwise((0, *LENGTHS)):
        of_bin_P = (ops_P > low) & (ops_P <= top)
        if of_bin_P.any():
            means_F = values_FP[:, of_bin_P].mean(-1)
            figures = {name: _plain(name, v) for name, v in zip(FIGURES, means_F, strict=True)}
            found[f"up to {top}"] = {"n": int(of_bin_P.sum())} | figures
    return found


def _novelty(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Of the winners of all runs: how many, and the shares whose code, and whose form, no template writes."""
    best = [
        max(map(_read, r["runs"][name]), key=lambda s: s.speed or 0.0, default=Sample(""))
        for r in rows
        for name in names
    ]
    winners = [s.novelty for s in best if (s.speed or 0.0) > 1.0]
    return {"winners": len(winners)} | novel_shares(winners)


def _read(sample: Sequence[Any]) -> Sample:
    return Sample(*sample)


def draws(count: int) -> Any:
    """Weights of programs [P, BOOTSTRAP]: the same for all stages."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), BOOTSTRAP).T / count


def _difference(found_F: Any, drawn_FB: Any) -> dict[str, tuple[float, float, float]]:
    """Of two stages, for each figure: itself and its interval; a quotient for speedups."""
    return {name: (_plain(name, found_F[i]), *interval(name, drawn_FB[i])) for i, name in enumerate(FIGURES)}


def why_left_out(runs: Mapping[str, Sequence[Sequence[Any]]]) -> str | None:
    """Of a program that says nothing about any stage."""
    if any(samples and not _decided(samples) for samples in runs.values()):
        return "undecided"
    measured = any(_read(sample).speed is not None for samples in runs.values() for sample in samples)
    return "Inductor was not measured" if _anybody(runs) and not measured else None


def _anybody(runs: Mapping[str, Sequence[Sequence[Any]]]) -> bool:
    return any(_read(sample).kind in RIGHT for samples in runs.values() for sample in samples)


def _decided(samples: Sequence[Sequence[Any]]) -> list[Sample]:
    return [s for s in map(_read, samples) if s.kind != "undecided"]


def _figures(row: Sequence[Sequence[Any]]) -> list[float]:
    """In the order of FIGURES."""
    samples, decided = list(map(_read, row)), _decided(row)
    right = [float(s.kind in RIGHT) for s in decided] or [0.0]
    hacks = [float(s.kind in HACKS) for s in decided] or [0.0]
    first = samples[0] if samples else Sample("")
    logs = [math.log(x) for x in (first.speed or 1.0, _best(s.speed for s in samples))]
    aten = [math.log(x) for x in (first.aten or 1.0, _best(s.aten for s in samples))]
    clamped = [max(0.0, x) for x in (*logs, *aten)]
    return [fmean(right), max(right), fmean(hacks), *clamped[:2], *logs, *clamped[2:]]


def _best(speeds: Iterable[float | None]) -> float:
    return max((s for s in speeds if s is not None), default=1.0)


def _plain(name: str, value: float) -> float:
    return float(value) if name in LINEAR else math.exp(value)


def interval(name: str, drawn_B: Any) -> tuple[float, float]:
    low, high = np.quantile(drawn_B, (0.025, 0.975))
    return _plain(name, low), _plain(name, high)
