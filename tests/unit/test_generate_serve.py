"""The client against `transformers serve`, a real OpenAI-compatible server, with a tiny random Llama."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from generate_models import make_checkpoint

from cudal1_compile.generate.openai_client import OpenAIConfig, OpenAIGenerator

NEEDED = ("fastapi", "uvicorn", "openai")
START_S = 90.0

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED),
    reason="transformers[serving] is not installed",
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    place = tmp_path_factory.mktemp("served")
    make_checkpoint(place / "model", chat=True)
    with serve(place / "model") as address:
        yield address, str(place / "model")


@contextmanager
def serve(model: Path) -> Iterator[str]:
    """The address of a server that has this checkpoint loaded."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [str(Path(sys.executable).parent / "transformers"), "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = dict(os.environ, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2", CUDA_VISIBLE_DEVICES="")
    path = model.with_name(model.name + ".log")
    with path.open("w") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        _wait(server, f"http://127.0.0.1:{port}/health", path)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(address, timeout=2.0).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.3)
    raise AssertionError(f"the server was not ready within {START_S:.0f} s: {log.read_text()[-2000:]}")


@pytest.mark.slow  # in every run: test_generate_openai, with servers of its own
def test_n_replies_come_from_a_server_that_ignores_n(url: tuple[str, str]) -> None:
    base, model = url
    generator = OpenAIGenerator(OpenAIConfig(base, model, max_tokens=12))
    found = generator.propose(["region v1\ndims d0=4\n", "## Code"], 3, seed=1)
    assert [len(group) for group in found] == [3, 3]
    assert all(isinstance(reply, str) for group in found for reply in group)
    assert any(reply for group in found for reply in group)
