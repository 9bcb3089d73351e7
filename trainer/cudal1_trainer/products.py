"""Structures with sums of products: regions cut from random small models with the partitioner's products on.

    collect_products(seeds, heldout)       texts, one a distinct structure that teachers answer at several sizes
    draw_product(texts, rng, ...)          one of them, varied now and then, at new sizes

Models around products (product_models.py) come first, the others of structures.py from OTHERS on, image networks
(image_models.py) from IMAGES on. Graphs are taken for a GPU, where convolutions of float32 may use TF32; from LAST
on 2D convolutions lie in channels-last, as Inductor lays them there. Held-out structures are left out.

    python -m cudal1_trainer.products --models 400 --first 0 --data trainer/data --out products.jsonl.gz
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx

from cudal1_fx_passes.canonical import canonicalise
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import parse_program
from cudal1_trainer.heldout import HeldOut
from cudal1_trainer.product_sizes import TRAINED, Most, resize_product, resize_structure
from cudal1_trainer.structures import can_be_resized, collect, collect_into
from cudal1_trainer.teachers import variants
from cudal1_trainer.vary import vary

log = logging.getLogger(__name__)
aten = torch.ops.aten

OTHERS = 2**18  # seeds from here on are of models without a stress on products
TRIED = 3  # sizes at which a structure is tried
REDRAWS = 8
IMAGES = 2**21  # of image networks
LAST = 2**22  # seeds from here on are those before it, in channels-last


def product_regions(seed: int) -> Iterator[Program]:
    """Forward, backward and inference regions of one model that have a product."""
    # here, as in structures.py
    from cudal1_fx_passes.anchors import fed_regions
    from cudal1_fx_passes.capture import capture_graphs, take_for_cuda
    from cudal1_fx_passes.gradients import gradients_apart
    from cudal1_fx_passes.partition import PartitionConfig, partition
    from cudal1_trainer.architectures import make_model
    from cudal1_trainer.image_models import make_image_model
    from cudal1_trainer.product_models import make_product_model

    makers = ((IMAGES, make_image_model), (OTHERS, make_model), (0, make_product_model))
    of_model = seed % LAST
    first, make = next((first, make) for first, make in makers if of_model >= first)
    module, inputs = make(of_model - first)
    for train in (True, False):
        for graph in capture_graphs(module.train(train), inputs, train=train):
            if seed >= LAST and not lay_channels_last(graph.gm.graph):
                continue
            take_for_cuda(graph.gm.graph)
            config = PartitionConfig(products=True)
            with gradients_apart(graph.gm.graph):
                regions = partition(graph.gm.graph, config).regions
                fed = fed_regions(graph.gm.graph, regions, config.max_ops)
            found = {r.fingerprint: r.program for r in (*regions, *fed)}
            yield from (p for p in found.values() if p.has_product)


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


def collect_products(seeds: Sequence[int], heldout: HeldOut) -> Iterator[str]:
    return collect(seeds, heldout, product_regions, is_taught)


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


def main(argv: list[str] | None = None) -> None:
    first = (
        f"from {OTHERS} on models of structures.py, from {IMAGES} images' networks; {LAST} more: in channels-last"
    )
    collect_into(collect_products, "structures with products", 400, first, argv)


if __name__ == "__main__":
    from cudal1_trainer.mistakes import mistakes_told

    with mistakes_told():
        main()
