"""A compiled graph, of inference (captured_step.py: of training), as a CUDA graph; its callers know nothing of it.

    call -> copies of the inputs that move from call to call (parameters and what else stays are read in place)
         -> replay -> copies of the outputs, which are the caller's for good

The first calls run as they are. The one that is recorded runs as it is too, and shows what the graph alone does
not: whether it changes or returns an input, or gives one memory out twice; then it is recorded on the same inputs,
and the next call replays. A graph is replayed only where all that is not copied lies where it lay; it is recorded
again for others, MOST times, and inputs that have moved are copied from then on. In the user's own capture nothing
is replayed. Streams and threads share the recording: each replay waits for the one before.

`why_not` says for which reason it runs as if it were not recorded. Nothing here knows regions or kernels.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from cudal1_compile.pipeline.choice import CompiledGraph
from cudal1_compile.runtime.graph import capture

log = logging.getLogger(__name__)

MOST = 4  # recordings of a graph: models that share its code
WARM_UP_CALLS = 2  # before it is recorded: what is lazy, or tuned at its first launch, is done then
MEMORY_SHARE = 0.25  # of the free memory, which a recording may keep
# not where torch was built without CUDA
_equal_addresses = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class CannotCapture(Exception):
    """For a reason that will not go away."""


Recorded = tuple[Callable[[], None], Any]  # what replays it, and the outputs of each replay


class Device(Protocol):
    """What is recorded on. `record` runs nothing."""

    def record(self, *runs: Callable[[], Any]) -> list[Recorded]:
        """One after the other, in one memory. Raises RuntimeError, for random numbers too."""

    def is_capturing(self) -> bool: ...

    def in_order(self) -> None:
        """What is asked for next begins after what has been asked for here before, from whatever stream."""

    def is_done(self) -> None:
        """All is asked for."""


class CudaDevice:
    """Events are recorded once a second stream has come: until then the first one's own order is enough."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._done: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        self._raw = 0  # handle of `_stream`

    def record(self, *runs: Callable[[], Any]) -> list[Recorded]:
        torch.cuda.synchronize(self.device)
        free_bytes, _ = torch.cuda.mem_get_info(self.device)
        pool = torch.cuda.graph_pool_handle()
        with torch.cuda.stream(_stream(self.device)), _without_collections():
            found = [capture(run, pool) for run in runs]
        left_bytes, _ = torch.cuda.mem_get_info(self.device)
        if free_bytes - left_bytes > MEMORY_SHARE * free_bytes:
            del found
            raise CannotCapture(f"it would keep {(free_bytes - left_bytes) >> 20} MiB of {free_bytes >> 20}")
        return [(graph.replay, outputs) for graph, outputs in found]

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def in_order(self) -> None:
        if self._stream is None or _raw_stream(self.device.index) != self._raw:
            self._change_stream()

    def _change_stream(self) -> None:
        now, before = torch.cuda.current_stream(self.device), self._stream
        if self._done is not None:
            now.wait_event(self._done)
        elif before is not None:
            now.wait_stream(before)
        if before is not None or now.cuda_stream:  # any but the default stream may be gone by then
            self._done = self._done or torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream, self._raw = now, now.cuda_stream

    def is_done(self) -> None:
        if self._done is not None:
            self._done.record(self._stream)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings: the libraries keep a workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _without_collections() -> Iterator[None]:
    """What is freed during a recording ends it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass
class Inputs:
    """Of a recording. copied, kept: places. addresses: of what is kept, when it was recorded; else None."""

    copied: list[int]
    copies: list[Tensor]
    kept: list[int]
    addresses: list[int | None]

    @classmethod
    def of(cls, given: Sequence[Tensor], copied: list[int]) -> Self:
        """given: what is recorded on, copies among it."""
        kept = [i for i in range(len(given)) if i not in copied]
        addresses = [None if i in copied else x.data_ptr() for i, x in enumerate(given)]
        return cls(copied, [given[i] for i in copied], kept, addresses)

    def fit(self, args: Sequence[Tensor], except_for: Container[int] = ()) -> bool:
        if _equal_addresses is not None and not except_for:
            return bool(_equal_addresses(list(args), self.addresses, self.kept))
        return all(args[i].data_ptr() == self.addresses[i] or i in except_for for i in self.kept)


@dataclass
class Recording:
    inputs: Inputs
    replay: Callable[[], None]
    outputs: Sequence[Any]
    tensors: list[Tensor] = field(init=False)  # of the outputs

    def __post_init__(self) -> None:
        self.tensors = [x for x in self.outputs if isinstance(x, Tensor)]

    def run(self, args: Sequence[Tensor]) -> list[Any]:
        """Raises RuntimeError where there is no memory for the outputs; nothing has run then."""
        made = [torch.empty_like(x) for x in self.tensors]  # with their strides: none has gaps
        copy_all(self.inputs.copies, [args[i] for i in self.inputs.copied])
        self.replay()
        copy_all(made, self.tensors)
        if len(made) == len(self.outputs):
            return made
        given = iter(made)
        return [next(given) if isinstance(x, Tensor) else x for x in self.outputs]


class Captured:
    """Callable in place of the compiled graph. For several threads at once."""

    def __init__(
        self, run: CompiledGraph, device: Device, changed: Sequence[int] = (), warm_up: int = WARM_UP_CALLS
    ) -> None:
        """changed: places of the inputs that the graph writes to. warm_up: calls before it is recorded."""
        self.run, self.why_not = run, ""
        self._device, self._changed, self._warm_up = device, frozenset(changed), warm_up
        self._recordings: list[Recording] = []
        self._first: list[int | None] = []  # addresses of the inputs of a call before any recording
        self._moved: set[int] = set()  # inputs that have had others
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        if self.why_not or self._device.is_capturing():
            return self.run(*args)
        with self._lock:
            for found in self._recordings:
                if found.inputs.fit(args):
                    return self._replay(found, args)
            if self._warm_up > 0 or not self._is_ready():
                self._warm_up -= 1
                self._first = [x.data_ptr() if isinstance(x, Tensor) else 0 for x in args]
                return self._run_first(args)
            return self._record(args)

    def _run_first(self, args: Sequence[Any]) -> Any:
        return self.run(*args)

    def _is_ready(self) -> bool:
        """Whether it may be recorded now."""
        return True

    def _replay(self, found: Recording, args: Sequence[Any]) -> Any:
        self._device.in_order()
        try:
            return self._run_recording(found, args)
        except torch.OutOfMemoryError as error:
            return self._give_up(str(error))(*args)
        finally:
            self._device.is_done()

    def _run_recording(self, found: Recording, args: Sequence[Any]) -> Any:
        return found.run(args)

    def _record(self, args: Sequence[Any]) -> Any:
        """This call's own results; what follows is replayed, or says why not."""
        try:
            copied = self._copied(args)
            with torch.inference_mode(False), torch.no_grad():
                copies = {i: like(args[i]).copy_(args[i]).requires_grad_(args[i].requires_grad) for i in copied}
        except (CannotCapture, torch.OutOfMemoryError) as error:
            return self._give_up(str(error))(*args)
        versions = [_version(x) for x in args]
        outputs = self.run(*args)
        try:
            if any(_version(args[i]) != versions[i] or not _is_same(args[i], x) for i, x in copies.items()):
                raise CannotCapture("it changes an input")
            _check_outputs(outputs, args)
            given = [copies.get(i, x) for i, x in enumerate(args)]
            found = self._capture(given, copied, outputs)
            _check_outputs(found.outputs, given)
        except (CannotCapture, RuntimeError) as error:
            self._give_up(str(error))
            return outputs
        self._recordings.append(found)
        return outputs

    def _capture(self, given: Sequence[Tensor], copied: list[int], outputs: Sequence[Any]) -> Recording:
        """outputs: of a call that was not recorded. Raises RuntimeError, CannotCapture."""
        if any(isinstance(x, Tensor) and x.requires_grad for x in outputs):
            raise CannotCapture("an output has a gradient")
        ((replay, held),) = self._device.record(lambda: self.run(*given))
        return Recording(Inputs.of(given, copied), replay, held)

    def _copied(self, args: Sequence[Any]) -> list[int]:
        """Places of the inputs that move, but for the model's own. Raises CannotCapture."""
        for x in args:
            if type(x) not in (Tensor, torch.nn.Parameter):
                raise CannotCapture(f"an input is a {type(x).__name__}")
        others = [i for i, x in enumerate(args) if not _is_owned(x)]
        lay = [r.inputs.addresses for r in self._recordings] or [self._first or [None] * len(args)]
        self._moved |= {i for i in others if any(known[i] != args[i].data_ptr() for known in lay)}
        if len(self._recordings) == MOST:  # what follows stands for those of the same model
            self._recordings = [r for r in self._recordings if not r.inputs.fit(args, except_for=others)]
        if len(self._recordings) == MOST:
            raise CannotCapture("its parameters do not stay where they are")
        copied = [i for i in others if i in self._moved]
        if self._changed & set(copied) or (self._changed and _share_memory(args)):  # places may be other ones then
            raise CannotCapture("it changes an input")
        if any(torch._debug_has_internal_overlap(args[i]) for i in copied):
            raise CannotCapture("an input's elements share memory")
        return copied

    def _give_up(self, why: str) -> CompiledGraph:
        self.why_not, self._recordings = why.partition("\n")[0], []
        log.info("a graph is not recorded: %s", self.why_not)
        return self.run


def _is_owned(x: Tensor) -> bool:
    """Whether it is a parameter or a buffer, as Dynamo marks them."""
    return isinstance(x, torch.nn.Parameter) or bool(getattr(x, "_dynamo_static_input_type", None))


def _share_memory(tensors: Sequence[Tensor]) -> bool:
    return len({x.untyped_storage().data_ptr() for x in tensors}) < len(tensors)


def like(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def copy_all(to: list[Tensor], given: list[Tensor]) -> None:
    if len(to) == 1:
        to[0].copy_(given[0])
    elif to:
        torch._foreach_copy_(to, given)


def _check_outputs(outputs: Any, args: Sequence[Tensor]) -> None:
    """Raises CannotCapture where a copy would not be what the caller gets otherwise."""
    if not isinstance(outputs, list | tuple):
        raise CannotCapture(f"it returns a {type(outputs).__name__}")
    taken = {x.untyped_storage().data_ptr() for x in args}
    for x in outputs:
        if isinstance(x, Tensor):
            place = x.untyped_storage().data_ptr()
            if x.numel() and place in taken:
                raise CannotCapture("it returns an input, or one tensor twice")
            taken.add(place)
            if type(x) is not Tensor or torch._debug_has_internal_overlap(x):
                raise CannotCapture("an output is no plain tensor")
        elif x is not None and not isinstance(x, bool | int | float):
            raise CannotCapture(f"it returns a {type(x).__name__}")


def _version(x: Tensor) -> int:
    """Inference tensors count none: their contents are compared."""
    return 0 if x.is_inference() else x._version


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, not-a-number too."""
    a, b = (x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
    return torch.equal(a, b)
