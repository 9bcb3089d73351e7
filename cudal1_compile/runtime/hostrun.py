"""Runs an unproven host kernel in a child process that can be killed, and reads its deterministic cost.

The child (native/runner.cpp) gets a memory-mapped file with the buffers and nothing else: an empty environment,
limits on CPU, memory, files and processes, process and network namespaces of its own where that is allowed. Before
it opens the object it can open no other file and make no system call but those of loading; before the kernel
starts, none but read, write and exit. The runner's first process never opens the object: it asks /proc whether
either seal is in place, and tells how the second process ended. A child that cannot be sealed runs nothing. A hang
is reported by the child's own timer with the place of the loop. That timer counts the child's CPU time, which is
all that a kernel can use up; a child that does not end and has not had its time either is killed with its process
group, and says nothing about the kernel (TimeoutError).

COST, in "cost units": the sum of (1) 128-byte transactions to global memory: for each access that a warp makes,
the number of distinct 128-byte lines that its lanes touch; a vload or vstore of up to 128 bytes is one access,
atomics count as accesses, shared memory is free; (2) barriers that a block passes (__syncthreads and its kin; a
block reduction holds two); (3) one for each 128 bytes of scratch zeroed. It is counted by the check build only and
depends on the code, the sizes and the compiler, never on time, and on the order in which threads take turns only
where the kernel itself does (who comes last, whether an atomic maximum changes anything).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime import hostbuild
from cudal1_compile.runtime.elf import read_elf
from cudal1_compile.runtime.host_cost import lines
from cudal1_compile.runtime.launch_plan import (
    LaunchPlan,
    axis_sizes,
    buffer_bytes,
    buffer_names,
    plan,
    symbolic_names,
)
from cudal1_compile.runtime.launch_table import ALIGNMENT
from cudal1_compile.runtime.places import candidate_line
from cudal1_compile.runtime.scratch import ScratchFolder
from cudal1_compile.runtime.trouble import MachineTrouble, exit_trouble, report_trouble
from cudal1_fx_passes.program.ir import Program

PAGE = 4096
CANARY_BYTES = 256
# NaN in every float format, so that no sum swallows a read out of bounds, and no bool; no kernel knows which
CANARY = bytes(
    byte for least in (0x81, 0x81, 0x81, 0xF1) for byte in (least + secrets.randbelow(0xFF - least), 0xFF)
)
OVERHEAD_BYTES = 1 << 30  # address space of the runner itself: stacks, tables, libraries, guard pages
SHADOW_FACTOR = 7  # shadow memory a byte, with room to spare
PATIENCE = 10  # times the CPU time that a child may take: then it is killed, as the machine has no time for it
GRACE_S = 2.0  # besides, for the child to start
FAULT = 3  # the exit code of a child that reports one

Order = Literal["forward", "reverse", "random"]
# how buffers lie: far apart, or side by side from the start of a huge page on, inputs or outputs first
BufferLayout = Literal["apart", "inputs first", "outputs first"]
Status = Literal["ok", "fault", "timeout", "crash", "refused"]


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Limits of one run, and the order in which threads and blocks take turns."""

    seconds: float = 10.0  # of CPU time
    memory_bytes: int = 4 << 30  # beyond the buffers and their shadow
    order: Order = "forward"
    seed: int = 0
    skew: int = 0  # bytes by which buffers that lie apart, times 1, 3, 5, ..., are behind a multiple of 256
    layout: BufferLayout = "apart"


@dataclass(frozen=True, slots=True)
class HostRun:
    """status: ok, fault (the kernel broke a rule), timeout, crash (the child died), refused (may not be run)."""

    status: Status
    cost: int | None = None  # cost units; None in a plain build and after a fault
    kind: str = ""  # out_of_bounds, race, uninitialised, deadlock, ...
    message: str = ""  # one sentence that names the place
    line: int | None = None  # of the candidate's code, from 1
    seal: tuple[tuple[str, bool], ...] = ()  # what the child gave up, as the kernel and the runner say it
    trouble: MachineTrouble | None = None  # the machine may be to blame: no verdict unless a canary passes

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a buffer lies in the file."""

    name: str
    role: Literal["in", "out", "scratch"]
    begin: int  # of the canaries before it
    offset: int  # of the first byte
    size: int
    end: int  # of the canaries after it


def run_isolated(
    program: Program,
    candidate: Candidate,
    image: bytes,
    buffers: Mapping[str, Tensor],
    limits: HostLimits | None = None,
    sizes: Mapping[str, int] | None = None,
) -> HostRun:
    """Runs every launch of the candidate once over CPU tensors; outputs and scratch are written back into them.

    image: of `build(..., check=True)` (all rules, cost) or of a plain build (canaries only, no cost).
    buffers: by name, the outputs, scratch and inputs of a call; dtypes as declared, data_ptr() the first element.
    Raises LaunchError for a call that does not fit the program, TimeoutError where the machine gives the run no
    time; a kernel's own misdeeds are in the result.
    """
    limits = limits or HostLimits()
    checked, refused = _look_at(image)
    if refused is not None:
        return refused
    slots = _lay_out(program, candidate, buffers, limits, sizes)
    planned = plan(program, candidate, sizes)
    with ScratchFolder("run").use() as folder:
        data = folder / "data"
        _write_data(data, slots, buffers)
        (folder / "kernel.so").write_bytes(image)
        text = _request(program, candidate, planned, slots, buffers, limits, checked, sizes)
        (folder / "request").write_text(text)
        run = _run_child(folder, checked, limits)
        return _collect(run, data, slots, buffers, planned) if run.ok else run


def open_isolated(image: bytes) -> HostRun:
    """Opens an object as the user's process would, in the sealed child, and runs nothing of it.

    Raises OSError and TimeoutError as `run_isolated` does, BuildError for what is no object.
    """
    checked, refused = _look_at(image)
    return refused or open_unseen(image, checked)


def _look_at(image: bytes) -> tuple[bool, HostRun | None]:
    """Whether it is a check build, and why it may not be opened. Raises BuildError for what is no object."""
    facts = read_elf(image)
    checked = hostbuild.is_checked(facts)
    try:
        hostbuild.check_facts(facts, checked)
    except BuildError as error:
        return checked, HostRun("refused", kind="symbols", message=str(error))
    return checked, None


def open_unseen(image: bytes, checked: bool = False) -> HostRun:
    """As `open_isolated`, with nothing between the object and this machine but the child's seal."""
    limits = HostLimits(seconds=1.0)
    with ScratchFolder("run").use() as folder:
        (folder / "data").touch()
        (folder / "kernel.so").write_bytes(image)
        (folder / "request").write_text("\n".join(_request_head(OVERHEAD_BYTES, limits)) + "\n")
        return _run_child(folder, checked, limits)


def _request_head(memory_bytes: int, limits: HostLimits) -> list[str]:
    order = ("forward", "reverse", "random").index(limits.order)
    return [
        f"limits {memory_bytes} {int(limits.seconds * 1000)} {order} {limits.seed}",
        "object ./kernel.so",  # relative to the child's folder, whose own name may hold blanks
        "data data",
    ]


def _lay_out(
    program: Program,
    candidate: Candidate,
    buffers: Mapping[str, Tensor],
    limits: HostLimits,
    sizes: Mapping[str, int] | None,
) -> list[_Slot]:
    names, need = buffer_names(program, candidate), buffer_bytes(program, candidate, sizes)
    if set(names) != set(buffers):
        raise LaunchError(f"buffers {sorted(buffers)} given, the call has {sorted(names)}")
    owners = _owners(program, buffers, need)
    names = [name for name in names if owners.get(name, name) == name]
    roles = {o.name: "out" for o in program.outputs} | {s.name: "scratch" for s in candidate.scratch}
    packed = limits.layout != "apart"
    if limits.layout == "inputs first":
        names = sorted(names, key=lambda name: name in roles)
    slots, at = [], 0
    for i, name in enumerate(names):
        tensor = buffers[name]
        room = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
        if tensor.device.type != "cpu" or room < need[name]:
            raise LaunchError(f"{name}: {room} bytes on {tensor.device}, the program needs {need[name]} on cpu")
        offset = at if packed else at + CANARY_BYTES + (PAGE + (2 * i + 1) * limits.skew if limits.skew else 0)
        last = name == names[-1]
        behind = offset + need[name] + (CANARY_BYTES if last or not packed else 0)
        unit = PAGE if last or not packed else ALIGNMENT
        role: Any = roles.get(name, "in")
        slots.append(_Slot(name, role, at, offset, need[name], -(-behind // unit) * unit))
        at = slots[-1].end
    return slots


def _owners(program: Program, buffers: Mapping[str, Tensor], need: Mapping[str, int]) -> dict[str, str]:
    """Of each input the longest one that begins where it does, itself mostly."""
    found: dict[int, str] = {}
    for name in sorted((i.name for i in program.inputs), key=lambda name: -need[name]):
        found.setdefault(buffers[name].data_ptr(), name)
    return {i.name: found[buffers[i.name].data_ptr()] for i in program.inputs if need[i.name]}


def _write_data(path: Path, slots: list[_Slot], buffers: Mapping[str, Tensor]) -> None:
    with path.open("wb") as file:
        at = 0
        for slot in slots:
            file.write(_canary(at, slot.offset))
            file.write(_memory(buffers[slot.name], slot.size))
            file.write(_canary(slot.offset + slot.size, slot.end))
            at = slot.end


def _canary(start: int, end: int) -> bytes:
    """What stands between two offsets of the file that belong to no buffer."""
    return (CANARY * (end - start))[start % len(CANARY) :][: end - start]


def _memory(tensor: Tensor, size: int) -> memoryview:
    """The tensor's memory as bytes that can be read and written; the tensor must outlive it."""
    if size == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _request(
    program: Program,
    candidate: Candidate,
    planned: LaunchPlan,
    slots: list[_Slot],
    buffers: Mapping[str, Tensor],
    limits: HostLimits,
    checked: bool,
    sizes: Mapping[str, int] | None,
) -> str:
    number = {slot.name: i for i, slot in enumerate(slots)}
    owners = _owners(program, buffers, buffer_bytes(program, candidate, sizes))
    number |= {name: number[owner] for name, owner in owners.items()}
    dims, symbolic = axis_sizes(program, sizes), symbolic_names(program)
    total = sum(slot.size for slot in slots)
    memory = limits.memory_bytes + OVERHEAD_BYTES + total * (1 + (SHADOW_FACTOR if checked else 0))
    lines = [
        *_request_head(memory, limits),
        *(["packed"] if limits.layout != "apart" else []),
        *(f"buffer {slot.name} {slot.role} {slot.offset} {slot.size}" for slot in slots),
        *(f"int {dims[name]}" for name in symbolic),
        *(f"zero {number[name]}" for name, _ in planned.zeroed),
    ]
    for launch in planned.launches:
        args = [f"b{number[a]}" for a in launch.args] + [f"i{i}" for i in range(len(symbolic))]
        shape = " ".join(map(str, (*launch.grid, *launch.block, launch.shared_bytes)))
        lines.append(f"launch {launch.kernel} {shape} {len(args)} {' '.join(args)}")
    return "\n".join(lines) + "\n"


def _run_child(folder: Path, checked: bool, limits: HostLimits) -> HostRun:
    runner = hostbuild.runtime_folder() / ("runner_check" if checked else "runner")
    patience_s = PATIENCE * limits.seconds + GRACE_S
    child = subprocess.Popen(
        [str(runner), str(folder / "request")],
        cwd=folder,
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        out, _ = child.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"the machine is too busy: a run got less than {limits.seconds:g} s of CPU time in {patience_s:g} s"
        ) from None
    finally:
        _kill_group(child)
    told, _, words = out.partition(b"\n")
    end = _parse(told)
    if end is None:  # the runner's first process, which runs no foreign code
        how = _how(-child.returncode, child.returncode)
        raise MachineTrouble("signal", f"the runner of host kernels died ({how})", is_certain=True)
    if not end["sealed"] and end["code"] != FAULT:
        how = _how(end["signal"], end["code"])
        raise MachineTrouble(
            "seal", f"host kernels need seccomp filters, which Linux has ({how})", is_certain=True
        )
    return _result(end, _parse(words), checked, folder / "kernel.so")


def _parse(line: bytes) -> dict[str, Any] | None:
    """None for what is no JSON object, or holds escapes: the runner's own words are plain."""
    if b"\\" in line:
        return None
    try:
        found = json.loads(line.decode("ascii", "replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _how(signal_number: int, code: int) -> str:
    return f"signal {signal_number}" if signal_number > 0 else f"exit code {code}"


def _result(end: dict[str, Any], words: dict[str, Any] | None, checked: bool, image: Path) -> HostRun:
    """end: what the runner's first process saw. words: of the other one, which loaded code may have forged."""
    how = _how(end["signal"], end["code"])
    if end["forged"]:
        return HostRun("crash", kind="crash", message="code that was loaded claimed a seal that is not there")
    if end["signal"] == signal.SIGSYS:
        message = f"a system call, which device code may not make, while {end['stage']} ({how})"
        return HostRun("crash", kind="crash", message=message)
    if words is None or end["signal"] or end["code"] not in (0, FAULT):
        message = f"the process died while {end['stage']} ({how})"
        return HostRun("crash", kind="crash", message=message, trouble=exit_trouble(-end["signal"]))
    try:
        return _report(end, words, checked, image)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return HostRun("crash", kind="crash", message="the process gave no report that can be read")


def _report(end: dict[str, Any], words: dict[str, Any], checked: bool, image: Path) -> HostRun:
    if end["code"] == 0 and end["stage"] == "running" and words["status"] == "ok":
        cost = _count(words["transactions"]) + _count(words["barriers"]) if checked else None
        others = ("no_files", "no_network", "own_processes")
        return HostRun("ok", cost, seal=(("no_system_calls", True), *((name, bool(end[name])) for name in others)))
    kind, pc = str(words["kind"]), int(words["pc"])
    line = candidate_line(image, pc) if pc >= 0 else None
    where = f" at line {line}" if line else ""
    block, thread = tuple(words["block"]), tuple(words["thread"])
    message = f"{kind}: {words['detail']}{where}, block {block}, thread {thread}"
    status: Status = "timeout" if kind == "timeout" else "fault"
    if kind == "load_error":
        status = "refused"
    trouble = report_trouble(kind, str(words["detail"])) if end["stage"] != "running" else None
    return HostRun(status, None, kind, message, line, trouble=trouble)


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _collect(
    run: HostRun, data: Path, slots: list[_Slot], buffers: Mapping[str, Tensor], planned: LaunchPlan
) -> HostRun:
    """Checks the canaries and the inputs, copies outputs and scratch back, adds the cost of zeroing."""
    with data.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as found:
        for slot in slots:
            ends = slot.offset + slot.size
            sides = {"before": (slot.begin, slot.offset), "after": (ends, slot.end)}
            for side, (start, end) in sides.items():
                if found[start:end] != _canary(start, end):
                    message = f"out_of_bounds: a write {side} {slot.name}"
                    return HostRun("fault", None, "out_of_bounds", message)
            memory = _memory(buffers[slot.name], slot.size)
            written = memoryview(found)[slot.offset : slot.offset + slot.size]
            try:
                if slot.role == "in" and written != memory:
                    return HostRun("fault", None, "input_written", f"input_written: {slot.name} has changed", None)
                if slot.role != "in":
                    memory[:] = written
            finally:
                written.release()
    if run.cost is None:
        return run
    zeroing = sum(lines(size) for _, size in planned.zeroed)
    return replace(run, cost=run.cost + zeroing)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout:
        child.stdout.close()
