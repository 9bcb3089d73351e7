"""Right, wrong and equivalent kernels are told apart without the judge."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.redteam.classify import Class, Different, Original, Same, Stillborn, Undecided, classify, examine
from benchmarks.redteam.honest import HONEST, SILU_SCALAR, SOFTMAX_BLOCK
from benchmarks.redteam.mutate import Mutant
from benchmarks.redteam.regions import region
from benchmarks.redteam.subjects import HAND_WRITTEN, retype, subjects
from benchmarks.redteam.witness import Reference, Wrong
from cudal1_compile.codegen.stages.schedule import parse_schedule
from cudal1_compile.codegen.templates import write_reply
from cudal1_fx_passes.program.text import parse_program, print_program

pytestmark = pytest.mark.host

SEED = 11  # other seeds are the audit's
SILU, SOFTMAX = Reference(region("silu"), SEED), Reference(region("softmax"), SEED)


@pytest.mark.parametrize(
    "name", ["threshold with a mask", "argmax", "embedding", "long sum, one warp", "max pool", "expanded input"]
)
def test_hand_written_kernels_are_right(name: str) -> None:
    honest = next(h for h in HONEST if h.name == name)
    found = examine(Reference(region(honest.region), SEED), honest.code)
    assert isinstance(found, Original), f"{found} (seed {SEED})"


def test_templates_kernels_are_right() -> None:
    drawn = (s for s in subjects(SEED) if s.family != HAND_WRITTEN)
    for subject in islice(drawn, 4):
        found = examine(Reference(subject.program, SEED), subject.codes[0])
        assert isinstance(found, Original), f"{found} (seed {SEED})\n{print_program(subject.program)}"


@pytest.mark.parametrize("schedule", ["staged/block.2.64", "staged/online.2.64", "split/split_block.2.64.s4"])
def test_a_logsumexp_of_an_infinite_row_is_no_nan(schedule: str) -> None:
    rows = "region v1\ndims d0=3 d1=600\nin0 f32[d0,d1]\nt0 f32[d0] = logsumexp(in0) over d1\nout0 f32[d0] = t0\n"
    program = parse_program(rows)
    reply = write_reply(program, parse_schedule(schedule))
    assert reply is not None
    assert isinstance(examine(Reference(program, SEED), reply.code), Original)


def _class(reference: Reference, code: str, old: str, new: str, category: str = "index off by one") -> Class:
    assert old in code
    original = examine(reference, code)
    assert isinstance(original, Original)
    line = next(line for line in code.splitlines() if old in line)
    return classify(original, Mutant(category, 1, line, line.replace(old, new, 1), code.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ 0.5f", "+ 0.505f"),
        ("sigmoid(t)", "round_to<bf16>(sigmoid(t))"),
        ("i >= d0 * d1", "i >= d0 * d1 - 1"),
        ("ld(in1 + i % d1)", "ld(in1 + i % d0)"),
        ("st(out0 + i,", "st(out0 + i + 1,"),
        ("t * sigmoid", "t / sigmoid"),
    ],
)
def test_wrong_mutants(old: str, new: str) -> None:
    found = _class(SILU, SILU_SCALAR, old, new)
    assert isinstance(found, Different) and found.kind == "wrong", found


def test_a_kernel_that_hangs_or_does_not_build() -> None:
    hangs = _class(SILU, SILU_SCALAR, "float t", "for (volatile int j = 0; j == 0;) {} float t")
    assert isinstance(hangs, Different) and "timeout" in hangs.evidence
    assert isinstance(_class(SILU, SILU_SCALAR, "sigmoid(", "sigmoidd("), Stillborn)
    assert isinstance(_class(SILU, SILU_SCALAR, "256>>>", "2560>>>"), Stillborn)


def test_right_results_by_illegal_means() -> None:
    """A read just past the end that nothing uses."""
    found = _class(SILU, SILU_SCALAR, "float t", "volatile float u = in1[d1]; float t")
    assert isinstance(found, Different) and found.kind == "illegal", found


def test_equivalent_mutants() -> None:
    same_code = _class(SILU, SILU_SCALAR, "i >= d0 * d1", "i >= d1 * d0")
    assert same_code == Same("the same object code and launches")
    # 12096 elements: 48 blocks of 256 threads, then 189 of 64 more
    same_bits = _class(SILU, SILU_SCALAR, "cdiv(d0*d1, 256)", "cdiv(d0*d1, 256) + 1")
    assert isinstance(same_bits, Same) and "bits" in same_bits.why


def test_what_values_decide_is_not_called_equivalent() -> None:
    found = _class(SILU, SILU_SCALAR, "float t", "float u = 0.0f; float t", "omitted initialisation")
    assert isinstance(found, Same)  # the same object code all the same
    other = _class(SOFTMAX, SOFTMAX_BLOCK, "/ s", "* (1.0f / s)", "swapped operands")
    assert isinstance(other, Undecided) and "rounding" in other.why


def test_a_wrong_kernel_is_never_an_original() -> None:
    found = examine(SILU, SILU_SCALAR.replace("+ 0.5f", ""))
    assert isinstance(found, Wrong)


def test_other_dtypes() -> None:
    text = "region v1\ndims d0=64\nin0 f32[d0]\nin1 i64[d0]\nt0 f32[d0] = exp(in0)\nout0 f32[d0] = t0\n"
    assert "in0 f64" in print_program(retype(parse_program(text), "f64"))
    assert "in1 i64" in print_program(retype(parse_program(text), "f64"))
