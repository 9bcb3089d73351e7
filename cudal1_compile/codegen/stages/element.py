"""Loads, operations and stores of one element or one vector of elements, in a given space.

Two styles, as a schedule asks:
    scalar   const float t3 = a0[j] * a1;            values live within one pass
    cached   t3[k][j] = a0[k][j] * a1[k];            values live in register arrays across passes
`j` counts within a vector, `k` counts the chunks that a thread holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE, expression, spell_operand
from cudal1_compile.codegen.stages.source import Lines
from cudal1_compile.codegen.stages.space import Space, is_unit_stride, shifted_axis
from cudal1_compile.codegen.stages.stage import Buffer, Stage, key_of
from cudal1_fx_passes.program.ir import Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind


def operand_keys(op: Op) -> list[str]:
    return [key_of(x) for x in op.operands if isinstance(x, Ref)]


@dataclass
class Elements:
    """Writes element code; `axis` is the axis along which vectors run (None: no vectors)."""

    program: Program
    space: Space
    axis: str | None
    vector: int = 1
    cached: bool = False
    spelled: dict[str, str] = field(default_factory=dict)
    late: dict[str, Buffer] = field(default_factory=dict)  # loads whose index is computed in this kernel
    within: str = ""  # "from, to, " of vectors that may be cut at the ends of a row
    only: str = ""  # ", inside" of vectors that are stored there alone

    def is_vectored(self, buffer: Buffer) -> bool:
        return self.vector > 1 and self.axis in buffer.span

    def is_wide(self, buffer: Buffer) -> bool:
        """Whether one vector access moves the buffer's elements."""
        if self.axis is None or not self.is_vectored(buffer) or self._scatters(buffer):
            return False
        return is_unit_stride(buffer, self.axis) or self._shifted_axis(buffer) is not None

    def _shifted_axis(self, buffer: Buffer) -> str | None:
        """The axis along which a vector lies side by side, at a distance that keeps it aligned."""
        if self.axis is None or self.within or self._scatters(buffer):
            return None
        return shifted_axis(self.program, buffer, self.axis, self.vector)

    def _scatters(self, buffer: Buffer) -> bool:
        """Whether the elements of a vector are read at indices of their own."""
        return any(self.axis in self.program.value_axes[name] for name in buffer.index_values)

    def index_lines(self, buffers: Iterable[Buffer], ops: Iterable[Op]) -> list[str]:
        """Declarations of the axis indices that these buffers and index operations need."""
        needed = {o.over[0] for o in ops if OPS[o.fn].kind is Kind.IOTA}
        for b in buffers:
            needed |= set(self._space_of(b).needed_axes([b]))
            needed |= {self.axis} if self.axis is not None and self._is_shifted(b) else set()
        derived = self.space.derived
        needed |= {part for a in needed & derived.keys() for part in (derived[a][0], derived[a][2])}
        axes = sorted((a.name for a in self.program.axes if a.name in needed), key=derived.__contains__)
        lines = [self.space.index_line(a) for a in axes]
        return [line for line in lines if line is not None]

    def _is_shifted(self, buffer: Buffer) -> bool:
        """Whether each element of a vector has an address of its own."""
        return self.is_vectored(buffer) and not self.is_wide(buffer)

    def _space_of(self, buffer: Buffer) -> Space:
        """The space in which the buffer is addressed; `j` is added where elements do not lie side by side."""
        if (along := self._shifted_axis(buffer)) is not None:
            return replace(self.space, reach={along: self.vector})
        if self.axis is None or not self._is_shifted(buffer):
            return self.space
        renamed = {**self.space.renamed, self.axis: f"{self.space.index(self.axis)} + j"}
        return replace(self.space, renamed=renamed)

    def address(self, buffer: Buffer) -> str:
        offset = self._space_of(buffer).offset(buffer)
        return f"{buffer.name} + {offset}" if offset else buffer.name

    def load(self, buffer: Buffer) -> tuple[str | None, str | None]:
        """Returns (line before the j loop, line inside it) and records the spelling."""
        name = buffer.register
        kind = COMPUTE_TYPE[buffer.dtype]
        at = self.address(buffer)
        chunk = "[k]" if self.cached else ""
        if self.is_wide(buffer):
            self.spelled[buffer.key] = f"{name}{chunk}[j]"
            return f"vload<{self.vector}>({at}, {self.within}{name}{chunk});", None
        shifted = self._is_shifted(buffer)
        inside = f"{chunk}[j]" if shifted and self.cached else chunk
        self.spelled[buffer.key] = f"{name}{inside}"
        head = f"{name}{inside}" if self.cached else f"const {kind} {name}"
        line = f"{head} = ld({at});"
        return (None, line) if shifted else (line, None)

    def declare_loads(self, buffers: Iterable[Buffer]) -> list[str]:
        """Arrays that the loads fill: all of them when cached, else those of wide loads."""
        names: dict[str, list[str]] = {}
        for b in buffers:
            shape = f"[{self.vector}]" if self.is_vectored(b) else ""
            if self.cached:
                shape = f"[C]{shape}"
            elif not self.is_wide(b):
                continue
            names.setdefault(COMPUTE_TYPE[b.dtype], []).append(f"{b.register}{shape}")
        return [f"{kind} {', '.join(found)};" for kind, found in names.items()]

    def declare_cached(self, ops: Iterable[Op]) -> list[str]:
        shape = f"[C][{self.vector}]" if self.vector > 1 else "[C]"
        names: dict[str, list[str]] = {}
        for o in ops:
            names.setdefault(COMPUTE_TYPE[o.dtype], []).append(f"{o.name}{shape}")
        return [f"{kind} {', '.join(found)};" for kind, found in names.items()]

    def statements(self, op: Op) -> list[str]:
        """The operation's line, after loads that waited for their index; records the spelling of its result."""
        lines = self.late_lines(operand_keys(op))
        right = self.value(op)
        if self.cached:
            self.spelled[op.name] = f"{op.name}[k][j]" if self.vector > 1 else f"{op.name}[k]"
            return [*lines, f"{self.spelled[op.name]} = {right};"]
        self.spelled[op.name] = op.name
        return [*lines, f"const {COMPUTE_TYPE[op.dtype]} {op.name} = {right};"]

    def late_lines(self, keys: Iterable[str]) -> list[str]:
        """Loads of what waited for an index and is not loaded yet."""
        waiting = [k for k in dict.fromkeys(keys) if k in self.late and k not in self.spelled]
        return [line for k in waiting for line in self.load(self.late[k]) if line]

    def value(self, op: Op) -> str:
        if OPS[op.fn].kind is Kind.IOTA:
            index = self.space.index(op.over[0])
            return f"{index} + j" if self.vector > 1 and op.over[0] == self.axis else index
        return expression(
            self.program, op, [spell_operand(self.program, op, x, self.spelled) for x in op.operands]
        )

    def store(self, buffer: Buffer) -> tuple[str | None, str | None, str | None]:
        """Returns (array to declare, line inside the j loop, line after it)."""
        at = self.address(buffer)
        value = self.spelled[buffer.value]
        if self.is_wide(buffer):
            if value.endswith("[j]"):
                return (
                    None,
                    None,
                    f"vstore<{self.vector}>({at}, {self.within}{value.removesuffix('[j]')}{self.only});",
                )
            array = f"r{buffer.name.removeprefix('out')}"
            kind = COMPUTE_TYPE[buffer.dtype]
            return (
                f"{kind} {array}[{self.vector}];",
                f"{array}[j] = {value};",
                f"vstore<{self.vector}>({at}, {self.within}{array}{self.only});",
            )
        if self.is_vectored(buffer):
            return None, f"st({at}, {value});", None
        return None, None, f"st({at}, {value});"

    def visit(
        self,
        loads: list[Buffer],
        ops: list[Op],
        stores: list[Buffer],
        updates: Callable[[], list[str]] | None = None,
    ) -> Iterator[str | list[str]]:
        """One visit to a vector: lines, and once a list of the lines for each of its elements.

        updates: spells what follows the operations (accumulations) once their operands are known.
        """
        early = [b for b in loads if b.key not in self.late]
        for b in loads:  # a new scope: what waited for an index is loaded again
            if b.key in self.late and not self.cached:
                self.spelled.pop(b.key, None)
        yield from self.index_lines([*loads, *stores], ops)
        if not self.cached:
            yield from self.declare_loads(early)
        outer, inner = [], []
        for b in early:
            before, within = self.load(b)
            outer += [before] if before else []
            inner += [within] if within else []
        yield from outer
        inner += [line for op in ops for line in self.statements(op)]
        inner += updates() if updates is not None else []
        declared, after = [], []
        for b in stores:
            array, within, last = self.store(b)
            declared += [array] if array else []
            inner += [within] if within else []
            after += [last] if last else []
        yield from declared
        yield inner
        yield from after


def write_visit(lines: Lines, vector: int, visit: Iterable[str | list[str]]) -> None:
    for line in visit:
        if isinstance(line, list):
            write_each(lines, vector, line)
        else:
            lines.add(line)


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


def late_loads(stage: Stage) -> dict[str, Buffer]:
    """Loads at an index that the stage itself computes."""
    made = {op.name for op in stage.ops}
    return {b.key: b for b in stage.loads if any(v in made for v in b.index_values)}


def in_order(loads: Iterable[Buffer]) -> list[Buffer]:
    """Loads that serve as an index stand before those that use it."""
    return sorted(loads, key=lambda b: bool(b.index_values))
