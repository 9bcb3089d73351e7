"""What a person sees while synthesis runs."""

from __future__ import annotations

import io
import re

import pytest
from synthesis_clock import Clock
from synthesis_doubles import GPU, ScriptedGenerator, ScriptedJudge, host_judge, program

from cudal1_cache import Store
from cudal1_compile.pipeline.progress import PLAIN_S, LineProgress
from cudal1_compile.pipeline.trace import MOST_CHARACTERS, say
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.progress import Preparing
from cudal1_compile.synthesis.rounds import synthesize_all


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(judge: ScriptedJudge, progress: LineProgress) -> None:
    generator = ScriptedGenerator([["good_131", "wrong_1"]])
    budget = Budget(seconds=60, rounds=1, samples_per_round=2, regions_at_once=1)
    synthesize_all([program(16), program(32)], generator, judge, Store.memory(), budget, progress)
    progress.close()


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    stream = Terminal()
    run(ScriptedJudge(), LineProgress(GPU.kind, stream, level=0))
    text = stream.getvalue()
    assert "\n" not in text
    lines = text.split("\r\x1b[K")
    assert lines[-1] == ""
    assert any(re.fullmatch(r"cudal1: region 2/2, candidate 2/2, best 1\.31x, \d+ s left", line) for line in lines)
    assert any("round 1/1, writing 2 candidates" in line for line in lines)
    assert any("proving the best candidate, best 1.31x" in line for line in lines)
    assert any(
        re.match(r"cudal1: 1/2 regions decided, 50% of their time, best 1\.31x, \d+ s left", x) for x in lines
    )
    assert re.match(r"cudal1: 2/2 regions decided, 100% of their time, best 1\.31x 1\.31x, ", lines[-2])


def test_elsewhere_a_line_at_once_and_then_one_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    stream = io.StringIO()
    shown = LineProgress(GPU.kind, stream, level=0)
    shown(Preparing(2, 60.0))
    assert stream.getvalue() == "cudal1: regions without a kernel: 2; preparing generator and judge, 60 s left\n"
    run(ScriptedJudge(), shown)
    assert stream.getvalue().count("\n") == 1
    clock.spend(PLAIN_S)
    run(ScriptedJudge(), shown)
    assert stream.getvalue().splitlines()[1:] == ["cudal1: region 1/2, round 1/1, writing 2 candidates, 60 s left"]


def test_debug_asks_for_a_line_a_region_everywhere() -> None:
    stream = io.StringIO()
    run(ScriptedJudge(), LineProgress(GPU.kind, stream, level=1))
    _, *lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all(re.fullmatch(r"cudal1: region \d/2 [0-9a-f]{12}: new kernel, 1\.31x, \d+ s left", x) for x in lines)


def test_level_4_shows_prompts_and_every_reply_as_a_terminal_may_have_them() -> None:
    stream = io.StringIO()
    generator = ScriptedGenerator([["good_131\x1b[31m", "wrong_1" + "x" * 2 * MOST_CHARACTERS]])
    budget = Budget(seconds=60, rounds=1, samples_per_round=2, regions_at_once=1)
    progress = LineProgress(GPU.kind, stream, level=4)
    synthesize_all([program(16)], generator, ScriptedJudge(), Store.memory(), budget, progress)
    text = stream.getvalue()
    assert re.search(r"cudal1: region [0-9a-f]{12}, prompt:\n.*region v1", text, re.S)
    assert "reply 1:\n" in text and "good_131\\x1b[31m" in text and "\x1b" not in text
    assert "reply 2:\n" in text and "characters more" in text and len(text) < 3 * MOST_CHARACTERS


def test_the_host_target_has_costs_and_no_speed_word() -> None:
    stream = Terminal()
    run(host_judge(), LineProgress(HOST.kind, stream, level=1))
    text = stream.getvalue()
    assert "cost 0.76 of one operation at a time" in text
    assert not re.search(r"\d+\.\d+x|speed|fast", text)


def test_a_closed_stream_ends_the_progress_and_nothing_else() -> None:
    stream = Terminal()
    stream.close = lambda: None  # type: ignore[method-assign]
    progress = LineProgress(GPU.kind, stream, level=1)
    io.StringIO.close(stream)
    run(ScriptedJudge(), progress)
    assert not progress.rewrites


class Logger:
    """What daemons put in stderr's place, with neither isatty nor flush."""

    def write(self, text: str) -> None: ...


def test_no_stderr_or_one_that_is_no_terminal_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Terminal()
    closed.close()
    for stream in (None, closed, Logger()):
        monkeypatch.setattr("sys.stderr", stream)
        run(ScriptedJudge(), LineProgress(GPU.kind, level=0))
        say("regions: 1")
