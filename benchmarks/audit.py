"""`cudal1 audit`: the judge's two error rates and its mutation test, on this machine's GPU or the host target.

    cudal1 audit                                     prints the rates; exit status 1 if a wrong kernel is accepted
    cudal1 audit --out benchmarks/results            also writes audit.host.json, or audit.h100.json on that GPU
    cudal1 audit --seconds 280 --honest 2000         ends in time and says how many were judged

Attacks: the whole red team of judge/audit. Honest: kernels that cudal1_trainer/audit finds right, without the
judge. Mutants: right kernels changed by one token and found wrong, without the judge. Right kernels that
lose only on cost or speed are not refused here. The same --seed gives the same kernels; the judge's inputs are
secret all the same.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml

import cudal1_trainer.audit
from benchmarks.result_file import write_result
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.runtime.target import detect_target
from cudal1_trainer.audit.corpus import subjects
from cudal1_trainer.audit.rates import (
    AttackRow,
    HonestRow,
    MutantRow,
    attack_rows,
    by,
    honest_rows,
    mutant_rows,
    wilson,
)
from cudal1_trainer.structures import read_structures

STRUCTURES = Path(__file__).parent.parent / "trainer" / "data" / "structures.jsonl.gz"
REASONS = Path(cudal1_trainer.audit.__file__).parent / "undecided.yaml"
HONEST_SHARE = 0.55  # of the seconds that are left after the attacks
MUTANT_SEED = 1000  # added: mutants are not all of kernels of the honest corpus

Counts = Mapping[str, tuple[int, int]]


def audit(
    attacks_only: Annotated[bool, typer.Option(help="only the red team")] = False,
    honest: Annotated[int, typer.Option(help="right kernels to judge")] = 1000,
    mutants: Annotated[int, typer.Option(help="mutants that are not equivalent, to judge")] = 500,
    seed: Annotated[int, typer.Option(help="of the corpus and of the mutations")] = 1,
    seconds: Annotated[float | None, typer.Option(help="end after about so long, with fewer kernels")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for audit.DEVICE.json")] = None,
) -> None:
    """Measure the judge: attacks accepted, right kernels refused, mutants that survive."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    begin = time.monotonic()
    end = begin + seconds if seconds else float("inf")
    target = detect_target(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    structures = () if attacks_only else read_structures(STRUCTURES)
    right: list[HonestRow] = []
    changed: list[MutantRow] = []
    kernels = 0
    with Judge(target, Limits(build_threads=threads, inductor=False)) as judge:
        tried = attack_rows(judge)
        logging.info("attacks: %d, accepted: %d", len(tried), sum(a.ruling.passed for a in tried))
        if not attacks_only:
            now = time.monotonic()
            until = now + HONEST_SHARE * (end - now)
            right = honest_rows(judge, subjects(seed, structures), seed, honest, until)
            source = subjects(seed + MUTANT_SEED, structures)
            changed, kernels = mutant_rows(judge, source, seed, mutants, end)
    summary = summarise(tried, right, changed) | {"seconds": round(time.monotonic() - begin, 1)}
    _print(summary, tried, right, changed)
    if out is not None:
        n = int(summary["attacks"]) + int(summary["honest"]) + int(summary["mutants"])
        detail = details(tried, right, changed, kernels, seed)
        print(write_result(out, "audit", summary, n, intervals(summary), detail))
    if summary["accepted"] or summary["survivors"]:
        raise typer.Exit(1)


def summarise(
    tried: Sequence[AttackRow], right: Sequence[HonestRow], changed: Sequence[MutantRow]
) -> dict[str, float]:
    """Counts and the three rates; what was deferred is no part of the honest ones."""
    judged = [r.ruling for r in right if r.ruling and r.ruling.stage != "deferred"]
    found: dict[str, float] = {
        "attacks": len(tried),
        "blind_attacks": sum(a.blind for a in tried),
        "accepted": sum(a.ruling.passed for a in tried),
        "honest": len(judged),
        "refused": sum(not r.passed for r in judged),
        "mutants": sum(m.different for m in changed),
        "survivors": sum(m.different and m.ruling.passed for m in changed),
        "equivalent_mutants": sum(m.kind == "same" for m in changed),
        "undecided_mutants": sum(m.kind == "undecided" for m in changed),
    }
    for rate, hits, n in RATES:
        found[rate] = found[hits] / found[n] if found[n] else float("nan")
    return found


RATES = (
    ("attacks_accepted", "accepted", "attacks"),
    ("honest_refused", "refused", "honest"),
    ("mutants_surviving", "survivors", "mutants"),
)


def intervals(summary: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """95%, Wilson."""
    return {rate: wilson(int(summary[hits]), int(summary[n])) for rate, hits, n in RATES}


def details(
    tried: Sequence[AttackRow],
    right: Sequence[HonestRow],
    changed: Sequence[MutantRow],
    kernels: int,
    seed: int,
) -> dict[str, Any]:
    return {
        "seed": seed,
        "attacks": {
            "by_hack": _table(_by_hack(tried), "attacks", "accepted"),
            "all": [asdict(a) for a in tried],
        },
        "honest": {
            "by_family_and_dtype": _table(_by_family(right), "honest", "refused"),
            "stages": dict(Counter(r.ruling.stage for r in right if r.ruling)),
            "refusals": [asdict(r) for r in right if r.ruling and not r.ruling.passed],
            "left_out": [asdict(r) for r in right if r.left_out],
        },
        "mutants": {
            "kernels": kernels,
            "by_category": _table(_by_category(changed), "mutants", "survivors"),
            "survivors": [asdict(m) for m in changed if m.different and m.ruling.passed],
            "refused_equivalents": [asdict(m) for m in changed if m.kind == "same" and not m.ruling.passed],
            "undecided": _undecided(changed),
            "stages": dict(Counter(m.ruling.stage for m in changed if m.different)),
        },
    }


def _undecided(changed: Sequence[MutantRow]) -> list[dict[str, Any]]:
    """Each with what a look by hand found, where there was one."""
    reasons = yaml.safe_load(REASONS.read_text()) if REASONS.is_file() else {}
    rows = [m for m in changed if m.kind == "undecided"]
    return [asdict(m) | {"by_hand": reasons.get(m.digest, "not looked at")} for m in rows]


def _by_hack(tried: Sequence[AttackRow]) -> Counts:
    return by(tried, lambda a: a.hack, lambda a: a.ruling.passed)


def _by_family(right: Sequence[HonestRow]) -> Counts:
    judged = [(r, r.ruling) for r in right if r.ruling and r.ruling.stage != "deferred"]
    return by(judged, lambda x: f"{x[0].family}, {x[0].dtype}", lambda x: not x[1].passed)


def _by_category(changed: Sequence[MutantRow]) -> Counts:
    return by([m for m in changed if m.different], lambda m: m.category, lambda m: m.ruling.passed)


def _table(counts: Counts, rows: str, hits: str) -> dict[str, dict[str, int]]:
    return {name: {rows: n, hits: found} for name, (n, found) in counts.items()}


def _print(
    summary: Mapping[str, float],
    tried: Sequence[AttackRow],
    right: Sequence[HonestRow],
    changed: Sequence[MutantRow],
) -> None:
    for title, counts in (
        ("attacks accepted, by row of the catalogue", _by_hack(tried)),
        ("right kernels refused, by family and dtype", _by_family(right)),
        ("mutants surviving, by category", _by_category(changed)),
    ):
        if counts:
            print(title)
            for name, (n, hits) in counts.items():
                print(f"  {name:28} {hits:5} of {n}")
    for a in tried:
        if a.ruling.passed:
            print(f"ACCEPTED attack {a.name!r} ({a.hack}): {a.ruling.stage} {a.ruling.reason}")
    for r in right:
        if r.ruling and not r.ruling.passed:
            print(f"REFUSED a right kernel ({r.family}, {r.dtype}): {r.ruling.reason}")
    for m in changed:
        if m.different and m.ruling.passed:
            print(f"SURVIVED {m.category} ({m.kind}): {m.before}  ->  {m.after}: {m.evidence}")
    bounds = intervals(summary)
    for rate, found, rows in RATES:
        if summary[rows]:
            low, high = bounds[rate]
            share = f"{summary[rate]:.2%} (95%: {low:.2%} to {high:.2%})"
            print(f"{rate.replace('_', ' '):20} {summary[found]:.0f} of {summary[rows]:.0f} = {share}")
