"""Repairs the plan that a reply of the bundled model states before its code.

    f0: out0=t2 t2=a1 t1=a0_2+7    what a kernel stores, and what each value needs that stands nowhere before
    f0> a0_2 t1 p3 { a1 t2 out0 }  in which order its code sets and stores them, loops in braces

The code is copied from the second line, so a value that is missing there, or stands before what it needs, ends as
a name that is nowhere declared. What is repaired before the model writes the code to it:

    order      each value behind what it needs, none left out (repair_order)
    vectors    no wider than the length of their rows allows, but for designs that say so (ragged) and register
               tiles, whose vector is as many positions of an image
    flat runs  vectors over whole outputs that they do not divide: what follows is written anew (other_stage)
    operands   a product whose results lie along one operand's rows packs that one (fit_sides)

A template's plan is never changed. What of the code itself is repaired: code.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from cudal1_compile.codegen.repair.region_sizes import OUTPUTS, axes_of, counts_of

_LINES = re.compile(r"^(f\d+): (.*)\n\1> (.*)$", flags=re.M)
_STAGE = re.compile(r"^(stage \d+.* along (\w+)\b[^:]*: (?!\w*ragged|strip)\w+, vector )(\d+)", flags=re.M)
_WIDE = re.compile(
    r"^(stage \d+ over ([^\n:]*?)(?: along [^\n:]*)?: (tf32|f32_split|f16|bf16)(?:_phased)?)(?:_raw)?_wide, .*\n",
    flags=re.M,
)
# runs over whole outputs, and what its kernels store
_FLAT = re.compile(r"^(stage \d+: (?:exact|stride), vector )(\d+)(, .*\n)((?:f\d+[:>] .*\n?)*)", flags=re.M)
_STORED = re.compile(r" \*?((?:out|s)\d+)=")
_PRODUCT = re.compile(r"^(stage \d+ over .* along (\w+)\b[^:\n]*: .*\n)((?:f\d+[:>] .*\n?)*)", flags=re.M)
# a product by raw tiles: the kernel that packs an operand, the one that multiplies it with the other
_RAW_WIDE = re.compile(
    r"^(stage \d+ .*: \w+_raw_wide, .*\n)(f\d+: (s\d+)=a(\d+)\nf\d+> .*\n)"
    r"(f\d+: .*=in(\d+),\3(?: .*)?\nf\d+> .*)$",
    flags=re.M,
)
_PRODUCT_LINES = re.compile(r"^(f\d+: )(.*)(\nf\d+> m0 )", flags=re.M)
_PLAIN = re.compile(r"(?<=[=,])a(\d+)(?=,|$)")  # a load by itself, in place
_MARKS = re.compile(r"\*|[+-]\d+")  # moved in vectors; at which position
_VALUE = re.compile(r"[ati]\d+(?:x\d+)?(?:_\d+)?")  # a computed value, a load or an index
_OUTPUT = re.compile(r"out\d+")
_LOADED = re.compile(r"(\*?)(t\d+)=(s|out)(\d+)(?:,i\d+)*$")  # what an earlier kernel stored


def fit_plan(design: str, prompt: str) -> str:
    """`design` with all that is repaired in it before its code is written."""
    return repair_plan(fit_vectors(fit_sides(design, prompt), prompt))


def repair_plan(design: str) -> str:
    """`design` with vectors that fit and orders as their needs want them; the same where all of it holds."""
    design = _STAGE.sub(_with_fitting_vector, design)
    return _LINES.sub(lambda m: f"{m[1]}: {m[2]}\n{m[1]}> {repair_order(m[2], m[3])}", design)


def fit_vectors(design: str, prompt: str) -> str:
    """`design` with loads along a product's columns in vectors (`*a7`) where others of its kernel are.

    Of inputs of two axes and more; what lies along columns alone is settled before.
    """
    axes = axes_of(prompt)

    def of_stage(stage: re.Match[str]) -> str:
        def of_kernel(kernel: re.Match[str]) -> str:
            words = kernel[2].split(" ")
            if not any(word.startswith("*") for word in words):
                return kernel[0]
            return f"{kernel[1]}{' '.join(map(of_word, words))}{kernel[3]}"

        def of_word(word: str) -> str:
            """A load at a row's own index."""
            if not re.search(r",i\d+(?!\w)", word):
                return word
            return _PLAIN.sub(lambda a: f"*{a[0]}" if is_along(f"in{a[1]}") else a[0], word)

        def is_along(name: str) -> bool:
            *others, last = axes.get(name, [""])
            return bool(others) and last == stage[2]

        return stage[1] + _PRODUCT_LINES.sub(of_kernel, stage[3])

    return _PRODUCT.sub(of_stage, design)


def fit_sides(design: str, prompt: str) -> str:
    """`design` with the operand packed along whose rows results lie in memory, where the other one is."""
    axes = axes_of(prompt)
    last = {name: held.rpartition(",")[2] for name, held in OUTPUTS.findall(prompt)}

    def of_stage(stage: re.Match[str]) -> str:
        head, packs, _, packed, multiplies, raw = stage.groups()
        stored = {last.get(name, "") for name in re.findall(r"\*(out\d+)=", multiplies)}
        if not stored or stored & {*axes.get(f"in{packed}", stored)} or stored - {*axes.get(f"in{raw}", [])}:
            return stage[0]
        packs = re.sub(rf"\b([ar]){packed}\b", rf"\g<1>{raw}", packs)
        return head + packs + re.sub(rf"\bin{raw}\b", f"in{packed}", multiplies)

    return _RAW_WIDE.sub(of_stage, design)


def other_stage(design: str, prompt: str) -> str:
    """`design` up to its first stage that cannot be, with another in its place; empty where all can."""
    others = {}
    for stage in _WIDE.finditer(design):
        depth = math.prod(int(size) for axis, size in re.findall(r"(\w+)=(\d+)", stage[2]) if axis[0] != "k")
        if depth % (8 if stage[3].endswith("16") else 4):
            others[stage.start()] = f"{stage[1]}, vector 1, block 256, tile 64x32x32\n"
    counts = counts_of(prompt)
    for stage in _FLAT.finditer(design):
        stored = [counts.get(name, 0) for name in _STORED.findall(stage[4])]  # scratch has any size
        fitting = math.gcd(int(stage[2]), *stored)
        if all(stored) and fitting != int(stage[2]):
            others[stage.start()] = f"{stage[1]}{fitting}{stage[3]}"
    first = min(others, default=0)
    return design[:first] + others[first] if others else ""


def _with_fitting_vector(stage: re.Match[str]) -> str:
    """A stage names the sizes of its axes and how far apart rows lie. No vector at all would be another plan."""
    sizes = dict(re.findall(r"\b(\w+)=(\d+)", stage[1]))
    rows = re.search(r" rows ([\d,]+):", stage[1])
    fitting = math.gcd(int(sizes.get(stage[2], 0)), int(stage[3]), *map(int, rows[1].split(",") if rows else ()))
    return f"{stage[1]}{fitting if fitting > 1 else stage[3]}"


def repair_order(outline: str, order: str) -> str:
    """The words of `order`: each behind what it needs by `outline`, none left out, none set twice in a block."""
    needs: dict[str, list[str]] = {}
    for word in outline.split():
        name, _, needed = word.lstrip("*").partition("=")
        needs[name] = [n for n in _MARKS.sub("", needed).split(",") if _VALUE.fullmatch(n)]
    found: list[str] = []
    early: set[str] = set()  # values that were placed before their word came

    def place(word: str, above: tuple[str, ...] = ()) -> None:
        for name in needs.get(word, ()):
            if name not in found and name not in above:
                place(name, (*above, word))
                early.add(name)
        found.append(word)

    words = _once_a_block(order.split())
    for i, word in enumerate(words):
        again = word in words[i + 1 :]  # as a sum's first value has
        if word in early:
            early.remove(word)
        elif again or word.startswith("s"):  # scratch: its word in the outline comes before its value's
            found.append(word)
        else:
            place(word)
    for name in reversed(needs):  # values stand by falling number
        behind = [i + 1 for i, word in enumerate(found) if word in (needs[name] or _before(name))]
        if name not in found and behind and not name.startswith("s"):
            found.insert(_beside_stores(found, behind[-1]) if _OUTPUT.fullmatch(name) else behind[-1], name)
    _place_loads(found, [load for word in outline.split() if (load := _LOADED.match(word))])
    text = " ".join(found)
    return text if "{ } " in order else text.replace("{ } ", "")  # a block that was emptied; some name nothing


def _place_loads(words: list[str], loads: Sequence[re.Match[str]]) -> None:
    """Those that are left out before the value that is the next of each; vectors before the loop over elements.

    Loads stand in the order of what they read, as the code's do: else it reads one for the other.
    """
    sources = {load[2]: (load[3], int(load[4])) for load in loads}
    for name, is_vector in ((load[2], load[1]) for load in loads if load[2] not in words):
        following = f"t{int(name[1:]) + 1}"
        if following not in words:
            continue
        at, inside = words.index(following), 1
        while is_vector and at > 0 and inside:
            at -= 1
            inside += (words[at] == "}") - (words[at] == "{")
        while at > 0 and sources.get(words[at - 1], ("", 0)) > sources[name]:
            at -= 1
        words.insert(at, name)


def _once_a_block(words: Sequence[str]) -> list[str]:
    """Without values that are declared a second time within the same braces.

    Two words at once are a sum that begins and a line that adds it up.
    """
    found: list[str] = []
    blocks: list[set[str]] = [set()]
    for before, word in zip(["", *words], words, strict=False):
        if word == "{":
            blocks.append(set())
        elif word == "}" and len(blocks) > 1:
            blocks.pop()
        elif _VALUE.fullmatch(word) and word in blocks[-1] and word != before:
            continue
        blocks[-1].add(word)
        found.append(word)
    return found


def _before(name: str) -> list[str]:
    """That t9 needs t8 goes without saying in an outline."""
    return [f"t{int(name[1:]) - 1}"] if re.fullmatch(r"t\d+", name) else []


def _beside_stores(words: list[str], start: int) -> int:
    """Where the first loop behind `start` that ends with a store ends; `start` where none does."""
    ends = (i for i in range(start + 1, len(words)) if words[i] == "}" and _OUTPUT.fullmatch(words[i - 1]))
    return next(ends, start)
