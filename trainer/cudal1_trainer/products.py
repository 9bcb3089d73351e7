"""Structures with sums of products: which of them templates answer, and how they are drawn.

    is_taught(program)                     whether templates answer it at several sizes
    lay_channels_last(graph)               2D convolutions as Inductor lays them on a GPU
    draw_product(texts, rng, ...)          a structure, varied now and then, at new sizes

A structure keeps its product however it is varied.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from cudal1_fx_passes.canonical import canonicalise
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import parse_program
from cudal1_trainer.product_sizes import TRAINED, Most, resize_product, resize_structure
from cudal1_trainer.structures import can_be_resized
from cudal1_trainer.teachers import variants
from cudal1_trainer.vary import vary

aten = torch.ops.aten

TRIED = 3  # sizes at which a structure is tried
REDRAWS = 8


def lay_channels_last(graph: fx.Graph) -> bool:
    """Gives the graph's fake tensors the strides that they have where Inductor runs convolutions channels-last.

    Also to what a forward saved for this backward. Returns whether there is such a convolution.
    """
    from torch._guards import detect_fake_mode
    from torch._inductor.virtualized import V

    from cudal1_compile.layouts import CONVOLUTION, assume, channels_last

    kinds = (CONVOLUTION, aten.convolution_backward.default)
    read = [n.args[1 if n.target is kinds[1] else 0].meta["val"] for n in graph.nodes if n.target in kinds]
    if not any(x.dim() == 4 for x in read):
        return False
    of_user = ("primals", "tangents", "arg")  # inputs, weights and gradients as eager has them
    given = [n for n in graph.nodes if n.op == "placeholder" and not n.name.startswith(of_user)]
    saved = {n: n.meta["val"] for n in given if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].dim() == 4}
    mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])
    with V.set_fake_mode(mode):
        found = assume(graph, {n: channels_last(x) for n, x in saved.items()})
    for node, value in found.items():
        node.meta["val"] = value
    return True


def is_taught(program: Program) -> bool:
    """Whether it can be resized and teachers have variants at each of a few sizes."""
    if not can_be_resized(program):
        return False
    resize = resize_product if program.has_product else resize_structure
    try:
        return all(variants(resize(program, random.Random(i))) for i in range(TRIED))
    except ProgramError:
        return False


def draw_product(texts: Sequence[str], rng: random.Random, varied: float, most: Most = TRAINED) -> Program:
    """A varied structure whose product is gone, or that no size fits, is drawn anew."""
    for _ in range(REDRAWS):
        program = parse_program(rng.choice(texts))
        changed = vary(program, rng) if rng.random() < varied else program
        try:
            found = resize_product(changed if changed.has_product else program, rng, most)
        except ProgramError:
            continue
        if found.has_product:
            return found
    return canonicalise(program)
