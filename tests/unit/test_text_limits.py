"""No text takes a reader long, whatever its shape: replies before the gate, code behind it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import cache

import pytest
from slow_cases import slow_but

from cudal1_compile.judge.checks.ruling import restricted_twice
from cudal1_compile.judge.inputs.literal_targeted import foreign_numbers, put_together
from cudal1_compile.judge.inputs.sizes import counts_in_floats, own_sizes
from cudal1_compile.judge.oracle.f32_accumulation import (
    foreign_rounding,
    keeps_float32,
    rounds_literals,
    unrounded,
)
from cudal1_compile.judge.static.text_gate import CleanText, check_text
from cudal1_compile.kernel.candidate import Candidate, CandidateError, Expr, Launch, parse_candidate, parse_reply
from cudal1_compile.kernel.text import kernels, lexemes, normalised_digest
from cudal1_compile.runtime.hostbuild import translate
from cudal1_compile.runtime.source import refusal
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.rl.form import normalise
from tests.kernel_shapes import LIMIT_S, NUMBERED, RUNS, SECTIONS, SHAPES, UNITS, in_kernel, shape

PROGRAM = parse_program(
    "region v1\ndims d0=?64 d1=32\nin0 bf16[d0,d1]\nt0 bf16[d0,d1] = mul(in0, 3.0)\nout0 bf16[d0,d1] = t0\n"
)
BEFORE_THE_GATE: dict[str, Callable[[str], object]] = {
    "reply": parse_reply,
    "section": lambda text: parse_reply(SECTIONS + text),
    "gate": check_text,
    "candidate": lambda text: parse_candidate(text, PROGRAM),
    "digest": normalised_digest,
    "tokens": lexemes,
}
LONGEST_REPLIES: dict[str, Callable[[str], object]] = {
    "reply": parse_reply,
    "section": lambda text: parse_reply(SECTIONS + text),
    "form": normalise,
    "digest": normalised_digest,
}
BEHIND_THE_GATE: dict[str, Callable[[Candidate], object]] = {
    "candidate": lambda c: parse_candidate(c.code, PROGRAM),
    "kernels": lambda c: kernels(c.code),
    "own sizes": lambda c: own_sizes(PROGRAM, c),
    "counts in floats": lambda c: counts_in_floats(PROGRAM, c),
    "named": lambda c: put_together(foreign_numbers(PROGRAM, c.code)[:6] or (7.0,), c.code),
    "literals": rounds_literals,
    "rounding": lambda c: foreign_rounding(PROGRAM, c),
    "kept": lambda c: keeps_float32(PROGRAM, c),
    "unrounded": lambda c: unrounded(PROGRAM, c),
    "restricted": restricted_twice,
    "digest": lambda c: c.digest,
    "source": lambda c: refusal(c.code),
    "host source": lambda c: translate(c.code, ("k",)),
}


def seconds(read: Callable[[], object]) -> float:
    """CPU time; a refusal is an answer."""
    start = time.process_time()
    with contextlib.suppress(CandidateError):
        read()
    return time.process_time() - start


# in every run each way to repeat, and of what is repeated as it is every third
QUICK = (*[*UNITS][::3], *RUNS, *NUMBERED)
EACH = pytest.mark.parametrize("name", slow_but(QUICK, SHAPES))


@EACH
def test_half_a_megabyte_of_it_is_read_in_no_time(name: str) -> None:
    text = shape(name, 1 << 19)
    took = {reader: seconds(lambda read=read: read(text)) for reader, read in BEFORE_THE_GATE.items()}
    longest = shape(name, 127 * 1024)
    took |= {f"{reader}, 127 KB": seconds(lambda r=read: r(longest)) for reader, read in LONGEST_REPLIES.items()}
    assert max(took.values()) < LIMIT_S, took


@cache
def gated(name: str) -> object:
    return check_text(in_kernel(name))


@EACH
def test_what_passes_the_gate_is_read_in_no_time(name: str) -> None:
    start = time.process_time()
    gate = gated(name)
    took = {"gate": time.process_time() - start}
    one = Expr("1")
    launch = Launch("k", (one, one, one), (Expr("32"), one, one), Expr("0"), ("in0", "out0"))
    candidate = Candidate(gate.code if isinstance(gate, CleanText) else in_kernel(name, 1000), (), (launch,))
    took |= {reader: seconds(lambda r=read: r(candidate)) for reader, read in BEHIND_THE_GATE.items()}
    assert max(took.values()) < LIMIT_S, took


def test_most_shapes_reach_the_readers_behind_the_gate() -> None:
    passed = [name for name in SHAPES if isinstance(gated(name), CleanText)]
    assert len(passed) > len(SHAPES) // 3


@pytest.mark.parametrize(
    "text",
    [
        "(" * 199 + "1" + ")" * 199,
        "(" * 400,
        "-" * 399 + "1",
        "1+" * 199 + "1",
        "9" * 400,
        "9*" * 199 + "9",
        "\0",
        "\ud800",
    ],
)
def test_an_expression_is_a_number_or_refused_however_deep_the_caller_is(text: str) -> None:
    def evaluate(depth: int) -> object:
        if depth:
            return evaluate(depth - 1)
        try:
            return Expr(text).evaluate({})
        except CandidateError as error:
            return str(error)

    for depth in (0, 600, 800):
        assert isinstance(evaluate(depth), int | str)


@pytest.mark.parametrize("unit", ["(", "] ", "{", ")", ">"])
def test_rows_of_brackets_end(unit: str) -> None:
    found = check_text(f"__global__ void k() {{ {unit * 65} }}\n")
    assert not isinstance(found, CleanText) and "one behind the other, at most 64" in found.reason


def test_names_end() -> None:
    found = check_text(f"__global__ void k() {{ int {'cuda' * 40}; }}\n")
    assert not isinstance(found, CleanText) and "a name of 160 characters, at most 128" in found.reason


def test_a_character_literal_hides_no_code() -> None:
    """The quotes lie between digits, as in 1'000, so that a reader of words takes them for a number's."""
    found = check_text("__global__ void k() { int x = fe'a; } int calls; void g() { b'e; }\n")
    assert not isinstance(found, CleanText) and found.reason == "character literals are not allowed"
