"""Cuts a program into stages: each is one pass over memory, with scratch between them.

A stage reads buffers (inputs, or scratch that an earlier stage wrote), computes operations and writes buffers.
A reducing stage has the axes it keeps (one group each) and its reduction axes; everything that those two span
and that is ready is fused into it. A window stage reduces window axes, a scan stage runs along one axis.
A product stage has one sum of products. What is left over is pointwise. A stage says nothing about threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from cudal1_compile.codegen.stages.narrow import wrap_narrow
from cudal1_compile.codegen.stages.resolve import Unresolvable, is_window, reads_windows, resolve
from cudal1_compile.kernel.candidate import MAX_SCRATCH
from cudal1_fx_passes.program.ir import Index, Op, Output, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.text import print_index

StageKind = Literal["pointwise", "reduce", "window", "scan", "product"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that holds `value`: an input, an output or scratch; `axes` in memory order, outermost first.

    As a load it may have an access; `span` is then what it varies over, and `register` the name it is loaded to.
    """

    name: str
    value: str
    dtype: str
    axes: tuple[str, ...]
    strides: tuple[int, ...] | None = None
    access: tuple[tuple[str, Index], ...] = ()
    span: tuple[str, ...] = ()
    register: str = ""

    @property
    def key(self) -> str:
        """How operations refer to what is loaded."""
        return key_of(Ref(self.value, self.access))

    @property
    def index_values(self) -> list[str]:
        return [i.value for _, i in self.access if i.value is not None]


@dataclass(frozen=True, slots=True)
class Stage:
    """kept and reduced: axes in program order; without `reduced` the stage is pointwise over `kept`."""

    program: Program
    kind: StageKind
    kept: tuple[str, ...]
    reduced: tuple[str, ...]
    reads: tuple[Buffer, ...]  # kernel parameters
    loads: tuple[Buffer, ...]  # the distinct accesses to them
    ops: tuple[Op, ...]
    writes: tuple[Buffer, ...]

    @property
    def tensors(self) -> tuple[Buffer, ...]:
        """Every access to memory."""
        return (*self.loads, *self.writes)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The stages in order and the scratch buffers between them."""

    stages: tuple[Stage, ...]
    scratch: tuple[Buffer, ...]


def key_of(x: Ref) -> str:
    return f"{x.name}[{','.join(f'{a}={print_index(i)}' for a, i in x.access)}]" if x.access else x.name


def is_barrier(op: Op) -> bool:
    """Whether the operation needs all of its group before any of its results."""
    return OPS[op.fn].kind in (Kind.REDUCE, Kind.SCAN, Kind.DOT)


def is_reduction(op: Op) -> bool:
    return OPS[op.fn].kind is Kind.REDUCE


def read_names(op: Op) -> list[str]:
    names = [x.name for x in op.operands if isinstance(x, Ref)]
    return names + [v for x in op.operands if isinstance(x, Ref) for v in x.index_values]


def read_keys(op: Op) -> list[str]:
    """As read_names, what is read elsewhere by its own key."""
    refs = [x for x in op.operands if isinstance(x, Ref)]
    return [key_of(x) for x in refs] + [v for x in refs for v in x.index_values]


def closure(program: Program, wanted: list[str], held: set[str]) -> set[str]:
    """Names of the operations needed for `wanted` when the values in `held` are in memory."""
    found: set[str] = set()
    todo = [w for w in wanted if w not in held]
    while todo:
        name = todo.pop()
        if name in found or name not in program.op:
            continue
        found.add(name)
        todo += [n for n in read_names(program.op[name]) if n not in held]
    return found


def cut_stages(program: Program, flat: bool = False) -> StagePlan | None:
    """Returns None where the program has an access that cannot be resolved.

    flat: reductions are stages of their own and everything with reduced axes is left to pointwise stages, so
    that each reduction can be split over more blocks than it has groups.
    """
    return _cut_stages(program, flat)


@lru_cache(maxsize=8)  # every variant of a program asks again
def _cut_stages(program: Program, flat: bool) -> StagePlan | None:
    try:
        resolved = resolve(wrap_narrow(program))
        plan = _Cutter(resolved, flat).run()
        return plan if len(plan.scratch) <= MAX_SCRATCH else _Cutter(resolved, flat, lean=True).run()
    except Unresolvable:
        return None


class _Cutter:
    """lean: only results of reductions and scans go to scratch, what follows from them is computed again."""

    def __init__(self, program: Program, flat: bool, lean: bool = False) -> None:
        self.program, self.flat, self.lean = program, flat, lean
        self.held: dict[str, Buffer] = {
            i.name: Buffer(i.name, i.name, i.dtype, i.axes, i.strides) for i in program.inputs
        }
        self.outputs = list(program.outputs)
        self.waiting = [op for op in program.ops if is_barrier(op)]
        self.scratch: list[Buffer] = []
        self.stages: list[Stage] = []

    def run(self) -> StagePlan:
        while self.waiting and self.outputs:
            needed = self._needed([o.value for o in self.outputs])
            self.waiting = [op for op in self.waiting if op.name in needed]
            if self.waiting:
                self._reduce()
        for axes in dict.fromkeys(self.program.value_axes[o.value] for o in self.outputs):
            found = [o for o in self.outputs if self.program.value_axes[o.value] == axes]
            self._emit("pointwise", axes, (), found, [])
        return StagePlan(tuple(self.stages), tuple(self.scratch))

    def _needed(self, wanted: list[str]) -> set[str]:
        return closure(self.program, wanted, set(self.held))

    def _blocked(self, name: str, allowed: set[str]) -> bool:
        """Whether computing `name` takes a waiting result that is not among `allowed`, or one at another index."""
        inside = self._needed([name])
        if any(op.name in inside and op.name not in allowed for op in self.waiting):
            return True
        return any(self._reads_elsewhere(self.program.op[n]) for n in inside)

    def _reads_elsewhere(self, op: Op) -> bool:
        """Whether the operation reads, at another index, a result that is not in memory yet."""
        refs = [x for x in op.operands if isinstance(x, Ref) and x.access and x.name not in self.held]
        return any(is_barrier(self.program.op[x.name]) for x in refs)

    def _reduce(self) -> None:
        ready = [op for op in self.waiting if not self._blocked(op.name, {op.name})]
        if not ready:
            raise Unresolvable("reductions that wait for each other")
        first = ready[0]
        kind = _kind_of(first)
        reduced = self._ordered(first.over)
        kept = first.axes if kind != "scan" else tuple(a for a in first.axes if a not in reduced)
        chosen = self._chosen(first, kind, kept, reduced)
        self.waiting = [op for op in self.waiting if op.name not in chosen]
        whole = self._ordered((*kept, *reduced))
        spans = (kept,) if kind in ("window", "product") or (self.flat and kind == "reduce") else (kept, whole)
        done = [o for o in self.outputs if self._is_done(o, spans)]
        self.outputs = [o for o in self.outputs if o not in done]
        self._emit(kind, kept, reduced, done, self._frontier(chosen, whole if kind == "scan" else kept))

    def _chosen(self, first: Op, kind: StageKind, kept: tuple[str, ...], reduced: tuple[str, ...]) -> set[str]:
        """The waiting results that share the first one's stage."""
        chosen: set[str] = {first.name}
        if kind in ("scan", "product"):
            return chosen
        for op in self.waiting:  # in program order, so the ones below come first
            same = is_reduction(op) and op.axes == kept and self._ordered(op.over) == reduced
            if kind == "window":
                same = same and is_window(op) and op.operands[0] == first.operands[0]
            if any(_counts_otherwise(op, self.program.op[n]) for n in chosen):
                continue  # positions in another order take another loop
            if same and not self._blocked(op.name, {op.name} if self.flat else chosen | {op.name}):
                chosen.add(op.name)
        return chosen

    def _is_done(self, o: Output, spans: tuple[tuple[str, ...], ...]) -> bool:
        return self.program.value_axes[o.value] in spans and not self._blocked(o.value, set())

    def _frontier(self, chosen: set[str], axes: tuple[str, ...]) -> list[str]:
        """Values of this stage that later stages read: they go to scratch."""
        later = [o.value for o in self.outputs] + [op.name for op in self.waiting]
        reads_at = {
            x.name for n in closure(self.program, later, set(self.held)) for x in _accessed(self.program.op[n])
        }
        group = {
            op.name
            for op in self.program.ops
            if op.axes == axes and self._needed([op.name]) & chosen and not self._blocked(op.name, set())
        }
        group &= chosen if self.lean else group
        rest = closure(self.program, later, set(self.held) | group)
        read = {n for name in rest for n in read_names(self.program.op[name])} | set(later) | (reads_at & chosen)
        return [op.name for op in self.program.ops if op.name in group and op.name in read]

    def _emit(
        self,
        kind: StageKind,
        kept: tuple[str, ...],
        reduced: tuple[str, ...],
        outputs: list[Output],
        frontier: list[str],
    ) -> None:
        program = self.program
        writes = [
            self._write(Buffer(o.name, o.value, program.output_dtype(o), o.axes, o.strides)) for o in outputs
        ]
        # an output that holds a value in full precision serves later stages too
        written = {w.value: w for w in writes if w.value in frontier and w.dtype not in ("f16", "bf16")}
        fresh: list[Buffer] = []
        for name in [n for n in frontier if n not in written]:
            dtype = program.value_dtype[name]
            kept_dtype = "f32" if dtype in ("f16", "bf16") else dtype
            number = len(self.scratch) + len(fresh)
            axes = program.value_axes[name]
            order = self._order_in_memory(axes) if kind == "product" else axes
            fresh.append(self._write(Buffer(f"s{number}", name, kept_dtype, order)))
        writes += fresh
        inside = self._needed([w.value for w in writes])
        ops = tuple(op for op in program.ops if op.name in inside)
        loads = self._loads(ops, [w.value for w in writes])
        names = {b.name for b in loads}
        reads = tuple(b for b in self.held.values() if b.name in names)
        self.stages.append(Stage(program, kind, kept, reduced, reads, loads, ops, tuple(writes)))
        self.scratch += fresh
        self.held |= {b.value: b for b in fresh} | written

    def _order_in_memory(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Of an output, else an input, of the same axes: an image in channels-last stays so."""
        known = [o.axes for o in self.program.outputs if o.strides is None]
        known += [i.axes for i in self.program.inputs if i.strides is None]
        return next((found for found in known if set(found) == set(axes)), axes)

    def _write(self, buffer: Buffer) -> Buffer:
        return replace(buffer, span=self.program.value_axes[buffer.value], register=buffer.value)

    def _loads(self, ops: tuple[Op, ...], wanted: list[str]) -> tuple[Buffer, ...]:
        """The distinct reads of memory, in order of first use."""
        refs = [x for op in ops for x in op.operands if isinstance(x, Ref) and not _is_window_read(op, x)]
        refs += [Ref(x.name) for op in ops for x in op.operands if isinstance(x, Ref) and _is_window_read(op, x)]
        refs += [Ref(i) for op in ops for x in op.operands if isinstance(x, Ref) for i in x.index_values]
        refs += [Ref(w) for w in wanted]
        counts: dict[str, int] = {}
        found: dict[Ref, Buffer] = {}
        order = sorted(
            dict.fromkeys(r for r in refs if r.name in self.held), key=lambda r: list(self.held).index(r.name)
        )
        for ref in order:
            name = f"a{ref.name[2:]}" if ref.name.startswith("in") else ref.name
            if ref.access:
                counts[name] = counts.get(name, 0) + 1
                name = f"{name}_{counts[name]}"
            held = self.held[ref.name]
            found[ref] = replace(held, access=ref.access, span=self._span(ref), register=name)
        return tuple(found.values())

    def _span(self, ref: Ref) -> tuple[str, ...]:
        at = dict(ref.access)
        found = {a for a in self.program.value_axes[ref.name] if a not in at}
        for index in at.values():
            found |= {a for _, a in index.terms}
            found |= set(self.program.value_axes[index.value]) if index.value is not None else set()
        return self._ordered(tuple(found))

    def _ordered(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(a.name for a in self.program.axes if a.name in axes)


def _kind_of(op: Op) -> StageKind:
    if is_reduction(op):
        return "window" if is_window(op) else "reduce"
    return "product" if OPS[op.fn].kind is Kind.DOT else "scan"


def _is_window_read(op: Op, x: Ref) -> bool:
    return reads_windows(op) and bool(x.access)


def _counts_otherwise(a: Op, b: Op) -> bool:
    """Whether two operations number the elements of a group in different orders."""
    return a.fn in ("argmax", "argmin") and b.fn in ("argmax", "argmin") and a.over != b.over


def _accessed(op: Op) -> list[Ref]:
    return [x for x in op.operands if isinstance(x, Ref) and x.access]
