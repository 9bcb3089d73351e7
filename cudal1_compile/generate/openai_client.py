"""A generator over any server that speaks the OpenAI protocol (chat completions, or plain completions).

    prompt -> POST base_url/chat/completions -> choices

The key comes from the environment variable that the config names, from nowhere else, and appears in no
message. A server that ignores `n` is asked again until the replies are there. Refused connections, time-outs
and the statuses 408, 429 and 5xx are retried with growing pauses; everything else is an error at once, an answer
longer than so many replies can be as well.

A prompt's requests run in a daemon thread: whatever a server does, a call ends at its deadline with what has come,
and a finished script waits for none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import tenacity

from cudal1_compile.config import environment_secret
from cudal1_compile.generate.daemons import wait_until
from cudal1_compile.generate.errors import GeneratorError, GeneratorTimeout
from cudal1_compile.generate.exchange import Answer, Limits, TooLate, TooLong, exchange
from cudal1_compile.kernel.candidate import MAX_REPLY_BYTES

RETRIED = frozenset({408, 429, 500, 502, 503, 504})
SHOWN_CHARACTERS = 300  # of a server's own words in an error
SLACK_BYTES = 64 * 1024  # of an answer, besides its replies


@dataclass(frozen=True, slots=True)
class OpenAIConfig:
    base_url: str  # with the version, for instance http://localhost:8000/v1
    model: str
    api_key_variable: str | None = None  # NAME of an environment variable; None: no key is sent
    temperature: float = 0.8
    max_tokens: int = 8192  # of one reply
    budget_tokens: int = 24_000  # of the prompt
    chat: bool = True
    timeout_s: float = 300.0  # of one request
    attempts: int = 4  # of one request, the first included
    pause_s: float = 0.5  # before the second attempt; doubles
    parallel: int = 4  # requests at once

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url={self.base_url!r}: expected http://... or https://..., with the version")


class _Retriable(Exception):
    """A request that may succeed when it is repeated."""


class OpenAIGenerator:
    def __init__(self, config: OpenAIConfig) -> None:
        """Raises GeneratorError where the named variable holds no key."""
        self.config = config
        self.name = f"openai:{config.model}@{httpx.URL(config.base_url).host}"
        self.budget_tokens = config.budget_tokens
        self._headers = _headers(config)
        self._tls = httpx.create_ssl_context()

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        return self.propose_until(prompts, n, seed, float("inf"))

    def propose_until(self, prompts: Sequence[str], n: int, seed: int, deadline: float) -> list[list[str]]:
        """What has come at the deadline. Raises GeneratorError where no prompt got any reply."""
        asked = [_Asked(prompt, seed + i) for i, prompt in enumerate(prompts)]
        waiting = iter(asked)  # next() of a list's iterator is one step: no two threads get the same
        for _ in range(min(self.config.parallel, len(asked))):
            threading.Thread(
                target=self._ask_all, args=(waiting, n, deadline), name="cudal1-client", daemon=True
            ).start()
        for one in asked:
            wait_until(one.ended, deadline)
        found = [one.replies[:n] for one in asked]
        if any(found) or not asked:
            return found
        raise next((one.error for one in asked if one.error is not None), None) or self._late()

    def _ask_all(self, waiting: Iterator[_Asked], n: int, deadline: float) -> None:
        for one in waiting:
            try:
                self._ask(one, n, deadline)
            except GeneratorError as error:
                one.error = error
            finally:
                one.ended.set()

    def _ask(self, one: _Asked, n: int, deadline: float) -> None:
        requests = 0
        while len(one.replies) < n:
            # another seed each time: a server that honours it would repeat the same reply otherwise
            one.replies += self._request(one.prompt, n - len(one.replies), one.seed + 1009 * requests, deadline)
            requests += 1

    def _request(self, prompt: str, n: int, seed: int, deadline: float) -> list[str]:
        path, body = self._body(prompt, n, seed)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Retriable),
            wait=tenacity.wait_random_exponential(multiplier=self.config.pause_s, max=20.0),
            stop=tenacity.stop_after_attempt(self.config.attempts) | _StopAt(deadline),
            reraise=True,
        )
        try:
            answer = retrying(self._post, path, body, deadline)
        except _Retriable as error:
            raise GeneratorError(f"{self.name} did not answer: {error}") from error
        return _read_choices(answer, self.name)

    def _body(self, prompt: str, n: int, seed: int) -> tuple[str, dict[str, Any]]:
        c = self.config
        body: dict[str, Any] = {
            "model": c.model,
            "temperature": c.temperature,
            "max_tokens": c.max_tokens,
            "n": n,
            "seed": seed % 2**31,
        }
        if c.chat:
            return "chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}
        return "completions", body | {"prompt": prompt}

    def _post(self, path: str, body: dict[str, Any], deadline: float) -> Any:
        left = min(self.config.timeout_s, deadline - time.monotonic())
        if left <= 0:
            raise self._late()
        url = f"{self.config.base_url.rstrip('/')}/{path}"
        # twice a reply's own bytes: JSON escapes what is no ASCII, and every line's end
        most = body["n"] * 2 * MAX_REPLY_BYTES + SLACK_BYTES
        try:
            answer = exchange(url, body, self._headers, self._tls, Limits(left, most))
        except (TooLate, httpx.TimeoutException):
            raise _Retriable(f"no answer within {left:.1f} s") from None
        except TooLong as error:
            raise GeneratorError(
                f"{self.name} answered with {error}: {body['n']} replies have {most} at most; set max_tokens lower"
            ) from None
        except httpx.TransportError as error:
            raise _Retriable(f"{self.config.base_url}: {error}") from None
        return self._parsed(answer, url)

    def _parsed(self, answer: Answer, url: str) -> Any:
        if answer.status in RETRIED:
            raise _Retriable(f"status {answer.status}: {answer.said(SHOWN_CHARACTERS)}")
        if answer.status != httpx.codes.OK:
            raise GeneratorError(self._refusal(answer, url))
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise GeneratorError(f"{self.name} answered with something that is not JSON: {error}") from None

    def _refusal(self, answer: Answer, url: str) -> str:
        said = answer.said(SHOWN_CHARACTERS)
        if answer.status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            variable = self.config.api_key_variable
            hint = (
                f"the key in ${variable} was refused" if variable else "set api_key_variable to the key's variable"
            )
            return f"{self.name}: status {answer.status}, {hint}: {said}"
        if answer.status == httpx.codes.NOT_FOUND:
            return f"{self.name}: {url} does not exist; base_url must hold the version (.../v1): {said}"
        return f"{self.name}: status {answer.status}: {said}"

    def _late(self) -> GeneratorTimeout:
        return GeneratorTimeout(f"{self.name}: the time for this call is over")


@dataclass(slots=True)
class _Asked:
    """A prompt, what has come for it, and what ended the asking early."""

    prompt: str
    seed: int
    replies: list[str] = field(default_factory=list)
    error: GeneratorError | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class _StopAt(tenacity.stop.stop_base):
    """Stops retrying once a time.monotonic deadline is over."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        return time.monotonic() + (retry_state.upcoming_sleep or 0.0) >= self.deadline


def _headers(config: OpenAIConfig) -> dict[str, str]:
    if config.api_key_variable is None:
        return {}
    key = environment_secret(config.api_key_variable)
    if key is None:
        raise GeneratorError(
            f"the environment variable {config.api_key_variable} holds no key; set it, or name another"
        )
    return {"Authorization": f"Bearer {key}"}


def _read_choices(answer: Any, name: str) -> list[str]:
    try:
        choices = answer["choices"]
        found = [c["message"]["content"] if "message" in c else c["text"] for c in choices]
    except (KeyError, TypeError) as error:
        raise GeneratorError(
            f"{name} answered without the field {error}: {str(answer)[:SHOWN_CHARACTERS]}"
        ) from None
    if not found:
        raise GeneratorError(f"{name} answered without any choice")
    return [text if isinstance(text, str) else "" for text in found]
