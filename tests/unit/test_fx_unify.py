"""Axes by unification: splitting, regrouping, and what may never become one axis."""

from __future__ import annotations

from math import prod

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from cudal1_fx_passes.importer.unify import (
    Atom,
    AxisConflict,
    Dim,
    divide,
    find,
    keep_apart,
    keep_whole,
    leaves,
    new_atom,
    new_dim,
    regroup,
    unify,
)


def dim(*sizes: int) -> Dim:
    return tuple(new_atom(n, n) for n in sizes)


def sizes(atoms: Dim | list[Atom]) -> list[int]:
    return [a.hint for a in leaves(atoms)]


def test_equal_sizes_become_one_axis() -> None:
    a, b = dim(6), dim(6)
    unify(a, b)
    assert leaves(a) == leaves(b)


@pytest.mark.parametrize(
    ("left", "right", "parts"),
    [
        ((6,), (2, 3), [2, 3]),
        ((4, 6), (2, 12), [2, 2, 6]),
        ((2, 6), (4, 3), [2, 2, 3]),
        ((8, 9), (2, 2, 18), [2, 2, 2, 9]),
    ],
)
def test_factors_split_until_they_agree(left: tuple[int, ...], right: tuple[int, ...], parts: list[int]) -> None:
    a, b = dim(*left), dim(*right)
    unify(a, b)
    assert leaves(a) == leaves(b) and sizes(a) == parts


def test_a_split_is_seen_by_every_value_that_holds_the_axis() -> None:
    shared = dim(12)
    other = (shared[0],)
    unify(shared, dim(3, 4))
    assert sizes(other) == [3, 4]


def test_sizes_that_do_not_divide_conflict() -> None:
    with pytest.raises(AxisConflict, match="divide"):
        unify(dim(6), dim(4))
    with pytest.raises(AxisConflict):
        unify(dim(2, 3), dim(3, 2))
    with pytest.raises(AxisConflict):
        unify(dim(2), dim(2, 3))


def test_axes_of_one_value_never_become_one() -> None:
    a, b, c = dim(4)[0], dim(4)[0], dim(4)[0]
    keep_apart([a, b])
    unify((b,), (c,))
    with pytest.raises(AxisConflict, match="twice"):
        unify((a,), (c,))


def test_parts_stay_apart_as_the_whole_did() -> None:
    a, b = dim(6)[0], dim(6)[0]
    keep_apart([a, b])
    x, y = dim(2, 3), dim(2, 3)
    unify((a,), x)
    unify((b,), y)
    with pytest.raises(AxisConflict, match="twice"):
        unify((x[0],), (y[0],))


def test_a_value_with_an_axis_twice_conflicts_at_once() -> None:
    a = dim(4)
    with pytest.raises(AxisConflict, match="twice"):
        keep_apart([*a, *a])


def test_a_whole_axis_is_not_split() -> None:
    a = dim(6)
    keep_whole(a[0], "a scan")
    with pytest.raises(AxisConflict, match="a scan needs it whole"):
        unify(a, dim(2, 3))
    b = dim(6)
    unify(b, dim(2, 3))
    with pytest.raises(AxisConflict, match="split"):
        keep_whole(b[0], "a scan")


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4), st.data())
def test_a_view_there_and_back_keeps_every_axis(shape: list[int], data: st.DataObject) -> None:
    total = prod(shape)
    other: list[int] = []
    rest = total
    while rest > 1:
        factor = data.draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0]))
        other.append(factor)
        rest //= factor
    dims = tuple(new_dim(n, n) for n in shape)
    try:
        viewed = regroup(dims, other)
    except AxisConflict:
        return  # 6 = 2*3 and 3*2 have no common refinement
    assert [prod(sizes(d)) for d in viewed] == other
    back = regroup(viewed, shape)
    assert [leaves(d) for d in back] == [leaves(d) for d in dims]


def test_a_view_that_cuts_across_conflicts() -> None:
    with pytest.raises(AxisConflict, match="divide"):
        regroup((dim(2), dim(3)), [3, 2])
    with pytest.raises(AxisConflict, match="more elements"):
        regroup((dim(2),), [4])
    with pytest.raises(AxisConflict, match="over"):
        regroup((dim(2), dim(3)), [3])


def test_symbolic_sizes_group_and_split_by_exact_factors_only() -> None:
    s, t = sympy.Symbol("s0", integer=True, positive=True), sympy.Symbol("s1", integer=True, positive=True)
    rows = new_dim(s, 5)
    merged = regroup((rows, dim(64)), [64 * s])
    assert [a.extent for a in leaves(merged[0])] == [s, 64]
    heads = regroup((new_dim(8 * s, 40),), [s, 8])
    assert [a.hint for d in heads for a in leaves(d)] == [5, 8]
    with pytest.raises(AxisConflict):
        unify(rows, new_dim(t, 5))
    assert divide(s * t, s) == t and divide(s, t) is None and divide(12, 4) == 3 and divide(12, 5) is None
    assert divide(s, 2) is None


def test_one_symbol_is_one_size() -> None:
    s = sympy.Symbol("s0", integer=True, positive=True)
    a, b = new_dim(s, 5), new_dim(s, 5)
    unify(a, b)
    assert find(a[0]) is find(b[0])
