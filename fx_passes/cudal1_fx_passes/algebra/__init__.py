"""Algebra on an aten graph, forward or backward: less to compute for the same result.

    rewrite(graph, labels) -> names of the rules that fired, one a use

Each rule is a function `node -> node in its place, or None`, with the widest numerics label that it needs:

    exact            the same values, NaN and infinities too; only the sign of a zero may differ
    reassociates     sums in another order, common factors out of sums (LLVM's `reassoc`). Where finite inputs stay
                     far from overflow the results differ by rounding; a result that is not finite stays not
                     finite, though inf may become NaN and the other way round
    assumes_finite   neither inf nor NaN occurs, nor in between: a factor 0 gives 0, what is clamped to 0 is 0

Rules look at static sizes alone. They leave out a product's or a convolution's multiplications (30% of them, most,
or all) or a pass over a large result; those on clamps and on reductions over one element lead to that. Pointwise
operators alone are left to Inductor, which fuses them. A graph is rewritten at Inductor's hook, before regions are
cut out of it, in every variant but aten's.
"""

from cudal1_fx_passes.algebra.rules import META, RULES, rewrite

__all__ = ["META", "RULES", "rewrite"]
