"""A process ends as its script does, whatever its threads are at."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from slow_cases import slow_but

from cudal1_compile.generate.daemons import wait_until

WORK = """
import os, signal, threading, time
import torch
from cudal1_compile.generate.errors import GeneratorTimeout
from cudal1_compile.generate.protocol import propose_within

began = threading.Event()

class Busy:
    name, budget_tokens = "test:busy", 1 << 20
    def propose(self, prompts, n, seed):
        own, x = began, torch.randn(400, 400)
        while True:
            x = (x @ x).tanh()
            own.set()

def ask(limit_s):
    propose_within(Busy(), ["a"], 1, 0, limit_s)

"""

ABANDONED = """
try:
    ask(0.5)
except GeneratorTimeout:
    began.wait()
    began = threading.Event()
"""

INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

def interrupt():
    began.wait()
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    ask(60)
except KeyboardInterrupt:
    began = threading.Event()
"""

# both processes end beside work in the background, the first one's
FORKED = """
from cudal1_compile.generate.daemons import start_daemon
start_daemon(lambda: ask(60), "cudal1-background")
began.wait()
if (child := os.fork()) == 0:
    raise SystemExit(0)
begin = time.monotonic()
assert os.waitpid(child, 0)[1] == 0
assert time.monotonic() - begin < 30  # not as long as the work, however busy the machine is
"""


SCRIPTS = {"abandoned": ABANDONED, "interrupted": INTERRUPTED, "forked": FORKED}
TOGETHER = {"one after the other": "".join(SCRIPTS.values())}


@pytest.mark.parametrize("name", slow_but(TOGETHER, TOGETHER | SCRIPTS))
def test_a_script_ends_while_a_generator_is_at_work(name: str) -> None:
    """Without daemons.py the process aborts: a thread that torch still runs cannot be taken down by Python."""
    script = (TOGETHER | SCRIPTS)[name]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WORK + script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_wait_ends_with_its_event_or_at_its_deadline() -> None:
    event = threading.Event()
    start = time.monotonic()
    assert not wait_until(event, start + 0.25) and 0.25 <= time.monotonic() - start < 1.0
    event.set()
    assert wait_until(event, start)
