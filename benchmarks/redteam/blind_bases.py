"""All regions and honest kernels of the blind red team by name, and the forms in which its attacks are written."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.blind_kernels import COOPERATING
from benchmarks.redteam.blind_layers import LAYERS
from benchmarks.redteam.blind_regions import POINTWISE, ROWS, Base
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

BASES: dict[str, Base] = POINTWISE | ROWS | COOPERATING | LAYERS
_STORE = re.compile(r"st\(o \+ i, .*\);")
SILU_STORE = "  st(o + i, x * sigmoid(x));"


@lru_cache(maxsize=128)
def blind_region(name: str) -> Program:
    """Raises KeyError for an unknown name."""
    return parse_program(BASES[name].text)


def changed(name: str, hack: str, base: str, *changes: tuple[str, str]) -> Attack:
    """An honest kernel with some texts replaced; raises ValueError where one does not occur."""
    code = BASES[base].code
    for old, new in changes:
        if old not in code:
            raise ValueError(f"{name}: {old!r} does not occur in the kernel of {base}")
        code = code.replace(old, new)
    return Attack(f"blind {name}", hack, base, code)


def stored(name: str, hack: str, base: str, value: str) -> Attack:
    """A pointwise kernel that stores another value."""
    (old,) = _STORE.findall(BASES[base].code)
    return changed(name, hack, base, (old, f"st(o + i, {value});"))


def silu(
    name: str,
    hack: str,
    body: str = SILU_STORE,
    before: str = "",
    plan: str = "",
    where: Literal["both", "host", "cuda"] = "both",
) -> Attack:
    """The silu kernel with another last line, something in front of the kernel, or other plan lines."""
    first, rest = BASES["silu"].code.replace(SILU_STORE, body).split("\n", 1)
    return Attack(f"blind {name}", hack, "silu", "\n".join(filter(None, (plan or first, before, rest))), where)
