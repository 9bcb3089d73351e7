"""From tasks to judged replies: prompts, sampling, and what became of every reply.

ask(...) -> Item            one prompt with its group of replies
submit(...) / conclude(...) text decides, or the referee; what the book knows is not judged again
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cudal1_compile.generate.errors import PromptTooLong
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_compile.runtime.target import Target
from cudal1_trainer.model.base import Base
from cudal1_trainer.model.language import Coder
from cudal1_trainer.model.sampler import Sampling
from cudal1_trainer.rl.book import Book
from cudal1_trainer.rl.policy import Rollout
from cudal1_trainer.scores.outcome import Code, Outcome, classify, conclude
from cudal1_trainer.scores.referee import Group, Referee, Rulings

# bundled models know it from stage 1, where the templates' comparisons begin so; outcome.py holds replies to it
OPENING = """
Open the performance analysis with one line that names the measured speed of every variant above, fastest first:
Fastest so far: 1.20x with (what it does). Slower: 0.94x with (what it does).
"""


@dataclass(slots=True)
class Item:
    """One prompt of a batch."""

    task: int
    island: int
    shown: list[Exemplar]
    rollouts: list[Rollout] = field(default_factory=list)
    read: list[Outcome | Code] = field(default_factory=list)  # what the text of each says


@dataclass(slots=True)
class Batch:
    number: int  # the step that it was sampled for
    items: list[Item]

    @property
    def rollouts(self) -> list[Rollout]:
        return [r for item in self.items for r in item.rollouts]

    def state(self) -> dict[str, Any]:
        return {"number": self.number, "items": [_item_state(i) for i in self.items]}


@dataclass(frozen=True)
class Desk:
    """What sampling and judging need. `budget`: tokens of a prompt; `max_new`: of a reply."""

    texts: Sequence[str]  # of all tasks
    codec: Coder
    sampler: Sampling
    referee: Referee
    book: Book
    budget: int
    max_new: int
    opening: str = ""  # behind a prompt that shows variants
    nearest: bool = False  # of a design that cannot be lowered the nearest counts, as in use
    timed_first: bool = False  # what is no new best of its program is not proven

    @property
    def target(self) -> Target:
        return self.referee.target

    def prompt_ids(self, text: str, shown: Sequence[Exemplar]) -> tuple[list[int], list[Exemplar]]:
        """Ids of the prompt, and the exemplars that found room in it."""
        count, facts = self.codec.count, self.target.facts()
        plain = build_prompt(facts, text, (), self.budget, count)
        left = self.budget - count(self.opening)
        prompt = build_prompt(facts, text, shown, left, count, designs=True) if count(plain) <= left else plain
        kept = prompt.count("\nvariant ")
        prompt += self.opening if kept else ""
        return self.codec.encode_prompt(prompt), sorted(shown, key=lambda e: e.speedup)[len(shown) - kept :]

    def fits(self, text: str) -> bool:
        """Whether the model can be asked for this program at all."""
        try:
            self.prompt_ids(text, [])
        except PromptTooLong:
            return False
        return True

    def sample(self, number: int, items: list[Item], group: int, temperature: float, seed: int) -> Batch:
        """Fills every item with `group` replies."""
        prompts = []
        for item in items:
            ids, item.shown = self.prompt_ids(self.texts[item.task], item.shown)
            prompts += [ids] * group
        replies = self.sampler.sample(prompts, self.max_new, temperature, seed)
        found = iter(
            Rollout([*p, *r], len(p), self.codec.decode(r)) for p, r in zip(prompts, replies, strict=True)
        )
        for item in items:
            item.rollouts = [next(found) for _ in range(group)]
        return Batch(number, items)

    def submit(self, batch: Batch) -> None:
        """Hands the referee every code that is not known, each once."""
        for item in batch.items:
            text = self.texts[item.task]
            item.read = [classify(r.text, text, item.shown, self.nearest) for r in item.rollouts]
        groups = []
        for task in dict.fromkeys(item.task for item in batch.items):
            read = [c for i in batch.items if i.task == task for c in i.read if isinstance(c, Code)]
            new = {c.code for c in read if self.book.known(task, c.digest) is None}
            suspects = frozenset(filter(self.book.is_suspect, new))
            codes, best = tuple(sorted(new)), self.book.best(task)
            groups.append(Group(self.texts[task], codes, best, suspects, self.timed_first))
        self.referee.submit(batch.number, groups)

    def conclude(self, batch: Batch) -> list[list[Outcome]]:
        """Waits for the referee; an outcome a rollout, item by item, noted in the book."""
        rulings = self.referee.result(batch.number)
        return [[self._conclude(item, read, rulings) for read in item.read] for item in batch.items]

    def _conclude(self, item: Item, read: Outcome | Code, rulings: Rulings) -> Outcome:
        if isinstance(read, Outcome):
            return read
        known = self.book.known(item.task, read.digest)
        if known is not None:
            return known
        outcome = conclude(rulings[self.texts[item.task], read.code], self.target)
        self.book.note(item.task, item.island, read, outcome)
        return outcome


def open_desk(
    base: Base, texts: Sequence[str], referee: Referee, book: Book, max_new: int, sampler: Sampling
) -> Desk:
    """The model on its device; a reply may take at most half of its positions."""
    sampler.synchronise(base.lm)
    positions = base.lm.config.max_position_embeddings
    room = min(max_new, positions // 2)
    opening = OPENING if base.foreign else ""
    return Desk(texts, base.language.codec, sampler, referee, book, positions - room - 2, room, opening)


def restore_batch(state: dict[str, Any]) -> Batch:
    items = [
        Item(s["task"], s["island"], [Exemplar(*e) for e in s["shown"]], [Rollout(*r) for r in s["rollouts"]])
        for s in state["items"]
    ]
    return Batch(state["number"], items)


def number_of(*parts: object) -> int:
    """A seed that is a function of its parts."""
    return int.from_bytes(hashlib.sha256(" ".join(map(str, parts)).encode()).digest()[:6])


def _item_state(item: Item) -> dict[str, Any]:
    rollouts: list[list[int | str | list[int] | torch.Tensor]] = [
        [r.ids, r.prompt, r.text, r.behaviour, r.reference] for r in item.rollouts
    ]
    shown = [[e.code, e.speedup, e.design] for e in item.shown]
    return {"task": item.task, "island": item.island, "shown": shown, "rollouts": rollouts}
