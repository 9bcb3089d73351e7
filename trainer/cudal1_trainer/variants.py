"""Tasks and their variants, reproducible from small names.

A task is named by an integer seed, a variant by `teacher/k`: the k-th reply of a teacher for this very program.
Both are functions of these names alone, so a score file holds no code: it names seed and variant, and the digest
tells whether today's teachers still write the code that was measured. Nothing is built or run here.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

from cudal1_compile.candidate import Candidate, Reply, parse_candidate
from cudal1_compile.errors import CandidateError
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import print_program
from cudal1_trainer.tasks import generate_task
from cudal1_trainer.teachers import TEACHERS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """One teacher's reply for one program."""

    name: str  # teacher/k
    reply: Reply
    candidate: Candidate

    @property
    def teacher(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def digest(self) -> str:
        return self.candidate.digest[:20]


def make_task(seed: int) -> Program:
    """The task of this seed, in canonical form."""
    return generate_task(random.Random(f"task {seed}"))


def canonical_key(program: Program) -> str:
    """The fingerprint of a program that is in canonical form already, as tasks and imported regions are."""
    return hashlib.sha256(print_program(program).encode()).hexdigest()


def write_variant(program: Program, name: str, key: str | None = None) -> Variant | None:
    """The reply of this name; None where the teacher has none for the program. key: its canonical_key."""
    teacher = name.rpartition("/")[0]
    reply = TEACHERS[teacher](program, random.Random(f"{key or canonical_key(program)} {name}"))
    if reply is None:
        return None
    try:
        return Variant(name, reply, parse_candidate(reply.code, program))
    except CandidateError as error:
        log.warning("teacher %s wrote a reply that Reply V1 refuses: %s", name, error)
        return None


def write_variants(program: Program, limit: int, tries: int = 4, teachers: Sequence[str] = ()) -> list[Variant]:
    """Up to `limit` distinct variants: every teacher once, then every teacher again, `tries` rounds at most."""
    found: dict[str, Variant] = {}
    silent: set[str] = set()
    key = canonical_key(program)
    for k in range(tries):
        for teacher in teachers or TEACHERS:
            if len(found) == limit:
                return list(found.values())
            if teacher in silent:
                continue
            variant = write_variant(program, f"{teacher}/{k}", key)
            if variant is None:
                silent.add(teacher)  # a teacher that passes does so for the program, not for the seed
            else:
                found.setdefault(variant.digest, variant)
    return list(found.values())
