"""Ctrl-C while kernels are written: a real SIGINT to a process and all that it started in its group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from test_backend_compile import child_environment

pytestmark = pytest.mark.host

MODEL = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
import torch
from test_backend_compile import OneReply, check, compile_

def both(x):
    return torch.softmax(x * 2, -1) + 1, torch.cumsum(x[:, :32].exp(), 1)

class Stops(OneReply):
    '''Writes kernels for one of the two regions, and junk for the other; what comes then takes for ever.'''

    def propose(self, prompts, n, seed):
        if self.calls:
            print("here", flush=True)
            while True:
                time.sleep(0.05)
        groups = super().propose(prompts, n, seed)
        return [["junk"] if "d1=32" in p else g for p, g in zip(prompts, groups)]

class Judged(OneReply):
    '''What it writes never ends.'''

    def propose(self, prompts, n, seed):
        groups = super().propose(prompts, n, seed)
        print("here", flush=True)
        return [[text.replace("{\\n", "{\\n  for (;;) {}\\n", 1) for text in g] for g in groups]

x = torch.randn(32, 64)
for generator in (Stops(), Judged()):
    torch.compiler.reset()  # kernels are written again
    for got, expected in zip(compile_(generator, both)(x), both(x)):
        torch.testing.assert_close(got, expected)
    compile_(generator, lambda x: x.exp().sum(-1) * 3)(x)  # nothing is written for it
    print("done", flush=True)
time.sleep(600)
"""


def test_the_first_ends_synthesis_and_the_second_the_program() -> None:
    """While the generator is at work, then while a kernel is judged that never ends."""
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", MODEL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=child_environment(),
    )
    late = threading.Timer(200.0, child.kill)
    late.start()
    assert child.stdout is not None and child.stderr is not None
    said = ""
    try:
        for wait_s in (0.0, 2.0):
            assert child.stdout.readline() == "here\n"
            time.sleep(wait_s)
            begun_s = time.monotonic()
            os.killpg(child.pid, signal.SIGINT)
            said += _until(child.stderr.readline, lambda line: line.startswith("interrupted: no more kernels"))
            assert time.monotonic() - begun_s < 3.0  # 0.2 s on a machine without other work
            assert child.stdout.readline() == "done\n"
        os.killpg(child.pid, signal.SIGINT)
        _, rest = child.communicate()
    finally:
        late.cancel()
        child.kill()
    assert child.returncode != 0 and "KeyboardInterrupt" in rest
    assert "Traceback" not in said
    lines = [*said.splitlines(), *rest.partition("Traceback")[0].splitlines()]
    after = [line for line in lines if line.startswith("cudal1: regions:")]
    assert [line.partition(", untuned")[0] for line in after] == [
        "cudal1: regions: 2, hit 0, new 1, unprofitable 0",
        "cudal1: regions: 1, hit 0, new 0, unprofitable 0",
        "cudal1: regions: 2, hit 1, new 0, unprofitable 0",
        "cudal1: regions: 1, hit 0, new 0, unprofitable 0",
    ], after


def _until(read: Callable[[], str], is_last: Callable[[str], bool]) -> str:
    """Everything up to that line."""
    said = ""
    while line := read():
        said += line
        if is_last(line):
            return said
    raise AssertionError(f"the process ended before it said so:\n{said}")
