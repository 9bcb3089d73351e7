"""float64 convolutions of volumes, made of images': the library's results, and used by the oracle on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.program import products, volumes
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.text import parse_program

SHAPES = {
    "plain": {"stride": (1, 1, 1), "padding": (0, 0, 0), "dilation": (1, 1, 1)},
    "padded": {"stride": (1, 1, 1), "padding": (1, 2, 0), "dilation": (1, 1, 1)},
    "strided": {"stride": (2, 3, 1), "padding": (1, 1, 1), "dilation": (1, 1, 1)},
    "dilated": {"stride": (1, 2, 1), "padding": (2, 0, 1), "dilation": (2, 1, 3)},
    "all": {"stride": (3, 2, 2), "padding": (2, 1, 1), "dilation": (2, 2, 1)},
}


def volume(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_library(name: str, groups: int) -> None:
    how: Any = SHAPES[name] | {"groups": groups}
    x, w = volume(2, 4, 9, 10, 11), volume(6, 4 // groups, 3, 2, 3)
    torch.testing.assert_close(volumes.conv3d(x, w, None, **how), F.conv3d(x, w, None, **how))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("extra", [0, 1])
def test_equals_the_library_transposed(name: str, groups: int, extra: int) -> None:
    how: Any = SHAPES[name] | {"groups": groups}
    larger = (max(pair) > 1 for pair in zip(how["stride"], how["dilation"], strict=True))
    how["output_padding"] = tuple(extra * is_larger for is_larger in larger)  # torch allows no other
    x, w = volume(2, 4, 5, 6, 4), volume(4, 6 // groups, 3, 2, 3)
    found = volumes.conv_transpose3d(x, w, None, **how)
    torch.testing.assert_close(found, F.conv_transpose3d(x, w, None, **how))


PROGRAMS = {
    "dot(in0[d3=d2+k0-1, d5=d4+k1-1, d7=d6+k2-1], in1)": ("8", "7", "9", "in1 f32[d1,d8,k0,k1,k2]"),
    "dot(in0[d3=(d2-k0+1)/2, d5=(d4-k1+1)/2, d7=(d6-k2+1)/2], in1)": ("15", "13", "17", "in1 f32[d8,d1,k0,k1,k2]"),
}


@pytest.mark.parametrize("dot", PROGRAMS)
def test_the_oracle_takes_them(dot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; here they are better by decree."""
    d2, d4, d6, weight = PROGRAMS[dot]
    program = parse_program(
        f"region v1\ndims d0=2 d1=4 d2={d2} d3=8 d4={d4} d5=7 d6={d6} d7=9 d8=3 k0=3 k1=3 k2=3\n"
        f"in0 f32[d0,d8,d3,d5,d7]\n{weight}\nt0 f32[d0,d1,d2,d4,d6] = {dot} over d8,k0,k1,k2\n"
        "out0 f32[d0,d1,d2,d4,d6] = t0\n"
    )
    inputs = [volume(*(program.axis[a].size for a in i.axes)).float() for i in program.inputs]
    (wanted,) = evaluate(program, inputs, float64=True)
    assert not volumes.is_better(wanted), "a processor's library is fast"
    monkeypatch.setattr(volumes, "is_better", lambda x: x.dtype == torch.float64)
    for table in (products._CONVOLUTION, products._TRANSPOSED):
        monkeypatch.delitem(table, 3)
    (found,) = evaluate(program, inputs, float64=True)
    torch.testing.assert_close(found, wanted)
