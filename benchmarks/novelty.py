"""Could a template have written this kernel? Code compared without its names, its comments and its layout.

    TemplateCodes.of(program)   everything that the templates write for a program
    codes.novelty(code)         "" where it is among that, else what is new: its "numbers" (tiles, block sizes), or
                                its "form", which no template's code has whatever the numbers

form.py says what is compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cudal1_compile.codegen.templates import try_reply, variants
from cudal1_fx_passes.program.ir import Program
from cudal1_trainer.rl.form import normalise

Novelty = Literal["", "numbers", "form"]


def novel_shares(found: Sequence[str | None]) -> dict[str, float]:
    """0 where nothing was found. None: not looked at, and not new."""
    count = max(1, len(found))
    return {"novel": sum(map(bool, found)) / count, "novel_form": found.count("form") / count}


def without_numbers(normalised: str) -> str:
    return re.sub(r"(?<![\w.])\d[\w.]*", "#", normalised)


@dataclass(frozen=True, slots=True)
class TemplateCodes:
    codes: frozenset[str]
    forms: frozenset[str]

    @staticmethod
    def of(program: Program) -> TemplateCodes:
        replies = (try_reply(program, schedule) for schedule in variants(program))
        codes = frozenset(normalise(r.code) for r in replies if r is not None)
        return TemplateCodes(codes, frozenset(map(without_numbers, codes)))

    def novelty(self, code: str) -> Novelty:
        normalised = normalise(code)
        if normalised in self.codes:
            return ""
        return "numbers" if without_numbers(normalised) in self.forms else "form"
