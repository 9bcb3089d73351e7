"""The corpus: an endless, reproducible stream of training pairs, laid out as batches.

Fresh pairs come from programs x templates, made on the fly: structures that the partitioner cut from random small
models and from modules written for it, varied (vary.py) and at new sizes (structures.py; with products,
products.py), and generated tasks, most of them widened to the breadth of real regions (widen.py). Their schedules
are those that the prior takes for fast.
Measured pairs come from the score file, written out by scored.py: contrastive ones (a design strictly faster than
those shown) and plain ones whose target is mostly among the fastest. Programs held out are skipped by fingerprint
and by structure. Chunk c of the stream is a function of (recipe, data folder, c).

The data folder:   heldout.json   families.jsonl   rlval.keys   tokenizer/   scores*.jsonl[.gz]   [prior.npz]
                   structures.jsonl.gz   products.jsonl.gz   hard.jsonl.gz   written.jsonl.gz   gathered.jsonl.gz

    python -m cudal1_trainer.data.corpus --recipe h100 --data trainer/data --pairs 2000   what the stream holds
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

from cudal1_compile.codegen.edits import MOST_DRAWN, draw_edits, print_edits
from cudal1_compile.codegen.prior.regression import Prior, load_prior
from cudal1_compile.codegen.templates import STUMBLES, Schedule, try_reply, variants
from cudal1_compile.generate.exemplars import DESIGNS
from cudal1_compile.generate.tokens import load_codec
from cudal1_compile.kernel.candidate import Reply
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.loader import Batch, Row, pack
from cudal1_trainer.data.pairs import (
    Measured,
    Pair,
    choose_baseline,
    choose_facts,
    choose_shown,
    contrastive_pair,
    plain_pair,
)
from cudal1_trainer.data.scored import SCORED, ScoredPrograms, read_scored, write_scored
from cudal1_trainer.model.language import Language, load_language
from cudal1_trainer.model.tokenizer import tokenizer_file
from cudal1_trainer.recipe import DataRecipe, Recipe, load_recipe
from cudal1_trainer.scores.fit_prior import prior_file
from cudal1_trainer.tasks import generate_task
from cudal1_trainer.tasks.heldout import HeldOut, read_heldout
from cudal1_trainer.tasks.product_sizes import resize_structure
from cudal1_trainer.tasks.products import draw_product
from cudal1_trainer.tasks.structures import STRUCTURES, read_structures, with_sizes
from cudal1_trainer.tasks.variants import WIDE_SEED, make_task, write_variants
from cudal1_trainer.tasks.vary import vary

log = logging.getLogger(__name__)

NARROW_STEP = 16  # sizes of narrow tasks are multiples of it: every vector width fits
RARE = re.compile(r"= cum(?:sum|prod)\(|\[(?=[^]]*k\d)[^]]*=d\d+[],]")
# three axes of a window, transposed, or the gradient of a depthwise convolution's weight
SOLID = re.compile(r"= dot.*(?:\)/\d.*| over .*\bk2)$|^t\d+ \w+\[(?:d\d+,)?k[k\d,]*\] = dot", flags=re.M)
# windows of a channels-last image, over which channels are summed up, or which move by more than one place
LAST = re.compile(
    r"^(\w+) \w+\[[\w,]*,(d\d+)\]( .*)?\n(.*\n)*t\d+ .*= dot.*\b\1\[(?!.*\b\2=)(.* over \2,k|.*=\d\*.* over k)",
    flags=re.M,
)
PREDICTED = 12  # variants of one program whose times are predicted
SEED_BITS = 48  # of a training task; held-out tasks have seeds of their own above this


@dataclass
class Source:
    """Draws pairs. What a draw returns depends on the generator it is given and on nothing else."""

    recipe: DataRecipe
    heldout: HeldOut
    scored: ScoredPrograms | None = None
    prior: Prior | None = None
    structures: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    hard: tuple[str, ...] = ()  # structures of forms that a model failed on
    written: tuple[str, ...] = ()  # structures with and without products, of modules as people write them
    gathered: tuple[str, ...] = ()  # structures with a product that gathers for the reduction behind it

    def draw(self, rng: random.Random) -> list[tuple[Program, Pair]]:
        """One or a few pairs; at times none, where a task is held out or no template answers."""
        r = self.recipe
        if self.scored is None or not len(self.scored):
            return self._predicted(rng) if r.predicted and rng.random() < r.predicted else self._fresh(rng)
        # the recipe's shares are of pairs, and a fresh draw gives several
        fresh = (1 - r.contrastive - r.scored_plain) / r.variants_per_task
        draws = (self._contrastive, self._scored_plain, self._fresh)
        try:
            return rng.choices(draws, (r.contrastive, r.scored_plain, fresh))[0](rng)
        except STUMBLES as error:
            # one program in some hundred thousand must not end a training run
            log.warning("a draw is left out: %r", error)
            return []

    def _fresh(self, rng: random.Random) -> list[tuple[Program, Pair]]:
        program = self.program(rng)
        if self.heldout.holds(program):
            return []
        return [(program, plain_pair(choose_facts(rng), program, r)) for r in self._replies(program, rng)]

    def program(self, rng: random.Random) -> Program:
        """A structure cut from a small model, most varied; or a task, most of them widened, or a narrow one."""
        if self.recipe.family:
            return self._narrow(rng)
        if self.recipe.gathered and self.gathered and rng.random() < self.recipe.gathered:
            return draw_product(self.gathered, rng, self.recipe.varied)
        if self.written and rng.random() < self.recipe.written:
            text = rng.choice(self.written)
            if parse_program(text).has_product:
                return draw_product((text,), rng, self.recipe.varied)
            return self._resized(text, rng)
        if self.recipe.products and self.products and rng.random() < self.recipe.products:
            text = rng.choices(self.products, cum_weights=self._product_weights)[0]
            return draw_product((text,), rng, self.recipe.varied)
        if self.structures and rng.random() < self.recipe.structures:
            hard = bool(self.hard) and rng.random() < self.recipe.hard
            texts = self.hard if hard else self.structures
            return self._resized(rng.choices(texts, cum_weights=self._structure_weights[hard])[0], rng)
        wide = WIDE_SEED if rng.random() < self.recipe.widened else 0
        return make_task(wide + rng.getrandbits(SEED_BITS))

    def _resized(self, text: str, rng: random.Random) -> Program:
        structure = parse_program(text)
        return resize_structure(vary(structure, rng) if rng.random() < self.recipe.varied else structure, rng)

    def _narrow(self, rng: random.Random) -> Program:
        """One of the recipe's few tasks at a new size."""
        program = narrow_task(self.recipe.family, rng.randrange(self.recipe.pool))
        return canonicalise(with_sizes(program, {program.axes[0].name: NARROW_STEP * rng.randint(4, 128)}))

    @cached_property
    def _structure_weights(self) -> tuple[list[float], list[float]]:
        """Regions of several stages, with positions, of rare forms more often: the others are learned before."""
        plain, hard = (list(accumulate(map(self._weight, texts))) for texts in (self.structures, self.hard))
        return plain, hard

    @cached_property
    def _product_weights(self) -> list[float]:
        return list(accumulate(map(self._product_weight, self.products)))

    def _product_weight(self, text: str) -> float:
        solid = self.recipe.solid if SOLID.search(text) else 1.0
        return solid * (self.recipe.last if LAST.search(text) else 1.0)

    def _weight(self, text: str) -> float:
        stages = len(set(re.findall(r" over ([\w,]+)$", text, flags=re.M)))
        placed = "iota" in text or re.search(r"\[\w+=", text) is not None
        weight = (self.recipe.several if stages > 1 else 1.0) * (self.recipe.placed if placed else 1.0)
        return weight * (self.recipe.rare if RARE.search(text) else 1.0)

    def _replies(self, program: Program, rng: random.Random) -> list[Reply]:
        """Replies of a few schedules, those likely fast more often."""
        left = variants(program)
        weights = self._weights(program, left)
        found: list[Reply] = []
        while left and len(found) < self.recipe.variants_per_task:
            at = rng.choices(range(len(left)), weights)[0]
            weights.pop(at)
            schedule = left.pop(at)
            reply = try_reply(program, schedule)
            if reply is not None:
                found.append(self._edited(program, schedule, reply, rng))
        return found

    def _edited(self, program: Program, schedule: Schedule, reply: Reply, rng: random.Random) -> Reply:
        """Some with random edits, which RL is to tell apart."""
        if not self.recipe.edited or rng.random() >= self.recipe.edited:
            return reply
        return replace(reply, edits=print_edits(draw_edits(program, schedule, rng, rng.randint(1, MOST_DRAWN))))

    def _weights(self, program: Program, schedules: list[Schedule]) -> list[float]:
        """By the prior's predicted time, or by rank in the templates' own order where there is none."""
        if self.prior is None or not schedules:
            return [math.exp(-self.recipe.rank_decay * i) for i in range(len(schedules))]
        logs = self.prior.rank(program, schedules)
        return [math.exp(-(v - float(logs.min())) / self.recipe.prior_tau) + 1e-3 for v in logs.tolist()]

    def _contrastive(self, rng: random.Random) -> list[tuple[Program, Pair]]:
        assert self.scored is not None
        for _ in range(20):
            scored = self.scored.draw(rng)
            found = choose_shown(scored.measured, self.recipe.min_gap, DESIGNS, rng)
            if found is not None:
                shown, target = found
                baseline = choose_baseline(scored.measured, scored.aten_us, rng)
                pair = contrastive_pair(self.scored.facts, scored.program, shown, target, baseline)
                return [(scored.program, pair)]
        return []

    def _predicted(self, rng: random.Random) -> list[tuple[Program, Pair]]:
        """How measured variants are read, learned from times that the bundled prior predicts for a few."""
        program, prior = self.program(rng), load_prior()
        schedules = variants(program)
        if self.heldout.holds(program) or prior is None or not schedules:
            return []
        chosen = rng.sample(range(len(schedules)), min(len(schedules), PREDICTED))
        logs = prior.rank(program, [schedules[i] for i in chosen])
        replies = [
            (try_reply(program, schedules[i]), math.exp(v)) for i, v in zip(chosen, logs.tolist(), strict=True)
        ]
        measured = [Measured(reply, us) for reply, us in replies if reply is not None]
        found = choose_shown(measured, self.recipe.min_gap, DESIGNS, rng)
        if found is None:
            return []
        baseline = min(m.us for m in measured) * math.exp(rng.uniform(-1.0, 1.5))
        return [(program, contrastive_pair(choose_facts(rng), program, *found, baseline))]

    def _scored_plain(self, rng: random.Random) -> list[tuple[Program, Pair]]:
        assert self.scored is not None
        scored = self.scored.draw(rng)
        limit = min(m.us for m in scored.measured) * self.recipe.fast_within
        fast = [m for m in scored.measured if m.us <= limit]
        chosen = rng.choice(fast if rng.random() < self.recipe.good_share else scored.measured)
        return [(scored.program, plain_pair(self.scored.facts, scored.program, chosen.reply, "scored"))]


@lru_cache(maxsize=64)
def narrow_task(family: str, number: int) -> Program:
    """A task of two or three f32 operations over one axis."""
    rng = random.Random(f"narrow {number}")
    while True:
        found = generate_task(rng, family, 3, small=True)
        plain = all(i.dtype == "f32" and i.strides is None for i in found.inputs) and not found.is_symbolic
        if plain and len(found.axes) == 1 and 2 <= len(found.ops) <= 3:
            return found


def row_of(language: Language, pair: Pair) -> Row:
    prompt = language.codec.encode_prompt(language.preface + pair.prompt)
    return Row([*prompt, *language.codec.encode_reply(pair.reply)], len(prompt))


FRUITLESS_DRAWS = 300  # programs in a row of which no reply fits


@dataclass(frozen=True)
class CorpusMaker:
    """The loader's ChunkMaker: pickles as four names, loads its data where it runs."""

    recipe: Recipe
    data: Path
    written: Path | None = None  # of write_scored; without it no measured pair is drawn
    model: Path | None = None  # whose tokenizer is used instead of the data folder's

    def __call__(self, index: int) -> list[Batch]:
        source, language = _load(self.recipe, self.data, self.written, self.model)
        rng = random.Random(f"{self.recipe.seed} chunk {index}")
        # replies to one program go to different batches: in one they teach little more than one of them does
        parts: list[list[Row]] = [[] for _ in range(self.recipe.data.variants_per_task)]
        tokens = draws = 0
        while tokens < self.recipe.data.chunk_tokens:
            if tokens == 0 and (draws := draws + 1) > FRUITLESS_DRAWS:
                longest = self.recipe.data.max_tokens
                raise ValueError(f"no reply of {FRUITLESS_DRAWS} programs has room in data.max_tokens={longest}")
            first = rng.randrange(len(parts))
            for i, (_, pair) in enumerate(source.draw(rng)):
                row = row_of(language, pair)
                if len(row.ids) <= self.recipe.data.max_tokens:
                    parts[(first + i) % len(parts)].append(row)
                    tokens += len(row.ids)
        batches = [b for rows in parts for b in pack(rows, self.recipe.train.tokens_per_step, rng)]
        rng.shuffle(batches)
        return batches


@lru_cache(maxsize=1)
def _load(recipe: Recipe, data: Path, written: Path | None, model: Path | None) -> tuple[Source, Language]:
    heldout, prior = read_heldout(data / "heldout.json"), load_prior(prior_file(data))
    texts = (read_structures(data / name) for name in STRUCTURES)
    return Source(recipe.data, heldout, read_scored(written), prior, *texts), _language(data, model)


def _language(data: Path, model: Path | None) -> Language:
    if model is not None:
        return load_language(model)
    return Language(load_codec(str(tokenizer_file(data / "tokenizer"))))


def heldout_batches(recipe: Recipe, data: Path, model: Path | None = None, limit: int = 200) -> list[Batch]:
    """Plain pairs of held-out programs, one template's reply each: for the final loss, never for training."""
    language = _language(data, model)
    rng = random.Random(f"{recipe.seed} held out")
    programs = list(read_heldout(data / "heldout.json").programs)
    rng.shuffle(programs)
    rows: list[Row] = []
    for item in programs[:limit]:
        written = write_variants(item.program, 1)
        if written:
            row = row_of(language, plain_pair(choose_facts(rng), item.program, written[0].reply))
            if len(row.ids) <= recipe.data.max_tokens:
                rows.append(row)
    return pack(rows, recipe.train.tokens_per_step, rng) if rows else []


def texts_for_tokenizer(recipe: Recipe, data: Path) -> Iterator[str]:
    """Prompts and replies of `recipe.tokenizer.programs` fresh programs."""
    texts = (read_structures(data / name) for name in STRUCTURES)
    source = Source(recipe.data, read_heldout(data / "heldout.json"), None, None, *texts)
    rng = random.Random(f"{recipe.seed} tokenizer")
    for _ in range(recipe.tokenizer.programs):
        for _, pair in source.draw(rng):
            yield pair.prompt
            yield pair.reply


def describe(recipe: Recipe, data: Path, pairs: int) -> dict[str, object]:
    """What the stream holds: kinds, operations a region, tokens, what is too long, pairs a second."""
    with tempfile.TemporaryDirectory() as folder:
        scored = write_scored(data, Path(folder) / SCORED, 2) if recipe.data.draws_measured else None
        source, language = _load(recipe, data, scored, None)
    rng = random.Random(f"{recipe.seed} describe")
    kinds: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    too_long: Counter[int] = Counter()
    prompts, replies = [], []
    start = time.monotonic()
    made = 0
    while made < pairs:
        for program, pair in source.draw(rng):
            row = row_of(language, pair)
            made += 1
            if len(row.ids) > recipe.data.max_tokens:
                too_long[len(program.ops)] += 1
                continue
            kinds[pair.kind] += 1
            lengths[len(program.ops)] += 1
            prompts.append(row.prompt)
            replies.append(len(row.ids) - row.prompt)
    return {
        "pairs": made,
        "pairs_per_s": round(made / (time.monotonic() - start), 1),
        "kinds": dict(kinds),
        "operations": dict(sorted(lengths.items())),
        "missing_lengths": [n for n in range(1, 65) if n not in lengths],
        "too_long": dict(sorted(too_long.items())),
        "prompt_tokens": _quantiles(prompts),
        "reply_tokens": _quantiles(replies),
    }


def _quantiles(values: list[int]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    found = {name: float(ordered[min(len(ordered) - 1, int(q * len(ordered)))]) for name, q in at.items()}
    return {"mean": round(sum(ordered) / len(ordered), 1)} | found


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description="Describes the training stream.")
    parser.add_argument("--recipe", default="h100")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2000)
    arguments = parser.parse_args(argv)
    found = describe(load_recipe(arguments.recipe), arguments.data, arguments.pairs)
    log.info("%s", json.dumps(found, indent=1))


if __name__ == "__main__":
    from cudal1_trainer.errors import mistakes_told

    with mistakes_told():
        main()
