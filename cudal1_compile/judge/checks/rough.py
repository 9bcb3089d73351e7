"""The rough suite of a region: what a candidate must give before it is timed. It refuses, and never accepts.

    program + secret seed -> one or two cases of the example's sizes, with the native reference -> CaseSuite

What is grossly wrong is not worth a time. What passes is proven by nothing of this: the case suite does that, for
those that would win. So tolerances are wide, a few elements may be off, and no oracle runs.
"""

from __future__ import annotations

import torch

from cudal1_compile.judge.checks.case_suite import CaseSuite, NoRoom
from cudal1_compile.judge.checks.cases import Case
from cudal1_compile.judge.checks.division import cut_of
from cudal1_compile.judge.checks.guarded_memory import GuardedMemory, input_specs
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.inputs.sizes import tensor_bytes
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_fx_passes.program.ir import Program

DISTRIBUTIONS = ("normal", "offset")
SECOND_BYTES = 256 << 20  # of all tensors: what is larger gets one case
SLICE_BYTES = 1 << 30  # for the reference of a slice, with what it computes on its way


def rough_suite(program: Program, seed: int, device: torch.device, room_bytes: int) -> CaseSuite | NoRoom:
    """room_bytes: of the device, for inputs, buffers and the results that are timed."""
    everything = tensor_bytes(program)
    names = DISTRIBUTIONS if everything <= SECOND_BYTES else DISTRIBUTIONS[:1]
    need = (3 + len(names)) * everything + min(SLICE_BYTES, oracle_bytes(program, {}))
    if need > room_bytes:
        return NoRoom(
            f"a timing of this region needs about {need >> 20} MiB, {room_bytes >> 20} MiB are free for it"
        )
    return CaseSuite(program, seed, tuple(_case(program, name, seed, device) for name in names), ())


def _case(program: Program, name: str, seed: int, device: torch.device) -> Case:
    inputs = make_inputs(program, name, seed, device)
    image = GuardedMemory(input_specs(inputs), device, guard_gaps=False)
    image.load(inputs)
    cut = cut_of(program, {}, SLICE_BYTES) if oracle_bytes(program, {}) > SLICE_BYTES else None
    case = Case(program, name, image, {}, None, cut, is_rough=True)
    return case.whole() if cut is None else case
