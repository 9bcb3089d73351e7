"""Writes pointwise stages: every element of the output space once, read and written in vectors.

Kinds:
    exact    one vector a thread over the flattened space; an operand that lacks axes is found by division
    stride   the same space, walked by a grid that just fills the GPU
    rows     blocks along the innermost axis, one grid row for each of the rest: no division in the inner loop
    ragged   as exact or rows where no vector divides the size: vectors stand where memory is aligned, and those at
             the ends of the space or of a row are cut
With loads in flight a thread of exact or rows has so many vectors and loads them all before it uses any.
"""

from __future__ import annotations

from collections.abc import Iterator

from cudal1_compile.codegen.stages.element import Elements, in_order, late_loads, write_visit
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, product, signature
from cudal1_compile.codegen.stages.space import Space, Var, is_unit_stride, size_of, vector_fits
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_fx_passes.program.ir import ITEM_BYTES

RESIDENT_BLOCKS = 132 * 8  # of 256 threads on the largest GPU in use; a grid-stride loop is right on any


def memory_order(stage: Stage) -> tuple[str, ...]:
    """The stage's axes as its largest output lies in memory."""
    whole = [b for b in stage.writes if set(b.axes) == set(stage.kept)]
    return whole[0].axes if whole else stage.kept


def is_flat(stage: Stage) -> bool:
    """Whether every tensor is dense over the whole space in one order, or a scalar."""
    order = memory_order(stage)
    same = all(b.strides is None and not b.access and b.axes in (order, ()) for b in stage.tensors)
    return same and not any(op.over for op in stage.ops)


def vector_axis(stage: Stage) -> str | None:
    order = memory_order(stage)
    return order[-1] if order else None


def allows_vector(stage: Stage, vector: int) -> bool:
    axis = vector_axis(stage)
    if vector == 1:
        return True
    if axis is None:
        return False
    if late_loads(stage):
        return False
    if is_flat(stage):
        static = [a for a in stage.kept if not stage.program.axis[a].symbolic]
        return stage.program.size(tuple(static)) % vector == 0  # whatever the symbolic sizes are
    return all(vector_fits(stage.program, b, axis, vector) for b in stage.tensors)


def widest_bytes(stage: Stage) -> int:
    axis = vector_axis(stage)
    buffers = [b for b in stage.tensors if axis is not None and is_unit_stride(b, axis)]
    return max((ITEM_BYTES[b.dtype] for b in buffers), default=4)


def narrowest_bytes(stage: Stage) -> int:
    axis = vector_axis(stage)
    buffers = [b for b in stage.tensors if axis is not None and is_unit_stride(b, axis)]
    return min((ITEM_BYTES[b.dtype] for b in buffers), default=4)


def schedules(stage: Stage) -> list[StageSchedule]:
    """All that are worth trying, the likely best first."""
    found = []
    total = stage.program.size(stage.kept)
    largest = max(1, min(16, 32 // max(1, narrowest_bytes(stage))))
    vectors = [v for v in (16, 8, 4, 2, 1) if v <= largest and allows_vector(stage, v)]
    if len(vectors) > 1 and total >= 1 << 15:
        vectors = vectors[:-1] or vectors
    inner = stage.program.axis[memory_order(stage)[-1]].size if stage.kept else 1
    for vector in vectors:
        for block in (256, 128, 512, 1024):
            if block > 128 and block * vector > 2 * total:
                continue
            found.append(StageSchedule("exact", vector, block))
            if total >= 2 * RESIDENT_BLOCKS * block * vector:
                found.append(StageSchedule("stride", vector, block))
            if len(stage.kept) > 1 and not is_flat(stage) and inner >= block * vector // 2 and block <= 512:
                found.append(StageSchedule("rows", vector, block))
    found += _ragged_schedules(stage, largest)
    return sorted(found, key=lambda s: _rank(stage, s))


def _ragged_schedules(stage: Stage, largest: int) -> list[StageSchedule]:
    total, axis = stage.program.size(stage.kept), vector_axis(stage)
    if axis is None or late_loads(stage) or total < 1 << 13:
        return []
    inner = total if is_flat(stage) else stage.program.axis[axis].size
    if not all(is_unit_stride(b, axis) for b in stage.tensors if axis in b.span):
        return []
    wanted = max(2, 16 // widest_bytes(stage))
    vectors = [v for v in (wanted, wanted // 2) if 2 <= v <= largest and not allows_vector(stage, v)]
    blocks = (256, 128, 512) if is_flat(stage) else (256, 128, 64)
    return [StageSchedule("ragged", v, b) for v in vectors for b in blocks if inner >= b * v // 2]


def _rank(stage: Stage, s: StageSchedule) -> tuple[int, ...]:
    wanted = 16 // widest_bytes(stage)
    return (abs(s.vector.bit_length() - max(wanted, 1).bit_length()), abs(s.block - 256), s.kind != "exact")


def write_pointwise(stage: Stage, schedule: StageSchedule, name: str) -> list[Kernel]:
    order = memory_order(stage)
    if schedule.kind == "rows" or (schedule.kind == "ragged" and not is_flat(stage)):
        return [_write_rows(stage, schedule, name, order)]
    return [_write_flat(stage, schedule, name, order)]


def _elements(stage: Stage, schedule: StageSchedule, variables: tuple[Var, ...], within: str = "") -> Elements:
    spelled: dict[str, str] = {}
    space = Space(stage.program, tuple(v for v in variables if v.axes), registers=spelled)
    late = late_loads(stage)
    axis, within = vector_axis(stage), within if schedule.kind == "ragged" else ""
    held = schedule.in_flight > 0
    return Elements(stage.program, space, axis, schedule.vector, held, spelled, late, within)


def _visit(stage: Stage, elements: Elements) -> Iterator[str | list[str]]:
    return elements.visit(in_order(stage.loads), list(stage.ops), list(stage.writes))


def _write_in_flight(
    lines: Lines, stage: Stage, s: StageSchedule, elements: Elements, position: tuple[str, str, str]
) -> None:
    """Two loops over a thread's vectors, loads first. position: a vector's name, its end, the block's number."""
    name, end, number = position
    at = f"({number} * {s.in_flight} + k) * {s.block} + threadIdx.x"
    at = at if s.vector == 1 else f"({at}) * {s.vector}"
    lines.add(f"constexpr int C = {s.in_flight};")
    lines.add(*elements.declare_loads(stage.loads), *elements.declare_cached(stage.ops))
    loads, ops, writes = in_order(stage.loads), list(stage.ops), list(stage.writes)
    for visit in (elements.visit(loads, [], []), elements.visit([], ops, writes)):
        lines.add("#pragma unroll")
        with lines.block("for (int k = 0; k < C; k++)"):
            lines.add(f"const int {name} = {at};", f"if ({name} >= {end}) break;")
            write_visit(lines, s.vector, visit)


def _write_flat(stage: Stage, s: StageSchedule, name: str, order: tuple[str, ...]) -> Kernel:
    lines = Lines()
    total = size_of(order)
    elements = _elements(stage, s, (Var("i", order),), f"0, {total} - i, ")
    grid = f"cdiv({total}, {product(s.block, s.vector, s.in_flight or 1)})"
    with lines.block(signature(name, s.block, stage.reads, stage.writes)):
        start = f"blockIdx.x * {s.block} + threadIdx.x"
        first = start if s.vector == 1 else f"({start}) * {s.vector}"
        if s.in_flight:
            _write_in_flight(lines, stage, s, elements, ("i", total, "blockIdx.x"))
        elif s.kind == "stride":
            step = product("gridDim.x", s.block, s.vector)
            grid = f"min({grid}, {RESIDENT_BLOCKS * 256 // s.block})"
            with lines.block(f"for (int i = {first}; i < {total}; i += {step})"):
                write_visit(lines, s.vector, _visit(stage, elements))
        else:
            lines.add(f"const int i = {first};", f"if (i >= {total}) return;")
            write_visit(lines, s.vector, _visit(stage, elements))
    return _kernel(name, lines, grid, s.block, stage.reads, stage.writes)


def _write_rows(stage: Stage, s: StageSchedule, name: str, order: tuple[str, ...]) -> Kernel:
    lines = Lines()
    outer, inner = order[:-1], order[-1]
    elements = _elements(stage, s, (Var("g", outer), Var("c", (inner,))), f"-c, {inner} - c, ")
    with lines.block(signature(name, s.block, stage.reads, stage.writes)):
        lines.add("const int g = blockIdx.x;")
        if s.in_flight:
            _write_in_flight(lines, stage, s, elements, ("c", inner, "blockIdx.y"))
        else:
            _write_one_of_rows(lines, stage, s, elements, inner)
    reach = f"{inner} + {s.vector - 1}" if s.kind == "ragged" else inner
    grid = f"dim3({size_of(outer)}, cdiv({reach}, {product(s.block, s.vector, s.in_flight or 1)}))"
    return _kernel(name, lines, grid, s.block, stage.reads, stage.writes)


def _write_one_of_rows(lines: Lines, stage: Stage, s: StageSchedule, elements: Elements, inner: str) -> None:
    start = f"blockIdx.y * {s.block} + threadIdx.x"
    # a ragged row starts so far behind an aligned position
    shift = f" - g * {inner} % {s.vector}" if s.kind == "ragged" else ""
    lines.add(f"const int c = {start if s.vector == 1 else f'({start}) * {s.vector}'}{shift};")
    lines.add(f"if (c >= {inner}) return;")
    write_visit(lines, s.vector, _visit(stage, elements))


def _kernel(
    name: str, lines: Lines, grid: str, block: int, reads: tuple[Buffer, ...], writes: tuple[Buffer, ...]
) -> Kernel:
    names = tuple(b.name for b in (*reads, *writes))
    return Kernel(name, "\n".join(lines.text), grid, str(block), names)
