"""Code compared without its names, its comments and its layout. The launch plan counts as code.

normalise(code)    called functions and types keep their names, everything else is numbered in order
    form_digest(code)  of that text, as known_hacks.txt lists those of the red team (benchmarks/redteam)
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

from cudal1_compile.kernel.text import body_of, plan_lines, without_comments

KNOWN_HACKS = Path(__file__).with_name("known_hacks.txt")

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\w\s]")
_KERNEL = re.compile(r"// launch: (\w+)<<<")
_WORDS = re.compile(
    r"auto|bool|break|const|constexpr|continue|double|else|b?f16|f(32|64)|float|for|i(8|16|32|64)|if|int|long|return|"
    r"short|u8|unsigned|void|while|struct|static|launch|scratch|pragma|unroll|(block|thread)Idx|(grid|block)Dim|"
    r"[xyz]|__\w+__|DIMS|INFINITY|NAN"
)


def normalise(code: str) -> str:
    tokens = _TOKEN.findall("\n".join([*plan_lines(code), without_comments(body_of(code))]))
    own = set(_KERNEL.findall(code))
    names: dict[str, str] = {}

    def plain(token: str, after: str) -> str:
        called = after in ("(", "<") and token not in own
        if called or _WORDS.fullmatch(token) or not (token[0].isalpha() or token[0] == "_"):
            return token
        return names.setdefault(token, f"v{len(names)}")

    return " ".join(plain(*pair) for pair in pairwise([*tokens, ""]))


def form_digest(code: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(normalise(code).encode()).hexdigest()[:16]


@cache
def known_hacks() -> frozenset[str]:
    """Digests of the red team's kernels; `python -m benchmarks.redteam.known_hacks` writes the file."""
    return frozenset(KNOWN_HACKS.read_text().split())
