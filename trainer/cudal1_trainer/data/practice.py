"""What stages 2 and 3 practise on: a fixed set of programs, its order, and held-out programs to try a model on.

    training_tasks(recipe, stage, data)    as the corpus draws them; a user's own come from a file
    probe_tasks(recipe, stage, data)       held out: never practised on
    order(seed, step, prompts, count)      which tasks step `step` asks for

All three are functions of their arguments alone: a killed run goes on with the same tasks in the same order.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from cudal1_compile.codegen.templates import STUMBLES
from cudal1_compile.judge.inputs.sizes import tensor_bytes, tensor_elements
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.data.corpus import Source
from cudal1_trainer.recipe import Recipe, StageRecipe
from cudal1_trainer.tasks.heldout import HeldOut, read_heldout
from cudal1_trainer.tasks.product_sizes import Most, multiplications
from cudal1_trainer.tasks.products import draw_product
from cudal1_trainer.tasks.structures import read_structures

log = logging.getLogger(__name__)

Texts = Callable[[Target], Sequence[str]]  # of programs, for a target

HOST_ELEMENTS = 1 << 16  # of inputs and outputs together: larger programs take the host target seconds a candidate
PROBE_BYTES = 1 << 26  # of a held-out program, which is judged before and after a run
MIB = 1 << 20
REPEATED = 200  # draws in a row; of a family's few programs at a few sizes there are not endlessly many
# of programs with products: half a second to two a candidate on the host target
HOST_PRODUCTS = Most(1 << 20, 1 << 15, 1 << 18)
MULTIPLICATIONS = 1 << 9  # for each byte that a program may have


def training_tasks(recipe: Recipe, stage: StageRecipe, data: Path, target: Target) -> list[str]:
    """Texts of `stage.tasks` distinct programs, none of them held out."""
    return _take(_draws(recipe, stage, data, target, "practice"), stage.tasks)


def probe_tasks(recipe: Recipe, stage: StageRecipe, data: Path, target: Target) -> list[str]:
    """Held-out programs; for a recipe of one family, programs of it that `training_tasks` does not hold."""
    if recipe.data.family:
        known = set(training_tasks(recipe, stage, data, target))
        return _take(_draws(recipe, stage, data, target, "probe"), stage.probe_tasks, known)
    texts = [
        p.text for p in read_heldout(data / "heldout.json").programs if fits(p.program, target, 0, PROBE_BYTES)
    ]
    return random.Random(f"{recipe.seed} probe").sample(texts, min(stage.probe_tasks, len(texts)))


def read_tasks(path: Path, heldout: HeldOut) -> list[str]:
    """A user's own programs, JSON lines with `text`. Raises ValueError where one cannot be read, or none stays."""
    if not path.is_file():
        raise ValueError(f"no {path}: `cudal1 train export-misses {path}` writes one")
    programs = [_own(line, f"{path}, line {i}") for i, line in enumerate(path.read_text().splitlines(), 1)]
    texts = list(dict.fromkeys(print_program(p) for p in programs if not heldout.holds(p)))
    if not texts:
        raise ValueError(f"{path}: {len(programs)} programs, none that is not held out; export more misses")
    return texts


def _own(line: str, where: str) -> Program:
    try:
        return canonicalise(parse_program(str(json.loads(line)["text"])))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{where}: {error!r}; expected JSON with a region's `text`, as `cudal1 train export-misses` writes"
        ) from None


def order(seed: int, step: int, prompts: int, count: int) -> list[int]:
    """`prompts` places among `count` tasks: one shuffle after the other, cut into steps."""
    first = step * prompts
    return [_shuffled(seed, at // count, count)[at % count] for at in range(first, first + prompts)]


def _shuffled(seed: int, epoch: int, count: int) -> list[int]:
    found = list(range(count))
    random.Random(f"{seed} order {epoch}").shuffle(found)
    return found


def _take(texts: Iterator[str], count: int, known: Collection[str] = ()) -> list[str]:
    """`count` distinct ones that are not `known`. Raises ValueError where no new one comes any more."""
    found: dict[str, None] = {}
    since = 0
    while len(found) < count:
        text = next(texts)
        since = since + 1 if text in found or text in known else 0
        if since == REPEATED:
            raise ValueError(
                f"{count} tasks are wanted, after {len(found)} only known ones came: lower the recipe's tasks and "
                "probe_tasks, or raise data.pool"
            )
        if since == 0:
            found[text] = None
    return list(found)


def _draws(recipe: Recipe, stage: StageRecipe, data: Path, target: Target, purpose: str) -> Iterator[str]:
    """With the stage's share of products: each kind is drawn until one fits, so that no limit changes a share."""
    heldout, most = read_heldout(data / "heldout.json"), _most(stage, target)
    least_bytes, most_bytes = int(stage.least_mib * MIB), int(stage.most_mib * MIB)
    source = Source(recipe.data, heldout, structures=read_structures(data / "structures.jsonl.gz"))
    names = () if recipe.data.family else ("products.jsonl.gz", "gathered.jsonl.gz")
    products = [text for name in names for text in read_structures(data / name)]
    share = (recipe.data.products if stage.products < 0 else stage.products) if products else 0.0
    rng = random.Random(f"{recipe.seed} {purpose}")

    def draw() -> Program:
        if share and rng.random() < share:
            return _first(
                lambda: draw_product(products, rng, recipe.data.varied, most),
                lambda p: multiplications(p) <= most.multiplications and fits(p, target, least_bytes, most_bytes),
            )
        return _first(lambda: source.program(rng), lambda p: fits(p, target, least_bytes, most_bytes))

    while True:
        program = draw()
        if not heldout.holds(program):
            yield print_program(program)


def _first(draw: Callable[[], Program], fits: Callable[[Program], bool]) -> Program:
    while True:
        try:
            program = draw()
        except STUMBLES as error:
            log.warning("a task is left out: %r", error)
            continue
        if fits(program):
            return program


def _most(stage: StageRecipe, target: Target) -> Most:
    """Of programs with products."""
    if target.kind == "host":
        return HOST_PRODUCTS
    most_bytes = int(stage.most_mib * MIB)
    return Most(MULTIPLICATIONS * most_bytes, most_bytes, most_bytes)


def fits(program: Program, target: Target, least_bytes: int, most_bytes: int) -> bool:
    """Whether it is one to practise on; bytes are of its tensors on a GPU."""
    if target.kind == "host":
        return tensor_elements(program) <= HOST_ELEMENTS
    return least_bytes <= tensor_bytes(program) <= most_bytes
