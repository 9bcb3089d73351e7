"""One judge, two worker processes: a candidate that hangs or crashes costs its own worker, the others go on."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.redteam.honest import HONEST, SILU_SCALAR
from benchmarks.redteam.regions import region
from cudal1_compile.judge.bench import device as device_bench
from cudal1_compile.judge.bench.device import DeviceBench
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox.device_lock import LockFiles, let_go
from cudal1_compile.judge.sandbox.process import Worker
from cudal1_compile.judge.verdict import Accepted, Rejected, Verdict
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime import host_load
from cudal1_compile.runtime.build import Binary, build
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

pytestmark = pytest.mark.host

HANGS = SILU_SCALAR.replace("float t =", "for (volatile int i = 0; i < 2;) i = 0; float t =")
CRASHES = SILU_SCALAR.replace("float t =", "if (i == 0) *(volatile int*)8 = 1; float t =")
WRONG = SILU_SCALAR.replace("float t =", "float t = 0.5f +")


REQUEST_S = 4.0


@pytest.fixture()
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DeviceBench]:
    def built(program: Program, candidate: Candidate, *_: object, **__: object) -> Binary:
        return build(program, candidate, HOST)

    monkeypatch.setattr(device_bench, "build", built)
    host_load.functions()  # built here: a request's time is for the request
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(device_bench, "uuid_of", lambda _: "GPU-0")
    limits = Limits(workers=2, build_threads=2, request_s=REQUEST_S, inductor=False)
    made = DeviceBench(HOST, limits, 0, partial(Worker, "tests.host_worker"))
    yield made
    made.close()


def _honest(name: str) -> list[tuple[Program, str]]:
    return [(region(h.region), h.code) for h in HONEST if h.region == name][:2]


def _judged(bench: DeviceBench, tasks: list[tuple[Program, str]]) -> list[Verdict]:
    futures = bench.submit([(p, parse_candidate(code, p)) for p, code in tasks], seed=7)
    return [future.result(120.0) for future in futures]


def _both_up(bench: DeviceBench) -> None:
    end = time.monotonic() + 90.0
    while bench.workers < 2 and time.monotonic() < end:
        verdicts = _judged(bench, [*_honest("silu"), *_honest("column_sum")])
        assert all(isinstance(v, Accepted) for v in verdicts), verdicts
    assert bench.workers == 2


def test_candidates_that_end_a_worker_cost_the_others_nothing(bench: DeviceBench) -> None:
    _both_up(bench)
    silu, softmax = region("silu"), _honest("softmax")
    bad = [(silu, code) for code in (CRASHES, HANGS, WRONG)]
    crash, hang, wrong, *right = _judged(bench, [*bad, (silu, SILU_SCALAR), *softmax])
    assert isinstance(crash, Rejected) and "died" in crash.reason
    assert isinstance(hang, Rejected) and "in time" in hang.reason
    assert isinstance(wrong, Rejected) and "out0" in wrong.reason
    assert all(isinstance(v, Accepted) and v.proof.timing is not None for v in right), right
    homes = [bench._work.homes[print_program(p)] for p in (silu, softmax[0][0])]
    assert homes[0] is not homes[1]
    # what does not end in time beside another worker is tried once more alone
    assert bench.counts["worker restarts"] >= 3
    assert bench.isolation["dies_with_parent"]
    assert bench.spent_s["waited for the device"] > 0  # nothing was timed beside the kernel that hangs


def test_what_another_judge_holds_up_beyond_a_limit_gets_its_verdict(bench: DeviceBench) -> None:
    _judged(bench, _honest("silu")[:1])  # a worker is up
    files = LockFiles("GPU-0")
    descriptors = files.descriptors()
    threading.Timer(1.2 * REQUEST_S, let_go, [descriptors]).start()  # its hung worker is killed then
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    (verdict,) = _judged(bench, _honest("silu")[:1])
    assert isinstance(verdict, Accepted) and verdict.proof.timing is not None
    assert bench.spent_s["waited for the device"] > 0
    assert bench.counts["worker restarts"] == 0
    files.close()


def test_case_suites_are_made_beside_the_workers(bench: DeviceBench) -> None:
    _judged(bench, _honest("silu"))  # starts the process that makes them
    program = region("layernorm")
    bench._suites.begin(bench._suite_requests([program], seed=7))
    suite = Path(bench._suites._asked[print_program(program)].result(60.0)["suite"])
    assert suite.exists()
    assert all(isinstance(v, Accepted) for v in _judged(bench, _honest("layernorm")))
    end = time.monotonic() + 10.0
    while suite.exists() and time.monotonic() < end:  # a worker has read it
        time.sleep(0.01)
    assert not suite.exists()
    assert not bench._suite_requests([program], seed=7)
