"""Could a teacher have written this kernel? Code compared without its names, its comments and its layout.

    Taught.of(program)          everything that the teachers write for a program
    taught.novelty(code)        "" where it is among that, else what is new: its "numbers" (tiles, block sizes), or
                                its "form", which no teacher's code has whatever the numbers

The launch plan counts as code. Called functions and types keep their names; everything else is numbered in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cudal1_fx_passes.program import Program
from cudal1_trainer.teachers import variants
from cudal1_trainer.variants import try_reply

Novelty = Literal["", "numbers", "form"]

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\w\s]")
_KERNEL = re.compile(r"// launch: (\w+)<<<")
_COMMENT = re.compile(r"//(?! (?:launch|scratch):)[^\n]*|/\*.*?\*/", re.S)
_WORDS = re.compile(
    r"auto|bool|break|const|constexpr|continue|double|else|b?f16|f(32|64)|float|for|i(8|16|32|64)|if|int|long|return|"
    r"short|u8|unsigned|void|while|struct|static|launch|scratch|pragma|unroll|(block|thread)Idx|(grid|block)Dim|"
    r"[xyz]|__\w+__|DIMS|INFINITY|NAN"
)


def normalise(code: str) -> str:
    tokens = _TOKEN.findall(_COMMENT.sub("", code))
    own = set(_KERNEL.findall(code))
    names: dict[str, str] = {}

    def plain(token: str, after: str) -> str:
        called = after in ("(", "<") and token not in own
        if called or _WORDS.fullmatch(token) or not (token[0].isalpha() or token[0] == "_"):
            return token
        return names.setdefault(token, f"v{len(names)}")

    return " ".join(plain(*pair) for pair in zip(tokens, [*tokens[1:], ""], strict=True))


def without_numbers(normalised: str) -> str:
    return re.sub(r"(?<![\w.])\d[\w.]*", "#", normalised)


@dataclass(frozen=True, slots=True)
class Taught:
    codes: frozenset[str]
    forms: frozenset[str]

    @staticmethod
    def of(program: Program) -> Taught:
        replies = (try_reply(program, schedule) for schedule in variants(program))
        codes = frozenset(normalise(r.code) for r in replies if r is not None)
        return Taught(codes, frozenset(map(without_numbers, codes)))

    def novelty(self, code: str) -> Novelty:
        normalised = normalise(code)
        if normalised in self.codes:
            return ""
        return "numbers" if without_numbers(normalised) in self.forms else "form"
