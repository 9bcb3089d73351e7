"""Writes reducing stages that need max(x) and sum(exp(x - max(x))) with ONE read of x for both.

A thread keeps the largest value so far and the sum of exponentials relative to it, or to a finite number where it
is -inf; a vector with a larger value rescales the sum once. At the end the threads' sums are rescaled to the
block's maximum. A block a row, for rows that do not fit in registers.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.reductions.grouped import GroupedWriter
from cudal1_compile.codegen.reductions.reduction import Phase, phases, reduced_value, shift
from cudal1_compile.codegen.stages.element import write_each
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.stage import Buffer, Stage, read_names
from cudal1_fx_passes.program.ir import Op

LOWEST = "-3.4028235e38f"  # finite: exp(-inf - lowest) is 0, where exp(-inf + inf) would be NaN


def has_online(stage: Stage) -> bool:
    """Whether a float sum of exponentials can stand in the pass of its maximum."""
    found, _ = phases(stage.program, stage.ops, online=True)
    return any(p.scale and p.type == "float" for p in found) and all(p.type == "float" for p in found if p.scale)


class OnlineWriter(GroupedWriter):
    """One reducing stage, a block a group."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str) -> None:
        super().__init__(stage, replace(schedule, kind="block"), name)
        found, self.level = phases(stage.program, stage.ops, online=True)
        self.phases = found
        used = self._used()
        self.element_ops = [o for o in self.element_ops if o.name in used]

    def _used(self) -> set[str]:
        """Values that are computed: not an exponential that only its sum takes."""
        top_of = {p.op.name: p.scale[1] for p in self.phases if p.scale and p.op.fn == "sum"}
        used = {b.value for b in self.stage.writes}
        for op in reversed(self.stage.ops):
            if op.name in used:
                used |= {top_of[op.name]} if op.name in top_of else set(read_names(op))
        return used

    def _body(self, loads: list[Buffer], ops: list[Op], here: list[Phase], stores: list[Buffer]) -> None:
        sums = [p for p in here if p.scale]
        running = {p.scale[0] for p in sums if p.scale}
        v, lines, spelled = self.schedule.vector, self.lines, self.elements.spelled
        tops = [p for p in here if p.register in running]
        position = "c + j" if v > 1 else "c"

        def updates() -> list[str]:
            values = {p.register: spelled[reduced_value(p.op)] for p in here if p not in sums}
            plain = [p.update.format(v=values[p.register], c=position) for p in here if p not in sums + tops]
            return plain + [line for p in tops for line in _raise(p, values[p.register], v, sums)]

        if v > 1:
            lines.add(*[f"float w{p.register[1:]} = {p.register}, e{p.register[1:]}[{v}];" for p in tops])
        for line in self.elements.visit(loads, ops, stores, updates):
            if isinstance(line, list):
                write_each(lines, v, line)
            else:
                lines.add(line)
        if v > 1:
            for p in sums:
                n = _number(p)
                away = _away(p, f"w{n}")
                lines.add(f"{p.register} *= expf(p{n} - {away});")
                write_each(lines, v, [f"{p.register} += expf(e{n}[j] - {away});"])
            lines.add(*[f"{p.register} = w{p.register[1:]};" for p in tops])

    def _combined(self, p: Phase) -> tuple[str, list[str]]:
        if p.scale is None:
            return super()._combined(p)
        running, final = p.scale
        away = shift(final) if p.op.fn == "logsumexp" else final  # what is relative to -inf is NaN
        return f"block_sum({p.register} * expf({running} - {away}))", []


def _number(p: Phase) -> str:
    """Of the maximum to which a sum refers."""
    assert p.scale is not None
    return p.scale[0][1:]


def _away(p: Phase, top: str) -> str:
    """What is taken from the exponents: a softmax of an infinite row is NaN, a logsumexp is not."""
    return shift(top) if p.op.fn == "logsumexp" else f"fmaxf({top}, {LOWEST})"


def _raise(top: Phase, value: str, vector: int, sums: list[Phase]) -> list[str]:
    """What one element does to the maximum, and without vectors to its sums."""
    n = top.register[1:]
    if vector > 1:
        return [f"e{n}[j] = {value};", f"w{n} = maximum(w{n}, {value});"]
    scaled = []
    for p in sums:
        if _number(p) == n:
            r, away = p.register, _away(p, f"w{n}")
            scaled.append(f"{r} = {r} * expf(p{n} - {away}) + expf({value} - {away});")
    return [f"const float w{n} = maximum(p{n}, {value});", *scaled, f"p{n} = w{n};"]
