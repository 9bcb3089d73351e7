"""Kernels by entry id, for the modules that Inductor generates.

    cudal1_3f2a = cudal1_registry.load("3f2a...", "cuda", 0, "region v1 ...")   at the module's import

On a warm start this runs before any pass has. An error there would not be a cache miss but a failed compile, so
`load` never raises: the stored image, else a rebuild from the stored source, else the region itself run with
aten, with a warning. Kernels stay loaded until the process ends, because generated modules keep them.

This module decides nothing about which kernel a region gets.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cudal1_cache.rows import Entry
from cudal1_cache.store import Store
from cudal1_compile.candidate import Candidate, parse_candidate
from cudal1_compile.config import cache_dir
from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.runtime.build import Binary, build
from cudal1_compile.runtime.launcher import LoadedKernel
from cudal1_compile.runtime.launcher import load as load_kernel
from cudal1_compile.runtime.target import detect_target
from cudal1_compile.synthesis.records import stored_binary
from cudal1_fx_passes.evaluate import evaluate
from cudal1_fx_passes.layout import memory_view
from cudal1_fx_passes.program import Input, Output, Program
from cudal1_fx_passes.text import parse_program
from cudal1_fx_passes.to_aten import to_aten

log = logging.getLogger(__name__)

KernelFunction = Callable[..., None]

_lock = threading.RLock()
_stores: list[Store] = []
_loaded: dict[tuple[str, str, int], KernelFunction] = {}
_kept: list[LoadedKernel] = []


def use_store(store: Store) -> None:
    """Adds a store in which `load` looks, the latest first."""
    with _lock:
        if store in _stores:
            _stores.remove(store)
        _stores.insert(0, store)


def load(entry_id: str, device_type: str, device_index: int, text: str) -> KernelFunction:
    """The kernel of an entry, as fn(*outs, *scratch, *ins, *sizes, stream). Never raises.

    text: the region's, which is run with aten where no kernel can be had.
    """
    key = (entry_id, device_type, device_index)
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load_or_reference(entry_id, torch.device(device_type, device_index), text)
        return _loaded[key]


def is_loadable(entry: Entry, text: str, device: torch.device) -> bool:
    """Whether the entry's kernel can be loaded here; it then is, and stays."""
    key = (entry.entry_id, device.type, device.index or 0)
    with _lock:
        if key in _loaded:
            return True
        try:
            _loaded[key] = _load_entry(entry, device, text)
        except Exception as error:  # noqa: BLE001  whatever is wrong with one kernel, its region goes to Inductor
            log.warning("kernel %s cannot be loaded, Inductor takes its region: %s", entry.entry_id[:12], error)
            return False
        return True


@contextmanager
def stand_in(entry_id: str, function: KernelFunction) -> Iterator[None]:
    """Makes `load` give this function for an entry on the CPU, as long as the block lasts."""
    key = (entry_id, "cpu", 0)
    with _lock:
        _loaded[key] = function
    try:
        yield
    finally:
        with _lock:
            del _loaded[key]


def load_reference(text: str) -> KernelFunction:
    """A function with a kernel's arguments that runs the region with aten."""
    program = parse_program(text)
    run = _static_reference(program) if not program.is_symbolic else _symbolic_reference(program)

    def call(*args: Any) -> None:
        outs = args[: len(program.outputs)]
        rest = args[len(program.outputs) : -1]  # without the stream
        sizes = {a.name: 0 for a in program.axes if a.symbolic}
        symbols = rest[len(rest) - len(sizes) :] if sizes else ()
        tensors = rest[: len(rest) - len(sizes)]
        ins = tensors[len(tensors) - len(program.inputs) :]  # before them lies scratch, which aten needs not
        run(outs, ins, dict(zip(sizes, map(int, symbols), strict=True)))

    return call


def _load_or_reference(entry_id: str, device: torch.device, text: str) -> KernelFunction:
    try:
        return _load_entry(_find(entry_id), device, text)
    except Exception as error:  # noqa: BLE001  this runs at a module's import, where any error fails the compile
        log.warning("kernel %s cannot be loaded, its region runs with aten: %s", entry_id[:12], error)
        return load_reference(text)


def _find(entry_id: str) -> Entry:
    for store in [*_stores, *([] if _stores else [Store.open(cache_dir())])]:
        entry = store.get_entry(entry_id)
        if entry is not None and entry.quarantined:
            raise LaunchError(f"it is quarantined: {entry.reason}")
        if entry is not None and entry.code:
            return entry
    raise LaunchError("it is in no kernel cache")


def _load_entry(entry: Entry, device: torch.device, text: str) -> KernelFunction:
    program = parse_program(text)
    candidate = parse_candidate(entry.code, program)
    target = detect_target(device)
    if entry.target != target.key:
        raise LaunchError(f"it was made for another target than {target.name}")
    index = device.index or 0
    stored = stored_binary(entry, target)
    if stored is None:
        return _start(program, candidate, build(program, candidate, target), index)
    try:
        return _start(program, candidate, stored, index)
    except (LaunchError, BuildError, OSError, struct.error) as error:
        log.warning("the stored image of kernel %s does not load, so it is built: %s", entry.entry_id[:12], error)
        return _start(program, candidate, build(program, candidate, target), index)


def _start(program: Program, candidate: Candidate, binary: Binary, index: int) -> KernelFunction:
    kernel = load_kernel(program, candidate, binary, index)
    _kept.append(kernel)
    return kernel.launch


def _static_reference(program: Program) -> Callable[..., None]:
    modules: dict[torch.device, Any] = {}

    def run(outs: Sequence[Tensor], ins: Sequence[Tensor], sizes: dict[str, int]) -> None:
        device = outs[0].device
        if device not in modules:
            modules[device] = to_aten(program).to(device)
        with torch.no_grad():
            results = modules[device](*_views(program, program.inputs, ins))
            _write(program, outs, results)

    return run


def _symbolic_reference(program: Program) -> Callable[..., None]:
    def run(outs: Sequence[Tensor], ins: Sequence[Tensor], sizes: dict[str, int]) -> None:
        sized = with_sizes(program, sizes)
        with torch.no_grad():
            results = evaluate(sized, _views(sized, sized.inputs, ins))
            _write(sized, outs, results)

    return run


def with_sizes(program: Program, sizes: dict[str, int]) -> Program:
    """The static program that a symbolic one is at these sizes."""
    axes = tuple(replace(a, size=sizes.get(a.name, a.size), symbolic=False) for a in program.axes)
    return replace(program, axes=axes)


def _views(program: Program, items: Sequence[Input | Output], tensors: Sequence[Tensor]) -> list[Tensor]:
    return [memory_view(program, item, tensor) for item, tensor in zip(items, tensors, strict=True)]


def _write(program: Program, outs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    for out, result in zip(_views(program, program.outputs, outs), results, strict=True):
        out.copy_(result)
