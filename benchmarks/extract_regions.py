"""Cuts the zoo's models into regions; writes each distinct one as a JSON line: text, model, direction, count.

    python -m benchmarks.extract_regions --out trainer/data/regions.jsonl     (CPU, real sizes, shallow models)

Forward and backward of training and the inference graph of every model, captured as the backend's pass will see
them. Depth does not change a region, so two layers stand for all; `count` says how often one occurs in that graph.
Models run once on the CPU at their real sizes, so this takes some minutes and gigabytes; --tiny shrinks all.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.zoo import ZOO, Spec, build
from cudal1_fx_passes.fusion.partition import partition
from cudal1_fx_passes.importer.capture import capture_graphs
from cudal1_fx_passes.program.text import print_program

LAYERS = 2


def regions_of(spec: Spec, tiny: bool, device: torch.device) -> Iterator[tuple[str, str]]:
    """(direction, text) of every region, repeated ones repeatedly."""
    for train in (True, False):
        module, inputs = build(spec, device, min(LAYERS, spec.layers), tiny)
        for graph in capture_graphs(module.train(train), inputs, train=train):
            for region in partition(graph.gm.graph).regions:
                yield graph.kind, print_program(region.imported.program)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Writes the distinct regions of the zoo's models.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=[s.name for s in ZOO])
    parser.add_argument("--device", default="cpu", help="where the models run once; regions do not depend on it")
    parser.add_argument("--tiny", action="store_true", help="small sizes: a dry run")
    arguments = parser.parse_args(argv)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    with arguments.out.open("w") as stream:
        for spec in ZOO:
            if spec.name not in arguments.models:
                continue
            start = time.monotonic()
            counts = Counter(regions_of(spec, arguments.tiny, torch.device(arguments.device)))
            for (direction, text), count in counts.items():
                if text not in seen:
                    seen.add(text)
                    row = {"model": spec.name, "direction": direction, "count": count, "text": text}
                    stream.write(json.dumps(row) + "\n")
            stream.flush()
            used = time.monotonic() - start
            print(f"{spec.name}: {len(counts)} regions, {used:.0f} s; {len(seen)} distinct in all", flush=True)


if __name__ == "__main__":
    main()
