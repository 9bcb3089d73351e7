"""Two processes that miss the same regions of one cache: nobody writes twice; a killed one is replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from judge_checks import softmax

from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.runtime import host_load
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint
from cudal1_fx_passes.program.text import parse_program

pytestmark = pytest.mark.host

# argv: how, and the rows of each region. Says what it asks the generator for, when it waits, and how it ended
PROCESS = """
import json, os, re, sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from judge_checks import softmax
from softmax_kernels import as_reply, code
from synthesis_doubles import ScriptedGenerator
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.rounds import synthesize_all
from cudal1_compile.synthesis.progress import Waiting
from cudal1_fx_passes.program.text import parse_program

def say(what):
    print(json.dumps(what), flush=True)

def reply(call, prompts, n):
    say({{"asked": [int(re.search(r"d0=(\\d+)", p)[1]) for p in prompts]}})
    if sys.argv[1] == "hangs":
        time.sleep(600)
    if sys.argv[1] != "writes":  # a folder, in which two meet, each with a region at hand
        Path(sys.argv[1], str(os.getpid())).touch()
        while len(os.listdir(sys.argv[1])) < 2:
            time.sleep(0.05)
    return [[as_reply(code())] for _ in prompts]

def progress(event):
    if isinstance(event, Waiting):
        say({{"waits": event.regions}})

programs = [parse_program(softmax(int(rows), 96)) for rows in sys.argv[2:]]
budget = Budget(seconds=240, rounds=1, samples_per_round=1, regions_at_once=1)
with open_store() as store, Judge(HOST, Limits(build_threads=1)) as judge:
    found = synthesize_all(
        programs, ScriptedGenerator(reply), judge, store, budget, progress,
        found=lambda name: store.find_entry(name, HOST.key),
    )
say({{"ended": [type(o.result).__name__ for o in found]}})
"""
TESTS = Path(__file__).parents[1]
SCRIPT = PROCESS.format(paths=[str(p) for p in (TESTS.parent, TESTS, TESTS / "host", TESTS / "unit")])


@contextmanager
def process(how: str, *rows: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SCRIPT, how, *map(str, rows)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        try:
            yield started
        finally:
            started.kill()


def hear(started: subprocess.Popen[str], what: str) -> list[dict[str, list[int]]]:
    """Everything it says until that, which comes last."""
    assert started.stdout is not None
    said: list[dict[str, list[int]]] = []
    for line in started.stdout:
        said.append(json.loads(line))
        if what in said[-1]:
            return said
    raise AssertionError(f"it ended without {what!r}: {said}")


def asked(said: list[dict[str, list[int]]]) -> list[int]:
    return [rows for one in said for rows in one.get("asked", ())]


def names(*rows: int) -> list[str]:
    return [fingerprint(canonicalise(parse_program(softmax(n, 96)))) for n in rows]


@pytest.fixture(autouse=True)
def host_runtime() -> None:
    host_load.functions()  # built once, not by each process


@pytest.mark.slow
def test_each_region_is_written_by_one_and_both_have_all_entries() -> None:
    with process("writes", 4, 6, 8) as one, process("writes", 6, 8, 10) as another:
        first, second = hear(one, "ended"), hear(another, "ended")
    assert first[-1] == second[-1] == {"ended": ["Won"] * 3}
    assert Counter(asked(first) + asked(second)) == {4: 1, 6: 1, 8: 1, 10: 1}
    with open_store() as store:
        assert store.stats(HOST.key).kernels == 4


def test_two_that_have_the_same_regions_share_them(tmp_path: Path) -> None:
    rows = (4, 6, 8, 10, 12)
    with process(str(tmp_path), *rows) as one, process(str(tmp_path), *rows) as another:
        first, second = hear(one, "ended"), hear(another, "ended")
    assert first[-1] == second[-1] == {"ended": ["Won"] * len(rows)}
    assert asked(first) and asked(second)
    assert Counter(asked(first) + asked(second)) == dict.fromkeys(rows, 1)
    with open_store() as store:
        assert [len(store.attempts(name, HOST.key)) for name in names(*rows)] == [1] * len(rows)


def test_what_a_killed_process_was_writing_is_taken_over() -> None:
    with process("hangs", 4, 6) as one:
        (hers,) = asked(hear(one, "asked"))
        with process("writes", 4, 6) as another:
            waits = hear(another, "waits")
            assert asked(waits) == [10 - hers] and waits[-1] == {"waits": 1}
            one.kill()
            said = hear(another, "ended")
    assert asked(said) == [hers] and said[-1] == {"ended": ["Won"] * 2}
