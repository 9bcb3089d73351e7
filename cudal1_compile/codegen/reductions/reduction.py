"""A reduction as one or two phases: what is accumulated for each element, and how a group's result is finished.

    sum      p3 += t2;                        const float t3 = block_sum(p3);
    var      p3 += t2; then q3 += (t2 - m3)^2      two phases: the mean first, or a mean that the program has
    argmax   if (t2 > p3) { p3 = t2; x3 = c; }

The phases of all reductions of one stage are laid out by level: a phase at level n needs only results of lower
levels. How threads combine their parts is the caller's: `combine` spells it for a warp, a block or one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cudal1_compile.codegen.stages.expression import COMPUTE_TYPE, is_float
from cudal1_compile.codegen.stages.stage import key_of, read_names
from cudal1_fx_passes.program.ir import Literal, Op, Operand, Program, Ref


@dataclass(frozen=True, slots=True)
class Phase:
    """One accumulation. update: statement with {v} for the element and {c} for its index in the group."""

    op: Op
    level: int
    register: str  # the accumulator
    kind: str  # sum, prod, max, min, argmax, argmin
    type: str
    start: str
    update: str
    finish: tuple[str, ...]  # statements with {p} for the combined accumulator and {n} for the group's size
    defines: str | None  # the program's value that the finish defines
    scale: tuple[str, str] | None = None  # online: the running maximum that the sum refers to, and the final one


def reduced_value(op: Op) -> str:
    """The key of what is reduced: a value's name, or a value at an access."""
    operand = op.operands[0]
    assert isinstance(operand, Ref)
    return key_of(operand)


def reduced_name(op: Op) -> str:
    operand = op.operands[0]
    assert isinstance(operand, Ref)
    return operand.name


def phases(program: Program, ops: tuple[Op, ...], online: bool = False) -> tuple[list[Phase], dict[str, int]]:
    """Lays out the reductions among `ops` (in order); also returns the level at which each value is ready.

    online: a sum of exponentials stands in the pass of its maximum.
    """
    levels: dict[str, int] = {}
    found: list[Phase] = []
    means = {reduced_value(o): o for o in ops if o.fn == "mean"}
    maxima = exponential_sums(ops) if online else {}
    for op in _means_first(ops):
        if not op.over or op.fn == "iota":
            levels[op.name] = max((levels.get(name, 0) for name in read_names(op)), default=0)
            continue
        at = max(levels.get(name, 0) for name in read_names(op))
        if op.name in maxima:
            at = levels[maxima[op.name].name] - 1
        made = _phases(program, op, at, means.get(reduced_value(op)), levels)
        if op.name in maxima:
            top = maxima[op.name].name
            made = [replace(p, scale=(f"p{top[1:]}", top)) for p in made]
        elif op.fn == "logsumexp" and online:
            first, second = made
            made = [first, replace(second, level=at, scale=(first.register, f"m{op.name[1:]}"))]
        found += made
        levels[op.name] = made[-1].level + 1
    return found, levels


def exponential_sums(ops: tuple[Op, ...]) -> dict[str, Op]:
    """The sums of exp(x - amax(x)), each with its amax."""
    made = {o.name: o for o in ops}
    found: dict[str, Op] = {}
    for op in ops:
        exp = made.get(reduced_name(op)) if op.fn == "sum" and op.dtype == "f32" else None
        sub = made.get(_name(exp.operands[0])) if exp is not None and exp.fn == "exp" else None
        top = made.get(_name(sub.operands[1])) if sub is not None and sub.fn == "sub" else None
        if top is None or sub is None or top.fn != "amax" or top.over != op.over:
            continue
        if sub.operands[0] == top.operands[0] and sub.operands[1] == Ref(top.name):
            found[op.name] = top
    return found


def _name(operand: Operand) -> str:
    return operand.name if isinstance(operand, Ref) else ""


def _means_first(ops: tuple[Op, ...]) -> list[Op]:
    """The operations in order, but a mean before the variance of the same value."""
    if all(op.fn != "var" for op in ops):
        return list(ops)
    ordered: list[Op] = []
    for op in ops:
        if op.fn == "var":
            ordered += [
                m for m in ops if m.fn == "mean" and m not in ordered and reduced_value(m) == reduced_value(op)
            ]
        if op not in ordered:
            ordered.append(op)
    return ordered


def _phases(program: Program, op: Op, level: int, mean: Op | None, levels: dict[str, int]) -> list[Phase]:
    n = op.name[1:]
    source = program.value_dtype[reduced_name(op)]
    kind = COMPUTE_TYPE[op.dtype if op.fn not in ("argmax", "argmin", "any", "all") else source]
    zero, unit = ("0.0f", "1.0f") if kind == "float" else ("0", "1")
    const, p = f"const {kind} {op.name} = ", f"p{n}"
    lowest, highest = (f"{word}<{source}>()" for word in ("lowest", "highest"))
    if is_float(source):
        lowest, highest = "-INFINITY", "INFINITY"

    def one(kind_: str, start: str, update: str, finish: str) -> list[Phase]:
        return [Phase(op, level, p, kind_, kind, start, update, (finish,), op.name)]

    match op.fn:
        case "sum":
            return one("sum", zero, f"{p} += {{v}};", f"{const}{{p}};")
        case "mean":
            return one("sum", zero, f"{p} += {{v}};", f"{const}{{p}} / {{n}};")
        case "prod":
            return one("prod", unit, f"{p} *= {{v}};", f"{const}{{p}};")
        case "amax":
            return one("max", lowest, f"{p} = maximum({p}, {{v}});", f"{const}{{p}};")
        case "amin":
            return one("min", highest, f"{p} = minimum({p}, {{v}});", f"{const}{{p}};")
        case "any" | "all":
            kind, test = "int", "> 0" if op.fn == "any" else "== {n}"
            return one("sum", "0", f"{p} += {{v}} ? 1 : 0;", f"const bool {op.name} = {{p}} {test};")
        case "argmax":
            return one("argmax", lowest, _better(n, ">", source), f"const long long {op.name} = x{n};")
        case "argmin":
            return one("argmin", highest, _better(n, "<", source), f"const long long {op.name} = x{n};")
        case "var":
            return _var(op, level, n, kind, mean, levels)
        case "logsumexp":
            return _logsumexp(op, level, n, kind)
    raise ValueError(f"{op.name}: reduction {op.fn!r} has no phases here")


def _better(n: str, sign: str, source: str) -> str:
    """An argmax's update: NaN wins, and equals of a half type are equal after rounding only."""
    value = f"round_to<{source}>({{v}})" if source in ("f16", "bf16") else "{v}"
    nan = f" || ({value} != {value} && p{n} == p{n})" if is_float(source) else ""
    return f"if ({value} {sign} p{n}{nan}) {{{{ p{n} = {value}; x{n} = {{c}}; }}}}"


def _logsumexp(op: Op, level: int, n: str, kind: str) -> list[Phase]:
    exp, log = ("exp", "log") if kind == "double" else ("expf", "logf")
    zero, top = "0.0f" if kind == "float" else "0", shift(f"m{n}")
    find, keep = f"p{n} = maximum(p{n}, {{v}});", f"const {kind} m{n} = {{p}};"
    add, finish = f"q{n} += {exp}({{v}} - {top});", f"const {kind} {op.name} = {log}({{p}}) + {top};"
    return [
        Phase(op, level, f"p{n}", "max", kind, "-INFINITY", find, (keep,), None),
        Phase(op, level + 1, f"q{n}", "sum", kind, zero, add, (finish,), op.name),
    ]


def shift(top: str) -> str:
    """What a logsumexp takes from its values: their maximum, nothing where that is infinite."""
    return f"finite_or_zero({top})"


def _var(op: Op, level: int, n: str, kind: str, mean: Op | None, levels: dict[str, int]) -> list[Phase]:
    zero = "0.0f" if kind == "float" else "0"
    value = op.operands[1]
    correction = value.value if isinstance(value, Literal) else 1
    divisor = "{n}" if not correction else f"({{n}} - {int(correction)})"
    made = []
    center = f"m{n}"
    if mean is not None and mean.name in levels:
        center, at = mean.name, levels[mean.name]
    else:
        at = level + 1
        finish = (f"const {kind} m{n} = {{p}} / {{n}};",)
        made.append(Phase(op, level, f"p{n}", "sum", kind, zero, f"p{n} += {{v}};", finish, None))
    update = f"q{n} += ({{v}} - {center}) * ({{v}} - {center});"
    finish = (f"const {kind} {op.name} = {{p}} / {divisor};",)
    return [*made, Phase(op, at, f"q{n}", "sum", kind, zero, update, finish, op.name)]


def declare(phase: Phase) -> str:
    index = f" int x{phase.op.name[1:]} = 0;" if phase.kind.startswith("arg") else ""
    return f"{phase.type} {phase.register} = {phase.start};{index}"
