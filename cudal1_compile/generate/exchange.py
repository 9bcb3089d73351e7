"""One POST whose answer is bounded, by a deadline for all of it and by its bytes.

    url, body, limits -> exchange() -> Answer | TooLate | TooLong

httpx limits each read, so that a server which sends a byte now and then is never late, not even with its headers.
Here a daemon thread asks and the caller waits until the deadline; what comes later is dropped with the connection.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from cudal1_compile.generate.daemons import wait_until


class TooLate(Exception):
    """The answer was not whole at its deadline."""


class TooLong(Exception):
    """The answer has more bytes than are allowed."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def said(self, characters: int) -> str:
        """The beginning of the body as text."""
        return self.body[: 4 * characters].decode("utf-8", "replace")[:characters]


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float  # from the first byte that is sent to the last one that is read
    size_bytes: int  # of the answer's body


def exchange(
    url: str, body: dict[str, Any], headers: dict[str, str], tls: ssl.SSLContext, limits: Limits
) -> Answer:
    """Posts `body` as JSON. Raises TooLate, TooLong, or httpx.HTTPError for what the connection does.

    An answer that is encoded (gzip) is TooLong: how long it is shows only once it is held.
    """
    deadline = time.monotonic() + limits.seconds
    # a client for itself, so that closing it ends this exchange and no other
    client = httpx.Client(headers={"Accept-Encoding": "identity"} | headers, timeout=limits.seconds, verify=tls)
    call = _Call(partial(_read, client, url, body, limits.size_bytes, deadline))
    threading.Thread(target=call.run, name="cudal1-request", daemon=True).start()
    try:
        if not wait_until(call.ended, deadline):
            raise TooLate
    finally:
        client.close()
    if call.error is not None:
        raise call.error
    assert call.answer is not None
    return call.answer


class _Call:
    """How an exchange ended."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self.ask = ask
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            self.answer = self.ask()
        except BaseException as error:  # noqa: BLE001  a thread must hand on whatever ended it
            self.error = error
        self.ended.set()


def _read(client: httpx.Client, url: str, body: dict[str, Any], most: int, deadline: float) -> Answer:
    with client.stream("POST", url, json=body) as response:
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise TooLong(f"an answer in {encoding}, though it was asked for as it is")
        found = bytearray()
        for chunk in response.iter_raw():
            found += chunk
            if len(found) > most:
                raise TooLong(f"more than {most} bytes")
            if time.monotonic() >= deadline:
                raise TooLate
        return Answer(response.status_code, bytes(found))
