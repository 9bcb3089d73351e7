"""`cudal1 audit`: the judge's two error rates and its mutation test, on this machine's GPU or the host target.

    cudal1 audit                                     prints the rates; exit status 1 if a wrong kernel is accepted
    cudal1 audit --out benchmarks/results            also writes audit.host.json, or audit.h100.json on that GPU
    cudal1 audit --seconds 280 --honest 2000         ends in time and says how many were judged
    cudal1 audit --attacks-only --out ...            renews that part of the file; the others stay, with commits

Attacks: the whole red team of judge/audit, and objects that no candidate's text leads to (load_time). Honest:
kernels that cudal1_trainer/audit finds right, without the judge. Mutants: right kernels changed by one token and
found wrong, without the judge. Right kernels that lose only on cost or speed are not refused here. The same --seed
gives the same kernels; the judge's inputs are secret all the same.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml

import benchmarks.redteam
from benchmarks.redteam.load_time import LoadRow, load_cubins, load_time_rows
from benchmarks.redteam.rates import (
    AttackRow,
    HonestRow,
    MutantRow,
    attack_rows,
    by,
    honest_rows,
    mutant_rows,
    wilson,
)
from benchmarks.redteam.subjects import subjects
from benchmarks.result_file import command, commit, device_stem, write_result
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.versions import VERIFIER_VERSION
from cudal1_compile.runtime.target import detect_target
from cudal1_trainer.tasks.structures import read_structures

STRUCTURES = Path(__file__).parent.parent / "trainer" / "data" / "structures.jsonl.gz"
REASONS = Path(benchmarks.redteam.__file__).parent / "undecided.yaml"
HONEST_SHARE = 0.55  # of the seconds that are left after the attacks
MUTANT_SEED = 1000  # added: mutants are not all of kernels of the honest corpus

Counts = Mapping[str, tuple[int, int]]


def audit(
    attacks_only: Annotated[bool, typer.Option(help="only the red team")] = False,
    attacks: Annotated[bool, typer.Option(help="the red team, too")] = True,
    honest: Annotated[int, typer.Option(help="right kernels to judge")] = 1000,
    mutants: Annotated[int, typer.Option(help="mutants that are not equivalent, to judge")] = 500,
    seed: Annotated[int, typer.Option(help="of the corpus and of the mutations")] = 1,
    seconds: Annotated[float | None, typer.Option(help="end after about so long, with fewer kernels")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for audit.DEVICE.json")] = None,
) -> None:
    """Measure the judge: attacks accepted, right kernels refused, mutants that survive."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    honest, mutants = (0, 0) if attacks_only else (honest, mutants)
    end = time.monotonic() + (seconds or float("inf"))
    target = detect_target(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    structures = read_structures(STRUCTURES)
    parts: dict[str, Part] = {}
    limits = Limits(inductor=False, sanitize=True)
    processes = ProcessPoolExecutor(limits.build_count, get_context("spawn"), torch.set_num_threads, (1,))
    with Judge(target, limits) as judge, processes as pool:
        if attacks:
            parts["attacks"] = attack_part(attack_rows(judge))
            with tempfile.TemporaryDirectory() as folder:
                rows = load_time_rows(Path(folder))
            parts["load_time"] = load_part(rows, load_cubins() if target.kind == "cuda" else {})
        if honest:
            now = time.monotonic()
            until = now + (end - now) * (HONEST_SHARE if mutants else 1.0)
            parts["honest"] = honest_part(
                honest_rows(judge, pool, subjects(seed, structures), seed, honest, until)
            )
        if mutants:
            source = subjects(seed + MUTANT_SEED, structures)
            parts["mutants"] = mutant_part(*mutant_rows(judge, pool, source, seed, mutants, end))
        parts["processes"] = Part({}, {"broken": judge.counts, "isolation": judge.isolation})
    if out is not None:
        print(write(out, parts, seed))
    if any(
        part.counts.get(wrong) for part in parts.values() for wrong in ("accepted", "survivors", "load_accepted")
    ):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Part:
    """One of the three examinations: its counts for the summary, and its rows."""

    counts: dict[str, int]
    detail: dict[str, Any]


def attack_part(rows: Sequence[AttackRow]) -> Part:
    accepted = [a for a in rows if a.ruling.passed]
    table = by(rows, lambda a: a.hack, lambda a: a.ruling.passed)
    show("attacks accepted, by row of the catalogue", table)
    for a in accepted:
        print(f"ACCEPTED attack {a.name!r} ({a.hack}): {a.ruling.stage} {a.ruling.reason}")
    counts = {"attacks": len(rows), "blind_attacks": sum(a.blind for a in rows), "accepted": len(accepted)}
    return Part(counts, {"by_hack": _columns(table, "attacks", "accepted"), "all": [asdict(a) for a in rows]})


def load_part(rows: Sequence[LoadRow], driver: Mapping[str, str]) -> Part:
    """driver: what the GPU's driver says of each cubin without our gate."""
    wrong = [r for r in rows if r.accepted or r.escaped]
    print(f"objects that attack loading: {len(wrong)} of {len(rows)} accepted")
    for r in wrong:
        print(
            f"ACCEPTED at loading {r.name!r}: {'escaped, ' if r.escaped else ''}{r.gate or 'no gate'}; {r.child}"
        )
    counts = {"load_attacks": len(rows), "load_accepted": len(wrong)}
    return Part(counts, {"all": [asdict(r) for r in rows], "driver_without_gate": dict(driver)})


def honest_part(rows: Sequence[HonestRow]) -> Part:
    """What was deferred has no verdict and is not counted."""
    judged = [(r, r.ruling) for r in rows if r.ruling and r.ruling.stage != "deferred"]
    table = by(judged, lambda x: f"{x[0].family}, {x[0].dtype}", lambda x: not x[1].passed)
    show("right kernels refused, by family and dtype", table)
    refused = [r for r, ruling in judged if not ruling.passed]
    for r in refused:
        print(f"REFUSED a right kernel ({r.family}, {r.dtype}): {r.ruling.reason if r.ruling else ''}")
    detail = {
        "by_family_and_dtype": _columns(table, "honest", "refused"),
        "stages": dict(Counter(ruling.stage for _, ruling in judged)),
        "refusals": [asdict(r) for r in refused],
        "left_out": [{"family": r.family, "dtype": r.dtype, "left_out": r.left_out} for r in rows if r.left_out],
    }
    return Part({"honest": len(judged), "refused": len(refused)}, detail)


def mutant_part(rows: Sequence[MutantRow], kernels: int) -> Part:
    different = [m for m in rows if m.different]
    table = by(different, lambda m: m.category, lambda m: m.ruling.passed)
    show("mutants surviving, by category", table)
    survivors = [m for m in different if m.ruling.passed]
    for m in survivors:
        print(f"SURVIVED {m.category} ({m.kind}): {m.before}  ->  {m.after}: {m.evidence}")
    same, undecided = ([m for m in rows if m.kind == kind] for kind in ("same", "undecided"))
    counts = {"mutants": len(different), "survivors": len(survivors)}
    detail = {
        "kernels": kernels,
        "by_category": _columns(table, "mutants", "survivors"),
        "stages": dict(Counter(m.ruling.stage for m in different)),
        "survivors": [asdict(m) for m in survivors],
        "refused_equivalents": [asdict(m) for m in same if not m.ruling.passed],
        "undecided": [asdict(m) for m in undecided],
    }
    return Part(counts | {"equivalent_mutants": len(same), "undecided_mutants": len(undecided)}, detail)


def write(out: Path, parts: Mapping[str, Part], seed: int) -> Path:
    """Writes the file; a part that was not run stays as an earlier run wrote it, under that run's commit."""
    path = out / f"audit.{device_stem()}.json"
    detail = json.loads(path.read_text())["detail"] if path.is_file() else {}
    for name, part in parts.items():
        run = {"commit": commit(), "command": command(), "verifier": VERIFIER_VERSION, "seed": seed}
        run["counts"] = part.counts
        detail[name] = run | part.detail
    summary: dict[str, Any] = {}
    for part in detail.values():
        summary |= part["counts"]
    if "mutants" in detail:
        wrong = _look_by_hand(detail["mutants"]["undecided"])
        summary["mutants"] += len(wrong)
        summary["survivors"] += sum(row["ruling"]["passed"] for row in wrong)
        summary["undecided_mutants"] -= len(wrong)
    intervals = {}
    for rate, hits, rows in RATES:
        if summary.get(rows):
            summary[rate] = summary[hits] / summary[rows]
            intervals[rate] = wilson(summary[hits], summary[rows])
    n = sum(summary.get(rows, 0) for _, _, rows in RATES)
    return write_result(out, "audit", summary, n, intervals, detail)


RATES = (
    ("attacks_accepted", "accepted", "attacks"),
    ("load_time_accepted", "load_accepted", "load_attacks"),
    ("honest_refused", "refused", "honest"),
    ("mutants_surviving", "survivors", "mutants"),
)


def _look_by_hand(undecided: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives each what undecided.yaml says of it; returns those that are wrong by that."""
    reasons = yaml.safe_load(REASONS.read_text())
    for row in undecided:
        row["by_hand"] = reasons.get(row["digest"], "not looked at")
    return [row for row in undecided if row["by_hand"].startswith("wrong")]


def show(title: str, counts: Counts) -> None:
    print(title)
    for name, (rows, hits) in counts.items():
        print(f"  {name:28} {hits:5} of {rows}")
    rows, hits = (sum(column) for column in zip(*counts.values(), strict=True)) if counts else (0, 0)
    low, high = wilson(hits, rows)
    print(f"  {'together':28} {hits:5} of {rows} = {hits / max(1, rows):.2%} (95%: {low:.2%} to {high:.2%})")


def _columns(counts: Counts, rows: str, hits: str) -> dict[str, dict[str, int]]:
    return {name: {rows: n, hits: found} for name, (n, found) in counts.items()}
