"""Passes are noted with their times, and said by CUDAL1_DEBUG on stderr alone."""

from __future__ import annotations

import re
import threading

import pytest

from cudal1_compile import last_plans
from cudal1_compile.inductor.graph_plan import GraphPlanned
from cudal1_compile.inductor.splice import Untimed
from cudal1_compile.pipeline import process_state
from cudal1_compile.pipeline.process_state import LAST_PLANS, Session
from cudal1_compile.pipeline.trace import MOST_CHARACTERS, MOST_RUNS, PassLog, shorten


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("0", ""),
        ("1", ""),
        ("2", r"cudal1: splice: \d\.\d{3} s\n"),
        ("3", r"cudal1: splice: \d\.\d{3} s\ndef f\(x\):\n    return x\n"),
    ],
)
def test_a_pass_is_said_from_level_2_on_and_its_graph_from_3_on(
    level: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL1_DEBUG", level)
    asked: list[str] = []

    def text() -> str:
        asked.append(level)
        return "def f(x):\n    return x\n\n"

    passes = PassLog()
    with passes.run("splice", text):
        pass
    with Untimed().run("elsewhere", text):
        pass
    captured = capsys.readouterr()
    assert re.fullmatch(said, captured.err) and captured.out == ""
    assert asked == ["3"] * (level == "3")
    assert [run.name for run in passes.runs] == ["splice"] and passes.runs[0].seconds >= 0


def test_a_log_is_bounded() -> None:
    passes = PassLog()
    for _ in range(MOST_RUNS + 5):
        with passes.run("sort"):
            pass
    assert len(passes.runs) == MOST_RUNS


def test_a_strangers_text_is_cut_and_has_no_control_characters() -> None:
    text = shorten("\x1b[2J" + "x" * MOST_CHARACTERS)
    assert text.startswith("\\x1b[2Jxx") and text.endswith("\n... 4 characters more")


def test_the_last_plans_are_kept_with_passes_that_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "SESSION", Session())
    plan, passes = GraphPlanned(()), PassLog()
    with passes.run("collect"):
        pass
    process_state.SESSION.remember(plan, passes)
    decided = GraphPlanned((), choice="inductor", ratio=1.0)
    process_state.SESSION.remember(decided, passes)
    with passes.run("splice"):  # of a backward, at its first call
        pass
    (found,) = last_plans()
    assert found.plan == decided and [run.name for run in found.passes] == ["collect", "splice"]


def test_the_last_plans_are_bounded_and_any_thread_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "SESSION", Session())

    def work() -> None:
        for _ in range(200):
            process_state.SESSION.remember(GraphPlanned(()), PassLog())
            assert len(last_plans()) <= LAST_PLANS

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(last_plans()) == LAST_PLANS
