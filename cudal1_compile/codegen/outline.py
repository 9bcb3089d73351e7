"""A kernel's outline: what it stores, and from there backwards what that needs, down to memory; then its order.

    f1: out0=t9 s0=t4,i1 t9=a2,t5 t8=*a1 t7 t5=t2 t4 t3=s1 t2=a0
    f1> a0 t2 p4 { s1 t3 p4 } t4 s0 { a1 t5 t7 t8 a2 t9 out0 }

A word is a name and, after `=`, what it needs that stands nowhere before: values, loads (a2 is of in2) and the
axis indices of their addresses; `*` marks what moves in vectors. That t9 needs t8, the value just before it,
goes without saying. Of a value that is read at several positions each reading tells its own, by the numbers in its
address (`t0_1+20,*a3_1+20`). A sum of products, which a lambda takes as `float t0` or four at once, is of
what the lambdas before it return or fill: a value, or a tensor that is copied as it is (`in1`). Values come by
falling number, so that each word follows from the words before it and one line of the region: who writes token by
token never looks ahead. Forwards, the first load would hang on the last store.

The second line is forwards, once it is settled what is needed: the name that each statement of the code sets or
stores, loops in braces. What to write next is then copied, not decided in the middle of the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_KERNEL = re.compile(r"^__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(.*?\{$(.*?)^\}$", flags=re.M | re.S)
# sizes of products; not every kernel has them
_SIZES = "plane|high|wide|run|places|windows|columns|planes|part|down|across|y0"
_NAME = rf"(?<![<\w])(?:carry|first|{_SIZES}|(?:z?[at]|b?[pq]|in|out|r?s|[eimruvwx])\d+(?:x\d+)?(?:_\d+)?)\b"
_NAMES = re.compile(_NAME)
_SET = re.compile(rf"({_NAME})(?:\[[^\]]*\])*\s*[-+*]?=(?!=)")
_VLOAD = re.compile(rf"\bvload<\d+>\(.*, ({_NAME})(?:\[k\])?\);")
_SCAN = re.compile(rf"_scan_(?:sum|prod)\(({_NAME}), carry\)")
_STORE = re.compile(rf"\b(st|vstore<\d+>)\(((?:out|s)\d+)\b(.*), ({_NAME})(?:\[\w\])*(?:, inside)?\);")
_RETURN = re.compile(r"\breturn (?:[atr]\d+|\(+i\d.*|.* \? (nullptr|-1) : (\w+).*|(s\d+) \+ .*);$")
_FILLED_BY_LAMBDA = re.compile(r"\bfloat \(&([ar]\w+)\)\[\d+\]\) \{$")
_SUM = re.compile(r"\bfloat (?:\(&)?(t\d+)(?:\)\[\d+\])?\) \{$")
_LOAD = re.compile(r"\b(?:ld|vload<\d+>)\((.*)$")
_CLAMP = re.compile(r", (?:0|d\d+ - 1)\)")  # the bounds in an address: those of the axis
_LITERAL = re.compile(r"(- )?(?<![\w.])(\d+)(?![\w.])")
_SEVERAL = re.compile(r"_\d+$")  # ends the name of one of several readings
_SHOWN = re.compile(r"(t|a|i|s|out)\d")  # the other names are seen through


@dataclass
class _Body:
    """Which names a kernel's names are made of, what it stores, and what its statements set, in order."""

    reads: dict[str, list[str]] = field(default_factory=dict)
    stores: dict[str, tuple[str, str]] = field(default_factory=dict)  # buffer -> value, address
    wide: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    copied: set[str] = field(default_factory=set)  # tensors of which only the position is told
    positions: dict[str, str] = field(default_factory=dict)  # of one of several readings: numbers in its address
    returned: list[str] = field(default_factory=list)  # by lambdas, for the sum of products that follows

    def add(self, line: str) -> None:
        if line.lstrip().startswith("}"):
            self.order.append("}")
        self.order += self._statement(line)
        if line.endswith("{"):
            self.order.append("{")

    def _statement(self, line: str) -> list[str]:
        """The names that a line sets or stores."""
        if store := _STORE.search(line):
            self.stores[store[2]] = store[4], store[3]
            self.wide |= {store[2]} if store[1] != "st" else set()
            return [store[2]]
        if back := _RETURN.search(line):
            return self._give_back(line, back[2] if back[1] == "nullptr" else back[3])
        if filled := _FILLED_BY_LAMBDA.search(line):
            self.returned.append(filled[1])
            return []
        if total := _SUM.search(line):
            self.reads[total[1]], self.returned = [n for n in self.returned if n != total[1]], []
            return [total[1]]
        loaded = _VLOAD.findall(line)
        self.wide |= set(loaded)
        made = loaded or _SCAN.findall(line) or list(dict.fromkeys(_SET.findall(line)))
        for name in made:
            self.reads.setdefault(name, []).extend(n for n in _NAMES.findall(line) if n not in made)
            if (load := _LOAD.search(line)) and _SEVERAL.search(name):
                numbers = _LITERAL.findall(_CLAMP.sub(")", load[1]))
                self.positions[name] = "".join(f"{'-' if minus else '+'}{n}" for minus, n in numbers)
        return [n for n in made if n != "first"]  # a position like those beside it

    def _give_back(self, line: str, tensor: str | None) -> list[str]:
        """A lambda's result: a value, or where an element lies (in a tensor, or in what is copied already)."""
        names = [n for n in _NAMES.findall(line) if n != tensor]
        self.returned += [tensor] if tensor else names
        if tensor is None:
            return []
        self.reads.setdefault(tensor, []).extend(names)
        self.copied.add(tensor)
        return [tensor]

    def needs(self, name: str) -> list[str]:
        """The shown names of which `name` is made, in order."""
        found: dict[str, None] = {}
        seen, todo = {name}, list(self.reads.get(name, ()))
        while todo:
            at = todo.pop(0)
            if at in seen:
                continue
            seen.add(at)
            if _SHOWN.match(at) or at in self.copied:
                found[at] = None
            else:
                todo = [*self.reads.get(at, ()), *todo]
        return list(found)


@dataclass
class _Words:
    """The words of one kernel; each tells only what is new."""

    body: _Body
    named: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)  # values that still get their word

    def write(self) -> Iterator[str]:
        for buffer in sorted(self.body.stores, key=lambda b: (b[0] != "o", _number(b))):
            value, address = self.body.stores[buffer]
            if value[0] == "r":  # registers that a vector store takes
                value = self.body.needs(value)[0]
            indices = [n for n in _NAMES.findall(address) if n[0] == "i"]
            yield self._word(buffer, [*(self._mention([value]) or [value]), *self._mention(indices)])
        while self.waiting:
            name = max(self.waiting, key=_number)
            self.waiting.remove(name)
            needs = self.body.needs(name)
            before = [n for n in needs if n[0] == "t" and _number(n) == _before(name)]
            self._mention(before)
            yield self._word(name, self._mention(needs))

    def _mention(self, names: Iterable[str]) -> list[str]:
        """The new ones among `names`; a load or index with what its address needs."""
        found: list[str] = []
        for name in names:
            if name in self.named:
                continue
            self.named.add(name)
            found.append(self._marked(name) + self.body.positions.get(name, ""))
            if name[0] == "t":
                self.waiting.add(name)
            else:
                found += self._mention(self.body.needs(name))
        return found

    def _word(self, name: str, new: list[str]) -> str:
        return self._marked(name) + (f"={','.join(new)}" if new else "")

    def _marked(self, name: str) -> str:
        return f"*{name}" if name in self.body.wide else name


def outline(code: str) -> list[str]:
    """Two lines a kernel, in one string."""
    lines = []
    for name, text in _KERNEL.findall(code):
        body = _Body()
        for line in text.splitlines():
            body.add(line)
        lines.append(f"{name}: {' '.join(_Words(body).write())}\n{name}> {' '.join(body.order)}")
    return lines


def _number(name: str) -> tuple[int, ...]:
    """t5x1 -> (5, 1, 0)"""
    found = re.search(r"(\d+)(?:x(\d+))?(?:_(\d+))?$", name)
    assert found is not None
    return tuple(int(n or 0) for n in found.groups())


def _before(name: str) -> tuple[int, ...]:
    first, *rest = _number(name)
    return (first - 1, *rest)
