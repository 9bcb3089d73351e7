"""What the tests of the algebra share: graphs as Inductor's hook sees them, and results against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from functorch.compile import aot_function, make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch.fx.experimental.proxy_tensor import make_fx

from cudal1_fx_passes.algebra import RULES, rewrite

LABELS = {rule.label for rule in RULES}
Function = Callable[..., Tensor]


def traced(fn: Function, inputs: Sequence[Tensor], dynamic: bool = False) -> fx.GraphModule:
    """As Inductor's hook sees it."""
    mode = "symbolic" if dynamic else "fake"
    gm = make_fx(fn, select_decomp_table(), tracing_mode=mode)(*inputs)
    view_to_reshape(gm)
    gm.graph.eliminate_dead_code()
    return gm


def rewritten(fn: Function, *inputs: Tensor, labels: set[str] = LABELS) -> tuple[fx.GraphModule, list[str]]:
    gm = traced(fn, inputs)
    fired = rewrite(gm.graph, labels)
    assert rewrite(gm.graph, labels) == []
    gm.graph.lint()
    gm.recompile()
    return gm, fired


def check(fn: Function, *inputs: Tensor, rule: str) -> fx.GraphModule:
    """The rule fired, and the result is about as near to float64 as before."""
    gm, fired = rewritten(fn, *inputs)
    assert rule in fired
    got, plain = gm(*inputs), fn(*inputs)
    exact = fn(*[x.double() for x in inputs])
    assert got.shape == plain.shape and got.dtype == plain.dtype and got.stride() == plain.stride()
    scale = exact.abs().max() + fn(*[x.double().abs() for x in inputs]).abs().max() * torch.finfo(got.dtype).eps
    error, before = ((y.double() - exact).abs().max() for y in (got, plain))
    assert error <= 2 * before + 4 * torch.finfo(got.dtype).eps * scale
    return gm


def targets(gm: fx.GraphModule) -> set[str]:
    return {str(n.target) for n in gm.graph.nodes if n.op == "call_function"}


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def check_training(fn: Function, *inputs: Tensor, rule: str) -> list[str]:
    """As `check`, of the gradients too; returns what fired, forward and backward."""
    fired: list[str] = []

    def compiler(gm: fx.GraphModule, _: object) -> Callable[..., object]:
        view_to_reshape(gm)
        fired.extend(rewrite(gm.graph, LABELS))
        gm.graph.lint()
        gm.recompile()
        return make_boxed_func(gm)  # type: ignore[no-any-return]

    table, partition = select_decomp_table(), min_cut_rematerialization_partition
    compiled = aot_function(fn, compiler, compiler, partition_fn=partition, decompositions=table)
    weight = drawn(*fn(*inputs).shape, seed=7)
    grads = []
    for run, dtype in ((compiled, torch.float32), (fn, torch.float64)):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        (run(*leaves) * weight.to(dtype)).sum().backward()
        grads.append([x.grad for x in leaves])
    for got, exact in zip(*grads, strict=True):
        torch.testing.assert_close(
            torch.zeros_like(exact) if got is None else got.double(), exact, rtol=1e-4, atol=1e-4
        )
    assert rule in fired
    return fired
