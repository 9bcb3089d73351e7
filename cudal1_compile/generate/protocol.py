"""What a generator is: prompts in, replies out.

    propose(prompts, n, seed) -> for every prompt at most n replies

A reply that the token limit cuts off is returned as it stands (the parser refuses it and says why); one that
a time limit cuts off is left out. A generator may offer seven things more, found by isinstance: counting tokens
in its own tokenizer, ending a call in time by itself, how many prompts it likes in one call, that it writes
designs, warming up, that it gives way to others on its device, and leaving it. `propose_within` bounds any
generator; it is the only way in which synthesis calls one.

This module neither builds prompts nor reads replies.
"""

from __future__ import annotations

import logging
import reprlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from cudal1_compile.generate.daemons import end_soon, start_daemon, wait_until
from cudal1_compile.generate.errors import GeneratorError, GeneratorTimeout

log = logging.getLogger(__name__)

GRACE_S = 2.0  # what a generator that knows its limit gets on top of it before it is abandoned
PROMPTS_AT_ONCE = 4  # for generators that take longer the more they are asked
CHARACTERS_PER_TOKEN = 2.5  # of device code, for generators that cannot count; too many rather than too few


class Generator(Protocol):
    @property
    def name(self) -> str:
        """Stored with every attempt: kind and model, for instance `bundled:3f2a91c0`."""

    @property
    def budget_tokens(self) -> int:
        """Tokens that a prompt may hold; the reply is not counted."""

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]: ...


@runtime_checkable
class CountsTokens(Protocol):
    def count_tokens(self, text: str) -> int: ...


@runtime_checkable
class EndsInTime(Protocol):
    def propose_until(self, prompts: Sequence[str], n: int, seed: int, deadline: float) -> list[list[str]]:
        """As propose, but returns what is finished at `deadline` (time.monotonic seconds)."""


@runtime_checkable
class LikesMany(Protocol):
    @property
    def prompts_at_once(self) -> int:
        """Prompts in one call, some eight replies each, beyond which a larger call is no quicker a reply."""


@runtime_checkable
class WritesDesigns(Protocol):
    writes_designs: bool
    """Its replies are designs as codegen lowers them, so that what is measured at one size serves at others.

    Its prompts show designs in the place of kernels.
    """


@runtime_checkable
class GivesWay(Protocol):
    gives_way: bool
    """Between two steps on its GPU it lets the judge have that: it may be asked while the judge is at work."""


@runtime_checkable
class WarmsUp(Protocol):
    def warm_up(self) -> None:
        """Does what its first proposals would wait for. Raises GeneratorError where the device has no room."""


@runtime_checkable
class LeavesDevice(Protocol):
    def leave_device(self) -> None:
        """Gives back what it holds of a GPU, after a compile; the next proposals may take it again."""


def prompts_at_once(generator: Generator) -> int:
    return generator.prompts_at_once if isinstance(generator, LikesMany) else PROMPTS_AT_ONCE


def leave_device(generator: Generator) -> None:
    if isinstance(generator, LeavesDevice):
        generator.leave_device()


def token_counter(generator: Generator) -> Callable[[str], int]:
    """The generator's own count, or an estimate from the number of characters."""
    if isinstance(generator, CountsTokens):
        return generator.count_tokens
    return lambda text: int(len(text) / CHARACTERS_PER_TOKEN) + 1


def propose_within(
    generator: Generator, prompts: Sequence[str], n: int, seed: int, limit_s: float
) -> list[list[str]]:
    """Runs propose in a thread and waits at most `limit_s` (and a grace for those that end by themselves).

    Raises GeneratorTimeout where nothing came, GeneratorError for whatever the generator raised and for
    answers of the wrong shape. An abandoned thread is a daemon: it cannot keep the process alive
    (daemons.py).
    """
    if not prompts or n < 1:
        return [[] for _ in prompts]
    call = _Call(generator, list(prompts), n, seed, time.monotonic() + limit_s)
    thread = start_daemon(call.run, f"cudal1-{generator.name}")
    try:
        has_ended = wait_until(thread.ended, call.deadline + GRACE_S * isinstance(generator, EndsInTime))
    except BaseException:  # an interrupt: what it would find nobody waits for
        end_soon(thread)
        raise
    if not has_ended:
        raise GeneratorTimeout(f"generator {generator.name} gave no answer within {limit_s:.0f} s")
    if call.error is not None:
        raise _wrapped(generator, call.error) from call.error
    return _checked(generator, call.replies, len(prompts), n)


class _Call:
    """One propose call and how it ended."""

    def __init__(self, generator: Generator, prompts: list[str], n: int, seed: int, deadline: float) -> None:
        self.generator, self.prompts, self.n, self.seed, self.deadline = generator, prompts, n, seed, deadline
        self.replies: list[list[str]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            if isinstance(self.generator, EndsInTime):
                self.replies = self.generator.propose_until(self.prompts, self.n, self.seed, self.deadline)
            else:
                self.replies = self.generator.propose(self.prompts, self.n, self.seed)
        except BaseException as error:  # noqa: BLE001  a thread must hand on whatever ended it
            self.error = error


def _wrapped(generator: Generator, error: BaseException) -> GeneratorError:
    if isinstance(error, GeneratorError):
        return error
    return GeneratorError(f"generator {generator.name} failed: {type(error).__name__}: {error}")


def _checked(generator: Generator, replies: list[list[str]], prompts: int, n: int) -> list[list[str]]:
    if not _are_texts(replies):
        found = reprlib.repr(replies)
        raise GeneratorError(f"generator {generator.name} gave {found}: expected a list of texts a prompt")
    if len(replies) != prompts:
        raise GeneratorError(f"generator {generator.name} answered {len(replies)} of {prompts} prompts")
    if any(len(group) > n for group in replies):
        log.warning("generator %s gave more than the %d replies asked for; the rest is dropped", generator.name, n)
    return [group[:n] for group in replies]


def _are_texts(replies: object) -> bool:
    return isinstance(replies, Sequence) and all(
        isinstance(group, list | tuple) and all(isinstance(text, str) for text in group) for group in replies
    )
