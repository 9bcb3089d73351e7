"""What candidates are measured against runs in the precision that the user allows."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cudal1_compile.judge.timing import baseline
from cudal1_compile.judge.timing.baseline import allow_products_in_tf32, aten_baseline, users_precision
from cudal1_fx_passes.program.precision import products_may_use_tf32
from cudal1_fx_passes.program.text import parse_program

PRODUCT = """region v1
dims d0=8 d1=24 d2=16
in0 f32[d0,d1]
in1 f32[d1,d2]
t0 f32[d0,d2] = {fn}(in0, in1) over d1
out0 f32[d0,d2] = t0
"""


@pytest.fixture
def _as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "_is_allowed", False)  # and afterwards as it was


class Called(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("products_in_f32", "_as_found")
@pytest.mark.parametrize(
    ("fn", "allows", "runs"),
    [("dot_tf32", True, "mm"), ("dot_tf32", False, "convolution"), ("dot", True, "mm"), ("dot", False, "mm")],
)
def test_a_product_is_one_where_the_user_allows_tf32_in_products(fn: str, allows: bool, runs: str) -> None:
    """Else a convolution of size 1 may use it: a baseline that no user has who allows both."""
    if allows:
        allow_products_in_tf32()
    program, found = parse_program(PRODUCT.format(fn=fn)), Called()
    with users_precision(program):
        assert products_may_use_tf32() == (allows and fn == "dot_tf32")
    call = aten_baseline(program, torch.device("cpu"))
    with found:
        call([torch.ones(8, 24), torch.ones(24, 16)])
    assert runs in found.names and not products_may_use_tf32()
