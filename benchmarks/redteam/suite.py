"""The red team as one list: every attack of this folder with the program that it attacks.

attack_suite("host") -> AttackCases: informed attacks (attacks*.py) and blind ones (blind_*.py: tuples of Attack)
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import benchmarks.redteam as folder
from benchmarks.redteam.attack import Attack
from benchmarks.redteam.attacks import attacks_for
from benchmarks.redteam.regions import region
from cudal1_fx_passes.program.ir import Program


@dataclass(frozen=True, slots=True)
class AttackCase:
    attack: Attack
    program: Program
    blind: bool  # written without reading the judge's code


def attack_suite(kind: Literal["host", "cuda"]) -> tuple[AttackCase, ...]:
    """The attacks that a target of this kind must refuse, informed ones first."""
    informed = [AttackCase(a, region(a.region), False) for a in attacks_for(kind)]
    blind = [AttackCase(a, _blind_program(a), True) for a in blind_attacks() if a.where in ("both", kind)]
    return (*informed, *blind)


def blind_attacks() -> list[Attack]:
    """Each once, though modules may import each other's tuples."""
    found: dict[str, Attack] = {}
    for module in _blind_modules():
        for value in vars(module).values():
            if isinstance(value, tuple):
                found |= {a.name: a for a in value if isinstance(a, Attack)}
    return list(found.values())


def _blind_modules() -> Iterator[ModuleType]:
    for item in pkgutil.iter_modules(folder.__path__):
        if item.name.startswith("blind_"):
            yield importlib.import_module(f"{folder.__name__}.{item.name}")


def _blind_program(attack: Attack) -> Program:
    find = next(m.blind_region for m in _blind_modules() if hasattr(m, "blind_region"))
    found: Program = find(attack.region)
    return found
