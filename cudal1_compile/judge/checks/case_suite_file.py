"""A small region's case suite in a file: made ahead on a CPU beside the worker, which copies it to its device.

    make_ahead(program, seed, ..., path) -> all tensors packed into one, and what lies where as JSON -> read_suite

A case suite is a thousand or two of small operations. On a GPU each waits for its launch; a CPU takes as long, but
the device and its worker are free meanwhile. Regions that a CPU may compute otherwise than a GPU are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from cudal1_compile.judge.checks.case_suite import CaseSuite, NoRoom, Unverifiable, prepare_suite
from cudal1_compile.judge.checks.cases import Case
from cudal1_compile.judge.checks.guarded_memory import BufferSpec, GuardedMemory
from cudal1_compile.judge.inputs.extremes import reaches_integers
from cudal1_compile.judge.inputs.sizes import tensor_elements
from cudal1_compile.judge.oracle.compare import Expected
from cudal1_compile.judge.oracle.f32_accumulation import widened
from cudal1_fx_passes.program.evaluate import DTYPE_NAME, TORCH_DTYPE
from cudal1_fx_passes.program.ir import Program

MAX_WORK = 1 << 19  # operations times elements of inputs and outputs; what has more takes a core over 0.1 s
ROOM_BYTES = 1 << 30
CPU = torch.device("cpu")
_NAME = "suite"


def can_make_ahead(program: Program) -> bool:
    """Not where a CPU casts to integers, or adds up a product of half types, in ways of its own."""
    work = tensor_elements(program) * max(1, len(program.ops))
    return work <= MAX_WORK and not reaches_integers(program) and not program.has_product


def make_ahead(program: Program, seed: int, distributions: Sequence[str], path: Path) -> bool:
    """Writes the case suite, or why there can be none; False where there is no room."""
    suite = prepare_suite(program, seed, CPU, ROOM_BYTES, distributions or None)
    match suite:
        case Unverifiable(reason):
            save_file({}, path, {_NAME: json.dumps({"unverifiable": reason})})
        case CaseSuite():
            _write(suite, path)
    return not isinstance(suite, NoRoom)


def _write(suite: CaseSuite, path: Path) -> None:
    """For case suites of which every case holds its expectation."""
    held: dict[int, Tensor] = {}  # by identity: cases share their inputs
    cases, f32_cases = ([_describe(case, held) for case in cases] for cases in (suite.cases, suite.f32_cases))
    specs = [BufferSpec("", x.dtype, tuple(x.shape)) for x in held.values()]
    packed = GuardedMemory(specs, CPU)
    for view, x in zip(packed.views, held.values(), strict=True):
        view.copy_(x)
    tensors = [_layout(spec) for spec in specs]
    told = {
        "seed": suite.seed,
        "left_out": suite.left_out,
        "tensors": tensors,
        "cases": cases,
        "f32_cases": f32_cases,
    }
    save_file({_NAME: packed.bytes}, path, {_NAME: json.dumps(told)})


def read_suite(path: Path, program: Program, device: torch.device) -> CaseSuite | Unverifiable:
    """As it was written, in one copy. Raises OSError or SafetensorError where there is no such file."""
    with safe_open(path, "pt") as file:
        told = json.loads(file.metadata()[_NAME])
        if "unverifiable" in told:
            return Unverifiable(told["unverifiable"])
        packed = file.get_tensor(_NAME).to(device)
    tensors = GuardedMemory([_spec(layout) for layout in told["tensors"]], device, within=packed).views
    cases, f32_cases = (
        tuple(_restore(row, program, tensors, wide) for row in told[name])
        for name, wide in (("cases", None), ("f32_cases", widened(program)))
    )
    return CaseSuite(program, told["seed"], cases, tuple(told["left_out"]), f32_cases)


def _describe(case: Case, held: dict[int, Tensor]) -> dict[str, Any]:
    def number(x: Tensor | None) -> int | None:
        if x is not None:
            held.setdefault(id(x), x)
        return None if x is None else list(held).index(id(x))

    assert case.expected is not None
    return {
        "name": case.name,
        "sizes": case.sizes,
        "image": number(case.image.bytes),
        "inputs": [_layout(spec) for spec in case.image.specs],
        "expected": [
            (e.name, *map(number, (e.want, e.tolerance, e.other)), e.nonfinite_share, e.rms_limit)
            for e in case.expected
        ],
    }


def _restore(row: dict[str, Any], program: Program, tensors: Sequence[Tensor], wide: Program | None) -> Case:
    specs = [_spec(layout, f"in{i}") for i, layout in enumerate(row["inputs"])]
    packed = tensors[row["image"]]
    image = GuardedMemory(specs, packed.device, guard_gaps=False, within=packed)
    known = dict(enumerate(tensors))
    expected = [
        Expected(name, tensors[want], known.get(tolerance), known.get(other), share, limit)
        for name, want, tolerance, other, share, limit in row["expected"]
    ]
    return Case(program, row["name"], image, row["sizes"], expected, wide=wide)


def _layout(spec: BufferSpec) -> tuple[str, tuple[int, ...], tuple[int, ...] | None]:
    return DTYPE_NAME[spec.dtype], spec.shape, spec.strides


def _spec(layout: tuple[str, Sequence[int], Sequence[int] | None], name: str = "") -> BufferSpec:
    dtype, shape, strides = layout
    return BufferSpec(name, TORCH_DTYPE[dtype], tuple(shape), None if strides is None else tuple(strides))
