"""Structures of modules written for training, as people write them: what random models do not put together.

    modules(folder) -> [(name, whether it is trained, make)]
    written_regions(made) -> regions of one of them, in every cut, forward, backward and inference, with 2D
                             convolutions as they are and in channels-last

trainer/data/modules holds 2,932 modules in ten files, one to a few lines each, and what they share. They were
written by language models from descriptions of areas of work, without a look at the data or at the benchmarks.
Of the 19,435 structures that they give, the 39,606 of random models had 741. What is held out is left out, and so
are the structures of a file of regions that must stay unseen. It takes three hours; --first and --models make
parts of it, which structures.merge joins.

    python -m cudal1_trainer.written --data trainer/data --without benchmarks/fresh_regions.jsonl --out FILE.gz
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

from cudal1_fx_passes.canonical import canonicalise, relative
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import parse_program
from cudal1_trainer.heldout import read_heldout
from cudal1_trainer.products import is_taught, lay_channels_last
from cudal1_trainer.structures import collect, write_found

Make = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


def modules(folder: Path) -> list[tuple[str, bool, Make]]:
    """In the order of the files' names. The folder stays on the path: torch's compiler looks there again."""
    sys.path.insert(0, str(folder))
    for path in sorted(folder.glob("*.py")):
        importlib.import_module(path.stem)
    return [(name, train, make) for name, _, train, make in importlib.import_module("written_base").M]


def written_regions(trained: bool, make: Make) -> Iterator[Program]:
    # here, because `modules` needs neither the partitioner nor torch's compiler
    from cudal1_fx_passes.anchors import partition_with_products
    from cudal1_fx_passes.capture import capture_graphs, take_for_cuda
    from cudal1_fx_passes.gradients import gradients_apart

    for train, channels_last in product((False, True) if trained else (False,), (False, True)):
        module, inputs = make()
        if not train:
            module.requires_grad_(False)
            inputs = tuple(x.detach() for x in inputs)
        for graph in capture_graphs(module.train(train), inputs, train=train):
            if channels_last and not lay_channels_last(graph.gm.graph):
                continue
            take_for_cuda(graph.gm.graph)
            with gradients_apart(graph.gm.graph):
                found = partition_with_products(graph.gm.graph)
            cuts = (region for anchor in found.anchors for cut in anchor.cuts for region in cut)
            yield from {r.fingerprint: r.program for r in (*found.regions, *cuts)}.values()


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description="Collects structures of the modules written for training.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the held-out programs and modules/")
    parser.add_argument("--without", type=Path, help="JSON lines whose `text` is a region that must stay unseen")
    parser.add_argument("--first", type=int, default=0, help="number of the first module")
    parser.add_argument("--models", type=int, default=10**6)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    lines = arguments.without.read_text().splitlines() if arguments.without else []
    unseen = {relative(canonicalise(parse_program(json.loads(line)["text"]))) for line in lines}
    known = modules(arguments.data / "modules")

    def regions_of(number: int) -> Iterator[Program]:
        torch.manual_seed(number)
        return written_regions(*known[number][1:])

    texts = collect(
        range(arguments.first, min(arguments.first + arguments.models, len(known))),
        read_heldout(arguments.data / "heldout.json"),
        regions_of,
        lambda p: relative(p) not in unseen and is_taught(p),
    )
    write_found(texts, arguments.out)


if __name__ == "__main__":
    from cudal1_trainer.mistakes import mistakes_told

    with mistakes_told():
        main()
