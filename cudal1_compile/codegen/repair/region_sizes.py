"""Sizes of a region's axes and tensors, read out of its text in a prompt."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_INPUTS = re.compile(r"^(in\d+) \w+\[([\w,]+)\](?!.*strides)", flags=re.M)
_DIMS = re.compile(r"^dims (.*)$", flags=re.M)
OUTPUTS = re.compile(r"^(out\d+) \w+\[([\w,]*)\]", flags=re.M)  # and their axes


def sizes_of(prompt: str) -> dict[str, int]:
    """Of the region's static axes."""
    dims = _DIMS.search(prompt)
    return {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", dims[1])} if dims else {}


def axes_of(prompt: str) -> dict[str, list[str]]:
    """Of the region's inputs that lie without gaps, in memory order."""
    return {name: held.split(",") for name, held in _INPUTS.findall(prompt)}


def counts_of(prompt: str) -> dict[str, int]:
    """Elements of the region's outputs; 0 where an axis is not static."""
    sizes = sizes_of(prompt)
    return {name: product_of(axes.replace(",", " * ") or "1", sizes) for name, axes in OUTPUTS.findall(prompt)}


def product_of(text: str, sizes: Mapping[str, int]) -> int:
    """Of `d1 * 4`; 0, which every copy divides, where a size is not known."""
    return math.prod(sizes.get(name, int(name) if name.isdigit() else 0) for name in text.split(" * "))
