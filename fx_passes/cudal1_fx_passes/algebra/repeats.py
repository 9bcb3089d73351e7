"""Products and convolutions that were computed before.

AOTAutograd's partitioner leaves out what is repeated in a graph that is trained, but nothing does in inference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from cudal1_fx_passes.algebra.nodes import aten, may_be_aliased, sizes

_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)
DEPTH = 8  # operators before the product that may be repeated with it


def product_computed_before(node: fx.Node) -> fx.Node | None:
    """f(a b) + g(a b)  ->  one product for both.

    Proof: the same operator of the same operands; nothing between them is random or changed in place.
    """
    if node.target not in _PRODUCTS or sizes(node) is None:
        return None
    for earlier in node.graph.find_nodes(op="call_function", target=node.target):
        if earlier is node:
            return None
        if sizes(earlier) == sizes(node) and _is_same(earlier, node, DEPTH) and may_be_aliased(node):
            return earlier  # type: ignore[no-any-return]
    return None


def _is_same(a: Any, b: Any, depth: int) -> bool:
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        if a is b:
            return not any(user.is_impure() for user in a.users if user.op == "call_function")
        if a.op == b.op == "get_attr":
            return a.target == b.target
        if not depth or a.op != "call_function" or b.op != "call_function" or a.target != b.target:
            return False
        is_same = _is_same((a.args, a.kwargs), (b.args, b.kwargs), depth - 1)
        return is_same and isinstance(a.target, torch._ops.OpOverload) and not a.is_impure()
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        # from the last: weights differ at once
        return len(a) == len(b) and all(_is_same(x, y, depth) for x, y in zip(a[::-1], b[::-1], strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_same(a[k], b[k], depth) for k in a)
    return type(a) is type(b) and bool(a == b)
