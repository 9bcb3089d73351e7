"""Numbers and functions that the bundled model does not copy, said in words that it knows, and said back.

    where(t3, -inf, t5)    is shown as    where(t3, -10000.0, t5)    in the reply -10000.0f becomes -INFINITY
    pow(t3, 0.75)          is shown as    maximum(t3, 0.75)          in the reply maximum(x, 0.75f) becomes powf

Its corpus has neither powers but 2 and 3, nor -inf before what is masked, nor numbers of seven digits: of the
replies to 21 regions with such lines, cut from modules that nobody trained on, 76 of 168 were right, 126 are with
other words. Only the region's own lines are put so; the code of measured variants in a prompt stays as it is.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_LINE = re.compile(r"^t\d+ (\w+)\[[^\]]*\] = (\w+)\((.*)\)", flags=re.M)
_DIGITS = r"(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)"
_OPERAND = re.compile(rf"(?<=[(, ])(-?)(inf|nan|{_DIGITS})(?=[,)])")
_NUMBER = re.compile(rf"(?<![\w.])({_DIGITS})(f?)\b")
_SIGNED = re.compile(rf"(-?{_DIGITS})f?")
_KNOWN_POWERS = (2.0, 3.0)
_LARGEST = 65504.0  # known numbers are at most so large, and finite
_STAND_INS = (10000.0, 20000.0, 30000.0, 40000.0, 50000.0, 60000.0)


@dataclass
class Wording:
    """One prompt in words that the model knows (`shown`), and the way back for its replies."""

    prompt: str
    shown: str = field(init=False)

    def __post_init__(self) -> None:
        self._numbers: dict[float, float] = {}  # stand-in -> magnitude
        self._powers: dict[float, str] = {}  # exponent -> C's function
        taken = {float(n) for _, n in _OPERAND.findall(self.prompt)}
        self._free = [n for n in _STAND_INS if n not in taken and f"={n:.0f}" not in self.prompt]
        self._maxima = {float(n) for m in _LINE.finditer(self.prompt) if m[2] == "maximum" for n in _literals(m)}
        self.shown = _LINE.sub(self._said, self.prompt)

    def restored(self, reply: str) -> str:
        for at in reversed([m.start() for m in re.finditer(r"\bmaximum\(", reply)] if self._powers else []):
            reply = reply[:at] + self._power(reply[at:])
        return _NUMBER.sub(self._number, reply) if self._numbers else reply

    def _said(self, line: re.Match[str]) -> str:
        said = line[0]
        exponents = _literals(line)
        if line[2] == "pow" and len(exponents) == 1 and line[3].endswith(exponents[0]):
            exponent = float(exponents[0])
            if exponent not in (*_KNOWN_POWERS, *self._maxima):
                self._powers[exponent] = "pow" if line[1] == "f64" else "powf"
                return said.replace(" = pow(", " = maximum(", 1)
        head, _, operands = said.partition(f"{line[2]}(")
        return f"{head}{line[2]}" + _OPERAND.sub(self._stand_in, f"({operands}")

    def _stand_in(self, operand: re.Match[str]) -> str:
        magnitude = float(operand[2])
        if magnitude <= _LARGEST:
            return operand[0]
        known = next(
            (n for n, m in self._numbers.items() if m == magnitude or m != m and magnitude != magnitude), None
        )
        if known is None:
            if not self._free:
                return operand[0]
            known = self._free.pop(0)
            self._numbers[known] = magnitude
        return f"{operand[1]}{known}"

    def _number(self, found: re.Match[str]) -> str:
        magnitude = self._numbers.get(float(found[1]))
        if magnitude is None:
            return found[0]
        if math.isfinite(magnitude):
            return f"{magnitude!r}{found[2]}"
        return "NAN" if math.isnan(magnitude) else "INFINITY"

    def _power(self, call: str) -> str:
        """`maximum(x, 0.75f)...` as `powf(x, 0.75f)...` where the number is an exponent's."""
        depth, comma = 0, -1
        for at, letter in enumerate(call):
            depth += (letter in "([") - (letter in ")]")
            if letter == "," and depth == 1:
                comma = at
            if letter == ")" and depth == 0:
                number = _SIGNED.fullmatch(call[comma + 1 : at].strip()) if comma > 0 else None
                name = self._powers.get(float(number[1])) if number else None
                return call if name is None else name + call[len("maximum") :]
        return call


def _literals(line: re.Match[str]) -> list[str]:
    return [sign + number for sign, number in _OPERAND.findall(f"({line[3]})")]
