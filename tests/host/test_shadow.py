"""Wrong kernels in the cache: found at their first use and by sampled calls, on the host target.

The judge would refuse them, so they are written into the cache past it: a right kernel of the cache gets another
launch that spoils one element. Kernels that are right but for one value pass the judge by themselves.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backend_reference import Calls, every_region  # noqa: F401  a fixture
from test_backend_compile import (  # noqa: F401  `fresh` is a fixture for every test here
    Fixed,
    OneReply,
    child_environment,
    compile_,
    forget,
    fresh,
    model,
)
from test_backend_semantics import CASES, Case, _copy, _gradients
from torch import Tensor

from cudal1_cache import Entry, Store
from cudal1_compile import call_check, cli, pipeline, registry, shadow
from cudal1_compile.shadow import Shadow

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


def sabotage(directory: Path) -> int:
    """Gives kernels of the cache one more launch; returns how many."""
    with Store.open(directory) as store:
        for entry in store.entries():
            launch = re.findall(r"^// launch: .*\n", entry.code, re.MULTILINE)[-1]
            code = entry.code.replace(launch, f"{launch}// launch: spoil<<<1, 1>>>(out0)\n") + SPOIL
            store.put_entry(replace(entry, code=code, image=b""))
        return len(store.entries())


def entries(directory: Path) -> list[Entry]:
    with Store.open(directory) as store:
        return [e for e in store.entries() if e.status == "kernel"]


def step(fn: Callable[..., Any], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().clone().requires_grad_()
    y = fn(x)
    y.square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def check_step(fast: Callable[..., Any], fn: Callable[..., Any] = model, rows: int = 32) -> None:
    x = torch.randn(rows, 64)
    torch.testing.assert_close(step(fast, x), step(fn, x), rtol=1e-4, atol=1e-4)


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "gave a wrong result" in r.getMessage()]


# the first use


def test_the_first_use_finds_wrong_kernels(
    cudal1_cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_step(compile_(OneReply()))
    assert sabotage(cudal1_cache_dir) == 2
    new_process(monkeypatch)
    compared: list[Any] = []
    prepare = call_check._prepare
    monkeypatch.setattr(call_check, "_prepare", lambda *args: compared.append(args) or prepare(*args))
    fast = compile_(OneReply(), on_miss="fallback")
    for _ in range(3):
        check_step(fast)
    assert len(compared) == 2, "of either kernel the first call"
    assert "hit 2" in capsys.readouterr().err, "the sabotaged entries are what ran"
    said = faults(caplog)
    assert len(said) == 2, "one warning a kernel, forward and backward"
    assert all(re.search(r"out0\[.*\] is \w+, expected .*; \d of \d+ elements are wrong", s) for s in said), said
    stored = entries(cudal1_cache_dir)
    for entry in stored:
        assert entry.is_refuted
        (line,) = [s for s in said if entry.entry_id[:12] in s]
        assert entry.fingerprint[:12] in line and f"cudal1 cache show {entry.entry_id[:12]}" in line
    assert cli.main(["cache", "show", stored[0].entry_id[:12]]) == 0
    assert "quarantined: refuted: out0[" in capsys.readouterr().out

    new_process(monkeypatch)
    check_step(compile_(OneReply(), on_miss="fallback"))
    assert "hit 0, new 0, no win 0, missed 2" in capsys.readouterr().err and len(faults(caplog)) == 2


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
        check_step(fast)
    assert caplog.text.count("could not be checked: MemoryError: planted") == 1 and not faults(caplog)


# sampled calls


@pytest.mark.parametrize("share", [0.5, pytest.param(0.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_sampled_call_finds_what_the_judge_cannot(
    share: float,
    dynamic: bool,
    cudal1_cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The kernel is written, judged and right at its first use. Later it runs no more, and is not taken again."""
    written = Fixed(ONCE, "<<<dim3(1, d0), d1>>>")
    monkeypatch.setattr(shadow, "OFFSET", 0.5)
    fast = compile_(written, shadow=share)  # at 0.5 calls 0, 2, 4, ... are checked

    def wrong_elements(call: int) -> int:
        x = torch.randn(32 + call * dynamic, 64)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        if call >= 2:
            x[0, 0] = 1234.5
        return int((fast(x) - model(x)).abs().gt(1e-3).sum())

    found = [wrong_elements(call) for call in range(6)]
    assert "new 1" in capsys.readouterr().err
    if not share:  # so that the rest shows something
        assert found == [0, 0, 1, 1, 1, 1] and not faults(caplog)
        return
    assert not any(found)
    assert len(faults(caplog)) == 1 and "out0[0, 7] is 77, expected 1" in faults(caplog)[0]
    assert entries(cudal1_cache_dir)[0].is_refuted
    new_process(monkeypatch)
    fast = compile_(written)
    assert wrong_elements(2) == 0
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


@pytest.mark.slow
def test_random_numbers_stay_the_same(every_region: Calls) -> None:  # noqa: F811
    def noisy(x: Tensor) -> Tensor:
        return F.dropout(torch.softmax(x, -1) * 2 + 1, 0.5)

    x = torch.randn(32, 64)
    found = []
    for share in (0.0, 1.0):
        torch._dynamo.reset()
        fast = compile_(OneReply(), noisy, shadow=share)
        fast(x)
        torch.manual_seed(7)
        found.append((step(fast, x), step(fast, x), torch.get_rng_state()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


# every call checked, over what a graph may do

QUICK = ("layer_norm", "mutation around", "dynamic")


@pytest.fixture
def spoilt(every_region: Calls, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:  # noqa: F811
    """Every kernel writes a wrong first element."""
    right = registry._load_or_reference

    def load(entry_id: str, device: torch.device, text: str) -> registry.KernelFunction:
        run = right(entry_id, device, text)

        def spoil(*args: Any) -> None:
            run(*args)
            args[0].view(-1)[:1] = 1

        return spoil

    monkeypatch.setattr(registry, "_load_or_reference", load)
    yield every_region


def _marked(case: Case) -> Any:
    return pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow)


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


@pytest.mark.parametrize("case", [_marked(c) for c in CASES])
def test_right_kernels_raise_no_alarm(
    case: Case,
    every_region: Calls,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_case(case)
    assert len(every_region) >= case.regions
    assert not faults(caplog) and "checked" not in caplog.text


@pytest.mark.parametrize("case", [_marked(c) for c in CASES])
def test_wrong_kernels_change_nothing(case: Case, spoilt: Calls, caplog: pytest.LogCaptureFixture) -> None:
    check_case(case)
    assert bool(faults(caplog)) == bool(spoilt.ran)


# two processes

USE = """
import logging, sys, torch
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from test_backend_compile import OneReply, compile_, model
fast = compile_(OneReply(), on_miss="fallback", shadow=1.0)
for _ in range(2):
    x = torch.randn(32, 64)
    torch.testing.assert_close(fast(x), model(x))
"""


@pytest.mark.slow
def test_two_processes_at_once_and_a_third(cudal1_cache_dir: Path) -> None:
    compile_(OneReply())(torch.randn(32, 64))
    assert sabotage(cudal1_cache_dir) == 1

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USE]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=child_environment())

    both = [start(), start()]
    said = [p.communicate(timeout=200)[1] for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    assert any("gave a wrong result" in s for s in said)
    assert all(("gave a wrong result" in s) == ("hit 1" in s) for s in said), said
    (entry,) = entries(cudal1_cache_dir)
    assert entry.is_refuted
    third = start()
    text = third.communicate(timeout=200)[1]
    assert third.returncode == 0 and "hit 0" in text and "gave a wrong result" not in text, text
