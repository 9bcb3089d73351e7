"""Recurrent layers of torch in inference: the library's call stays one node, which a CUDA graph may hold.

    nn.LSTM, nn.GRU, nn.RNN, traced for this backend -> torch.lstm(...) -> cudal1::recurrent("lstm", ...)

Dynamo leaves these layers to eager, in the middle of a graph, unless it is told otherwise for all backends; and
AOTAutograd would write out every step of time. With gradients or under autocast they stay eager's, as they do
where a sequence is packed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.variables import builder

log = logging.getLogger(__name__)

CALLS: dict[str, Callable[..., Sequence[Tensor]]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
ARGUMENTS = 9  # of each: input, state, weights, has_biases, layers, dropout, train, bidirectional, batch_first
_library = torch.library.Library("cudal1", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "recurrent(str kind, Tensor x, Tensor[] state, Tensor[] weights, bool has_biases, int layers, float dropout, "
    "bool train, bool bidirectional, bool batch_first) -> Tensor[]"
)


def trace_for(is_ours: Callable[[Any], bool]) -> None:
    """From now on Dynamo traces them where the backend is ours. For the rest of the process."""
    module: Any = builder
    if hasattr(module.config, "allow_rnn"):  # a torch that asks otherwise leaves them to eager
        module.config = _Config(module.config, is_ours)


class _Config:
    """Dynamo's, as the module sees it that turns a model's parts into variables."""

    def __init__(self, config: Any, is_ours: Callable[[Any], bool]) -> None:
        vars(self).update(_config=config, _is_ours=is_ours)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._config, name)
        return _may_trace(self._is_ours) if name == "allow_rnn" and not found else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._config, name, value)


def _may_trace(is_ours: Callable[[Any], bool]) -> bool:
    if torch.is_grad_enabled() or _is_autocast():
        return False
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        backend = InstructionTranslator.current_tx().output.compiler_fn
        while (inner := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
            backend = inner
        return is_ours(getattr(backend, "compiler_fn", backend))
    except AttributeError as error:
        log.debug("Dynamo does not tell for whom it traces: %s", error)
        return False


def keep_calls(gm: fx.GraphModule) -> None:
    """Replaces the library's calls in Dynamo's graph where nothing asks for gradients or autocast.

    Packed sequences are none of them.
    """
    kinds: dict[Any, str] = {call: kind for kind, call in CALLS.items()}
    found = [n for n in _without_modes(gm.graph) if n.target in kinds and _is_plain(n)]
    for node in found:
        given: Any = node.args
        x, state, weights, *settings = given
        states = list(state) if isinstance(state, tuple | list) else [state]
        node.args = (kinds[node.target], x, states, list(weights), *settings)
        node.target = torch.ops.cudal1.recurrent.default
    if found:
        gm.recompile()


def _without_modes(graph: fx.Graph) -> Iterator[fx.Node]:
    """Calls of functions, in order."""
    with_gradients, autocasts = torch.is_grad_enabled(), int(_is_autocast())
    for node in (n for n in graph.nodes if n.op == "call_function"):
        if node.target is torch._C._set_grad_enabled:
            with_gradients = bool(node.args[0])
        autocasts += node.target is torch.amp.autocast_mode._enter_autocast
        autocasts -= node.target is torch.amp.autocast_mode._exit_autocast
        if not with_gradients and not autocasts:
            yield node


def _is_autocast() -> bool:
    return torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")


def _is_plain(node: fx.Node) -> bool:
    return len(node.args) == ARGUMENTS and isinstance(node.args[2], tuple | list) and not node.kwargs


@torch.library.impl(_library, "recurrent", "CompositeExplicitAutograd")
def _run(kind: str, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], *settings: Any) -> list[Tensor]:
    """Results in the layout that the fake ones have, none of them a part of another."""
    found = CALLS[kind](x, tuple(state) if kind == "lstm" else state[0], list(weights), *settings)
    taken: set[int] = set()
    results: list[Tensor] = []
    for made, like in zip(found, _shapes(x, state, *settings), strict=True):
        shape, strides = like
        place = made.untyped_storage().data_ptr()
        if made.stride() != strides or place in taken:
            made = torch.empty_strided(shape, strides, dtype=made.dtype, device=made.device).copy_(made)
        taken.add(made.untyped_storage().data_ptr())
        results.append(made)
    return results


@torch.library.register_fake("cudal1::recurrent", lib=_library)  # type: ignore[untyped-decorator]
def _fake(
    kind: str, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], *settings: Any
) -> list[Tensor]:
    return [x.new_empty_strided(shape, strides) for shape, strides in _shapes(x, state, *settings)]


def _shapes(
    x: Tensor,
    state: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """And strides, of the output and of each state."""
    width = state[0].shape[-1] * (2 if bidirectional else 1)
    rows, columns = x.shape[0], x.shape[1]
    strides = (width, rows * width, 1) if batch_first else (columns * width, width, 1)
    states = [(tuple(s.shape), (s.shape[1] * s.shape[2], s.shape[2], 1)) for s in state]
    return [((rows, columns, width), strides), *states]
