"""The client against a real HTTP server on this machine that speaks, and misspeaks, the OpenAI protocol."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cudal1_compile.generate.errors import GeneratorError, GeneratorTimeout
from cudal1_compile.generate.factory import make_generator
from cudal1_compile.generate.openai_client import OpenAIConfig, OpenAIGenerator
from cudal1_compile.generate.protocol import propose_within

Answer = tuple[int, Any]


class Server:
    """Answers every request with what `script` says; keeps the requests."""

    def __init__(self, script: Callable[[int, str, dict[str, Any]], Answer]) -> None:
        self.script = script
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    count = len(server.requests)
                    server.requests.append((self.path, body, dict(self.headers)))
                status, answer = server.script(count, self.path, body)
                raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(raw)))
                    self.end_headers()
                    self.wfile.write(raw)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client has gone, which some tests want

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"


@contextmanager
def serving(script: Callable[[int, str, dict[str, Any]], Answer]) -> Iterator[Server]:
    server = Server(script)
    thread = threading.Thread(target=server.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()


def chat(*texts: str | None) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": t}} for t in texts]}


def client(server: Server, **changes: Any) -> OpenAIGenerator:
    settings: dict[str, Any] = {"pause_s": 0.01, "timeout_s": 5.0}
    return OpenAIGenerator(OpenAIConfig(server.url, "m", **settings | changes))


def test_a_server_that_honours_n_is_asked_once() -> None:
    with serving(lambda i, path, body: (200, chat(*["reply"] * body["n"]))) as server:
        assert client(server).propose(["p"], 4, seed=7) == [["reply"] * 4]
        [(path, body, headers)] = server.requests
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "p"}]
    assert (body["model"], body["n"], body["seed"]) == ("m", 4, 7)
    assert "authorization" not in {h.lower() for h in headers}


def test_a_server_that_ignores_n_is_asked_again_with_other_seeds() -> None:
    with serving(lambda i, path, body: (200, chat(f"{body['messages'][0]['content']}{body['seed']}"))) as server:
        found = client(server).propose(["a", "b"], 3, seed=0)
        assert [len(set(g)) for g in found] == [3, 3]
        assert all(r.startswith(p) for p, g in zip("ab", found, strict=True) for r in g)
        assert len(server.requests) == 6


def test_plain_completions_and_empty_content() -> None:
    with serving(lambda i, path, body: (200, {"choices": [{"text": body["prompt"] + "!"}]})) as server:
        assert client(server, chat=False).propose(["p"], 1, 0) == [["p!"]]
        assert server.requests[0][0] == "/v1/completions"
    with serving(lambda i, path, body: (200, chat(None))) as server:
        assert client(server).propose(["p"], 1, 0) == [[""]]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_faults_are_retried(status: int) -> None:
    with serving(lambda i, path, body: (status, b"busy") if i < 2 else (200, chat("ok"))) as server:
        assert client(server).propose(["p"], 1, 0) == [["ok"]]
        assert len(server.requests) == 3


def test_retries_end_with_the_servers_words() -> None:
    with serving(lambda i, path, body: (503, b"no room")) as server:
        with pytest.raises(GeneratorError, match="did not answer: status 503: no room"):
            client(server, attempts=3).propose(["p"], 1, 0)
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (400, b"context too long", "status 400: context too long"),
        (404, b"nope", r"base_url must hold the version \(\.\.\./v1\)"),
        (200, b"<html>", "not JSON"),
        (200, {"error": "x"}, "without the field 'choices'"),
        (200, {"choices": []}, "without any choice"),
    ],
)
def test_other_faults_are_errors_at_once(status: int, answer: Any, message: str) -> None:
    with serving(lambda i, path, body: (status, answer)) as server:
        with pytest.raises(GeneratorError, match=message):
            client(server).propose(["p"], 1, 0)
        assert len(server.requests) == 1


def test_the_key_comes_from_the_named_variable_and_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-hidden")
    with serving(lambda i, path, body: (401, b"who?")) as server:
        generator = make_generator(f"{server.url}#model=m&key=MY_KEY")
        with pytest.raises(GeneratorError, match=r"the key in \$MY_KEY was refused") as caught:
            generator.propose(["p"], 1, 0)
        assert "sk-hidden" not in str(caught.value) + generator.name
        headers = {k.lower(): v for k, v in server.requests[0][2].items()}
        assert headers["authorization"] == "Bearer sk-hidden"
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(GeneratorError, match="variable MY_KEY holds no key"):
        make_generator("http://localhost:1/v1#model=m&key=MY_KEY")


def test_what_has_come_is_kept_when_a_later_request_fails() -> None:
    with serving(lambda i, path, body: (200, chat("first")) if i == 0 else (400, b"enough")) as server:
        assert client(server).propose(["p"], 3, 0) == [["first"]]


def test_a_hanging_server_ends_at_the_deadline() -> None:
    def hang(i: int, path: str, body: dict[str, Any]) -> Answer:
        time.sleep(20)
        return 200, chat("late")

    with serving(hang) as server:
        start = time.monotonic()
        with pytest.raises(GeneratorError, match="no answer within|time for this call"):
            propose_within(client(server), ["p"], 1, 0, limit_s=0.6)
        assert time.monotonic() - start < 3.0


def test_no_server_at_all() -> None:
    generator = OpenAIGenerator(OpenAIConfig("http://127.0.0.1:9/v1", "m", attempts=2, pause_s=0.01))
    with pytest.raises(GeneratorError, match=r"http://127\.0\.0\.1:9/v1"):
        generator.propose(["p"], 1, 0)
    with pytest.raises(GeneratorTimeout):
        generator.propose_until(["p"], 1, 0, time.monotonic() - 1)
    with pytest.raises(ValueError, match="expected http://"):
        OpenAIConfig("localhost", "m")
