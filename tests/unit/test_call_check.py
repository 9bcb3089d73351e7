"""One compared call: what is found, what is restored, what is left alone. Kernels are Python functions here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from judge_checks import softmax
from torch import Tensor

from cudal1_compile.dispatch import call_check
from cudal1_compile.dispatch.call_check import KernelFunction, checked
from cudal1_compile.dispatch.registry import load_reference
from cudal1_fx_passes.program.text import parse_program

CPU = torch.device("cpu")
SOFTMAX = softmax(32, 64)
ARGMAX = """region v1
dims d0=32 d1=64
in0 f32[d0,d1]
t0 i64[d0] = argmax(in0) over d1
out0 i64[d0] = t0
"""
DECIDED = """region v1
dims d0=32 d1=64
in0 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, 2.0)
t1 bool[d0,d1] = gt(t0, 1.0)
t2 f32[d0,d1] = where(t1, t0, in0)
out0 f32[d0,d1] = t2
"""
TOTAL = """region v1
dims d0=4096
in0 f32[d0]
t0 f32[] = sum(in0) over d0
out0 f32[] = t0
"""


class Call:
    """`spoil(out, in)` is what the kernel does after the right thing."""

    def __init__(self, text: str, spoil: Callable[[Tensor, Tensor], Any] = lambda out, x: None) -> None:
        program = parse_program(text)
        self.said: list[str] = []
        self.right = load_reference(program, CPU)

        def kernel(*args: Any) -> None:
            self.right(*args)
            spoil(args[0], args[1])

        self.run: KernelFunction = checked(kernel, self.right, program, CPU, self.said.append)

    def gives(self, x: Tensor, out: Tensor, *sizes: int) -> None:
        """Runs it; the result must be the region's, and the input as before."""
        before, expected = x.clone(), torch.empty_like(out)
        self.run(out, x, *sizes, 0)
        self.right(expected, before, *sizes, 0)
        torch.testing.assert_close(out, expected, equal_nan=True)
        torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(autouse=True)
def no_error_of_the_comparison(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert "could not be checked" not in caplog.text


def at(i: int, j: int, value: float) -> Callable[[Tensor, Tensor], None]:
    def spoil(out: Tensor, x: Tensor) -> None:
        out[i, j] = value

    return spoil


def test_a_right_call() -> None:
    call = Call(SOFTMAX)
    call.gives(torch.randn(32, 64), torch.empty(32, 64))
    assert not call.said


def test_a_default_device_of_the_users_is_not_the_kernels() -> None:
    call = Call(DECIDED, at(30, 5, 7.5))
    x, out = torch.randn(32, 64), torch.empty(32, 64)
    with torch.device("meta"):
        call.gives(x, out)
    assert len(call.said) == 1


@pytest.mark.parametrize("room", [1 << 30, 1 << 16])
def test_a_wrong_element_is_named(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, and slice by slice."""
    monkeypatch.setattr(call_check, "ROOM_BYTES", room)
    call = Call(SOFTMAX, at(30, 5, 7.5))
    call.gives(torch.zeros(32, 64), torch.empty(32, 64))
    (said,) = call.said
    assert "is 7.5, expected 0.015625 within " in said and "1 of " in said and ", 5]" in said, said


def test_an_element_that_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program(SOFTMAX)
    said: list[str] = []
    right = load_reference(program, CPU)
    x, out = torch.randn(32, 64), torch.empty(32, 64)
    right(out, x, 0)  # what the memory holds is right
    checked(lambda *args: None, right, program, CPU, said.append)(out, x, 0)
    assert "is nan, expected" in said[0] and not out.isnan().any()


def test_a_changed_input_gets_its_values_back() -> None:
    def spoil(out: Tensor, x: Tensor) -> None:
        x[3, 3] = 9.0

    call = Call(SOFTMAX, spoil)
    call.gives(torch.randn(32, 64), torch.empty(32, 64))
    assert call.said == ["the kernel changed its input in0"]


def test_positions_are_exact() -> None:
    def spoil(out: Tensor, x: Tensor) -> None:
        out[9] = 63

    call = Call(ARGMAX, spoil)
    x = torch.randn(32, 64)
    x[9, 5] = 50.0
    call.gives(x, torch.empty(32, dtype=torch.int64))
    assert "out0[9] is 63, expected 5" in call.said[0]


ODD = [torch.nan, torch.inf, -torch.inf, 1e-42, 3e38, -3e38, 0.0, 5.0]


def odd_rows() -> Tensor:
    x = torch.randn(32, 64)
    for i, value in enumerate(ODD):
        x[i, ::2] = value
        x[i + len(ODD)] = value
    return x


def test_odd_values_raise_no_alarm() -> None:
    call = Call(SOFTMAX)
    call.gives(odd_rows(), torch.empty(32, 64))
    assert not call.said


@pytest.mark.parametrize(
    ("row", "value", "is_wrong"), [(0, torch.inf, False), (0, 0.5, True), (31, torch.nan, True)]
)
def test_what_is_not_finite(row: int, value: float, is_wrong: bool) -> None:
    """Row 0 of the reference is NaN: infinity will do in its place, a number hides it."""
    call = Call(SOFTMAX, at(row, 3, value))
    call.gives(odd_rows(), torch.empty(32, 64))
    assert bool(call.said) == is_wrong, call.said


@pytest.mark.parametrize("rows", [32, 7])
def test_symbolic_sizes(rows: int) -> None:
    call = Call(SOFTMAX.replace("d0=32", "d0=?32"), at(rows - 1, 0, -1.0))
    call.gives(torch.randn(rows, 64), torch.empty(rows, 64), rows)
    assert f"out0[{rows - 1}, 0] is -1" in call.said[0]


def test_what_there_is_no_room_for_is_a_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full sum goes chunk by chunk, but one element needs its room too."""
    monkeypatch.setattr(call_check, "ROOM_BYTES", 1 << 6)
    call = Call(TOTAL, lambda out, x: out.fill_(5.0))
    x, out = torch.randn(4096), torch.empty(())
    call.run(out, x, 0)
    assert out == 5.0 and not call.said


def test_the_kernels_own_errors_are_the_callers() -> None:
    def refuse(*args: Any) -> None:
        raise ValueError("planted")

    program = parse_program(SOFTMAX)
    run = checked(refuse, load_reference(program, CPU), program, CPU, print)
    with pytest.raises(ValueError, match="planted"):
        run(torch.empty(32, 64), torch.randn(32, 64), 0)
