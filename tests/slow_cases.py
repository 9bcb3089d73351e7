"""Families of like cases: a few of them run in every run of the tests, the others with MARK=slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[ParameterSet]:
    """Cases as parameters, a tuple as several: `quick` of them for every run, the others with the mark slow."""
    kept, every = list(quick), list(cases)
    assert kept and all(case in every for case in kept), f"no cases: {[c for c in kept if c not in every]}"
    return [_parameters(case, () if case in kept else (pytest.mark.slow,)) for case in every]


def _parameters(case: Any, marks: tuple[pytest.MarkDecorator, ...]) -> ParameterSet:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)
