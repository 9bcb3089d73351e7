"""The held-out programs: written first, never trained on.

`heldout.json` holds evaluation programs from two sources: regions that the partitioner cut from real models
(benchmarks/extract_regions.py writes them as JSON lines) and generated tasks from a seed range of their own.
Corpus and scores skip every program whose fingerprint or relative (its text without sizes) occurs here, every
program with the structure (without sizes, literals and float widths) of a generated one, and every program of the
same pattern: a combination of five operators or more, whatever joins them, each of which is trained on in others
(419 of 492 programs have one, which costs 5% of the structures that training draws). Of the families'
benchmark (families.jsonl beside it, by benchmarks/family_cut.py) they skip the programs, and of those with a
product every program that is one without sizes; of the others what is held out are the shapes. So it is of the
programs of rlval.keys beside it (fingerprints, by benchmarks/rlval_cut.py).

    python -m cudal1_trainer.tasks.heldout --regions trainer/data/regions.jsonl --out trainer/data/heldout.json
    python -m cudal1_trainer.tasks.heldout --renew --out trainer/data/heldout.json    in a new canonical form
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cudal1_compile.errors import damage_named
from cudal1_fx_passes.program.canonical import canonicalise, shape_agnostic_fingerprint, shape_agnostic_of
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.tasks import structure
from cudal1_trainer.tasks.variants import canonical_key, make_task, write_variants

log = logging.getLogger(__name__)

FIRST_SEED = 2**60  # generated held-out tasks; training draws below it
MAX_TRIES = 50  # seeds looked at for one task kept
PATTERN = 5  # operations, casts aside: combinations of fewer are what everything is made of


@dataclass(frozen=True, slots=True)
class HeldOutProgram:
    source: str  # "task", or the model and direction, as in gpt2/forward
    fingerprint: str
    relative: str
    text: str
    seed: int | None = None  # of a generated task

    @property
    def program(self) -> Program:
        return parse_program(self.text)


@dataclass(frozen=True)
class HeldOut:
    """What training must not touch."""

    programs: tuple[HeldOutProgram, ...]
    fingerprints: frozenset[str]
    relatives: frozenset[str]
    structures: frozenset[str]  # of the generated ones
    patterns: frozenset[str] = frozenset()
    shapes: frozenset[str] = frozenset()  # fingerprints of the families' programs and of rlval's
    products: frozenset[str] = frozenset()  # relatives of those with a product

    def holds(self, program: Program) -> bool:
        """Whether a canonical program, or one of its structure, is held out."""
        key = canonical_key(program)
        if key in self.fingerprints or key in self.shapes or structure(program) in self.structures:
            return True
        if pattern(program) in self.patterns:
            return True
        blind = shape_agnostic_of(program)
        return blind in self.relatives or blind in self.products


def hold_out(programs: Iterable[HeldOutProgram]) -> HeldOut:
    kept = tuple(programs)
    return HeldOut(
        kept,
        frozenset(p.fingerprint for p in kept),
        frozenset(p.relative for p in kept),
        frozenset(structure(p.program) for p in kept if p.seed is not None),
        frozenset(found for p in kept if (found := pattern(p.program)) is not None),
    )


def pattern(program: Program) -> str | None:
    """Which operators a program combines, each as often as it stands there; None for one of few."""
    names = sorted(op.fn for op in program.ops if op.fn != "cast")
    return " ".join(names) if len(names) >= PATTERN else None


def read_heldout(path: Path) -> HeldOut:
    """With what families.jsonl and rlval.keys beside it hold, if any. Raises ValueError without a whole file."""
    if not path.is_file():
        raise ValueError(f"no {path}: `cudal1 train --steps heldout --data {path.parent}` writes one")
    with damage_named(path):
        found = hold_out(HeldOutProgram(**item) for item in json.loads(path.read_text())["programs"])
    families = path.with_name("families.jsonl")
    with damage_named(families):
        lines = families.read_text().splitlines() if families.is_file() else []
        texts = [json.loads(line)["text"] for line in lines]
        shapes = {hashlib.sha256(text.encode()).hexdigest() for text in texts}
        products = frozenset(shape_agnostic_fingerprint(p) for p in map(parse_program, texts) if p.has_product)
    keys = path.with_name("rlval.keys")
    rlval = keys.read_text().split() if keys.is_file() else []
    return replace(found, shapes=frozenset(shapes.union(rlval)), products=products)


def write_heldout(heldout: HeldOut, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"version": 1, "programs": [asdict(p) for p in heldout.programs]}
    path.write_text(json.dumps(body, indent=1) + "\n")


def region_programs(path: Path) -> Iterator[HeldOutProgram]:
    """Distinct regions of a file of JSON lines {text, model, direction}."""
    seen: set[str] = set()
    for line in path.read_text().splitlines():
        item = json.loads(line)
        program = canonicalise(parse_program(item["text"]))
        if (key := canonical_key(program)) not in seen:
            seen.add(key)
            yield _entry(program, f"{item['model']}/{item['direction']}")


def task_programs(count: int, taken: Iterable[str] = ()) -> Iterator[HeldOutProgram]:
    """`count` generated tasks of distinct structure, none of them `taken`, each with at least one variant."""
    known, kept = set(taken), 0
    for seed in range(FIRST_SEED, FIRST_SEED + count * MAX_TRIES):
        if kept == count:
            return
        program = make_task(seed)
        key = structure(program)
        if key in known or not write_variants(program, 1):
            continue
        known.add(key)
        kept += 1
        yield _entry(program, "task", seed)
    if kept < count:
        raise ValueError(f"{count * MAX_TRIES} seeds gave {kept} tasks of distinct structure, {count} are wanted")


def _entry(program: Program, source: str, seed: int | None = None) -> HeldOutProgram:
    return HeldOutProgram(
        source, canonical_key(program), shape_agnostic_fingerprint(program), print_program(program), seed
    )


def build_heldout(regions: Path | None, tasks: int) -> HeldOut:
    from_models = list(region_programs(regions)) if regions is not None and regions.is_file() else []
    generated = task_programs(tasks, {structure(p.program) for p in from_models})
    return hold_out([*from_models, *generated])


def renew(heldout: HeldOut) -> HeldOut:
    """The same programs in the same order, in today's canonical form."""
    renewed = hold_out(_entry(canonicalise(p.program), p.source, p.seed) for p in heldout.programs)
    return replace(renewed, shapes=heldout.shapes, products=heldout.products)


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description="Writes the held-out programs.")
    parser.add_argument("--regions", type=Path, help="JSON lines from benchmarks/extract_regions.py")
    parser.add_argument("--tasks", type=int, default=240, help="generated programs")
    parser.add_argument("--renew", action="store_true", help="keep the programs of --out, write their texts anew")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    if arguments.renew:
        heldout = renew(read_heldout(arguments.out))
    else:
        heldout = build_heldout(arguments.regions, arguments.tasks)
    write_heldout(heldout, arguments.out)
    log.info("%d held-out programs of %d structures", len(heldout.programs), len(heldout.relatives))


if __name__ == "__main__":
    from cudal1_trainer.errors import mistakes_told

    with mistakes_told():
        main()
