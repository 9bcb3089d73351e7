"""500 verdicts on the host target: the templates' kernels, kernels changed by one token, and attacks.

The judge's inputs are those of a pinned seed. Of a verdict its gate is kept and what kind of sentence it gives:
numbers, names and what is quoted are left out. What two runs judge otherwise has no row to be held against.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from . import project
from .digests import digest
from .record import UNSTABLE, Table
from .subjects import DATA

SEED = 11
COLUMNS = ("gate", "kind")  # kind: may be worded anew
ATTACKS, KERNELS, HAND_WRITTEN, MUTANTS = 130, 100, 30, 240
MUTANTS_EACH = 3

Task = tuple[project.Program, str]  # a region and a code
_CHANGING = re.compile(r"'[^']*'|\b(?:in|out|s|d)\d+\b|[-+]?\b\d[\w.+-]*|-?\b(?:inf|nan|True|False)\b|\[[^]]*\]")


def tasks() -> dict[str, Task]:
    """By the kind and the code's digest, which stay where modules and attacks get other names."""
    attacks = dict(_named("attack", c.program, c.attack.code) for c in project.attack_suite("host"))
    kernels = list(_kernels())
    chosen = {name: attacks[name] for name in sorted(attacks)[:ATTACKS]}
    return chosen | dict([*kernels, *islice(_mutants(kernels), MUTANTS)])


def _named(kind: str, program: project.Program, code: str) -> tuple[str, Task]:
    return f"{kind} {digest(project.print_program(program) + code)[:8]}", (program, code)


def _kernels() -> Iterator[tuple[str, Task]]:
    """Of the judge's own right kernels some, of templates one a program in turns of the families."""
    found = project.subjects(SEED, project.read_structures(DATA / "structures.jsonl.gz"))
    written: list[tuple[str, Task]] = []
    for subject in found:
        if subject.family != project.HAND_WRITTEN:
            break
        written += [_named("right", subject.program, code) for code in subject.codes]
    yield from written[:: len(written) // HAND_WRITTEN][:HAND_WRITTEN]
    for subject in islice(found, KERNELS):
        yield _named("template", subject.program, subject.codes[0])


def _mutants(kernels: Iterable[tuple[str, Task]]) -> Iterator[tuple[str, Task]]:
    for name, (program, code) in kernels:
        for mutant in project.mutants(program, code, random.Random(f"golden {name}"), MUTANTS_EACH):
            yield _named("mutant", program, mutant.code)


def judged() -> dict[str, Table]:
    found = tasks()
    with project.Judge(project.HOST, project.Limits(inductor=False), seed=SEED) as judge:
        verdicts = judge.judge_tasks(list(found.values()))
    return {"verdicts": Table(COLUMNS, "column", dict(zip(found, map(_row, verdicts), strict=True)))}


def judged_twice() -> dict[str, Table]:
    """What two runs do not agree on is marked: it has no verdict to be held against."""
    first, second = (judged()["verdicts"].rows for _ in range(2))
    rows = {name: row if second[name] == row else UNSTABLE for name, row in first.items()}
    print(f"{len(rows)} verdicts, {list(rows.values()).count(UNSTABLE)} of them not the same twice")
    return {"verdicts": Table(COLUMNS, "column", rows)}


def _row(verdict: project.Verdict) -> str:
    """The words of a verdict's columns; none that could be compared where it was put off."""
    match verdict:
        case project.Accepted(proof):
            return f"accepted {proof.numerics}"
        case project.Rejected(stage, reason):
            return f"{stage} {digest(_CHANGING.sub('#', reason))[:8]}"
    return UNSTABLE
