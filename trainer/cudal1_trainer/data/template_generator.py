"""Templates behind the generator protocol, for tests and measurements; never shipped as the model.

    TemplateGenerator().propose([prompt], n=8, seed=0) -> at most 8 distinct replies a prompt

It reads the region out of the prompt and ignores everything else in it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cudal1_compile.codegen.templates import Schedule, variants, write_reply
from cudal1_compile.generate.prompt import find_region
from cudal1_compile.kernel.candidate import print_reply
from cudal1_compile.kernel.text import normalise

BUDGET_TOKENS = 1 << 20  # prompts are parsed, not read


class TemplateGenerator:
    """strategies: names to draw from (all by default)."""

    def __init__(self, strategies: Sequence[str] | None = None) -> None:
        self.strategies = tuple(strategies) if strategies is not None else None

    @property
    def name(self) -> str:
        return f"teacher:{'+'.join(self.strategies) if self.strategies is not None else 'all'}"

    @property
    def budget_tokens(self) -> int:
        return BUDGET_TOKENS

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        """The same prompt and seed give the same replies; the likely best variants come first."""
        return [self._propose_one(prompt, n, random.Random(f"{seed} {i}")) for i, prompt in enumerate(prompts)]

    def _propose_one(self, prompt: str, n: int, rng: random.Random) -> list[str]:
        program = find_region(prompt)
        found = [s for s in variants(program) if self.strategies is None or s.strategy in self.strategies]
        # half the replies are the best-ranked of every strategy, the rest a draw from what is left
        first = _interleave(found)[: (n + 1) // 2]
        rest = [s for s in found if s not in first]
        rng.shuffle(rest)
        replies: dict[str, str] = {}
        for schedule in [*first, *rest]:
            if len(replies) == n:
                break
            reply = write_reply(program, schedule)
            if reply is not None:
                replies.setdefault(normalise(reply.code), print_reply(reply))
        return list(replies.values())


def _interleave(found: Sequence[Schedule]) -> list[Schedule]:
    """Round robin over strategies, each in its own order."""
    groups: dict[str, list[Schedule]] = {}
    for s in found:
        groups.setdefault(s.strategy, []).append(s)
    longest = max((len(g) for g in groups.values()), default=0)
    return [g[i] for i in range(longest) for g in groups.values() if i < len(g)]
