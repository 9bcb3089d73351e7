"""Algebra on an aten graph, forward or backward: less to compute for the same result.

    rewrite(graph, labels) -> names of the rules that fired, one a use

Each rule is a function `node -> node in its place, or None`, with the widest numerics label that it needs:

    reassociates     sums in another order, common factors out of sums (LLVM's `reassoc`). Where finite inputs stay
                     far from overflow the results differ by rounding; a result that is not finite stays not
                     finite, though inf may become NaN and the other way round
    assumes_finite   a factor 0 is taken to give 0, which inf and NaN do not

Rules look at static sizes alone, and fire only where they leave out most of a product's or a convolution's
multiplications: what is then left reads its operands about once. A graph is rewritten at Inductor's hook, before
regions are cut out of it, in every variant but aten's.
"""

from cudal1_fx_passes.algebra.rules import META, RULES, rewrite

__all__ = ["META", "RULES", "rewrite"]
