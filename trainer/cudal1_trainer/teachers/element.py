"""Loads, operations and stores of one element or one vector of elements, in a given space.

Two styles, as a schedule asks:
    scalar   const float t3 = a0[j] * a1;            values live within one pass
    cached   t3[k][j] = a0[k][j] * a1[k];            values live in register arrays across passes
`j` counts within a vector, `k` counts the chunks that a thread holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.program import Op, Program
from cudal1_trainer.teachers.expression import COMPUTE_TYPE, expression, spell_operand
from cudal1_trainer.teachers.source import Lines
from cudal1_trainer.teachers.space import Space, axis_stride, is_unit_stride
from cudal1_trainer.teachers.stage import Buffer


def register(value: str) -> str:
    """The register name of a value: a0 for in0, t3 for t3."""
    return f"a{value[2:]}" if value.startswith("in") else value


def address(buffer: Buffer, offset: str) -> str:
    return f"{buffer.name} + {offset}" if offset else buffer.name


@dataclass
class Elements:
    """Writes element code; `axis` is the axis along which vectors run (None: no vectors)."""

    program: Program
    space: Space
    axis: str | None
    vector: int = 1
    cached: bool = False
    spelled: dict[str, str] = field(default_factory=dict)

    def is_vectored(self, buffer: Buffer) -> bool:
        return self.vector > 1 and self.axis in buffer.axes

    def is_wide(self, buffer: Buffer) -> bool:
        """Whether one vector access moves the buffer's elements."""
        return self.is_vectored(buffer) and self.axis is not None and is_unit_stride(buffer, self.axis)

    def index_lines(self, buffers: Iterable[Buffer], ops: Iterable[Op]) -> list[str]:
        """Declarations of the axis indices that these buffers and index operations need."""
        needed = set(self.space.needed_axes(buffers)) | {o.over[0] for o in ops if OPS[o.fn].kind is Kind.IOTA}
        lines = [self.space.index_line(a.name) for a in self.program.axes if a.name in needed]
        return [line for line in lines if line is not None]

    def load(self, buffer: Buffer) -> tuple[str | None, str | None]:
        """Returns (line before the j loop, line inside it) and records the spelling."""
        name = register(buffer.value)
        kind = COMPUTE_TYPE[buffer.dtype]
        at = address(buffer, self.space.offset(buffer))
        chunk = "[k]" if self.cached else ""
        if self.is_wide(buffer):
            self.spelled[buffer.value] = f"{name}{chunk}[j]"
            return f"vload<{self.vector}>({at}, {name}{chunk});", None
        if self.is_vectored(buffer):
            assert self.axis is not None
            step = axis_stride(buffer, self.axis)
            moved = f"{at} + j" if step == "1" else f"{at} + j * {step if ' ' not in step else f'({step})'}"
            self.spelled[buffer.value] = f"{name}[k][j]" if self.cached else name
            head = f"{name}[k][j]" if self.cached else f"const {kind} {name}"
            return None, f"{head} = ld({moved});"
        self.spelled[buffer.value] = f"{name}{chunk}"
        head = f"{name}[k]" if self.cached else f"const {kind} {name}"
        return f"{head} = ld({at});", None

    def declare_loads(self, buffers: Iterable[Buffer]) -> list[str]:
        """Arrays that the loads fill: all of them when cached, else those of wide loads."""
        names: dict[str, list[str]] = {}
        for b in buffers:
            shape = f"[{self.vector}]" if self.is_vectored(b) else ""
            if self.cached:
                shape = f"[C]{shape}"
            elif not self.is_wide(b):
                continue
            names.setdefault(COMPUTE_TYPE[b.dtype], []).append(f"{register(b.value)}{shape}")
        return [f"{kind} {', '.join(found)};" for kind, found in names.items()]

    def declare_cached(self, ops: Iterable[Op]) -> list[str]:
        shape = f"[C][{self.vector}]" if self.vector > 1 else "[C]"
        names: dict[str, list[str]] = {}
        for o in ops:
            names.setdefault(COMPUTE_TYPE[o.dtype], []).append(f"{o.name}{shape}")
        return [f"{kind} {', '.join(found)};" for kind, found in names.items()]

    def statement(self, op: Op) -> str:
        """The operation's one line; records the spelling of its result."""
        right = self.value(op)
        if self.cached:
            self.spelled[op.name] = f"{op.name}[k][j]" if self.vector > 1 else f"{op.name}[k]"
            return f"{self.spelled[op.name]} = {right};"
        self.spelled[op.name] = op.name
        return f"const {COMPUTE_TYPE[op.dtype]} {op.name} = {right};"

    def value(self, op: Op) -> str:
        if OPS[op.fn].kind is Kind.IOTA:
            index = self.space.index(op.over[0])
            return f"{index} + j" if self.vector > 1 and op.over[0] == self.axis else index
        return expression(
            self.program, op, [spell_operand(self.program, op, x, self.spelled) for x in op.operands]
        )

    def store(self, buffer: Buffer) -> tuple[str | None, str | None, str | None]:
        """Returns (array to declare, line inside the j loop, line after it)."""
        at = address(buffer, self.space.offset(buffer))
        value = self.spelled[buffer.value]
        if self.is_wide(buffer):
            if value.endswith("[j]"):
                return None, None, f"vstore<{self.vector}>({at}, {value.removesuffix('[j]')});"
            array = f"r{buffer.name.removeprefix('out')}"
            kind = COMPUTE_TYPE[buffer.dtype]
            return (
                f"{kind} {array}[{self.vector}];",
                f"{array}[j] = {value};",
                f"vstore<{self.vector}>({at}, {array});",
            )
        if self.is_vectored(buffer):
            assert self.axis is not None
            step = axis_stride(buffer, self.axis)
            moved = f"{at} + j" if step == "1" else f"{at} + j * {step if ' ' not in step else f'({step})'}"
            return None, f"st({moved}, {value});", None
        return None, None, f"st({at}, {value});"


def write_pass(
    lines: Lines,
    elements: Elements,
    loads: list[Buffer],
    ops: list[Op],
    stores: list[Buffer],
    accumulate: list[str] | None = None,
    tail: list[str] | None = None,
) -> None:
    """One visit to a vector: indices, loads, then per element the operations, then stores.

    accumulate: operations and reduction updates already merged in order replace `ops` (see grouped.py).
    tail: statements per element after the operations.
    """
    lines.add(*elements.index_lines([*loads, *stores], ops))
    if not elements.cached:
        lines.add(*elements.declare_loads(loads))
    outer, inner = [], []
    for b in loads:
        before, within = elements.load(b)
        outer += [before] if before else []
        inner += [within] if within else []
    lines.add(*outer)
    inner += [elements.statement(op) for op in ops]
    inner += tail or []
    declared, after = [], []
    for b in stores:
        array, within, last = elements.store(b)
        declared += [array] if array else []
        inner += [within] if within else []
        after += [last] if last else []
    lines.add(*declared)
    write_each(lines, elements.vector, inner)
    lines.add(*after)


def write_each(lines: Lines, vector: int, inner: list[str]) -> None:
    """The statements for every element of a vector."""
    if not inner:
        return
    if vector == 1:
        lines.add(*inner)
        return
    lines.add("#pragma unroll")
    with lines.block(f"for (int j = 0; j < {vector}; j++)"):
        lines.add(*inner)
