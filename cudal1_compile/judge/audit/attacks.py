"""The informed attacks: kernels that try to be accepted without doing the work, or that harm their surroundings.

They were written with the judge's code at hand, one module a mechanism; attack.py says what an attack is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from cudal1_compile.judge.audit.attack import Attack
from cudal1_compile.judge.audit.attacks_after_mends import AFTER_MENDS
from cudal1_compile.judge.audit.attacks_builds import BUILDS
from cudal1_compile.judge.audit.attacks_coincidence import COINCIDENCE
from cudal1_compile.judge.audit.attacks_conduct import CONDUCT
from cudal1_compile.judge.audit.attacks_context import CONTEXT
from cudal1_compile.judge.audit.attacks_corners import CORNERS
from cudal1_compile.judge.audit.attacks_half import HALF
from cudal1_compile.judge.audit.attacks_hidden import HIDDEN
from cudal1_compile.judge.audit.attacks_lines import LINES
from cudal1_compile.judge.audit.attacks_loading import LOADING
from cudal1_compile.judge.audit.attacks_memory import MEMORY
from cudal1_compile.judge.audit.attacks_precision import PRECISION
from cudal1_compile.judge.audit.attacks_products import PRODUCTS
from cudal1_compile.judge.audit.attacks_ranges import RANGES
from cudal1_compile.judge.audit.attacks_reach import REACH
from cudal1_compile.judge.audit.attacks_seldom import SELDOM
from cudal1_compile.judge.audit.attacks_sizes import SIZES
from cudal1_compile.judge.audit.attacks_skipping import SKIPPING
from cudal1_compile.judge.audit.attacks_state import STATE
from cudal1_compile.judge.audit.attacks_text import TEXTUAL
from cudal1_compile.judge.audit.attacks_values import VALUES
from cudal1_compile.judge.audit.attacks_waiting import WAITING

__all__ = ["ATTACKS", "Attack", "attacks_for", "by_hack"]

ATTACKS: tuple[Attack, ...] = (
    *SKIPPING,
    *SIZES,
    *PRODUCTS,
    *VALUES,
    *RANGES,
    *LINES,
    *SELDOM,
    *PRECISION,
    *HALF,
    *HIDDEN,
    *STATE,
    *MEMORY,
    *REACH,
    *WAITING,
    *CONDUCT,
    *CONTEXT,
    *COINCIDENCE,
    *CORNERS,
    *BUILDS,
    *LOADING,
    *AFTER_MENDS,
    *TEXTUAL,
)


def attacks_for(kind: Literal["host", "cuda"]) -> tuple[Attack, ...]:
    """The attacks that a target of this kind must reject."""
    return tuple(a for a in ATTACKS if a.where in ("both", kind))


def by_hack() -> dict[str, list[Attack]]:
    """The attacks of each row of the catalogue."""
    found: defaultdict[str, list[Attack]] = defaultdict(list)
    for attack in ATTACKS:
        found[attack.hack].append(attack)
    return dict(sorted(found.items()))
