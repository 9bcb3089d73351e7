"""One text, one meaning: what is spelled for one reader and against another is refused, or the same to both."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NoReturn

import pytest

from cudal1_cache import Entry, RegionText
from cudal1_cache.bundle import Refused
from cudal1_compile.judge.static.text_gate import RefusedText, check_text
from cudal1_compile.kernel.candidate import CandidateError, parse_candidate
from cudal1_compile.kernel.text import normalised_digest
from cudal1_compile.runtime.hostrun import _parse, _result
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.reverify import verify_entry
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.canonical import fingerprint
from cudal1_fx_passes.program.text import parse_program

TEXT = "region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = relu(in0)\nout0 f32[d0] = t0\n"
PROGRAM = parse_program(TEXT)
BODY = (
    "__global__ void k(const f32* in0, f32* out0 DIMS) { st(out0 + threadIdx.x, relu(ld(in0 + threadIdx.x))); }\n"
)


def planned(grid: str, scratch: str = "") -> str:
    return f"{scratch}// launch: k<<<{grid}, 64>>>(in0, out0)\n{BODY}"


@pytest.mark.parametrize("grid", ["d0//64", "d0 //  64", " d0\t//\t64 ", "d0// 64"])
def test_blanks_beside_a_division_do_not_make_another_kernel(grid: str) -> None:
    """So that none of them lifts a refutation."""
    assert parse_candidate(planned(grid), PROGRAM).launches[0].grid[0].evaluate({"d0": 64}) == 1
    assert normalised_digest(planned(grid)) == normalised_digest(planned("d0 // 64"))


def test_another_divisor_does_make_another_kernel() -> None:
    found = {normalised_digest(planned(grid)) for grid in ("d0 // 64", "d0 / 64", "d0 // 32", "d0 // 6 4", "d0")}
    assert len(found) == 5


@pytest.mark.parametrize(
    "code",
    [
        planned("d0 // 64 # as usual"),
        planned("\uff440 // 64"),  # a letter d of double width, which Python reads as d
        planned("d0 // \u0666\u0664"),
        planned("1", "// scratch: s\u0663 f32[d0]\n"),
        planned("1", "// scratch: s0 f32[d0]\u00a0\n"),
        planned("1").replace("k<<<", "\uff4b<<<"),
    ],
)
def test_a_plan_in_other_letters_or_with_remarks_is_refused(code: str) -> None:
    with pytest.raises(CandidateError):
        parse_candidate(code, PROGRAM)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85"])
def test_what_ends_a_line_for_one_reader_alone_is_refused(separator: str) -> None:
    """Behind it a comment would go on for g++, and a plan or code begin for who splits lines."""
    found = check_text(f"// as usual {separator}{planned('1')}")
    assert isinstance(found, RefusedText) and f"U+{ord(separator):04X}" in found.reason


# what a runner says that loaded code has taken over

END = {"stage": "running", "signal": 0, "code": 0, "sealed": True, "forged": False}
END |= {"no_files": True, "no_network": True, "own_processes": True}
FAULT = '{"status": "fault", "kind": %s, "detail": %s, "pc": %s, "block": [0], "thread": [0]}'


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, '{"status": "ok", "transactions": 1e999, "barriers": 0}'),
        (0, '{"status": "ok", "transactions": -5, "barriers": 0}'),
        (0, '{"status": "ok", "transactions": 0.5, "barriers": 0}'),
        (0, '{"status": "ok", "transactions": NaN, "barriers": 0}'),
        (0, '{"status": "ok", "transactions": "0", "barriers": 0}'),
        (3, FAULT % ('"race"', '"x"', "1e999")),
        (3, FAULT % ('"race"', '"x"', "[]")),
        (3, FAULT % ('"race"', '"\\u001b[2J"', "-1")),
        (3, FAULT % ('"race"', '"\\ud800"', "-1")),
        (3, "[" * 1999),
        (3, '{"block": [0]}'),
    ],
)
def test_a_forged_report_is_a_crash_and_no_cost(code: int, said: str) -> None:
    run = _result(END | {"code": code}, _parse(said.encode()), True, Path("none"))
    assert run.status == "crash" and run.cost is None and run.trouble is None
    assert run.message.isprintable()


# regions of strangers


class NoJudge:
    def finalists(self, *given: object) -> NoReturn:
        raise AssertionError("the judge was asked about a text that is not the region's")


CHAIN = "".join(f"t{i} f32[d0] = relu({f't{i - 1}' if i else 'in0'})\n" for i in range(1900))


@pytest.mark.parametrize(
    "text",
    [
        f"{TEXT}\n",
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("=64", "=064"),
        TEXT.replace("=64", "=\u0666\u0664"),
        TEXT.replace("relu(in0)", "mul(in0, 1e999)"),
        TEXT.replace("=64", f"={'9' * 5000}"),
        TEXT.replace("=64", "=0"),
        TEXT + " " * (1 << 20),
        f"region v1\ndims d0=64\nin0 f32[d0]\n{CHAIN}out0 f32[d0] = t1899\n",
        TEXT.replace("in0 f32", "in0\0 f32"),
    ],
)
def test_a_strangers_region_is_canonical_or_refused_at_once(text: str) -> None:
    """A text in another spelling would have another kernel's id, and take the place of our own."""
    try:
        name = fingerprint(parse_program(text))
    except (ProgramError, ValueError, RecursionError):
        name = "none has it"
    begun = time.process_time()
    found = verify_entry(
        RegionText(name, "r", text),
        Entry("e", name, HOST.key, "kernel", code=planned("1")),
        HOST,
        NoJudge(),  # type: ignore[arg-type]
    )
    assert isinstance(found, Refused)
    assert time.process_time() - begun < 0.5
