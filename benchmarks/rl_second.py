"""A region's second round, in three ways of as many candidates: rl.py's arms `*_in_use`.

The first round is the schedule prior's, as in use, and is timed for it. Then each way has as many candidates more:

    contrastive_in_use    the model's draws, without replacement, of designs behind a prompt that shows the first
                          round's with their times; edits of the fastest where fewer are left
    plain_in_use          other designs that it draws from the prompt without them
    search_in_use         random edits of the fastest
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.duel import Row
from benchmarks.families import FamilyProgram
from benchmarks.generator import ask_all
from benchmarks.rl_rows import read_row
from cudal1_compile.codegen.replies import complete, design_of, nearby
from cudal1_compile.generate.exemplars import DESIGNS, ExemplarConfig, choose_exemplars
from cudal1_compile.generate.prompt import build_prompt, shown_variants
from cudal1_compile.generate.protocol import Generator, token_counter
from cudal1_compile.kernel.candidate import CandidateError, Exemplar, parse_reply, print_reply
from cudal1_fx_passes.program.text import parse_program

FIRST = "prior_best8"
SAMPLES = 8
WAYS = ("contrastive_in_use", "plain_in_use", "search_in_use")


@dataclass(frozen=True, slots=True)
class Known:
    """A program after its first round."""

    program: FamilyProgram
    replies: Sequence[str]  # the first round's
    variants: Sequence[Exemplar]  # the right ones of these


def known_after(
    program: FamilyProgram, replies: Sequence[str], row: Row | None, names: Mapping[str, str]
) -> Known:
    """names: of each sample its code's, as name_codes gives them."""
    read = read_row(program, row, {FIRST: dict(names)}) if row is not None else None
    found: dict[str, Exemplar] = {}
    if row is not None and read is not None:
        for name, text in zip(names.values(), replies, strict=True):
            if us := row.us(name):
                reply = parse_reply(text)
                found.setdefault(name, Exemplar(reply.code, read.best_us / us, design_of(reply)))
    return Known(program, replies, list(found.values()))


def second_round(
    way: str,
    known: Sequence[Known],
    generator: Callable[[], Generator],
    facts: str,
    path: Path,
    seed: int,
) -> list[Sequence[str]]:
    """Each program's first replies and those of the way. path: where what was sampled is kept."""
    if way == "search_in_use":
        return [[*k.replies, *_others(k, _edited(k, seed))] for k in known]
    model, is_plain = generator(), way == "plain_in_use"
    prompts = {k.program.held_out.fingerprint: [_prompt(k, model, facts, seed, is_plain)] for k in known}
    # what was tried is left out: samples may repeat it, draws what their prompt does not show
    shown = [len(shown_variants(prompts[k.program.held_out.fingerprint][0])) for k in known]
    unshown = [len(k.replies) - count for k, count in zip(known, shown, strict=True)]
    asked = SAMPLES * 3 if is_plain else SAMPLES + max(unshown, default=0)
    found = ask_all(model, prompts, asked, path, seed)
    return [[*k.replies, *_others(k, found[k.program.held_out.fingerprint])] for k in known]


def _prompt(known: Known, model: Generator, facts: str, seed: int, is_plain: bool) -> str:
    config = ExemplarConfig("buckets", DESIGNS)
    shown = [] if is_plain else choose_exemplars(known.variants, config, seed)
    budget, count = model.budget_tokens, token_counter(model)
    return build_prompt(facts, known.program.text, shown, budget, count, designs=True, stages=False)


def _edited(known: Known, seed: int) -> list[str]:
    best = max(known.variants, key=lambda e: e.speedup, default=None)
    if best is None:
        return []
    program, rng = parse_program(known.program.text), random.Random(f"{seed} {known.program.text}")
    return [print_reply(reply) for reply in nearby(program, best.design, rng, 2 * SAMPLES)]


def _others(known: Known, replies: Sequence[str]) -> list[str]:
    """The first SAMPLES of another code than the first round's; what has none stays, as a wrong one."""
    program, taken = parse_program(known.program.text), {parse_reply(text).code for text in known.replies}
    found: list[str] = []
    for text in replies:
        try:
            code = complete(program, parse_reply(text)).code
        except CandidateError:
            code = text
        if code not in taken:
            taken.add(code)
            found.append(text)
    return found[:SAMPLES]
