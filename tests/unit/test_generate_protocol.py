"""A generator that hangs, crashes or miscounts must neither block nor spoil anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from generate_models import make_checkpoint

from cudal1_compile.generate.errors import GeneratorError, GeneratorTimeout, ModelMissing
from cudal1_compile.generate.factory import make_generator, stored_name
from cudal1_compile.generate.protocol import propose_within, token_counter


class Scripted:
    """Test double: a generator that does what it is told."""

    name = "scripted"
    budget_tokens = 1000

    def __init__(self, run: Callable[[Sequence[str], int], list[list[str]]]) -> None:
        self.run = run

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        return self.run(prompts, n)


class Punctual(Scripted):
    """Test double: ends by itself, half a second late."""

    def propose_until(self, prompts: Sequence[str], n: int, seed: int, deadline: float) -> list[list[str]]:
        time.sleep(max(0.0, deadline - time.monotonic()) + 0.5)
        return [["late"] for _ in prompts]


def test_replies_pass_through_and_surplus_is_dropped() -> None:
    generator = Scripted(lambda prompts, n: [[f"{p}{i}" for i in range(n + 1)] for p in prompts])
    assert propose_within(generator, ["a", "b"], 2, 0, 5.0) == [["a0", "a1"], ["b0", "b1"]]
    assert propose_within(generator, [], 2, 0, 5.0) == []


def test_a_hang_is_abandoned_in_time() -> None:
    release = threading.Event()
    generator = Scripted(lambda prompts, n: [[str(release.wait(60))] for _ in prompts])
    start = time.monotonic()
    with pytest.raises(GeneratorTimeout, match="scripted gave no answer within 0 s"):
        propose_within(generator, ["a"], 1, 0, 0.3)
    assert time.monotonic() - start < 2.0
    release.set()


def test_one_that_knows_its_limit_gets_a_grace() -> None:
    assert propose_within(Punctual(lambda p, n: []), ["a"], 1, 0, 0.2) == [["late"]]


def test_a_crash_becomes_a_generator_error_with_its_cause() -> None:
    def crash(prompts: Sequence[str], n: int) -> list[list[str]]:
        raise KeyError("weights")

    with pytest.raises(GeneratorError, match="KeyError: 'weights'") as caught:
        propose_within(Scripted(crash), ["a"], 1, 0, 5.0)
    assert isinstance(caught.value.__cause__, KeyError)

    def leave(prompts: Sequence[str], n: int) -> list[list[str]]:
        raise SystemExit(3)

    with pytest.raises(GeneratorError, match="SystemExit"):
        propose_within(Scripted(leave), ["a"], 1, 0, 5.0)

    def lack(prompts: Sequence[str], n: int) -> list[list[str]]:
        raise ModelMissing("gone")

    with pytest.raises(ModelMissing, match="gone"):
        propose_within(Scripted(lack), ["a"], 1, 0, 5.0)


def test_a_wrong_number_of_answers_is_told() -> None:
    with pytest.raises(GeneratorError, match="answered 1 of 2 prompts"):
        propose_within(Scripted(lambda p, n: [["x"]]), ["a", "b"], 1, 0, 5.0)


@pytest.mark.parametrize("answer", [None, "ab", [["x"], None], [["x"], [1]], [["x"], "y"]])
def test_what_holds_no_texts_is_told(answer: Any) -> None:
    with pytest.raises(GeneratorError, match="scripted gave .*: expected a list of texts a prompt"):
        propose_within(Scripted(lambda p, n: answer), ["a", "b"], 1, 0, 5.0)


def test_tokens_are_estimated_on_the_safe_side() -> None:
    count = token_counter(Scripted(lambda p, n: []))
    assert count("x" * 1000) >= 400


def test_a_name_is_told_without_loading_the_model(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "own")
    assert stored_name(str(tmp_path / "own")) == make_generator(str(tmp_path / "own")).name
    assert stored_name(str(tmp_path)) is None and stored_name("http://localhost:1/v1#model=m") is None
