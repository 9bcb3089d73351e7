"""Puts a compilable source together: device header, preamble, candidate.

Refuses what device code of Reply V2 may not hold (includes, inline assembly, compiler attributes). This is
the compiler's own safety net; the judge's text gate is stricter and words its refusals for a prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cudal1_compile.errors import BuildError
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.kernel.text import is_comment, lexemes
from cudal1_compile.runtime.preamble import preamble, symbolic_axes
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program

HEADER_DIR = Path(__file__).parent / "header"


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the header beside cudal1.cuh: it comes with a candidate that holds one of its words."""

    words: tuple[str, ...]  # each name that it declares holds one of them
    stands_on: str | None = None  # another part, which comes before it


PARTS = {
    "scan.cuh": Part(("_scan_", "_before_", "tile_")),
    "moments.cuh": Part(("_moments", "_sums")),
    "product.cuh": Part(("product_t", "window_bits", "tf32")),
    "product_pipe.cuh": Part(("product_pipe",), "product.cuh"),
    "product_patch.cuh": Part(("product_patch", "larger("), "product_pipe.cuh"),
    "product_stem.cuh": Part(("product_stem",), "product_pipe.cuh"),
    "product_wide.cuh": Part(("product_wide", "turn_tile"), "product_pipe.cuh"),
    "product_bulk.cuh": Part(("product_bulk", "product_fill"), "product_wide.cuh"),
    "product_split.cuh": Part(("f32_split",), "product_wide.cuh"),
}
CANDIDATE_NAME = "candidate.cu"  # what compilers and checks call the candidate's lines

_STRING = re.compile(r'"(?:\\.|[^"\\\n])*+"', re.S)
_CHARACTER = re.compile(r"'(?:\\.|[^'\\\n])++'", re.S)
_REFUSED = (
    (r"#\s*(?:include|include_next|import|embed|line|pragma\s+GCC)\b", "includes and compiler directives"),
    (r"%:|\?\?=|##", "token pasting"),
    (r"\b(?:asm|__asm|__asm__)\b", "inline assembly"),
    (r"\b(?:__attribute|__attribute__|__declspec|_Pragma|__has_include|__has_embed)\b", "compiler attributes"),
    (r"\[\s*\[", "compiler attributes"),
)


@lru_cache(maxsize=8)
def header_text(name: str) -> str:
    """One file of the header folder."""
    return (HEADER_DIR / name).read_text()


def assemble(program: Program, candidate: Candidate, target: Target) -> str:
    """Returns the whole translation unit for the target; candidate lines keep their numbers.

    cuda: header, preamble, candidate. host: preamble and candidate only (the header is precompiled).
    Raises BuildError where the candidate holds what device code may not.
    """
    reason = refusal(candidate.code)
    if reason:
        raise BuildError(f"device code may not hold {reason}")
    code = f'#line 1 "{CANDIDATE_NAME}"\n{candidate.code.rstrip()}\n'
    body = f"{preamble(program)}{code}{_assertions(program, candidate)}"
    if target.kind == "host":
        return body
    # a fifth of a small kernel's build time, for those only that need it
    return "\n".join(header_text(name) for name in ("cudal1.cuh", *needed(candidate.code))) + f"\n{body}"


def needed(code: str) -> list[str]:
    """The parts of the header whose names the code holds, and those that these stand on, in order."""
    found: set[str | None] = set()
    for name, part in reversed(PARTS.items()):
        if name in found or any(word in code for word in part.words):
            found |= {name, part.stands_on}
    return [name for name in PARTS if name in found]


def _assertions(program: Program, candidate: Candidate) -> str:
    """One static_assert a launch: a kernel that takes more than it is given would read past the argument list."""
    sizes = len(symbolic_axes(program))
    wanted = {(launch.kernel, len(launch.args)): None for launch in candidate.launches}
    return "".join(
        f"static_assert((int)cudal1::Signature<decltype({kernel})>::pointers == {n} && "
        f"(int)cudal1::Signature<decltype({kernel})>::bytes == {8 * n + 4 * sizes}, "
        f'"the launch of {kernel} passes {n} pointers{" and DIMS" if sizes else ""}: '
        f'its parameters do not fit (end them with DIMS)");\n'
        for kernel, n in wanted
    )


def refusal(code: str) -> str | None:
    """What the code holds that device code may not, or None. Comments and string contents do not count."""
    joined = re.sub(r"\\[ \t]*\r?\n", "", code)  # a line continuation may split a word
    if re.search(r"\bR\"", joined):
        return "raw strings"
    text = "".join(map(_blank, lexemes(joined)))
    return next((what for pattern, what in _REFUSED if re.search(pattern, text)), None)


def _blank(lexeme: str) -> str:
    """What is not closed stays as it is."""
    if _STRING.fullmatch(lexeme):
        return '""'
    return " " if is_comment(lexeme) or _CHARACTER.fullmatch(lexeme) else lexeme
