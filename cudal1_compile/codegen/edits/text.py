"""Edits of a kernel: rules that find their places in what the templates write, line by line.

A rule takes a kernel's launch line and text and returns its text; the launch stays as it is. It raises IllegalEdit
where its place is not there. All but chains, which add up in another order, leave results bit by bit as they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cudal1_compile.codegen.edits.edit import IllegalEdit, KernelEdit
from cudal1_compile.codegen.products.times import REGISTERS

SM_THREADS = 2048
OWN_REGISTERS, TILE_REGISTERS = 32, 64  # of a thread; of one that multiplies tiles, besides its sums
MAX_UNROLL = 32
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")
_UNROLLED = re.compile(r" *#pragma unroll( \d+)?")
_LOOP = re.compile(r"( *)for \(int ")
_HELD_LOOP = re.compile(r"( *)for \(int k = 0; k < C; k\+\+\) \{")
_VECTOR_LOOP = re.compile(r"( *)for \(int j = 0; j < (\d+); j\+\+\) \{")
_FLOAT_SUM = re.compile(r" *float (\w+) = 0\.0f;")
_ADDED = re.compile(r"( *)([pq]\d+) \+= (.*);")
_LOAD = re.compile(r" *(?:vload<\d+>\(.*\);|\w+\[k\] = ld\(.*\);)")
_POSITION = re.compile(r" *(?:const int \w+ = .*;|if \(\w+ >= .*\) break;)")
_TILE = re.compile(r"\bproduct_\w+<\w+, (\d+), (\d+),")
_GRID = re.compile(r"<<<dim3\(")
_F32_RESULT = re.compile(r"\bf32\* __restrict__ (out\d+)\b")
_STORE = re.compile(r"( *(?:if \(.*?\) )?)(?:st|vstore<(\d+)>)\(((out\d+)\b[^,]*), (?!inside\b)([\w\[\]]+)\);")


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel of a code: its launch line and its text, signature first; both stand there once."""

    launch: str
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")


def find_kernel(code: str, name: str) -> KernelText | None:
    launch = re.search(rf"^// launch: {name}<<<.*$", code, flags=re.M)
    text = re.search(rf"^__global__ void __launch_bounds__\(\d+\) {name}\(.*?^\}}$", code, flags=re.M | re.S)
    return KernelText(launch[0], text[0]) if launch and text else None


def edited(code: str, edit: KernelEdit) -> str:
    """The code with one kernel edited; raises IllegalEdit where that cannot be."""
    kernel = find_kernel(code, edit.kernel)
    if kernel is None:
        raise IllegalEdit(f"'{edit}': the code has no kernel {edit.kernel} that is launched")
    text = RULES[edit.knob](kernel, edit)
    if text == kernel.text:
        raise IllegalEdit(f"'{edit}' changes nothing: {edit.kernel} has that already")
    return code.replace(kernel.text, text)


def _unroll(kernel: KernelText, edit: KernelEdit) -> str:
    """Loops that have a number of turns to unroll, or no word on it; whole ones hold register arrays."""
    if not 1 <= edit.value <= MAX_UNROLL:
        raise IllegalEdit(f"'{edit}': 1 to {MAX_UNROLL} turns of a loop may be unrolled")
    found: list[str] = []
    loops = 0
    for line in kernel.lines:
        if loop := _LOOP.match(line):
            pragma = _UNROLLED.fullmatch(found[-1])
            if pragma is None or pragma[1]:
                found = found[:-1] if pragma else found
                found.append(f"{loop[1]}#pragma unroll {edit.value}")
                loops += 1
        found.append(line)
    if not loops:
        raise IllegalEdit(f"'{edit}': {edit.kernel} has no loop but those that are unrolled whole")
    return "\n".join(found)


def _min_blocks(kernel: KernelText, edit: KernelEdit) -> str:
    bounds = _BOUNDS.search(kernel.text)
    assert bounds is not None
    threads, blocks = int(bounds[1]), edit.value
    if re.search(r"\bproduct_(?:bulk|fill)<", kernel.text):
        raise IllegalEdit(
            f"'{edit}': the warps of {edit.kernel} hand registers to each other by a plan of their own"
        )
    tile = _TILE.search(kernel.text)
    sums = int(tile[1]) * int(tile[2]) // threads if tile else 0
    registers = sums + TILE_REGISTERS if tile else OWN_REGISTERS
    most = min(SM_THREADS // threads, REGISTERS // (registers * threads))
    if blocks > most:
        raise IllegalEdit(
            f"'{edit}': an SM has room for {most} blocks of {threads} threads and their {sums} sums each"
        )
    return kernel.text.replace(bounds[0], f"__launch_bounds__({threads}, {blocks})", 1)


def _swizzle(kernel: KernelText, edit: KernelEdit) -> str:
    """Blocks in bands of so many along x, each walked along x first, then y, so that a band's tiles stay in L2."""
    text, n = kernel.text, edit.value
    if not (_GRID.search(kernel.launch) and "blockIdx.x" in text and "blockIdx.y" in text):
        raise IllegalEdit(f"'{edit}': the grid of {edit.kernel} has one dimension")
    if "wait_for_blocks" in text or re.search(r"\b(?:bx|by|band|turn)\b", text):
        raise IllegalEdit(f"'{edit}': the blocks of {edit.kernel} have an order already")
    head, *lines = text.split("\n")
    body = "\n".join(lines).replace("blockIdx.x", "bx").replace("blockIdx.y", "by")
    order = [
        "  const int turn = blockIdx.y * gridDim.x + blockIdx.x;",
        f"  const int band = turn / ({n} * (int)gridDim.y) * {n};",
        f"  const int inside = turn - band * (int)gridDim.y, across = min({n}, (int)gridDim.x - band);",
        "  const int bx = band + inside % across, by = inside / across;",
    ]
    return "\n".join([head, *order, body])


def _chains(kernel: KernelText, edit: KernelEdit) -> str:
    """A vector's elements are added up in sums of their own, which join the thread's sum once a vector."""
    sums = [m[1] for line in kernel.lines if (m := _FLOAT_SUM.fullmatch(line))]
    found: list[str] = []
    lines = iter(kernel.lines)
    for line in lines:
        found.append(line)
        loop = _VECTOR_LOOP.fullmatch(line)
        if loop and int(loop[2]) >= edit.value:
            depth, body = loop[1], list(_until(lines, f"{loop[1]}}}"))
            own = [n for n in sums if _only_adds(body, n)]
            # before the loop and its pragma
            found[-2:-2] = [f"{depth}float {n}_v[{edit.value}] = {{}};" for n in own]
            found += [*(_in_chain(x, own, edit.value) for x in body), f"{depth}}}"]
            found += [f"{depth}{n} += {' + '.join(f'{n}_v[{i}]' for i in range(edit.value))};" for n in own]
    if len(found) == len(kernel.lines):
        raise IllegalEdit(f"'{edit}': {edit.kernel} adds up no vectors of {max(2, edit.value)} elements or more")
    return "\n".join(found)


def _only_adds(body: list[str], name: str) -> bool:
    """Whether one line adds to a sum, and nothing reads it."""
    found = [x for x in body if re.search(rf"\b{name}\b", x)]
    added = _ADDED.fullmatch(found[0]) if len(found) == 1 else None
    return added is not None and added[2] == name and not re.search(rf"\b{name}\b", added[3])


def _in_chain(line: str, own: list[str], chains: int) -> str:
    added = _ADDED.fullmatch(line)
    if added is None or added[2] not in own:
        return line
    place = f"j % {chains}" if chains > 1 else "0"
    return f"{added[1]}{added[2]}_v[{place}] += {added[3]};"


def _loads_first(kernel: KernelText, edit: KernelEdit) -> str:
    """A loop over a thread's vectors becomes two: the loads of all, then all that is done with them."""
    found: list[str] = []
    lines = iter(kernel.lines)
    for line in lines:
        found.append(line)
        if loop := _HELD_LOOP.fullmatch(line):
            body = list(_until(lines, f"{loop[1]}}}"))
            loads = next((i for i, x in enumerate(body) if not (_LOAD.fullmatch(x) or _POSITION.fullmatch(x))), 0)
            positions = [x for x in body[:loads] if _POSITION.fullmatch(x)]
            if loads > len(positions) and len(body) > loads:
                again = [f"{loop[1]}}}", f"{loop[1]}#pragma unroll", line, *positions]
                body[loads:loads] = again
            found += [*body, f"{loop[1]}}}"]
    if len(found) == len(kernel.lines):
        raise IllegalEdit(
            f"'{edit}': {edit.kernel} has no loop over vectors in registers that loads and uses them"
        )
    return "\n".join(found)


def _until(lines: Iterator[str], end: str) -> Iterator[str]:
    for line in lines:
        if line == end:
            return
        yield line


def _stream_stores(kernel: KernelText, edit: KernelEdit) -> str:
    """Stores of float32 results: no half type has a streaming store of its own."""
    results = set(_F32_RESULT.findall(kernel.lines[0]))
    found = [line for x in kernel.lines for line in _streamed(x, results)]
    if found == kernel.lines:
        raise IllegalEdit(f"'{edit}': {edit.kernel} stores no float32 result that may be streamed")
    return "\n".join(found)


def _streamed(line: str, results: set[str]) -> list[str]:
    store = _STORE.fullmatch(line)
    if store is None or store[4] not in results:
        return [line]
    head, vector, at, value = store[1], int(store[2] or 1), store[3], store[5]
    if vector == 1:
        return [f"{head}__stcs({at}, {value});"] if store[2] is None else [line]
    width = min(vector, 4)
    if head.strip() and vector > width:
        return [line]
    items = [[f"{value}[{i + n}]" for n in range(width)] for i in range(0, vector, width)]
    starts = [f"{at} + {i}" if i else at for i in range(0, vector, width)]
    return [
        f"{head}__stcs((float{width}*)({start}), make_float{width}({', '.join(x)}));"
        for start, x in zip(starts, items, strict=True)
    ]


RULES: dict[str, Callable[[KernelText, KernelEdit], str]] = {
    "unroll": _unroll,
    "chains": _chains,
    "loads first": _loads_first,
    "stream stores": _stream_stores,
    "swizzle": _swizzle,
    "min blocks": _min_blocks,
}
