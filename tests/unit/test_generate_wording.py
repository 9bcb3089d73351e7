"""What the model does not copy is shown to it in other words, and its reply is put back."""

from __future__ import annotations

import pytest

from cudal1_compile.generate.wording import Wording

HEAD = "region v1\ndims d0=4 d1=8\nin0 f32[d0,d1]\nin1 bool[d0,d1]\n"


def region(*lines: str) -> str:
    return HEAD + "".join(f"{line}\n" for line in lines) + "out0 f32[d0,d1] = t0\n"


@pytest.mark.parametrize(
    ("line", "shown", "written", "restored"),
    [
        ("where(in1, -inf, in0)", "where(in1, -10000.0, in0)", "b ? -10000.0f : a", "b ? -INFINITY : a"),
        ("where(in1, in0, inf)", "where(in1, in0, 10000.0)", "b ? a : 10000.0f", "b ? a : INFINITY"),
        ("where(in1, nan, in0)", "where(in1, 10000.0, in0)", "b ? 10000.0f : a", "b ? NAN : a"),
        ("where(in1, -1000000000.0, in0)", "where(in1, -10000.0, in0)", "-10000.0f", "-1000000000.0f"),
        ("add(in0, 1e+30)", "add(in0, 10000.0)", "a + 10000.0f", "a + 1e+30f"),
        ("add(in0, 1e+30)", "add(in0, 10000.0)", "a + 1e4f * 10000", "a + 1e+30f * 10000"),
        ("pow(in0, 0.75)", "maximum(in0, 0.75)", "maximum(ld(p + (i, 2)), 0.75f)", "powf(ld(p + (i, 2)), 0.75f)"),
        ("pow(in0, -1.5)", "maximum(in0, -1.5)", "maximum(a[k], -1.5f)", "powf(a[k], -1.5f)"),
        ("pow(in0, 0.5)", "maximum(in0, 0.5)", "maximum(maximum(a, 0.5f), 2.0f)", "maximum(powf(a, 0.5f), 2.0f)"),
    ],
)
def test_said_and_said_back(line: str, shown: str, written: str, restored: str) -> None:
    words = Wording(region(f"t0 f32[d0,d1] = {line}"))
    assert words.shown == region(f"t0 f32[d0,d1] = {shown}")
    assert words.restored(f"x = {written};") == f"x = {restored};"


@pytest.mark.parametrize(
    "line",
    ["where(in1, -65504.0, in0)", "add(in0, 1e-05)", "pow(in0, 2.0)", "pow(in0, 3.0)", "cast(in0[d1=d1+10000])"],
)
def test_what_the_model_knows_stays(line: str) -> None:
    text = region(f"t0 f32[d0,d1] = {line}")
    words = Wording(text)
    reply = "maximum(x, 2.0f) + 10000.0f"
    assert words.shown == text and words.restored(reply) == reply


def test_each_number_has_a_stand_in_of_its_own_that_the_prompt_does_not_hold() -> None:
    text = region(
        "t1 f32[d0,d1] = add(in0, 10000.0)",
        "t2 f32[d0,d1] = where(in1, -inf, t1)",
        "t3 f32[d0,d1] = where(in1, t2, -1e+09)",
        "t0 f32[d0,d1] = minimum(t3, inf)",
    )
    words = Wording(text)
    assert "where(in1, -20000.0, t1)" in words.shown and "where(in1, t2, -30000.0)" in words.shown
    assert "minimum(t3, 20000.0)" in words.shown and "add(in0, 10000.0)" in words.shown
    assert words.restored("10000.0f -20000.0f 20000.0f -30000.0f") == "10000.0f -INFINITY INFINITY -1000000000.0f"


def test_a_power_is_shown_as_it_is_where_a_maximum_has_its_number() -> None:
    text = region("t1 f32[d0,d1] = maximum(in0, 0.5)", "t0 f32[d0,d1] = pow(t1, 0.5)")
    assert Wording(text).shown == text


def test_doubles_have_doubles_power() -> None:
    words = Wording(region("t0 f64[d0,d1] = pow(in0, 0.5)"))
    assert words.restored("maximum(x, 0.5)") == "pow(x, 0.5)"


def test_measured_variants_in_a_prompt_stay() -> None:
    code = "const float p1 = -INFINITY; x = maximum(y, 0.75f); // -1e+09"
    words = Wording(region("t0 f32[d0,d1] = where(in1, -inf, in0)") + code)
    assert words.shown.endswith(code)
