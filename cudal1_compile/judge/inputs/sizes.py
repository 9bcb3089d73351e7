"""How large regions are, and at which sizes of their symbolic axes candidates are tried.

size_variants(program, n) -> sizes of n cases;   own_sizes(program, candidate) -> those of a few more, mostly none
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle, islice, repeat
from math import isqrt, prod
from operator import add, mul, sub, xor

from cudal1_compile.judge.inputs.extremes import reaches_integers
from cudal1_compile.kernel.candidate import MAX_BLOCK, MAX_GRID, Candidate, CandidateError, Launch
from cudal1_compile.kernel.text import body_of as text_of_body
from cudal1_compile.kernel.text import folded, plan_lines
from cudal1_fx_passes.program.ir import ITEM_BYTES, Axis, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

LARGE_ELEMENTS = 1 << 24  # of all inputs and outputs together: above it fewer distributions run
SMALL_ELEMENTS = 1 << 17
GRID_ELEMENTS = 1 << 20
MANY_ELEMENTS = 1 << 22
BEYOND_ANY_BLOCK = 2053  # threads
BEYOND_A_BLOCK = 263  # a size that few blocks cover and no tile divides
EVEN = (1024, 256, 64)  # sizes that tiles divide, for all axes about the same; the first that fits
OWN_SIZES = "sizes of its own"  # cases of `own_sizes`
SURE_SIZES = 3  # of other sizes: what every case suite of a region with symbolic axes has
LARGE_COMPARED = 8  # of compared sizes that make a region large
COMPARED_SIZES = 96  # ordinary kernels have a dozen at most; more shall not hide behind others
_COMPARES = r"(?<![<>=!-])(?:[<>]=?|[=!]=)(?![<>=])"
_WHOLE = r"((?:\b1\s*<<\s*)?\b\d{1,9}\b(?![.'\w]|\s*>\s*\())"  # but a template's argument
_COMPARED = re.compile(rf"(\w*)[\s)]*{_COMPARES}[\s(]*{_WHOLE}|{_WHOLE}[\s)]*{_COMPARES}[\s(]*(\w*)")
_LEFT = re.compile(r"(\w+)[\s)]*(%|&)[\s(]*(\d{1,9})[\s)]*[=!]=[\s(]*(\d{1,9})")
_DIVIDED = re.compile(r"/[\s(]*(\d{1,9})[\s)]*[=!]=[\s(]*(\d{1,9})")
_NUMBER = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F]{1,8}|\d{1,9}(?=[uUlL]*\b(?!['.])|\.0*f?(?![\w.])))")
_FOLDED = re.compile(r"[(=,<>!&|?:^]\s*(\d{1,9})\s*([-+*^])\s*(\d{1,9})\b(?!['.])")
_EQUAL = re.compile(r"(?:[=!]=[\s(]*|\bd\d+\s*[-^]\s*)(\d{2,9})\b(?!['.])|(?<![\w.])(\d{2,9})[\s)]*[=!]=")
_BINARY_OR_OCTAL = re.compile(r"(?<![\w.])0(?:[bB]([01][01']*)|([0-7]+))(?![\w.'])")
_TABLE = re.compile(r"\{((?:\s*\d+\s*,)+\s*\d+\s*,?\s*)\}")
_OF_BITS = re.compile(r"\b__(?:popc|clz|ffs|brev)(?:ll)?\b")
_SHIFTED = re.compile(r">>=?[\s(]*(\d{1,2})\b")
_NARROW = re.compile(r"\b(?:short|[iu]16|u?int16_t|65535|65536|0xffff|1\s*<<\s*16)\b", re.I)
_BEYOND_16_BITS = 65541
_FAR_ALONG = 20011  # of one axis: what lies there no block holds in its registers
_BESIDE = 3  # the other symbolic axes' sizes then
_SCANNED = 1100  # sizes, up to which every block has had each remainder
_ROUNDED_BY_HAND = re.compile(r"[-/%]")
_SHARED_BYTES = 40_000  # a launch that asks for more may be refused, and its call is aten's
_TILES = (4, 8, 16)
_MOST_THREADS = 9_000_000  # of a launch, for a single case: a CPU takes them one by one
_TO_WHOLE = re.compile(
    r"(?:\(\s*|static_cast<\s*|\b)(?:int|unsigned|unsigned int|long|long long|[iu]32|[iu]64)(?:\s*\)|>)?\s*"
    r"(?P<operand>\w+\b(?!\s*\()|\w*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))"
)
_SET_WHOLE = re.compile(
    r"\b(?:int|unsigned|long|size_t|[iu](?:32|64)|u?int(?:32|64)_t)\s+\w+\s*=\s*([^;{}]*+)(;?)"
)
_ROUNDED = re.compile(r"\b(?:__(?:float|double)2u?(?:int|ll)_\w+|l?l(?:rint|round)f?)\b")
_FLOATS = re.compile(r"\b(?:float|double)\s+(\w+)\b(?!\s*[\[(])")
_FLOAT = r"\d\.\d*|\.\d+f|\d[eE][-+]?\d|\(\s*(?:float|double)\s*\)|\b(?:float|double)\s*\("
_WORD = re.compile(r"(?<![.\w])(\w+)\b(?!\s*\[)")
_FOLDS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul, "^": xor}
# sizes of blocks, tiles, warps and their masks
USUAL = {*range(65), *range(0, 4097, 32), *(2**k - 1 for k in range(33))}


def tensor_elements(program: Program) -> int:
    """Elements of all inputs and outputs."""
    return sum(program.size(axes) for axes, _ in _tensors(program))


def tensor_bytes(program: Program) -> int:
    """Bytes of all inputs and outputs."""
    return sum(program.size(axes) * ITEM_BYTES[dtype] for axes, dtype in _tensors(program))


def product_bytes(program: Program) -> int:
    """Bytes of the results of all sums of products, which a library writes down."""
    products = (op for op in program.ops if OPS[op.fn].kind is Kind.DOT)
    return sum(program.size(op.axes) * ITEM_BYTES[op.dtype] for op in products)


def _tensors(program: Program) -> list[tuple[tuple[str, ...], str]]:
    outputs = [(o.axes, program.output_dtype(o)) for o in program.outputs]
    return [*((i.axes, i.dtype) for i in program.inputs), *outputs]


def size_variants(program: Program, count: int, seed: int = 0) -> Iterator[Mapping[str, int]]:
    """Sizes of the symbolic axes for each case: every second one has others, some larger than the example's.

    seed: by which some vary, so that nothing may go by what all of them are not.
    """
    free = _independent_symbolic(program)
    others = cycle(_other_sizes(program, free, random.Random(seed) if seed else None)) if free else repeat({})
    for i in range(count):
        yield next(others) if i % 2 else {}


def _other_sizes(program: Program, free: Sequence[Axis], rng: random.Random | None) -> Iterator[Mapping[str, int]]:
    """Those that uncover most come first: a small region has five or six cases of other sizes."""
    more = [4 * rng.randrange(16) if rng else 0 for _ in range(3)]
    left = more[0] if more[0] < 32 else -4  # in half of the case suites a single one is left of any block
    elements = tensor_elements(program)
    doubles = elements << len(free) <= LARGE_ELEMENTS
    # where that is cheap: a grid that drops the last block is right for a small example and for its double
    grown = elements * prod(BEYOND_A_BLOCK / max(1, a.size) for a in free)
    least = BEYOND_A_BLOCK if grown <= SMALL_ELEMENTS else 0
    names = [a.name for a in free]
    long = [
        _fitting(program, dict.fromkeys(names, 1 + 6 * (i % 2)) | {n: BEYOND_ANY_BLOCK + left})
        for i, n in enumerate(names)
    ]
    turned = rng.sample(names, len(names)) if rng else names
    even = (_fitting(program, _uneven(turned, size)) for size in EVEN)
    yield from [found for found in even if found][:1]
    yield from filter(None, long[:1])
    # three are left of four, as of no other large size
    yield {a.name: (max(least, 2 * a.size) // 4 * 4 + 3 + more[1]) if doubles else a.size + 2 for a in free}
    yield from filter(None, long[1:])
    for size in (1, 6 + more[2]):  # 6: two are left of four, which is so for none of the other sizes
        yield dict.fromkeys((a.name for a in free), size)
    yield {a.name: a.size + 1 for a in free}
    yield {a.name: max(1, a.size - 1) for a in free}


def _uneven(names: Sequence[str], size: int) -> Mapping[str, int]:
    """Two axes that differ, as no others do: what takes one for the other is right where they are equal."""
    first, *others = names
    return dict.fromkeys(names, size) | ({first: 2 * size, others[0]: size // 2} if others else {})


def _fitting(program: Program, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """These sizes, or none where that is too much work."""
    fits = tensor_elements(_resized(program, sizes)) <= max(SMALL_ELEMENTS, 2 * tensor_elements(program))
    return sizes if fits else {}


def _resized(program: Program, sizes: Mapping[str, int]) -> Program:
    return replace(program, axes=tuple(replace(a, size=sizes.get(a.name, a.size)) for a in program.axes))


def own_sizes(program: Program, candidate: Candidate) -> list[Mapping[str, int]]:
    """Sizes at which this candidate may be wrong though it is right at all others."""
    found = [
        beyond_grids(program, candidate),
        *compared_sizes(program, candidate),
        *_beyond_16_bits(program, candidate),
        *_far_along(program, candidate),
        *_many_blocks(program, candidate),
        *_half_tiles(program, candidate),
        *_hardly_covered(program, candidate),
    ]
    return [sizes for sizes in found if sizes]


def beyond_grids(program: Program, candidate: Candidate) -> Mapping[str, int]:
    """Sizes at which a grid has grown less than the tensors since sizes that are always tried; mostly none.

    Also where the code names a number beyond the sizes that are always tried.
    """
    free = _independent_symbolic(program)
    room = GRID_ELEMENTS / max(1, tensor_elements(program))
    if not free or room < 2.0:
        return {}
    most = {a.name: int(a.size * room ** (1 / len(free))) for a in free}
    others = list(islice(_other_sizes(program, free, None), SURE_SIZES))
    tried = {n: min(size, max(program.axis[n].size, *(s.get(n, 0) for s in others))) for n, size in most.items()}
    shares = zip(*(_elements_a_thread(_resized(program, s), candidate) for s in (tried, most)), strict=True)
    beyond = any(number > BEYOND_ANY_BLOCK for number in _whole_numbers(candidate.code))
    resized = _resized(program, tried)
    least = tensor_elements(resized) / max(resized.size(axes) for axes, _ in _tensors(resized))  # one place each
    if not beyond and not any(after > 1.25 * max(before, least) for before, after in shares):
        return {}
    return {n: int(size * 2 ** (1 / len(free))) for n, size in most.items()}


def _beyond_16_bits(program: Program, candidate: Candidate) -> Iterator[Mapping[str, int]]:
    """Sizes that no short integer holds, one axis at a time, where the code has such integers and they fit."""
    for axis in _independent_symbolic(program) if _NARROW.search(body_of(candidate.code)) else ():
        for sizes in ({axis.name: _BEYOND_16_BITS}, _one_long(program, axis, _BEYOND_16_BITS)):
            fits = tensor_elements(_resized(program, sizes)) <= LARGE_ELEMENTS
            if fits and _launches(program, candidate, sizes):
                yield sizes
                break


def _far_along(program: Program, candidate: Candidate) -> Iterator[Mapping[str, int]]:
    """Sizes far along one axis where a launch has no more threads for it: loops of fixed length end before."""
    for axis in _independent_symbolic(program):
        one, two = (tensor_elements(_resized(program, _one_long(program, axis, n))) for n in (1, 2))
        long = min(_FAR_ALONG, GRID_ELEMENTS // max(1, two - one))
        sizes, tried = _one_long(program, axis, long), _one_long(program, axis, BEYOND_ANY_BLOCK)
        if long < 2 * BEYOND_ANY_BLOCK or not all(_launches(program, candidate, s) for s in (tried, sizes)):
            continue
        counts = zip(*(_threads(_resized(program, s), candidate) for s in (tried, sizes)), strict=True)
        if any(before == after for before, after in counts):
            yield sizes


def _many_blocks(program: Program, candidate: Candidate) -> Iterator[Mapping[str, int]]:
    """Sizes far along one axis where blocks share scratch or grids have a limit: more blocks than they name."""
    plan = "\n".join(plan_lines(candidate.code))
    if not candidate.scratch and "min(" not in plan:
        return
    named = [int(n) for n in re.findall(r"(?<![\w.])\d{2,6}\b", plan)]
    for axis in _independent_symbolic(program):
        one, two = (tensor_elements(_resized(program, _one_long(program, axis, n))) for n in (1, 2))
        long = (GRID_ELEMENTS + GRID_ELEMENTS // 16) // max(1, two - one)  # 2^20 are no limit either
        while not _outgrows(program, candidate, axis, long, named) and 2 * long * (two - one) <= MANY_ELEMENTS:
            long *= 2
        sizes = _one_long(program, axis, long)
        if long >= 2 * BEYOND_ANY_BLOCK and _launches(program, candidate, sizes):
            yield sizes


def _outgrows(program: Program, candidate: Candidate, axis: Axis, size: int, named: Sequence[int]) -> bool:
    """Whether there is work for more blocks than any number that is named."""
    resized = _resized(program, _one_long(program, axis, size))
    dims = {a.name: a.size for a in resized.axes}
    try:
        blocks = max(prod(e.evaluate(dims) for e in launch.grid) for launch in candidate.launches)
    except CandidateError:  # a division by zero
        return True
    work = tensor_elements(resized) // (2 * MAX_BLOCK)
    return max(blocks, work) > max(named, default=0)


def _half_tiles(program: Program, candidate: Candidate) -> Iterator[Mapping[str, int]]:
    """Sizes of which half a tile is left, one axis at a time, for small tiles and vectors that the code names."""
    named = {int(n) for n in re.findall(r"(?<![\w.])\d{1,2}\b(?![.'])", candidate.code)}
    for tile in (t for t in _TILES if t in named):
        for axis in _independent_symbolic(program):
            yield _one_long(program, axis, tile + tile // 2)


def _hardly_covered(program: Program, candidate: Candidate) -> Iterator[Mapping[str, int]]:
    """Sizes at which a grid has the fewest threads for its elements, one axis at a time; none for most candidates.

    Where a grid is not simply rounded up: `(d0 + 126) / 128` leaves one element out, of one size in 128.
    """
    if not any(_ROUNDED_BY_HAND.search(e.text) for launch in candidate.launches for e in launch.grid):
        return
    free = _independent_symbolic(program)
    shapes = [axes for axes, _ in _tensors(program)]

    def shares(several: Sequence[Mapping[str, int]]) -> Iterator[tuple[float, ...]]:
        """Elements a thread of each launch, at all sizes."""
        found = []
        for sizes in several:
            dims = {a.name: a.size for a in program.axes} | dict(sizes)
            elements = sum(prod(dims[a] for a in axes) for axes in shapes)
            found.append([elements / max(1, n) for n in _threads_of(dims, candidate)])
        return zip(*found, strict=True)

    for axis in free:
        tried = [{}, *islice(_other_sizes(program, free, None), SURE_SIZES)]
        scanned = [_one_long(program, axis, size) for size in range(2, _SCANNED)]
        try:
            before, after = shares(tried), shares(scanned)
        except CandidateError:  # a division by zero
            continue
        for known, of_launch in zip(before, after, strict=True):
            sizes = scanned[of_launch.index(max(of_launch))]
            if max(of_launch) > max(known) and _launches(program, candidate, sizes):
                yield sizes


def _one_long(program: Program, axis: Axis, size: int) -> Mapping[str, int]:
    return {a.name: size if a is axis else min(a.size, _BESIDE) for a in _independent_symbolic(program)}


def _launches(program: Program, candidate: Candidate, sizes: Mapping[str, int]) -> bool:
    """Whether any GPU takes the launches at these sizes: a call that none does is aten's."""
    resized = _resized(program, sizes)
    dims = {a.name: a.size for a in resized.axes}

    def fits(launch: Launch) -> bool:
        grid = zip(launch.grid, MAX_GRID, strict=True)
        block = prod(e.evaluate(dims) for e in launch.block)
        shared = launch.shared.evaluate(dims)
        return all(e.evaluate(dims) <= n for e, n in grid) and block <= MAX_BLOCK and shared <= _SHARED_BYTES

    try:
        return all(map(fits, candidate.launches)) and max(_threads(resized, candidate)) <= _MOST_THREADS
    except CandidateError:  # a division by zero
        return False


def counts_in_floats(program: Program, candidate: Candidate) -> bool:
    """Whether code makes whole numbers of floats where its region does not: indices so made are right up to 2^24.

    No trial has so many elements where sizes may grow: they would take a CPU minutes.
    """
    if not any(a.symbolic for a in program.axes) or reaches_integers(program):
        return False
    if any(OPS[op.fn].kind is Kind.IOTA or op.fn in ("floor", "ceil", "round", "trunc") for op in program.ops):
        return False
    body = body_of(candidate.code)
    floats = set(_FLOATS.findall(body))
    operands = (found["operand"] for found in _TO_WHOLE.finditer(body))
    values = (v for v, end in _SET_WHOLE.findall(body) if end and not re.search("[?]|sizeof", v))
    whole = (o for o in (*operands, *values) if not o.startswith("ld(") and not re.search("[<>=!]", o))
    if _ROUNDED.search(body) or any(map(_bounds_by_float, re.split("[;{}?]", body))):
        return True
    return any(re.search(_FLOAT, o) or not floats.isdisjoint(_WORD.findall(o)) for o in whole)


def _bounds_by_float(statement: str) -> bool:
    """Whether a number made a float is compared with another such, or with a size of the region."""
    _, _, rest = statement.partition("(float)")
    _, *compared = re.split("[<>]", rest, maxsplit=1)
    made_float = re.search(r"[<>]=?\s*\(float\)", rest)
    return bool(made_float or (compared and re.search(r"\(float\)\s*d\d", compared[0])))


def compared_sizes(program: Program, candidate: Candidate) -> list[Mapping[str, int]]:
    """Sizes at, below and above numbers that the code compares a symbolic size with, or that are no usual ones.

    Also sizes that leave what the code asks whether it is left.
    """
    free = _independent_symbolic(program)
    found: dict[int, None] = {}
    for name, number in _compared(candidate.code) if free else ():
        if number > 1 and (number not in USUAL or program.axis.get(name) in free):
            found |= dict.fromkeys((number + 1, number, number - 1))
    for number in _asked_for(candidate.code) if free else ():
        found |= {number: None}
    for number in _unusual_numbers(candidate.code) if free else ():
        found |= dict.fromkeys((number, number + 1, number - 1))
    for period, times in _DIVIDED.findall(body_of(candidate.code)) if free else ():
        if int(times) > 1:
            found |= dict.fromkeys((int(period) * int(times), int(period) * int(times) + int(period) - 1))
    for name, sign, number, left in _LEFT.findall(body_of(candidate.code)) if free else ():
        period = int(number) + (sign == "&")
        if 1 < int(left) < period and (period not in USUAL or int(left) < period - 1 or name in program.axis):
            found |= {period + int(left): None}
    wanted = [{a.name: size if a is axis else a.size for a in free} for size in found for axis in free]
    small = [sizes for sizes in wanted if _fitting(program, sizes)]
    large = [s for s in wanted if s not in small and tensor_elements(_resized(program, s)) <= GRID_ELEMENTS]
    return [*small[:COMPARED_SIZES], *large[:LARGE_COMPARED]]


def _asked_for(code: str) -> Iterator[int]:
    """Numbers that anything is to be equal to, those of tables, and where bits are counted each count of them."""
    body = body_of(code)
    yield from (int(left or right) for left, right in _EQUAL.findall(body))
    yield from (n for table in _TABLE.findall(body) for n in map(int, re.findall(r"\d+", table)) if n > 1)
    yield from ((1 << k) - 1 for k in range(2, 12) if _OF_BITS.search(body))


def _unusual_numbers(code: str) -> Iterator[int]:
    """Whole numbers that no block or tile has, their roots, and what two of them are together."""
    body = body_of(code)
    if "template" not in body:
        body = re.sub(r"<\s*\d+\s*>\s*\(", "(", body)  # an argument of the header's
    numbers = [int(text, 16 if text[:2] in ("0x", "0X") else 10) for text in _NUMBER.findall(body)]
    for left, sign, right in _FOLDED.findall(body):
        numbers.append(_FOLDS[sign](int(left), int(right)))
    for number in numbers:
        if number > 1 and number not in USUAL:
            yield number
            if isqrt(number) ** 2 == number:
                yield isqrt(number)


def _compared(code: str) -> Iterator[tuple[str, int]]:
    """(word, number) of each comparison with a whole number."""
    for word, right, left, other in _COMPARED.findall(body_of(code)):
        *shifted, number = (right or left).split("<<")
        yield word or other, 1 << min(62, int(number)) if shifted else int(number)


def _whole_numbers(code: str) -> Iterator[int]:
    """Those named anywhere, and powers of two by which a shift divides."""
    body = body_of(code)
    yield from (int(n) for n in re.findall(r"(?<![\w.])\d{1,9}\b(?![.'])", body))
    yield from (1 << int(n) for n in _SHIFTED.findall(body))
    yield from (number for _, number in _compared(code))


@lru_cache(maxsize=2)  # of one candidate many ask
def body_of(code: str) -> str:
    """What a code computes: without its plan, comments, needless blanks, and binary and octal literals."""
    return in_decimal(folded(text_of_body(code)))


def in_decimal(code: str) -> str:
    """The same code without binary and octal literals."""
    return _BINARY_OR_OCTAL.sub(lambda m: str(int(m[1].replace("'", ""), 2) if m[1] else int(m[2], 8)), code)


def _elements_a_thread(program: Program, candidate: Candidate) -> list[float]:
    """Of each launch."""
    elements = tensor_elements(program)
    return [elements / max(1, n) for n in _threads(program, candidate)]


def _threads(program: Program, candidate: Candidate) -> list[int]:
    """Of each launch."""
    return _threads_of({a.name: a.size for a in program.axes}, candidate)


def _threads_of(dims: Mapping[str, int], candidate: Candidate) -> list[int]:
    return [prod(e.evaluate(dims) for e in (*launch.grid, *launch.block)) for launch in candidate.launches]


def fixed_symbolic(program: Program) -> list[str]:
    """Symbolic axes of which no other size can be tried."""
    free = _independent_symbolic(program)
    return [a.name for a in program.axes if a.symbolic and a not in free]


def _independent_symbolic(program: Program) -> list[Axis]:
    """Symbolic axes that no operand is read along at a computed place: window sizes hang together."""
    tied: set[str] = set()
    for op in program.ops:
        for x in op.operands:
            if isinstance(x, Ref):
                for axis, index in x.access:
                    tied |= {a for _, a in index.terms} | ({axis} if index.value is None else set())
    return [a for a in program.axes if a.symbolic and a.name not in tied]
