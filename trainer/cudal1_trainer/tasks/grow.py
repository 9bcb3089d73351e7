"""Grows a random expression to a wanted number of operations: activations, arithmetic, comparisons, masks.

A pool holds the values that may be read next; values that nothing has read yet are preferred, so that few
ends stay open. At the end open ends are merged until as many are left as outputs are wanted.
"""

from __future__ import annotations

from collections.abc import Callable

from cudal1_trainer.tasks.builder import Builder, Unsuitable
from cudal1_trainer.tasks.idioms import ACTIVATIONS, BACKWARDS, dropout, masked

MAX_TRIES = 200
_UNARY = (
    "neg",
    "abs",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "relu",
    "erf",
)
_UNARY_RARE = ("exp2", "expm1", "log2", "log1p", "floor", "ceil", "round", "trunc", "sign")
_COMPARISONS = ("gt", "lt", "ge", "le")


class Grower:
    """pool: float values of one dtype; masks: bool values."""

    def __init__(self, b: Builder, pool: list[str], masks: list[str] | None = None) -> None:
        self.b, self.rng = b, b.rng
        self.pool, self.masks = list(pool), list(masks or [])

    def open_ends(self) -> list[str]:
        return [v for v in self.pool if not self.b.uses[v]]

    def grow(self, until: int, ends: int = 1) -> list[str]:
        """Appends operations until the program has `until` (about); returns the open ends, at most `ends`."""
        for _ in range(MAX_TRIES):
            if len(self.b.ops) + max(0, len(self.open_ends()) - ends) >= until:
                break
            self._attempt(lambda: self._step(until))
        self._merge(ends)
        for _ in range(MAX_TRIES):
            if len(self.b.ops) >= until:
                break
            self._attempt(self._lengthen)
        return self.open_ends() or [self.pool[-1]]

    def _attempt(self, step: Callable[[], str]) -> None:
        """Undoes a fragment whose later part proved unsuitable."""
        count, uses = len(self.b.ops), dict(self.b.uses)
        try:
            self.pool.append(step())
        except (Unsuitable, OverflowError, ValueError, ZeroDivisionError):
            del self.b.ops[count:]
            for name in set(self.b.uses) - set(uses):
                for known in (self.b.uses, self.b.dtype, self.b.held, self.b.interval):
                    known.pop(name, None)
            self.b.uses.update(uses)

    def pick(self) -> str:
        ends = self.open_ends()
        if ends and self.rng.random() < 0.8:
            return self.rng.choice(ends)
        return self.rng.choice(self.pool[-6:]) if self.rng.random() < 0.8 else self.rng.choice(self.pool)

    def _step(self, until: int) -> str:
        rng, b, x = self.rng, self.b, self.pick()
        left = until - len(b.ops)
        p = rng.random()
        if p < 0.22 and left >= 3:
            return rng.choice(ACTIVATIONS)(b, x)
        if p < 0.30 and left >= 5 and len(self.pool) > 1:
            return rng.choice(BACKWARDS)(b, x, self._other(x))
        if p < 0.36 and self.masks and left >= 2:
            fragment = dropout if rng.random() < 0.4 else masked
            return fragment(b, x, rng.choice(self.masks))
        if p < 0.42 and left >= 2:
            return self._choose(x)
        if p < 0.45 and self.masks and left >= 3:
            return self._logic(x)
        if p < 0.72 and len(self.pool) > 1:
            return self._binary(x, self._other(x))
        if p < 0.88:
            return self._scaled(x)
        return b.op(rng.choice(_UNARY if rng.random() < 0.85 else _UNARY_RARE), x)

    def _other(self, x: str) -> str:
        ends = [v for v in self.open_ends() if v != x]
        if ends and self.rng.random() < 0.7:
            return self.rng.choice(ends)
        return self.rng.choice(self.pool)

    def _binary(self, x: str, y: str) -> str:
        fn = self.rng.choices(
            ("add", "sub", "mul", "div", "maximum", "minimum", "fma"), (5, 3, 6, 1, 0.7, 0.7, 0.5)
        )[0]
        if fn == "fma":
            return self.b.op("fma", x, y, self._other(x))
        if x == y and fn != "mul":
            raise Unsuitable("an operation of a value with itself")
        return self.b.op(fn, x, y)

    def _scaled(self, x: str) -> str:
        rng = self.rng
        value: float = rng.choice(
            (0.5, 2, 0.1, 0.125, 1, 3, 0.25, 1e-05, 0.08838834764831845, round(rng.uniform(-2.5, 3), 2))
        )
        fn = rng.choices(("add", "mul", "sub", "div", "maximum", "minimum", "pow"), (4, 5, 2, 1.5, 0.5, 0.5, 0.7))[
            0
        ]
        if fn == "pow":
            return self.b.op("pow", x, rng.choice((2, 2, 3)))
        if fn == "sub" and rng.random() < 0.6:
            return self.b.op("sub", value, x)
        if fn in ("mul", "div") and abs(value) < 0.01:
            value = 0.5
        return self.b.op(fn, x, value)

    def _choose(self, x: str) -> str:
        bound = 0.0 if self.rng.random() < 0.6 else round(self.rng.uniform(-1, 1), 2)
        lo, hi = self.b.interval[x]
        if not lo < bound < hi:
            raise Unsuitable("a comparison that is always the same")
        mask = self.b.op(self.rng.choice(_COMPARISONS), x, bound)
        other = self._other(x)
        if self.rng.random() < 0.4:
            return self.b.op("where", mask, other, self.rng.choice((0.0, 0.0, 1.0)))
        return self.b.op("where", mask, x, other) if other != x else self.b.op("where", mask, 0.0, x)

    def _logic(self, x: str) -> str:
        mask = self.b.op("gt", x, round(self.rng.uniform(-1, 1), 1))
        both = self.b.op(
            self.rng.choice(("logical_and", "logical_or", "logical_xor")), mask, self.rng.choice(self.masks)
        )
        return self.b.op("where", both, x, 0.0)

    def _merge(self, ends: int) -> None:
        for _ in range(MAX_TRIES):
            found = self.open_ends()
            if len(found) <= ends:
                return
            x, y = self.rng.sample(found, 2)
            self._attempt(lambda x=x, y=y: self.b.op(self.rng.choice(("add", "mul", "sub", "add")), x, y))  # type: ignore[misc]

    def _lengthen(self) -> str:
        x = (self.open_ends() or self.pool)[-1]
        fn = self.rng.choice(("tanh", "sigmoid", "relu", "neg", "scale"))
        return self._scaled(x) if fn == "scale" else self.b.op(fn, x)
