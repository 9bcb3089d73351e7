"""The informed attacks: kernels that try to be accepted without doing the work, or that harm their surroundings.

They were written with the judge's code at hand, one module a mechanism; attack.py says what an attack is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.attacks_after_fixes import AFTER_FIXES
from benchmarks.redteam.attacks_builds import BUILDS
from benchmarks.redteam.attacks_conduct import CONDUCT
from benchmarks.redteam.attacks_context import CONTEXT
from benchmarks.redteam.attacks_corners import CORNERS
from benchmarks.redteam.attacks_half import HALF
from benchmarks.redteam.attacks_hidden import HIDDEN
from benchmarks.redteam.attacks_large import LARGE
from benchmarks.redteam.attacks_lines import LINES
from benchmarks.redteam.attacks_loading import LOADING
from benchmarks.redteam.attacks_memory import MEMORY
from benchmarks.redteam.attacks_precision import PRECISION
from benchmarks.redteam.attacks_products import PRODUCTS
from benchmarks.redteam.attacks_ranges import RANGES
from benchmarks.redteam.attacks_reach import REACH
from benchmarks.redteam.attacks_seldom import SELDOM
from benchmarks.redteam.attacks_sizes import SIZES
from benchmarks.redteam.attacks_skipping import SKIPPING
from benchmarks.redteam.attacks_state import STATE
from benchmarks.redteam.attacks_text import TEXTUAL
from benchmarks.redteam.attacks_tied_values import TIED_VALUES
from benchmarks.redteam.attacks_values import VALUES
from benchmarks.redteam.attacks_waiting import WAITING

__all__ = ["ATTACKS", "Attack", "attacks_for", "by_hack"]

ATTACKS: tuple[Attack, ...] = (
    *SKIPPING,
    *SIZES,
    *LARGE,
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
    *TIED_VALUES,
    *CORNERS,
    *BUILDS,
    *LOADING,
    *AFTER_FIXES,
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
