"""A compiled training graph, its forward and its backward recorded as a pair of CUDA graphs.

    forward   as captured.py: copies of the inputs that move -> replay -> copies of the outputs
    backward  copies of the tangents -> replay -> copies of the gradients

What the forward saves for its backward stays in the recording's memory, so a recording serves one call at a time:
until autograd has let go of that call (its backward has run, or its outputs have gone) others run as they are. So
do calls under hooks on saved tensors, which may run a forward again. What the backward reads of the caller's own
tensors is saved with autograd too, which refuses what was changed since, as it does without a recording. What has
moved since (`p.data = ...`, shards that are freed and gathered again) is read where it lies now: the call runs
once more, as it is and on what it ran on, for its backward, and nothing is recorded any more. A step is recorded
once a backward has been seen; where one keeps its graph (retain_graph=True) none ever is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef

from cudal1_compile.pipeline.captured import CannotCapture, Captured, Inputs, Recording, copy_all, like


@dataclass
class _Pair(Recording):
    tangents: list[Tensor | None]  # an output each; None for what has no gradient
    gradients: list[Tensor | None]  # an argument each
    saved: list[int]  # places of the caller's tensors that the backward reads
    replay_backward: Any
    _held: StorageWeakRef | None = field(init=False, default=None)

    @property
    def is_free(self) -> bool:
        return self._held is None or bool(self._held.expired())  # type: ignore[no-untyped-call]

    def hold(self) -> Tensor:
        """Saved with autograd: while it lives the memory belongs to that call."""
        mark = torch.empty(0)
        self._held = StorageWeakRef(mark.untyped_storage())  # type: ignore[no-untyped-call]
        return mark

    def reads(self, kept: Sequence[Tensor]) -> bool:
        """Whether what the backward reads of the caller's tensors lies where it lay."""
        places = zip(self.inputs.kept, kept, strict=True)
        return all(x.data_ptr() == self.inputs.addresses[i] for i, x in places if i in self.saved)

    def run_backward(self, tangents: Sequence[Any]) -> list[Tensor | None]:
        pairs = [(ours, given) for ours, given in zip(self.tangents, tangents, strict=True) if ours is not None]
        copy_all([ours for ours, _ in pairs], [given for _, given in pairs])
        self.replay_backward()
        held = [x for x in self.gradients if x is not None]
        made = [like(x) for x in held]
        copy_all(made, held)
        found = iter(made)
        return [None if x is None else next(found) for x in self.gradients]


class CapturedStep(Captured):
    """Callable in place of the compiled graph."""

    _has_backward = False

    def __call__(self, *args: Any) -> Any:
        if _has_hooks():
            return self.run(*args)
        return super().__call__(*args)

    def _run_first(self, args: Sequence[Any]) -> Any:
        outputs = self.run(*args)
        for node in _nodes(outputs):
            node.register_prehook(self._look_at_backward)
        return outputs

    def _look_at_backward(self, _: Any) -> None:
        self._has_backward = True
        if torch._C._autograd._get_current_graph_task_keep_graph():
            self._give_up("a backward keeps its graph")

    def _is_ready(self) -> bool:
        return self._has_backward

    def _run_recording(self, found: Recording, args: Sequence[Any]) -> Any:
        assert isinstance(found, _Pair)
        return _Replayed.apply(self, found, *args) if found.is_free else self.run(*args)  # type: ignore[no-untyped-call]

    def run_backward(
        self, pair: _Pair, kept: Sequence[Tensor], memory: Sequence[UntypedStorage], tangents: Sequence[Any]
    ) -> list[Tensor | None]:
        """kept: of the call, what the recording does not copy. memory: what that lay in during the call."""
        with self._lock:
            self._device.in_order()
            try:
                if pair.reads(kept):
                    return pair.run_backward(tangents)
                self._give_up("a parameter moves between a call and its backward")
                return self._run_again(pair, kept, memory, tangents)
            finally:
                self._device.is_done()

    def _run_again(
        self, pair: _Pair, kept: Sequence[Tensor], memory: Sequence[UntypedStorage], tangents: Sequence[Any]
    ) -> list[Tensor | None]:
        """The gradients of a call whose tensors have moved before them, without the recording."""
        inputs = pair.inputs
        lay = map(_as_it_lay, kept, memory)
        then = dict(zip((*inputs.copied, *inputs.kept), (*inputs.copies, *lay), strict=True))
        given = [then[i].detach() for i in range(len(then))]
        wanted = [i for i, x in enumerate(pair.gradients) if x is not None]
        for i in wanted:
            given[i].requires_grad_()
        before = {i: given[i].clone() for i in self._changed}
        with torch.enable_grad():
            outputs = self.run(*given)
        for i, x in before.items():
            given[i].copy_(x)
        for i, x in zip(inputs.kept, kept, strict=True):
            given[i].data = x.data
        pairs = [(x, t) for x, t, ours in zip(outputs, tangents, pair.tangents, strict=True) if ours is not None]
        found = torch.autograd.grad([x for x, _ in pairs], [given[i] for i in wanted], [t for _, t in pairs])
        gradients = dict(zip(wanted, found, strict=True))
        return [gradients.get(i) for i in range(len(given))]

    def _capture(self, given: Sequence[Tensor], copied: list[int], outputs: Sequence[Any]) -> _Pair:
        if any(given[i].requires_grad for i in self._changed):
            raise CannotCapture("it changes an input that has a gradient")
        given = [x.detach().requires_grad_(x.requires_grad) for x in given]
        wanted = [i for i, x in enumerate(given) if x.requires_grad]
        tangents = [like(x.detach()) if isinstance(x, Tensor) and x.requires_grad else None for x in outputs]
        made: list[Any] = []
        saved: set[int] = set()

        def forward() -> list[Any]:
            with torch.enable_grad():
                made[:] = self.run(*given)
            saved.update(_read_by_backward(made, given))
            return [x.detach() if isinstance(x, Tensor) else x for x in made]

        def backward() -> tuple[Tensor | None, ...]:
            pairs = [(x, t) for x, t in zip(made, tangents, strict=True) if t is not None]
            return torch.autograd.grad(
                [x for x, _ in pairs], [given[i] for i in wanted], [t for _, t in pairs], allow_unused=True
            )

        with torch.autograd.set_multithreading_enabled(False):  # this thread's memory is the recording's
            (replay, held), (replay_backward, found) = self._device.record(forward, backward)
        made.clear()
        gradients: list[Tensor | None] = [None] * len(given)
        for i, x in zip(wanted, found, strict=True):
            gradients[i] = x
        inputs = Inputs.of([x.detach() for x in given], copied)
        read = [i for i in inputs.kept if i in saved]
        return _Pair(inputs, replay, held, tangents, gradients, read, replay_backward)


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: CapturedStep, pair: _Pair, *args: Any) -> tuple[Any, ...]:
        outputs = pair.run(args)
        ctx.step, ctx.pair, ctx.is_spent = step, pair, False
        ctx.kept = [args[i] for i in pair.inputs.kept]  # what the backward may read lives on
        ctx.memory = [x.untyped_storage() for x in ctx.kept]
        ctx.save_for_backward(pair.hold(), *(args[i] for i in pair.saved))
        plain = (x for x, t in zip(outputs, pair.tangents, strict=True) if t is None and isinstance(x, Tensor))
        ctx.mark_non_differentiable(*plain)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        _ = ctx.saved_tensors  # raises for what was freed, or changed since
        if ctx.is_spent:
            raise RuntimeError(
                "backward a second time through a graph that was recorded as a CUDA graph, which keeps what it "
                "saved for one backward; expected retain_graph=True from the first call on, or compile with "
                "options={'capture': False}"
            )
        ctx.is_spent = True
        gradients = ctx.step.run_backward(ctx.pair, ctx.kept, ctx.memory, tangents)
        ctx.kept = ctx.memory = None
        return (None, None, *gradients)


def _as_it_lay(x: Tensor, memory: UntypedStorage) -> Tensor:
    """As long as that memory is not given up."""
    return x.new_empty(0).set_(memory, x.storage_offset(), x.shape, x.stride()) if memory.nbytes() else x


def _read_by_backward(outputs: Sequence[Any], given: Sequence[Tensor]) -> list[int]:
    """Places of the inputs of which the nodes of these outputs have saved anything with autograd."""
    saved = (x for node in _nodes(outputs) for x in getattr(node, "saved_tensors", ()))
    memory = {x.untyped_storage().data_ptr() for x in saved if x is not None}
    return [i for i, x in enumerate(given) if x.untyped_storage().data_ptr() in memory]


def _has_hooks() -> bool:
    """On what is saved for a backward."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _nodes(outputs: Any) -> set[Node]:
    """Where the backward begins."""
    found = outputs if isinstance(outputs, list | tuple) else ()
    return {x.grad_fn for x in found if isinstance(x, Tensor) and x.grad_fn is not None}
