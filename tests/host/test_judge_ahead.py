"""Inductor's baseline compiled ahead, in a process of its own: the second compile is a hit in torch's caches."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
import torch
from torch._inductor import config
from torch._inductor.fx_passes import pad_mm

from benchmarks.redteam.regions import region
from cudal1_compile.judge.bench import prefetch
from cudal1_compile.judge.bench.prefetch import Prefetch, warm_ups
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.sandbox.isolation import worker_environment
from cudal1_compile.judge.sandbox.process import Worker, WorkerLost
from cudal1_compile.judge.timing.baseline import either_padding
from cudal1_fx_passes.program.text import parse_program, print_program

PRODUCT = """region v1
dims d0=8 d1=24 d2=8
in0 f32[d0,d1]
in1 f32[d1,d2]
t0 f32[d0,d2] = dot(in0, in1) over d1
out0 f32[d0,d2] = t0
"""
CONVOLUTION = """region v1
dims d0=2 d1=8 d2=8 d3=8 d4=16 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d4,d3,k0,k1]
t0 f32[d0,d1,d2,d4] = dot_tf32(in0[d1=d1+k0-1, d2=d2+k1-1], in1) over d3,k0,k1
t1 f32[d4] = sum(t0) over d0,d1,d2
out0 f32[d0,d1,d2,d4] = t0
out1 f32[d4] = t1
"""
GRADIENTS = """region v1
dims d0=128 d1=16 d2=8 d3=8
in0 f32[d0,d2]
in1 f32[d0,d1]
in2 f32[d1,d3]
t0 f32[d1,d2] = dot_tf32(in0, in1) over d0
t1 f32[d0,d3] = dot_tf32(in2, in1) over d1
out0 f32[d1,d2] = t0
out1 f32[d0,d3] = t1
"""
STRIDED = """region v1
dims d0=8 d1=24
in0 f32[d0,d1] strides(48,2)
t0 i64[d1] = iota() along d1
t1 f32[d1] = cast(t0)
t2 f32[d0,d1] = mul(in0, t1)
out0 f32[d0,d1] = t2
"""


# what the judge's worker does with a region, in an environment like its own
WORKER = """
import sys, torch
from torch._dynamo.utils import counters
from cudal1_compile.judge.timing.baseline import allow_products_in_tf32, inductor_baselines
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.text import parse_program
if sys.argv[1] == "True":
    allow_products_in_tf32()
for text in sys.argv[2:]:
    program = parse_program(text)
    inputs = make_inputs(program, "normal", 1, torch.device("cpu"))
    with torch.no_grad():
        (call,) = inductor_baselines(program, torch.device("cpu"), inputs)
        got = call(inputs)
    slack = 0.2 if "dot_tf32" in text else 1e-5  # a CPU's convolution does not round its operands
    torch.testing.assert_close(list(got), list(evaluate(program, inputs)), rtol=1e-4, atol=slack)
print(counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("scalar")
@pytest.mark.parametrize("in_tf32", [False, True])
def test_the_workers_compile_is_a_hit_where_the_region_was_compiled_ahead(tmp_path: Path, in_tf32: bool) -> None:
    ahead = Worker(compiled=tmp_path)
    known = [next(warm_ups()), *map(parse_program, (STRIDED, PRODUCT, CONVOLUTION, GRADIENTS))]
    for program in known:
        request = wire.compile_request(program, "cpu", products_in_tf32=in_tf32)
        assert "why_not" not in ahead.ask(request, 120.0)
    ahead.kill()
    texts = [print_program(program) for program in (*known, region("silu"))]
    environment = dict(worker_environment(tmp_path, tmp_path))
    command = [sys.executable, "-c", WORKER, str(in_tf32), *texts]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert done.stdout.split() == [b"5", b"1"], done.stderr.decode()


class _Slow:
    """A process whose answers wait for `may_end`; `stop` loses it."""

    def __init__(self) -> None:
        self.alive = True
        self.asked: list[str] = []
        self.begun, self.may_end = threading.Event(), threading.Event()

    def ask(self, message: wire.Message, limit_s: float) -> wire.Message:
        self.asked.append(message["program"])
        self.begun.set()
        assert self.may_end.wait(10.0)
        if not self.alive:
            raise WorkerLost("stopped")
        return {}

    def stop(self) -> None:
        self.alive = False
        self.may_end.set()

    def kill(self) -> None:
        self.alive = False


def _prefetch(worker: _Slow) -> Prefetch:
    return Prefetch(lambda: cast(Worker, worker), processes=1)


def _requests(*names: str) -> list[wire.Message]:
    return [wire.compile_request(region(name), "cuda:0") for name in names]


def test_what_has_begun_is_waited_for_and_what_has_not_is_left_to_the_worker() -> None:
    worker = _Slow()
    ahead = _prefetch(worker)
    ahead.begin(_requests("softmax", "silu", "layernorm"))
    assert worker.begun.wait(10.0)
    assert not ahead.wait(region("silu"))  # not begun: no waiting
    assert not ahead.wait(region("softmax"), limit_s=0.01)
    ahead.begin(_requests("argmax"))  # drops the layernorm
    worker.may_end.set()
    ahead.wait(region("softmax"))
    ahead.wait(region("argmax"))
    ahead.close()
    assert worker.asked[0] == print_program(region("softmax"))
    assert set(worker.asked[1:]) <= {print_program(region("argmax"))}


def test_each_process_is_warmed_up_with_a_region_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "usable_cores", lambda: 4)
    workers = [_Slow() for _ in range(3)]
    waiting = list(workers)
    ahead = Prefetch(lambda: cast(Worker, waiting.pop()), processes=3)
    ahead.warm(wire.compile_request(p, "cuda:0") for p in warm_ups())
    for worker in workers:
        assert worker.begun.wait(10.0)
    for worker in workers:
        worker.may_end.set()
    ahead.close()
    assert len({text for worker in workers for text in worker.asked}) == 3


def test_where_inductor_would_measure_a_padding_both_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU whose vectors do not divide the sizes of a long product."""
    monkeypatch.setattr(pad_mm, "can_pad", lambda *_: config.shape_padding)
    monkeypatch.setattr(pad_mm, "is_mm_compute_bound", lambda *_: True)
    monkeypatch.setattr(pad_mm, "should_pad_bench_key", lambda *_: "the product")
    a, b = torch.ones(5, 7), torch.ones(7, 9)
    pads = either_padding(lambda: pad_mm.should_pad(Mock(), a, b, torch.ops.aten.mm))
    assert pads == [False, True]


def test_closing_ends_a_compile_in_its_middle() -> None:
    worker = _Slow()
    ahead = _prefetch(worker)
    ahead.begin(_requests("softmax", "silu"))
    assert worker.begun.wait(10.0)
    ahead.close()
    assert not worker.alive
    assert len(worker.asked) == 1


@pytest.mark.usefixtures("scalar")
def test_a_region_that_does_not_compile_costs_the_process_nothing(tmp_path: Path) -> None:
    ahead = Worker(compiled=tmp_path)
    reply = ahead.ask(wire.compile_request(region("silu"), "xla"), 120.0)
    assert reply["why_not"]
    assert ahead.alive
    assert "why_not" not in ahead.ask(wire.compile_request(region("silu"), "cpu"), 120.0)
    ahead.kill()
