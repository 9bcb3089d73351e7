"""Guarded memory: every stray write is seen, gaps included; poison is no value that a kernel could mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
import torch
from torch import Tensor

from benchmarks.redteam.honest import SILU_SCALAR, STRIDED
from benchmarks.redteam.regions import region
from cudal1_compile.judge.checks.case_suite import CaseSuite, prepare_suite
from cudal1_compile.judge.checks.guarded_memory import (
    ALIGNMENT,
    HUGE_PAGE,
    POISONS,
    BufferSpec,
    GuardedMemory,
    guarded_bytes,
    input_specs,
    invalid_bools,
    neighbours,
)
from cudal1_compile.judge.checks.redzones import lone_memory
from cudal1_compile.judge.checks.trial import Right, Trial, TrialStopped, Wrong
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program

CPU = torch.device("cpu")
SPECS = (
    BufferSpec("a", torch.float32, (3, 5), (8, 1)),
    BufferSpec("b", torch.bool, (7,)),
    BufferSpec("c", torch.bfloat16, (2, 2)),
)


def test_buffers_are_aligned_and_apart() -> None:
    guarded = GuardedMemory(SPECS, CPU)
    starts = [v.data_ptr() - guarded.views[0].data_ptr() for v in guarded.views]
    assert all(s % ALIGNMENT == 0 for s in starts)
    assert starts == sorted(set(starts))
    assert [tuple(v.shape) for v in guarded.views] == [(3, 5), (7,), (2, 2)]
    assert guarded.views[0].stride() == (8, 1)


@pytest.mark.parametrize("byte", POISONS)
def test_poison_fills_elements_and_leaves_canaries(byte: int) -> None:
    guarded = GuardedMemory(SPECS, CPU)
    guarded.poison(byte)
    assert not bool(guarded.damaged())
    assert [bool(x) for x in invalid_bools(guarded.views)] == [True]
    if byte == 0xFF:
        assert bool(guarded.views[0].isnan().all())
        assert bool(guarded.views[2].isnan().all())


@pytest.mark.parametrize("offset", [-1, 6, 7, 21, 22])
def test_a_write_next_to_a_buffer_or_into_its_gap_is_seen(offset: int) -> None:
    """The first buffer: rows of 5 within strides of 8, the last element at 20."""
    guarded = GuardedMemory(SPECS, CPU)
    guarded.poison(0xFF)
    view = guarded.views[0]
    torch.as_strided(view, (1,), (1,), view.storage_offset() + offset).fill_(1.0)
    assert bool(guarded.damaged())


@pytest.mark.parametrize("swapped", [False, True])
def test_guarded_memories_side_by_side_are_guarded_outside_and_take_an_image(swapped: bool) -> None:
    image = GuardedMemory(SPECS, CPU)
    image.poison(0x7B)
    memory = lone_memory(CPU)("", 2 * guarded_bytes(SPECS))
    first, second = neighbours(SPECS, SPECS, memory, (True, True), touching=True)
    assert first.views[0].data_ptr() % HUGE_PAGE == 0
    assert 0 <= second.views[0].data_ptr() - first.views[-1].data_ptr() - first.views[-1].nbytes < 16
    guarded = second if swapped else first
    assert not bool(first.damaged()) and not bool(second.damaged())
    guarded.copy_image(image)
    assert not bool(guarded.differs_from_image(image)) and not bool(guarded.damaged())
    edge = guarded.views[-1] if swapped else guarded.views[0]
    at = edge.storage_offset() + (edge.numel() if swapped else -1)
    torch.as_strided(edge, (1,), (1,), at).fill_(1.0)
    assert bool(guarded.damaged()) and bool(guarded.differs_from_image(image))


@pytest.mark.parametrize("skew", [0, 16])
def test_skewed_buffers_lie_behind_aligned_addresses_and_are_guarded_too(skew: int) -> None:
    memory = lone_memory(CPU)("", guarded_bytes(SPECS) + skew)[skew:]
    straight, guarded = GuardedMemory(SPECS, CPU), GuardedMemory(SPECS, CPU, within=memory)
    assert all(v.data_ptr() % ALIGNMENT == skew for v in guarded.views)
    guarded.poison(0xFF)
    assert not bool(guarded.damaged())
    guarded.copy_image(straight)
    assert not bool(guarded.differs_from_image(straight))
    view = guarded.views[0]
    torch.as_strided(view, (1,), (1,), view.storage_offset() - 1).fill_(1.0)
    assert bool(guarded.damaged()) and bool(guarded.differs_from_image(straight))


def test_loaded_inputs_are_compared_whole() -> None:
    x = torch.randn(30)[::3]
    y = torch.arange(6)
    image = GuardedMemory(input_specs([x, y]), CPU, guard_gaps=False)
    image.load([x, y])
    guarded = GuardedMemory(image.specs, CPU, guard_gaps=False)
    guarded.copy_image(image)
    assert torch.equal(guarded.views[0], x)
    assert not bool(guarded.differs_from_image(image))
    guarded.views[1][5] += 1
    assert bool(guarded.differs_from_image(image))


@pytest.mark.parametrize("offset", [-1, 1, 28])
def test_a_write_next_to_an_input_is_seen(offset: int) -> None:
    image = GuardedMemory(input_specs([torch.randn(30)[::3]]), CPU, guard_gaps=False)
    guarded = GuardedMemory(image.specs, CPU, guard_gaps=False)
    guarded.copy_image(image)
    view = guarded.views[0]
    torch.as_strided(view, (1,), (1,), view.storage_offset() + offset).fill_(1.0)
    assert bool(guarded.differs_from_image(image))


class _Python:
    """A runner whose kernel is a Python function over the buffers."""

    def __init__(self, program: Program, cheat: str = "") -> None:
        self.program, self.cheat = program, cheat
        self.calls = 0
        self.first: list[Tensor] = []
        self.before: list[Tensor] = []  # outputs of the last call
        self.known: dict[int, list[Tensor]] = {}  # results by the address of the first input
        self.skews: set[int] = set()
        self.apart: set[int] = set()  # bytes from the end of the last input to the first output
        self.huge: set[str] = set()  # what has started a huge page
        self.orders: set[bool] = set()  # whether the first input lay before the second one
        self.alike: set[bool] = set()  # whether both were aligned alike

    def launch(
        self,
        outputs: Sequence[Tensor],
        scratch: Sequence[Tensor],
        inputs: Sequence[Tensor],
        sizes: Mapping[str, int],
    ) -> None:
        self.calls += 1
        self.skews |= {x.data_ptr() % ALIGNMENT for x in (*outputs, *inputs)}
        self.apart.add(outputs[0].data_ptr() - inputs[-1].data_ptr() - inputs[-1].nbytes)
        between = inputs[1].data_ptr() - inputs[0].data_ptr()
        self.orders.add(between > 0)
        self.alike.add(between % ALIGNMENT == 0)
        firsts = {"in": inputs[0], "out": outputs[0]}
        self.huge |= {name for name, x in firsts.items() if x.data_ptr() % HUGE_PAGE == 0}
        if self.cheat == "stop":
            raise TrialStopped("it hung")
        if self.cheat == "skip what looks done" and bool(outputs[0].isfinite().all() & (outputs[0] < 1e30).all()):
            return
        found = evaluate(self.program, list(inputs), sizes)
        if self.cheat == "first result for ever":
            self.first = self.first or found
            found = self.first
        if self.cheat == "by address":
            found = self.known.setdefault(inputs[0].data_ptr(), found)
        if self.cheat == "needs aligned memory" and 16 in self.skews:
            found = [x * 0 for x in found]
        if self.cheat == "believes in empty scratch":
            found = [x + scratch[0].view(-1)[: x.numel()].view(x.shape) for x in found]
        for target, source in zip(outputs, found, strict=True):
            target.copy_(source)
        if self.cheat == "spoil the result before" and self.before:
            self.before[0].view(-1)[5] = 0.0
        self.before = list(outputs)
        if self.cheat == "write an input":
            inputs[0].view(-1)[0] = 7.0
        if self.cheat == "write behind":
            end = outputs[0].storage_offset() + outputs[0].numel()
            torch.as_strided(outputs[0], (1,), (1,), end).fill_(0.0)
        if self.cheat == "flaky" and self.calls == 2:
            outputs[0].view(-1)[3] += 1e-3

    def wait(self) -> None:
        """Python has no queue."""


SCRATCH = SILU_SCALAR.replace("// launch:", "// scratch: s0 f32[d0*d1]\n// launch:").replace(
    "in1, out0)\n", "in1, s0, out0)\n"
)


def _trial(cheat: str = "", held_elements: int = 0) -> Right | Wrong:
    program = region("silu")
    suite = prepare_suite(program, 11, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    runner = _Python(program, cheat)
    found = Trial(suite, parse_candidate(SCRATCH, program), runner, CPU, held_elements).verify()
    if not cheat:
        assert runner.skews >= {0, 16}
        assert 0 in runner.apart and min(runner.apart) < 0
        assert runner.huge == {"in", "out"}
        assert runner.orders == runner.alike == {True, False}
    return found


@pytest.mark.parametrize("held_elements", [0, 20_000, 1 << 20])
def test_a_right_result_passes_every_case(held_elements: int) -> None:
    found = _trial("", held_elements)
    assert isinstance(found, Right)
    assert dict(found.errors) == dict(cast(Right, _trial()).errors)
    assert {name for name, _ in found.errors} >= {"normal", "edges", "magnitudes", "nonfinite"}


@pytest.mark.parametrize("held_elements", [0, 1 << 20])
@pytest.mark.parametrize(
    ("cheat", "word"),
    [
        ("skip what looks done", "out0"),
        ("first result for ever", "out0"),
        ("write an input", "into an input"),
        ("write behind", "outside its buffers"),
        ("flaky", "out0"),
        ("by address", "out0"),
        ("spoil the result before", "out0"),
        ("believes in empty scratch", "out0"),
        ("needs aligned memory", "out0"),
    ],
)
def test_cheats_of_a_call_are_seen(cheat: str, word: str, held_elements: int) -> None:
    found = _trial(cheat, held_elements)
    assert isinstance(found, Wrong)
    assert word in found.reason


def test_a_stop_goes_to_whoever_owns_the_process() -> None:
    with pytest.raises(TrialStopped):
        _trial("stop")


def test_timed_calls_find_aligned_memory() -> None:
    program = region("silu")
    suite = prepare_suite(program, 11, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    trial = Trial(suite, parse_candidate(SILU_SCALAR, program), _Python(program), CPU)
    assert isinstance(trial.verify(), Right)
    for buffers in trial.timing_sets():
        for x in (*buffers.outputs, *buffers.inputs.views):
            assert x.data_ptr() % ALIGNMENT == 0


def test_strided_outputs_keep_their_gaps() -> None:
    program = region("strided")
    suite = prepare_suite(program, 11, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    found = Trial(suite, parse_candidate(STRIDED, program), _Python(program), CPU).verify()
    assert isinstance(found, Right)
