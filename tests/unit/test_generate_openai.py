"""The client against a real HTTP server on this machine that speaks, and misspeaks, the OpenAI protocol."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cudal1_compile.generate.errors import GeneratorError, GeneratorTimeout
from cudal1_compile.generate.factory import make_generator
from cudal1_compile.generate.openai_client import OpenAIConfig, OpenAIGenerator
from cudal1_compile.generate.protocol import propose_within

Answer = tuple[int, Any]


@dataclass(frozen=True)
class Stream:
    """Bytes as they go over the wire: a head, then a piece again and again, with pauses, for a minute at most."""

    head: bytes
    piece: bytes
    pause_s: float = 0.0

    def send(self, write: Callable[[bytes], object]) -> None:
        write(self.head)
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            write(self.piece)
            time.sleep(self.pause_s)


BODY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
DRIPS = {
    "body": Stream(BODY, b" ", 0.2),
    "headers": Stream(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x", 0.2),
    "silence": Stream(BODY, b"", 60.0),
}


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
                try:
                    if isinstance(answer, Stream):
                        answer.send(self.wfile.write)
                        return
                    raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
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
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True)
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


@pytest.mark.parametrize("drip", DRIPS.values(), ids=DRIPS)
def test_a_dripping_server_ends_at_the_deadline(drip: Stream) -> None:
    with serving(lambda i, path, body: (200, drip)) as server:
        start = time.monotonic()
        with pytest.raises(GeneratorError, match=r"no answer within 0\.5 s"):
            client(server, timeout_s=0.5, attempts=1).propose(["p"], 1, 0)
        assert time.monotonic() - start < 1.0
        with pytest.raises(GeneratorError, match=r"no answer within|the time for this call is over"):
            client(server).propose_until(["p", "q"], 1, 0, start + 1.1)
        assert time.monotonic() - start < 1.6


def test_what_came_before_the_deadline_is_kept_beside_a_drip() -> None:
    def answer(i: int, path: str, body: dict[str, Any]) -> Answer:
        return (200, chat("quick")) if body["messages"][0]["content"] == "p" else (200, DRIPS["body"])

    with serving(answer) as server:
        assert client(server).propose_until(["q", "p"], 1, 0, time.monotonic() + 1.0) == [[], ["quick"]]


GIVES_UP = """
    import atexit, sys, time
    atexit.register(lambda: print(time.monotonic()))  # the last of all: what torch takes to go comes behind it
    from cudal1_compile.generate.errors import GeneratorError
    from cudal1_compile.generate.openai_client import OpenAIConfig, OpenAIGenerator
    from cudal1_compile.generate.protocol import propose_within

    class WithoutLimit:
        name, budget_tokens = "plain", 1000
        def __init__(self, generator):
            self.propose = generator.propose

    for url in sys.argv[1:]:
        generator = OpenAIGenerator(OpenAIConfig(url, "m"))
        for asked in (generator, WithoutLimit(generator)):
            try:
                propose_within(asked, ["p"], 1, 0, limit_s=0.3)
            except GeneratorError:
                gave_up = time.monotonic()
    print(gave_up)
"""


def test_a_finished_script_waits_for_no_server() -> None:
    """Whether the generator ends at the limit by itself or is left behind."""
    with ExitStack() as servers:
        urls = [servers.enter_context(serving(lambda i, path, body, d=d: (200, d))).url for d in DRIPS.values()]
        command = [sys.executable, "-c", textwrap.dedent(GIVES_UP), *urls]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        gave_up, ended = map(float, found.stdout.split())
        assert ended - gave_up < 1.0


def test_an_endless_answer_is_cut_off() -> None:
    with serving(lambda i, path, body: (200, Stream(BODY, b"x" * (1 << 16)))) as server:
        with pytest.raises(GeneratorError, match=r"with more than 589824 bytes: 2 replies have 589824 at most"):
            client(server, timeout_s=30.0).propose(["p"], 2, 0)
        assert len(server.requests) == 1


def test_an_encoded_answer_whose_length_nobody_knows_is_refused() -> None:
    head = BODY.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    refused = pytest.raises(GeneratorError, match="an answer in gzip, though it was asked for as it is")
    with serving(lambda i, path, body: (200, Stream(head, b"x"))) as server, refused:
        client(server).propose(["p"], 1, 0)


def test_a_nest_of_lists_is_no_answer() -> None:
    refused = pytest.raises(GeneratorError, match="not JSON")
    with serving(lambda i, path, body: (200, b"[" * 200_000)) as server, refused:
        client(server).propose(["p"], 1, 0)


def test_no_server_at_all() -> None:
    generator = OpenAIGenerator(OpenAIConfig("http://127.0.0.1:9/v1", "m", attempts=2, pause_s=0.01))
    with pytest.raises(GeneratorError, match=r"http://127\.0\.0\.1:9/v1"):
        generator.propose(["p"], 1, 0)
    with pytest.raises(GeneratorTimeout):
        generator.propose_until(["p"], 1, 0, time.monotonic() - 1)
    with pytest.raises(ValueError, match="expected http://"):
        OpenAIConfig("localhost", "m")
