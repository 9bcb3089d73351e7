"""A kernel over one building block of the device header, in Reply V1, and the work that it does: as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Template


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed."""

    name: str
    size: str
    region: str  # Region text V1


@dataclass(frozen=True, slots=True)
class Block:
    """One kernel over one block of the header."""

    name: str  # the block, as the header calls it
    dtype: str  # the arithmetic: of products a type of product.cuh, else the dtype in memory
    work: Work
    code: str  # device code with its launch plan

    @property
    def ident(self) -> str:
        return f"{self.name} {self.dtype}"


def make_work(name: str, sizes: Mapping[str, int], *lines: str, size: str = "") -> Work:
    """size: by default that of all axes."""
    dims = " ".join(f"{axis}={n}" for axis, n in sizes.items())
    shown = size or "x".join(str(n) for n in sizes.values())
    return Work(name, shown, "\n".join(["region v1", f"dims {dims}", *lines]) + "\n")


def fill(text: str, **words: object) -> str:
    return Template(text.lstrip("\n")).substitute({k: str(v) for k, v in words.items()})
