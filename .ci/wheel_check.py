"""A compile on the host target by the installed package: a kernel is written, proven, and right."""

from __future__ import annotations

import torch
from torch import Tensor


def normalise(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.silu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight)


def factory() -> tuple[object, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return normalise, (torch.randn(64, 256), torch.randn(256))


def main() -> None:
    fn, inputs = factory()
    options = {"target": "host", "budget_s": 120}
    compiled = torch.compile(fn, backend="cudal1", options=options)
    torch.testing.assert_close(compiled(*inputs), normalise(*inputs))
    import cudal1_compile

    assert "/env/" in cudal1_compile.__file__, cudal1_compile.__file__
    told = str(cudal1_compile.explain(fn, *inputs, options=options))
    assert "hit 1" in told, told


if __name__ == "__main__":
    main()
