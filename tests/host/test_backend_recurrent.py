"""Recurrent layers of torch: one graph in inference, eager's elsewhere, and nothing changes for other backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from slow_cases import slow_but
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from trials import new_process

LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(6, 8),
    "lstm, both ways, two layers": lambda: nn.LSTM(6, 8, 2, bidirectional=True, batch_first=True),
    "lstm, projected": lambda: nn.LSTM(6, 8, proj_size=5, bias=False),
    "gru": lambda: nn.GRU(6, 8, batch_first=True),
    "gru, both ways": lambda: nn.GRU(6, 8, 2, bidirectional=True, dropout=0.5),
    "rnn": lambda: nn.RNN(6, 8),
    "rnn, relu": lambda: nn.RNN(6, 8, 2, nonlinearity="relu", batch_first=True),
}


class Model(nn.Module):
    """A layer between others, all of whose results are read."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(4, 6), layer

    def forward(self, x: Tensor) -> Any:
        out, states = self.layer(torch.relu(self.first(x)))
        return out * 2.0, [s + 1.0 for s in (states if isinstance(states, tuple) else (states,))]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    new_process(monkeypatch)
    counters.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(model: nn.Module, backend: str = "cudal1") -> Callable[..., Any]:
    options = {"target": "host", "on_miss": "fallback"} if backend == "cudal1" else None
    return torch.compile(model, backend=backend, options=options)  # type: ignore[no-any-return,call-overload]


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", slow_but(["lstm, projected", "gru, both ways", "rnn"], LAYERS))
def test_an_inference_is_one_graph(name: str) -> None:
    model = Model(LAYERS[name]()).eval()
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 3, 4)
            torch.testing.assert_close(fast(x), model(x))
    assert graphs() == 1 and not counters["unimplemented"]


@torch.no_grad()
def test_lengths_may_change_and_weights_may_be_replaced() -> None:
    model = Model(nn.LSTM(6, 8)).eval()
    fast = compiled(model)
    for length in (5, 7, 9, 12):
        x = torch.randn(length, 3, 4)
        torch.testing.assert_close(fast(x), model(x))
    assert graphs() <= 2
    model.layer.load_state_dict({k: v * 0.5 for k, v in model.layer.state_dict().items()})
    torch.testing.assert_close(fast(x), model(x))
    model.layer.weight_ih_l0 = nn.Parameter(torch.randn(32, 6))
    torch.testing.assert_close(fast(x), model(x))


def test_with_gradients_it_is_eagers() -> None:
    model = Model(nn.LSTM(6, 8, 2))
    fast, x = compiled(model), torch.randn(5, 3, 4)
    expected = torch.autograd.grad(model(x)[0].square().sum(), list(model.parameters()))
    found = torch.autograd.grad(fast(x)[0].square().sum(), list(model.parameters()))
    torch.testing.assert_close(found, expected)
    assert counters["unimplemented"]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_call_that_a_user_writes_keeps_its_gradients(is_ours: bool) -> None:
    """And in a block without gradients, in a step that has them, the layer is one call."""
    layer, head = nn.LSTM(6, 8), nn.Linear(6, 6)
    state = torch.zeros(1, 3, 8)

    def run(x: Tensor) -> Tensor:
        out = torch.lstm(head(x), (state, state), layer._flat_weights, True, 1, 0.0, True, False, False)[0]
        with torch.no_grad():
            frozen, _ = layer(x)
        return out + frozen

    fast, x = torch.compile(run, backend="cudal1") if is_ours else run, torch.randn(5, 3, 6)
    parameters = [*layer.parameters(), *head.parameters()]
    found = torch.autograd.grad(fast(x).square().sum(), parameters)
    torch.testing.assert_close(found, torch.autograd.grad(run(x).square().sum(), parameters))


@torch.no_grad()
def test_under_autocast_it_is_eagers() -> None:
    model = Model(nn.LSTM(6, 8)).eval()
    fast, x = compiled(model), torch.randn(5, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected, got = model(x), fast(x)
    assert got[0].dtype == expected[0].dtype
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_packed_sequences_are_eagers() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 8)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            out, _ = self.layer(pack_padded_sequence(x * 2.0, lengths, enforce_sorted=False))
            return pad_packed_sequence(out)[0] + 1.0

    model = Packed().eval()
    fast, lengths = compiled(model), torch.tensor([5, 2, 3])
    for _ in range(2):
        x = torch.randn(5, 3, 4)
        torch.testing.assert_close(fast(x, lengths), model(x, lengths))


@torch.no_grad()
def test_other_backends_leave_it_to_eager_as_before() -> None:
    compiled(Model(nn.LSTM(6, 8)).eval())(torch.randn(5, 3, 4))
    counters.clear()
    model = Model(nn.LSTM(6, 8)).eval()
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(compiled(model, "aot_eager")(x), model(x))
    assert counters["unimplemented"]


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_operator_is_what_it_says(batch_first: bool) -> None:
    from cudal1_compile.inductor import recurrent

    assert recurrent.CALLS
    layer = nn.LSTM(6, 8, 2, bidirectional=True, batch_first=batch_first)
    x, state = torch.randn(5, 3, 6), [torch.randn(4, 5 if batch_first else 3, 8) for _ in range(2)]
    weights = [w.detach() for w in layer._flat_weights]
    given = ("lstm", x, state, weights, True, 2, 0.0, False, True, batch_first)
    torch.library.opcheck(torch.ops.cudal1.recurrent.default, given)
