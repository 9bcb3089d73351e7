"""Wrong kernels in the cache: found at their first use and by sampled calls, on the host target.

The judge would refuse them, so they come into the cache past it: a right kernel of the cache gets another
launch, which spoils one element. A kernel that is right but for one value passes the judge by itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backend_reference import Calls, every_region  # noqa: F401  a fixture
from slow_cases import slow_but
from test_backend_compile import (  # noqa: F401  `fresh` is a fixture for every test here
    Fixed,
    OneReply,
    check,
    child_environment,
    compile_,
    forget,
    fresh,
    model,
)
from test_backend_semantics import CASES, Case, _copy, _gradients

from cudal1_cache import Entry
from cudal1_compile import cli
from cudal1_compile.dispatch import call_check, registry
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline import shadow
from cudal1_compile.pipeline.shadow import Shadow
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.validity import own_id

pytestmark = pytest.mark.host

SPOIL = "__global__ void spoil(f32* out0 DIMS) { out0[3] = 77.0f; }"
# right but for one value, which no proof has
ONCE = """
const int at = blockIdx.y * d1 + threadIdx.x;
const float x = ld(in0 + at) * 2.0f;
const float e = expf(x - block_max(x));
const float sum = block_sum(e);
st(out0 + at, ld(in0) == 1234.5f && at == 7 ? 77.0f : e / sum + 1.0f);
"""


@pytest.fixture(autouse=True)
def nothing_refuted(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    new_process(monkeypatch)


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    monkeypatch.setattr(registry, "_refuted", set())
    call_check._say.cache_clear()


@pytest.fixture(scope="module")
def wrong_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a kernel for `model` that was right until it got one more launch."""
    directory = tmp_path_factory.mktemp("sabotaged")
    torch._dynamo.reset()
    compile_(OneReply(), cache_dir=directory)(torch.randn(32, 64))
    with open_store(directory) as store:
        (entry,) = store.entries()
        launch = re.findall(r"^// launch: .*\n", entry.code, re.MULTILINE)[-1]
        code = entry.code.replace(launch, f"{launch}// launch: spoil<<<1, 1>>>(out0)\n") + SPOIL
        region = store.get_region(entry.fingerprint)
        assert region is not None
        spoilt = replace(entry, code=code, image=b"")
        store.put_entry(replace(spoilt, entry_id=own_id(spoilt, region.text, HOST)))
        store.database.write(
            lambda db: db.execute("delete from entries where entry_id = ?", [entry.entry_id]).rowcount
        )
    return directory


@pytest.fixture
def sabotaged(wrong_kernel: Path, cudal1_cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(wrong_kernel, cudal1_cache_dir)
    new_process(monkeypatch)
    return cudal1_cache_dir


def entries(directory: Path) -> list[Entry]:
    with open_store(directory) as store:
        return [e for e in store.entries() if e.status == "kernel"]


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "gave a wrong result" in r.getMessage()]


# the first use


def test_the_first_use_finds_a_wrong_kernel(
    sabotaged: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compared: list[Any] = []
    prepare = call_check._prepare
    monkeypatch.setattr(call_check, "_prepare", lambda *args: compared.append(args) or prepare(*args))
    fast = compile_(OneReply(), on_miss="fallback")
    for _ in range(3):
        check(fast)
    assert "hit 1" in capsys.readouterr().err and len(compared) == 1, "the first call of the sabotaged kernel"
    (said,), (entry,) = faults(caplog), entries(sabotaged)
    assert re.search(r"out0\[0, 3\] is 77, expected .* within .*; 1 of 2048 elements are wrong", said), said
    assert entry.entry_id[:12] in said and entry.fingerprint[:12] in said
    assert f"cudal1 cache show {entry.entry_id[:12]}" in said
    assert cli.main(["cache", "show", entry.entry_id[:12]]) == 0
    assert "quarantined: refuted: out0[0, 3] is 77" in capsys.readouterr().out


def test_a_comparison_that_fails_is_said_once(
    every_region: Calls,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: Any, **settings: Any) -> Any:
        raise MemoryError("planted")

    monkeypatch.setattr(call_check, "make_case", fail)
    fast = compile_(OneReply(), shadow=1.0)
    for _ in range(2):
        check(fast)
    assert caplog.text.count("could not be checked: MemoryError: planted") == 1 and not faults(caplog)


# sampled calls


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_sampled_call_finds_what_the_judge_cannot(
    dynamic: bool,
    cudal1_cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The kernel is written, judged and right at its first use. Later it runs no more, and is not taken again."""
    written = Fixed(ONCE, "<<<dim3(1, d0), d1>>>")
    monkeypatch.setattr(shadow, "OFFSET", 0.5)
    fast = compile_(written, shadow=0.5)  # calls 0, 2, 4, ... are checked

    def wrong_elements(call: int) -> int:
        x = torch.randn(32 + call * dynamic, 64)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        if call >= 1:
            x[0, 0] = 1234.5
        return int((fast(x) - model(x)).abs().gt(1e-3).sum())

    found = [wrong_elements(call) for call in range(6)]
    assert found == [0, 1, 0, 0, 0, 0], "wrong in the call that is not checked, until one is"
    assert "new 1" in capsys.readouterr().err
    assert len(faults(caplog)) == 1 and "out0[0, 7] is 77, expected 1" in faults(caplog)[0]
    assert entries(cudal1_cache_dir)[0].reason.startswith("refuted")
    if dynamic:
        return
    new_process(monkeypatch)
    fast = compile_(written)
    assert wrong_elements(1) == 0
    assert "hit 0, new 0" in capsys.readouterr().err and len(faults(caplog)) == 1


def test_off_is_what_it_was(every_region: Calls, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    made: list[Any] = []
    returned: list[Any] = []
    compile_fx, finish = pipeline.compile_fx, pipeline.Pipeline.finish
    monkeypatch.setattr(pipeline, "compile_fx", lambda *a, **k: made.append(compile_fx(*a, **k)) or made[-1])
    monkeypatch.setattr(pipeline.Pipeline, "finish", lambda *a: returned.append(finish(*a)) or returned[-1])
    x = torch.randn(32, 64)
    compile_(OneReply())(x)
    assert len(made) == len(returned) == 1 and returned[0] is made[0], "Inductor's own callable"
    torch._dynamo.reset()
    compile_(OneReply(), shadow=0.5)(x)
    assert len(made) == 3 and isinstance(returned[1], Shadow)


class Counts:
    """A stand-in for a compiled graph."""

    def __init__(self) -> None:
        self.at: list[int] = []

    def __call__(self, n: int) -> None:
        self.at.append(n)


@pytest.mark.parametrize(("share", "offset", "first"), [(0.01, 0.0, 99), (0.01, 0.5, 49), (0.25, 0.99, 0)])
def test_the_share(share: float, offset: float, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "OFFSET", offset)
    plain, checked = Counts(), Counts()
    run = Shadow(plain, checked, share, [], torch.device("cpu"), None, False)
    for n in range(1000):
        run(n)
    assert checked.at == list(range(first, 1000, round(1 / share)))
    assert sorted(plain.at + checked.at) == list(range(1000))


def test_all_and_none() -> None:
    for share, expected in ((1.0, 1000), (0.0, 0)):
        checked = Counts()
        run = Shadow(Counts(), checked, share, [], torch.device("cpu"), None, False)
        for n in range(1000):
            run(n)
        assert len(checked.at) == expected


def test_recorded_graphs_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA graphs and no way to compile again the checked graph stays."""
    plain, checked, fresh_graph = Counts(), Counts(), Counts()
    monkeypatch.setattr(registry, "_refuted", set())
    stuck = Shadow(plain, checked, 0.0, ["e"], torch.device("cpu"), None, True)
    again = Shadow(plain, checked, 1.0, ["e"], torch.device("cpu"), lambda args: fresh_graph, True)
    registry._refuted.add("e")
    for n in range(3):
        stuck(n)
        again(n + 10)
    assert (plain.at, checked.at, fresh_graph.at) == ([], [0, 1, 2], [10, 11, 12])


def test_random_numbers_stay_the_same(every_region: Calls) -> None:  # noqa: F811
    x = torch.randn(32, 64)
    found = []
    for share in (0.0, 1.0):
        torch._dynamo.reset()
        fast = compile_(OneReply(), lambda x: F.dropout(torch.softmax(x, -1) * 2 + 1, 0.5), shadow=share)
        torch.manual_seed(7)
        found.append((fast(x), fast(x), torch.get_rng_state()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


# every call checked, over what a graph may do

NAMES = ("mutation around", "autocast", "dynamic")  # the others pass too, and cost a minute


@pytest.fixture
def spoilt(every_region: Calls, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:  # noqa: F811
    """Every kernel writes a wrong first element."""
    right = registry._load_or_reference

    def load(entry_id: str, device: torch.device, text: str) -> registry.KernelFunction:
        run = right(entry_id, device, text)

        def spoil(*args: Any) -> None:
            run(*args)
            args[0].as_strided((1,), (1,)).fill_(1)  # the first element, however it is laid out

        return spoil

    monkeypatch.setattr(registry, "_load_or_reference", load)
    yield every_region


def check_case(case: Case) -> None:
    options = {"target": "host", "shadow": 1.0}
    fast = torch.compile(case.fn, backend="cudal1", options=options, dynamic=case.dynamic)
    for run in range(case.runs):
        torch.manual_seed(run)
        ours = case.make()
        theirs = tuple(_copy(t) for t in ours)
        with case.context():
            expected, got = case.fn(*theirs), fast(*ours)
        torch.testing.assert_close(got, expected)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.detach(), b.detach())
        if case.grad:
            torch.testing.assert_close(_gradients(got, ours), _gradients(expected, theirs), rtol=1e-5, atol=1e-4)


def test_right_kernels_raise_no_alarm(every_region: Calls, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    check_case(CASES[0])
    assert len(every_region) >= 2 and not faults(caplog) and "checked" not in caplog.text


SPOILT = [next(c for c in CASES if c.name == name) for name in NAMES]


@pytest.mark.parametrize("case", slow_but(SPOILT[:1], SPOILT), ids=lambda c: c.name)
def test_wrong_kernels_change_nothing(case: Case, spoilt: Calls, caplog: pytest.LogCaptureFixture) -> None:
    check_case(case)
    assert spoilt.ran and faults(caplog)


# two processes

USE = """
import logging, torch
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from test_backend_compile import OneReply, check, compile_
fast = compile_(OneReply(), on_miss="fallback", shadow=1.0)
for _ in range(2):
    check(fast)
"""


def test_another_process_at_the_same_time_and_a_later_one(
    sabotaged: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (written,) = entries(sabotaged)
    command = [sys.executable, "-c", USE]
    other = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=child_environment())
    fast = compile_(OneReply(), on_miss="fallback")
    for _ in range(2):
        check(fast)
    theirs, ours = other.communicate(timeout=200)[1], capsys.readouterr().err
    assert other.returncode == 0, theirs
    assert len(faults(caplog)) == ("hit 1" in ours) and theirs.count("gave a wrong result") == ("hit 1" in theirs)
    assert "hit 1" in ours + theirs
    with open_store(sabotaged) as store:
        store.put_entry(written)  # as a process does that judged it long ago
    new_process(monkeypatch)
    check(compile_(OneReply(), on_miss="fallback"))
    assert "hit 0, new 0, unprofitable 0, untuned 1" in capsys.readouterr().err
