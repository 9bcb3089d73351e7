"""Kernels by entry id, for the modules that Inductor generates.

    cudal1_3f2a = cudal1_registry.load("3f2a...", "cuda", 0, "region v1 ...")   at the module's import

On a warm start this runs before any pass has. An error there would not be a cache miss but a failed compile, so
`load` never raises: the stored image, else a rebuild from the stored source, which passes the gates that need no
judge, else the region itself run with aten, with a warning. A call whose launch is refused is run with aten too.
Kernels stay loaded until the process ends, because generated modules keep them.

The first call of each kernel in a process is compared with its region (call_check.py), and in the graphs of
`load_checked` every call is. A kernel that gave a wrong result is quarantined in the cache, and from then on its
region runs with aten in every graph of this process. A kernel that uses TF32 runs with aten, too, for as long as
torch's flags no longer allow TF32: graphs are not compiled again for that.

This module decides nothing about which kernel a region gets.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from cudal1_cache.errors import CacheError
from cudal1_cache.rows import Entry
from cudal1_cache.store import Store
from cudal1_compile.dispatch.arguments import ArgumentReader
from cudal1_compile.dispatch.call_check import KernelFunction, checked, is_capturing
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime.build import Binary
from cudal1_compile.runtime.hostrun import open_isolated
from cudal1_compile.runtime.launcher import LoadedKernel
from cudal1_compile.runtime.launcher import load as load_kernel
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_compile.synthesis.validity import HEADER, check_identity, header_digest, stored_binary
from cudal1_fx_passes.program.canonical import fingerprint
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.precision import convolutions_may_use_tf32, products_may_use_tf32
from cudal1_fx_passes.program.text import parse_program
from cudal1_fx_passes.program.to_aten import to_aten

log = logging.getLogger(__name__)

WRONG_RESULT = (
    "kernel %s of region %s gave a wrong result: %s. This call got the reference's result, later ones run without "
    "the kernel, and it is quarantined in the cache (`cudal1 cache show %s`). What earlier calls computed with it "
    "may be wrong. The next process compiles the region without it; please report the kernel"
)

_lock = threading.RLock()
_stores: list[Store] = []
_loaded: dict[tuple[str, str, int], KernelFunction] = {}
_kept: list[LoadedKernel] = []
_switches: dict[KernelFunction, Callable[[KernelFunction | None], None]] = {}  # what a call runs; None: aten
_refuted: set[str] = set()


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


def load_checked(entry_id: str, device_type: str, device_index: int, text: str) -> KernelFunction:
    """As `load`, and every call is compared with its region."""
    run, device = load(entry_id, device_type, device_index, text), torch.device(device_type, device_index)
    program = parse_program(text)
    return checked(run, load_reference(program, device), program, device, partial(refute, entry_id, program))


def refute(entry_id: str, program: Program, reason: str) -> None:
    """Takes a kernel that gave a wrong result out of use, here at once and in the cache for good."""
    with _lock:
        if entry_id in _refuted:
            return
        _refuted.add(entry_id)
        for (loaded_id, _, _), call in _loaded.items():
            if loaded_id == entry_id and call in _switches:
                _switches[call](None)
    for store in list(_stores):
        try:
            store.refute(entry_id, reason)
        except KeyError:
            continue  # it is another store's
        except CacheError as error:
            log.warning("kernel %s could not be quarantined: %s", entry_id[:12], error)
    log.warning(WRONG_RESULT, entry_id[:12], fingerprint(program)[:12], reason, entry_id[:12])


def are_refuted(entry_ids: Collection[str]) -> bool:
    """Whether `refute` was called in this process for any of them."""
    return bool(_refuted) and not _refuted.isdisjoint(entry_ids)


def is_loadable(entry: Entry, text: str, device: torch.device) -> bool:
    """Whether the entry's kernel can be loaded here; it then is, and stays."""
    key = (entry.entry_id, device.type, device.index or 0)
    with _lock:
        if are_refuted([entry.entry_id]):
            return False
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


def load_reference(program: Program, device: torch.device) -> KernelFunction:
    """A function with a kernel's arguments that runs the region with aten."""
    read = ArgumentReader(program)
    made: dict[tuple[int, ...], torch.nn.Module] = {}  # by size; recorded CUDA graphs point into it

    def call(*args: Any) -> None:
        operands = read(args)
        if operands.sizes not in made:  # setdefault: another thread may have been faster
            made.setdefault(operands.sizes, _make_module(operands.program, device))
        with torch.no_grad():
            for out, result in zip(operands.outputs, made[operands.sizes](*operands.inputs), strict=True):
                out.copy_(result)

    return call


def _make_module(program: Program, device: torch.device) -> torch.nn.Module:
    """The region's aten code with its tables on the device.

    A thread of its own allocates them: this one may be filling a CUDA graph's pool, which is cleared for the
    next recording.
    """
    with ThreadPoolExecutor(1, "cudal1-reference") as pool:
        return pool.submit(lambda: to_aten(program).to(device)).result()


def _load_or_reference(entry_id: str, device: torch.device, text: str) -> KernelFunction:
    try:
        return _load_entry(_find(entry_id), device, text)
    except Exception as error:  # noqa: BLE001  this runs at a module's import, where any error fails the compile
        log.warning("kernel %s cannot be loaded, its region runs with aten: %s", entry_id[:12], error)
        return load_reference(parse_program(text), device)


def _find(entry_id: str) -> Entry:
    if are_refuted([entry_id]):
        raise LaunchError("it gave a wrong result before")
    for store in [*_stores, *([] if _stores else [open_store()])]:
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
    check_identity(entry, text, target)
    stored = stored_binary(entry, target)
    if stored is not None:
        try:
            return _start(entry.entry_id, program, candidate, stored, device)
        except (LaunchError, BuildError, OSError, struct.error) as error:
            log.warning(
                "the stored image of kernel %s does not load, so it is built: %s", entry.entry_id[:12], error
            )
    return _start(entry.entry_id, program, candidate, _rebuild(entry, program, target), device)


def _rebuild(entry: Entry, program: Program, target: Target) -> Binary:
    """Builds from the source that was proven, as it was proven. No case has run this image: it passes the gates.

    Raises LaunchError or BuildError where it does not.
    """
    from cudal1_compile.synthesis.proven import build_proven  # a stored image needs no gate

    if json.loads(entry.versions_json).get(HEADER) != header_digest(target):
        raise LaunchError("it was proven with other device headers than those here; it waits for the judge")
    binary = build_proven(program, entry.code, target)
    if target.kind == "host":
        _check_unseen(binary.image)
    return binary


def _check_unseen(image: bytes) -> None:
    """A host object that no judge has seen: the sealed child opens it before this process does.

    Raises BuildError where it is refused or the child dies of it.
    """
    run = open_isolated(image)
    if not run.ok:
        raise BuildError(f"its object, built anew, cannot be opened ({run.status}, {run.kind}): {run.message}")


def _start(
    entry_id: str, program: Program, candidate: Candidate, binary: Binary, device: torch.device
) -> KernelFunction:
    kernel = load_kernel(program, candidate, binary, device.index or 0)
    _kept.append(kernel)
    return _guarded(entry_id, program, kernel.launch, device)


def _guarded(entry_id: str, program: Program, launch: KernelFunction, device: torch.device) -> KernelFunction:
    """The kernel, or its region where a launch is refused. The first call is compared with the region."""
    reference = load_reference(program, device)
    if any(op.fn == "dot_tf32" for op in program.ops):
        launch = while_tf32_is_allowed(launch, reference)
    call = _with_fallback(launch, reference)
    compare = checked(launch, reference, program, device, partial(refute, entry_id, program))

    def first(*args: Any) -> None:
        if is_capturing(device):
            return launch(*args)  # a later call is the first then
        with _lock:
            if not are_refuted([entry_id]):
                _switches[call](launch)  # from now on a call costs no test
        return compare(*args)

    _switches[call](first)
    return call


def while_tf32_is_allowed(launch: KernelFunction, reference: KernelFunction) -> KernelFunction:
    """Runs the reference where a flag that allowed TF32 when the kernel was loaded no longer does."""

    convolutions, products = convolutions_may_use_tf32(), products_may_use_tf32()

    def call(*args: Any) -> None:
        taken_back = convolutions and not convolutions_may_use_tf32() or products and not products_may_use_tf32()
        (reference if taken_back else launch)(*args)

    return call


def _with_fallback(launch: KernelFunction, reference: KernelFunction) -> KernelFunction:
    """Runs the reference for every call that the launcher refuses (a grid over the limits, no resources)."""
    is_said = False

    def call(*args: Any) -> None:
        nonlocal is_said
        try:
            launch(*args)
        except (LaunchError, ValueError) as error:  # ValueError: a size of more than 32 bits
            if not is_said:  # as text: a log record that held the error would hold this call's tensors
                log.warning("a kernel call is refused, its region runs with aten: %s", str(error))
                is_said = True
            reference(*args)

    def switch(other: KernelFunction | None) -> None:
        nonlocal launch
        launch = other or reference

    _switches[call] = switch
    return call
