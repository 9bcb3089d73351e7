"""Reply V2: what a generator writes for a region, as data.

A reply has three sections, `## Performance Analysis`, `## Algorithm Design`, `## Code`. The code section holds
nothing, where the design says it all; an ```edits block, which changes what the design leads to (both are for
codegen/replies.py); or one ```cuda block of DEVICE code whose first lines are the launch plan:

    // scratch: s0 f32[d0]
    // scratch: s1 i32[d0] = 0
    // launch: row_stats<<<d0, 256>>>(in0, s0)
    // launch: apply<<<dim3(cdiv(d1, 128), d0), 128, 4096>>>(in0, s0, out0)

Grid, block, shared memory (bytes) and scratch sizes are integer expressions over the region's dims with
+ - * / % ( ), cdiv, min and max, by divisors of at least one. This module parses and checks; it builds and runs
nothing.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cudal1_compile.kernel.text import MAX_CODE_BYTES, kernels, normalised_digest, plan_lines
from cudal1_fx_passes.program.ir import DTYPES, ITEM_BYTES, Program

SECTIONS = ("Performance Analysis", "Algorithm Design", "Code")
MAX_BLOCK = 1024
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_LAUNCHES = 16
MAX_SCRATCH = 16

MAX_REPLY_BYTES = 128 * 1024  # UTF-8; the longest of our own have 20 KB
MAX_EXPRESSION = 400  # characters
DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)

_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # neither UTF-8 nor a compiler holds it
_FENCE = re.compile(r"```(?:cuda|cpp|c\+\+)?\n")
_EDITS = re.compile(r"```edits\n")
_SCRATCH = re.compile(r"// scratch: (s\d+) (\w+)\[([^\]]*)\]( = 0)?\s*$", re.ASCII)
_LAUNCH = re.compile(r"// launch: (\w+)<<<(.*)>>>\(([\w, ]*)\)\s*$", re.ASCII)
# Python reads more: comments, and letters of other alphabets as these, so that one plan had many spellings
_EXPRESSION = re.compile(r"[\w\s()+*/%,-]*", re.ASCII)


class CandidateError(ValueError):
    """A reply or its launch plan does not follow Reply V2; the sentence goes into the next prompt."""


@dataclass(frozen=True)
class Arithmetic:
    """What numbers and operators of an expression mean: plain integers here, Inductor's symbols in sizes.py."""

    number: Callable[[int], Any]
    binary: Mapping[type[ast.operator], Callable[[Any, Any], Any]]
    calls: Mapping[str, Callable[[Any, Any], Any]]
    divisor: Callable[[Any], Any]  # of one at least: sizes at which it is less have no plan


def _at_least_one(divisor: int) -> int:
    if divisor < 1:
        raise ZeroDivisionError
    return divisor


INTEGERS = Arithmetic(
    int,
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.floordiv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    },
    {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max},
    _at_least_one,
)


@dataclass(frozen=True)
class Expr:
    """An integer expression over dims, kept as its text."""

    text: str

    @cached_property
    def _tree(self) -> ast.expr:
        if len(self.text) > MAX_EXPRESSION:  # deep ones exhaust the parser's stack, long numbers its patience
            raise CandidateError(f"expression {self.text[:40]!r}...: at most {MAX_EXPRESSION} characters")
        if not _EXPRESSION.fullmatch(self.text):
            raise CandidateError(f"expression {self.text!r}: only names, integers, + - * / % ( ) and commas")
        try:
            return ast.parse(self.text.strip(), mode="eval").body
        except SyntaxError as error:
            raise CandidateError(f"expression {self.text!r}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:  # what is no text; what nests too deep
            raise CandidateError(f"expression {self.text!r}: {error}") from None

    def evaluate(self, dims: Mapping[str, int]) -> int:
        """Raises CandidateError for anything that is not integer arithmetic over `dims`."""
        try:
            value: int = self.fold(dims, INTEGERS)
        except ZeroDivisionError:
            raise CandidateError(f"expression {self.text!r}: division by zero or less") from None
        return value

    def fold(self, dims: Mapping[str, Any], arithmetic: Arithmetic) -> Any:
        """The value in another arithmetic; refuses what `evaluate` refuses."""
        try:
            return _fold(self._tree, dims, arithmetic, self.text)
        except RecursionError:  # far down a caller's stack
            raise CandidateError(f"expression {self.text!r} nests too deep") from None


def _fold(node: ast.expr, dims: Mapping[str, Any], arithmetic: Arithmetic, text: str) -> Any:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return arithmetic.number(value)
        case ast.Name(id=name) if name in dims:
            return dims[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in arithmetic.binary:
            a, b = _fold(left, dims, arithmetic, text), _fold(right, dims, arithmetic, text)
            return arithmetic.binary[type(op)](a, arithmetic.divisor(b) if type(op) in DIVISIONS else b)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_fold(operand, dims, arithmetic, text)
        case ast.Call(func=ast.Name(id=name), args=[first, *rest], keywords=[]) if (
            name in arithmetic.calls and rest
        ):
            value = _fold(first, dims, arithmetic, text)
            for item in rest:
                b = _fold(item, dims, arithmetic, text)
                value = arithmetic.calls[name](value, arithmetic.divisor(b) if name == "cdiv" else b)
            return value
    raise CandidateError(f"expression {text!r}: only integers, {', '.join(dims)}, + - * / %, cdiv, min and max")


@dataclass(frozen=True)
class Scratch:
    """Device memory that the launches share. `zeroed` before every call, otherwise undefined."""

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    zeroed: bool

    def size_bytes(self, dims: Mapping[str, int]) -> int:
        """Raises CandidateError where it would be smaller than nothing, as Expr.evaluate does."""
        total = ITEM_BYTES[self.dtype]
        for extent in self.shape:
            total *= extent.evaluate(dims)
        if total < 0:
            raise CandidateError(f"scratch {self.name} has fewer than no elements")
        return total


@dataclass(frozen=True)
class Launch:
    kernel: str
    grid: tuple[Expr, Expr, Expr]
    block: tuple[Expr, Expr, Expr]
    shared: Expr  # dynamic shared memory, bytes
    args: tuple[str, ...]  # names of inputs, outputs and scratch, in the kernel's parameter order


@dataclass(frozen=True)
class Candidate:
    """Device code with its launch plan, checked against the region that it is for."""

    code: str  # the whole block, plan lines included
    scratch: tuple[Scratch, ...]
    launches: tuple[Launch, ...]

    @cached_property
    def digest(self) -> str:
        """As kernel_text.normalised_digest: equal means the same candidate."""
        return normalised_digest(self.code)


@dataclass(frozen=True)
class Reply:
    analysis: str
    design: str
    code: str  # empty: what the design leads to, with the edits
    edits: str = ""


def parse_reply(text: str) -> Reply:
    """Splits a reply into its three sections; raises CandidateError for a text that is none of a reply."""
    if (fault := text_fault(text)) is not None:
        raise CandidateError(fault)
    found = {name: "\n".join(lines).strip() for name, lines in _sections(text)}
    missing = [s for s in SECTIONS if s not in found]
    if missing:
        raise CandidateError(f"reply lacks the section{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    edits = _block(found["Code"], _EDITS)
    code = "" if edits or not found["Code"] else _block(found["Code"], _FENCE)
    if code is None:
        raise CandidateError("section Code holds no closed ```cuda or ```edits block, and is not empty")
    return Reply(found["Performance Analysis"], found["Algorithm Design"], code, (edits or "").strip("\n"))


def text_fault(text: str) -> str | None:
    """Why a generator's text can be no reply, whatever it says: it is too long to be read, or not text."""
    if (size := len(text.encode("utf-8", "replace"))) > MAX_REPLY_BYTES:
        return f"a reply of {size} bytes, at most {MAX_REPLY_BYTES} are allowed"
    if found := _NO_TEXT.search(text):
        return f"the reply holds U+{ord(found[0]):04X} at character {found.start()}, which is no text"
    return None


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each with its lines, in order."""
    name: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("## ") and (title := line[3:].strip()):
            if name is not None:
                yield name, lines
            name, lines = title, []
        else:
            lines.append(line)
    if name is not None:
        yield name, lines


def _block(section: str, fence: re.Pattern[str]) -> str | None:
    """What stands in the first closed block that opens so."""
    start = fence.search(section)
    end = section.find("```", start.end()) if start else -1
    return section[start.end() : end] if start and end >= 0 else None


def print_reply(reply: Reply) -> str:
    """With its code, where it has that; else with its edits."""
    kind, block = ("cuda", reply.code.rstrip()) if reply.code else ("edits", reply.edits)
    body = (reply.analysis, reply.design, f"```{kind}\n{block}\n```" if block else "")
    return "".join(
        f"## {name}\n{text}\n" if text else f"## {name}\n" for name, text in zip(SECTIONS, body, strict=True)
    )


def parse_candidate(code: str, program: Program) -> Candidate:
    """Reads the launch plan of a code block and checks it against the program's dims and names."""
    scratch: list[Scratch] = []
    launches: list[Launch] = []
    if len(code.encode("utf-8", "replace")) > MAX_CODE_BYTES:
        raise CandidateError(f"a code of {len(code)} characters, at most {MAX_CODE_BYTES} bytes are allowed")
    for line in plan_lines(code):
        if line.startswith("// scratch:"):
            scratch.append(_parse_scratch(line))
        else:
            launches.append(_parse_launch(line))
    candidate = Candidate(code, tuple(scratch), tuple(launches))
    _check(candidate, program)
    return candidate


def _parse_scratch(line: str) -> Scratch:
    m = _SCRATCH.match(line)
    if not m:
        raise CandidateError(f"{_show(line)} is not like '// scratch: s0 f32[d0]'")
    if m[2] not in DTYPES:
        raise CandidateError(f"scratch {m[1]}: dtype {m[2]!r} is none of {', '.join(DTYPES)}")
    return Scratch(m[1], m[2], tuple(Expr(x) for x in _split(m[3])), bool(m[4]))


def _parse_launch(line: str) -> Launch:
    m = _LAUNCH.match(line)
    if not m:
        raise CandidateError(f"{_show(line)} is not like '// launch: name<<<grid, block, shared>>>(in0, out0)'")
    config = _split(m[2])
    if len(config) not in (2, 3):
        raise CandidateError(f"{_show(line)}: <<<grid, block>>> or <<<grid, block, shared>>> expected")
    shared = Expr(config[2]) if len(config) == 3 else Expr("0")
    return Launch(m[1], _dim3(config[0]), _dim3(config[1]), shared, tuple(_split(m[3])))


def _show(line: str) -> str:
    return repr(line) if len(line) <= MAX_EXPRESSION else f"{line[:MAX_EXPRESSION]!r}..."


def _dim3(text: str) -> tuple[Expr, Expr, Expr]:
    m = re.fullmatch(r"dim3\((.*)\)", text.strip())
    parts = [Expr(x) for x in _split(m[1])] if m else [Expr(text)]
    if not 1 <= len(parts) <= 3:
        raise CandidateError(f"{_show(text)}: dim3 takes one to three extents")
    x, y, z = (*parts, Expr("1"), Expr("1"))[:3]
    return x, y, z


def _split(text: str) -> list[str]:
    """Splits at commas outside parentheses."""
    parts, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(text[last:i].strip())
            last = i + 1
    tail = text[last:].strip()
    return [*parts, tail] if tail or parts else []


def _check(candidate: Candidate, program: Program) -> None:
    dims = {a.name: a.size for a in program.axes}
    if not 1 <= len(candidate.launches) <= MAX_LAUNCHES:
        raise CandidateError(f"{len(candidate.launches)} launches, expected 1 to {MAX_LAUNCHES}")
    if len(candidate.scratch) > MAX_SCRATCH:
        raise CandidateError(f"{len(candidate.scratch)} scratch buffers, at most {MAX_SCRATCH}")
    names = [s.name for s in candidate.scratch]
    if len(set(names)) != len(names):
        raise CandidateError(f"scratch names {names}: each must occur once")
    for s in candidate.scratch:
        if s.size_bytes(dims) == 0:
            raise CandidateError(f"scratch {s.name} has no elements")
    outputs = {o.name for o in program.outputs}
    known = {i.name for i in program.inputs} | outputs | set(names)
    declared = kernels(candidate.code)
    for launch in candidate.launches:
        _check_launch(launch, dims, known, declared)
    unwritten = outputs - {a for launch in candidate.launches for a in launch.args}
    if unwritten:
        raise CandidateError(f"no launch takes {', '.join(sorted(unwritten))}")


def _check_launch(launch: Launch, dims: Mapping[str, int], known: set[str], declared: Container[str]) -> None:
    grid = [e.evaluate(dims) for e in launch.grid]
    block = [e.evaluate(dims) for e in launch.block]
    threads = block[0] * block[1] * block[2]
    if not all(1 <= g <= limit for g, limit in zip(grid, MAX_GRID, strict=True)):
        raise CandidateError(f"{launch.kernel}: grid {grid} must lie in 1..{MAX_GRID}")
    if not (all(b >= 1 for b in block) and threads <= MAX_BLOCK):
        raise CandidateError(f"{launch.kernel}: block {block} has {threads} threads, 1 to {MAX_BLOCK} allowed")
    if launch.shared.evaluate(dims) < 0:
        raise CandidateError(f"{launch.kernel}: shared memory {launch.shared.text} is negative")
    for a in launch.args:
        if a not in known:
            raise CandidateError(f"{launch.kernel}: argument {a!r} is none of {', '.join(sorted(known))}")
    if launch.kernel not in declared:
        raise CandidateError(f"launch of {launch.kernel}, but the code has no __global__ of that name")


@dataclass(frozen=True, slots=True)
class Exemplar:
    """An earlier variant of the region (or of a relative) and what it measured."""

    code: str  # the whole cuda block, launch plan included
    speedup: float  # over the best baseline; on the host target a ratio of declared costs
    design: str = (
        ""  # that it was lowered from, with edits (codegen/replies.py); none of a kernel as it was written
    )
