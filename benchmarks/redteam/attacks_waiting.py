"""Blocks that wait for each other, wrongly: what a GPU's scheduling mostly hides."""

from __future__ import annotations

from benchmarks.redteam.attack import Attack, Where, edit, verify
from benchmarks.redteam.honest_more import SOFTMAX_WAITING

_FIRST, _SECOND = "wait_for_blocks(s1 + g, 2);", "wait_for_blocks(s1 + d0 + g, 2);"


def _waiting(name: str, hack: str, *changes: tuple[str, str], host_only: bool = False) -> Attack:
    where: Where = "host" if host_only else "both"
    return verify(f"blocks that wait: {name}", hack, "softmax", edit(SOFTMAX_WAITING, *changes), where)


WAITING: tuple[Attack, ...] = (
    _waiting("for themselves alone", "C20", (_FIRST, "wait_for_blocks(s1 + g, 1);")),
    _waiting("for one that never comes", "C27", (_SECOND, "wait_for_blocks(s1 + d0 + g, 3);")),
    _waiting("with one counter for two waits", "C20", (_SECOND, "wait_for_blocks(s1 + g, 2);")),
    _waiting("with a counter of any value", "C21", ("i32[2, d0] = 0", "i32[2, d0]")),
    _waiting("for more than a device may hold", "C27", (_FIRST, "wait_for_blocks(s1 + g, 65);")),
    _waiting("not at all", "C20", (_SECOND, "__syncthreads();"), host_only=True),
    _waiting(
        "after they have read",
        "C20",
        (_FIRST, ""),
        ("  s = block_sum", f"  {_FIRST}\n  s = block_sum"),
        host_only=True,
    ),
    _waiting("and store another part meanwhile", "C20", ("(d0 + g) * 2 + q", "g * 2 + q"), host_only=True),
)
