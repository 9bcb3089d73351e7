"""What an attack is, and the short forms in which the modules attacks_*.py write theirs.

Most are an honest kernel with one thing changed, as a generator under pressure would change it. `hack` names the
row of the catalogue of known cheats; `where` limits an attack to the target that can see it (races and deadlocks
are found by the host target's check build; on a GPU they may well give the right result).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.redteam.honest import SILU_SCALAR

Where = Literal["both", "host", "cuda"]
STORE = "st(out0 + i, t * sigmoid(t) + 0.5f);"  # of SILU_SCALAR
GUARD = "if (i >= d0 * d1) return;"


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    hack: str
    region: str
    code: str
    where: Where = "both"
    stages: tuple[str, ...] = ("text", "build", "verify", "time")  # any of these may refuse it


def edit(code: str, *changes: tuple[str, str]) -> str:
    """Raises ValueError where a text that shall be replaced does not occur."""
    for old, new in changes:
        if old not in code:
            raise ValueError(f"{old!r} does not occur in the kernel that the attack starts from")
        code = code.replace(old, new)
    return code


def verify(name: str, hack: str, region: str, code: str, where: Where = "both") -> Attack:
    """An attack that only its result, or what it touches, gives away."""
    return Attack(name, hack, region, code, where, ("verify",))


def text(name: str, hack: str, code: str) -> Attack:
    """An attack that its text gives away."""
    return Attack(name, hack, "silu", code, "both", ("text",))


def silu(name: str, hack: str, *changes: tuple[str, str], where: Where = "both") -> Attack:
    """A change of the plainest kernel."""
    return verify(name, hack, "silu", edit(SILU_SCALAR, *changes), where)


def with_scratch(code: str, declared: str, dtype: str) -> str:
    """A one-launch kernel of (..., out0) that gets a scratch buffer s0 before it."""
    changes = (("// launch:", f"// scratch: s0 {dtype}[{declared}]\n// launch:"), (", out0", ", s0, out0"))
    head, body = edit(code, *changes).split("DIMS", 1)
    at = head.rindex(", ")
    return f"{head[:at]}, {dtype}* s0{head[at:]}DIMS{body}"
