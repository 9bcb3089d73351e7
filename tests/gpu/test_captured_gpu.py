"""Recorded graphs on a GPU: nothing of a recording reaches the caller; what cannot be recorded runs as it is."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captures import Layers, batch, compiled
from torch import Tensor, nn

from cudal1_compile.pipeline import captured, choice
from cudal1_compile.pipeline.captured import WARM_UP_CALLS, Captured, CudaDevice
from cudal1_compile.pipeline.process_state import last_plans

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh")]

EXACT = {"rtol": 1e-5, "atol": 1e-5}


@torch.no_grad()
def test_outputs_stay_and_weights_may_change(recorded: list[Captured]) -> None:
    model = Layers().cuda().eval()
    fast, xs = compiled(model), [batch() for _ in range(12)]
    outs = [fast(x) for x in xs]
    for x, out in zip(xs, outs, strict=True):
        torch.testing.assert_close(out, model(x), **EXACT)
    model.layers[0].weight.mul_(1.5)
    torch.testing.assert_close(fast(xs[0]), model(xs[0]), **EXACT)
    model.layers[1].weight = nn.Parameter(model.layers[1].weight * 0.5)
    model.load_state_dict({k: v * 1.01 if v.is_floating_point() else v for k, v in model.state_dict().items()})
    for x in xs[: WARM_UP_CALLS + 3]:
        torch.testing.assert_close(fast(x), model(x), **EXACT)
    assert recorded and all(r.why_not == "" and r._recordings for r in recorded)


@torch.no_grad()
def test_a_copy_of_the_model_and_another_batch_size_are_recorded_apart(recorded: list[Captured]) -> None:
    model = Layers().cuda().eval()
    other = copy.deepcopy(model)
    for p in other.parameters():
        p.mul_(0.5)
    fast, slow = compiled(model), compiled(other)
    for i in range(10):
        x = batch(8 if i % 2 else 48)
        torch.testing.assert_close(fast(x), model(x), **EXACT)
        torch.testing.assert_close(slow(x), other(x), **EXACT)


@torch.no_grad()
def test_streams_and_threads_share_a_recording(recorded: list[Captured]) -> None:
    model = Layers(256, 12).cuda().eval()
    fast, x = compiled(model), batch(512, 256)
    for _ in range(WARM_UP_CALLS + 2):
        fast(x)
    torch.cuda.synchronize()
    failures: list[str] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            xs = [batch(512, 256) for _ in range(30)]
            outs = [fast(x) for x in xs]
            stream.synchronize()
            for x, out in zip(xs, outs, strict=True):
                if not torch.allclose(out, model(x), rtol=1e-4, atol=1e-4):
                    failures.append("another call's result")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(recorded) == 1 and recorded[0].why_not == ""


def test_a_recording_that_fails_leaves_the_device_as_it_was() -> None:
    device, x = CudaDevice(torch.device("cuda", 0)), batch()
    torch.manual_seed(7)
    expected = batch()
    for _ in range(3):
        torch.manual_seed(7)
        with pytest.raises(RuntimeError):
            device.record(lambda: [x * float(x.sum())])
        with pytest.raises(RuntimeError):
            device.record(lambda: [x + torch.randn_like(x)])
        assert batch().equal(expected)
    ((replay, (y,)),) = device.record(lambda: [x * 2.0])
    replay()
    assert y.equal(x * 2.0) and batch().shape == x.shape


def test_other_threads_draw_while_graphs_are_recorded() -> None:
    device, x, is_over, failures = CudaDevice(torch.device("cuda", 0)), batch(), threading.Event(), list[str]()

    def draw() -> None:
        try:
            while not is_over.is_set():
                batch()
        except RuntimeError as error:
            failures.append(str(error))

    other = threading.Thread(target=draw)
    other.start()
    for _ in range(20):
        device.record(lambda: [torch.relu(x) + i for i in range(200)])
    is_over.set()
    other.join()
    assert not failures


@torch.no_grad()
def test_the_users_own_capture(recorded: list[Captured]) -> None:
    model = Layers().cuda().eval()
    fast, x = compiled(model), batch()
    for _ in range(WARM_UP_CALLS + 2):
        fast(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fast(x)
    x.copy_(batch())
    graph.replay()
    torch.testing.assert_close(out, model(x), **EXACT)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cuda")])
def test_modes_of_inference(context: Callable[[], Any], recorded: list[Captured]) -> None:
    model = Layers().cuda().eval().requires_grad_(False)
    fast = compiled(model)
    with context():
        for _ in range(WARM_UP_CALLS + 4):
            x = batch()
            torch.testing.assert_close(fast(x), model(x), rtol=1e-2, atol=1e-2)
    assert recorded[-1].why_not == "" and recorded[-1]._recordings


def _writes(x: Tensor) -> Tensor:
    x.add_(1.0)
    return x * 2.0


HARD: dict[str, Callable[[Tensor], Any]] = {
    "random numbers": lambda x: F.dropout(x, 0.5) + 1.0,
    "a written input": _writes,
    "an input returned": lambda x: (x, x + 1.0),
    "a view of an input": lambda x: (x.t(), x + 1.0),
    "what it finds": lambda x: x[x > 0] * 2.0,
    "a tensor of the host": lambda x: x + torch.arange(64).to("cuda"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", HARD)
def test_what_cannot_be_recorded_is_right(name: str, recorded: list[Captured]) -> None:
    run = HARD[name]
    fast = compiled(run, fallback_random=True)
    for i in range(WARM_UP_CALLS + 4):
        x = batch()
        mine = x.clone()
        torch.manual_seed(i)
        got = fast(x)
        torch.manual_seed(i)
        torch.testing.assert_close(got, run(mine), **EXACT)
        assert torch.equal(x, mine)
    if name in ("random numbers", "a view of an input"):  # of the others parts may be
        assert recorded and all(r.why_not for r in recorded)


@torch.no_grad()
def test_a_buffer_that_is_written_is_written_once_a_call(recorded: list[Captured]) -> None:
    model = Layers().cuda().train()
    twin = copy.deepcopy(model)
    fast = compiled(model)
    for _ in range(WARM_UP_CALLS + 6):
        x = batch()
        torch.testing.assert_close(fast(x), twin(x), rtol=1e-4, atol=1e-4)
    assert int(model.norm.num_batches_tracked) == WARM_UP_CALLS + 6
    torch.testing.assert_close(model.norm.running_var, twin.norm.running_var)


@torch.no_grad()
def test_a_recording_that_takes_too_much_memory_is_given_up(
    recorded: list[Captured], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "MEMORY_SHARE", 1e-9)
    model = Layers(2048, 4).cuda().eval()
    fast = compiled(model)
    for _ in range(WARM_UP_CALLS + 3):
        x = batch(512, 2048)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-3)
    assert "would keep" in recorded[0].why_not
    held = torch.cuda.memory_allocated()
    fast(x)
    assert torch.cuda.memory_allocated() - held < 3 * x.numel() * 4


@torch.no_grad()
@pytest.mark.slow
def test_a_trial_takes_it_where_the_host_is_what_a_call_waits_for() -> None:
    model = Layers(64, 40).cuda().eval()
    fast = compiled(model)
    for _ in range(choice.SETTLED):
        x = batch()
        torch.testing.assert_close(fast(x), model(x), **EXACT)
        torch.cuda.synchronize()
    (last,) = last_plans()
    assert last.plan.choice in ("captured_inductor", "captured_aten"), last.plan.why_not_captured
    assert (last.plan.ratio or 0.0) > 1.2


@torch.no_grad()
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_recorded_whole(kind: type[nn.RNNBase], recorded: list[Captured]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(32, 64), nn.Linear(128, 8)
            self.layer = kind(64, 64, 2, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.layer(torch.relu(self.first(x)))[0]))

    model = Model().cuda().eval()
    fast = compiled(model)
    for _ in range(WARM_UP_CALLS + 4):
        x = torch.randn(8, 40, 32, device="cuda")
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-3)
    assert len(recorded) == 1 and recorded[0].why_not == "" and recorded[0]._recordings
