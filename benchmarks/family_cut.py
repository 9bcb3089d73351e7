"""Cuts the families' cases into programs, one JSON line each: trainer/data/families.jsonl, which training skips.

    python -m benchmarks.family_cut --out trainer/data/families.jsonl       (CPU, half a minute)

Each case is captured as the backend's pass would see it, on meta tensors, so that nothing of its size is ever
computed, and taken for CUDA, where torch's flags decide on TF32. Of the regions that the partitioner makes, the
anchor is kept: the one with a sum of products or a scan, else the one that moves most bytes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.family_cases import Case, product_cases
from benchmarks.family_reductions import reduction_cases
from benchmarks.family_rows import row_cases
from cudal1_fx_passes.fusion.partition import PartitionConfig, Region, partition
from cudal1_fx_passes.importer.capture import capture_graphs, take_for_cuda
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.text import print_program


def all_cases() -> Iterator[Case]:
    yield from product_cases()
    yield from reduction_cases()
    yield from row_cases()


def _tensor(item: str, device: str) -> Tensor:
    """`64x3x7x7:bf16*`"""
    m = re.fullmatch(r"(\d+(?:x\d+)*)(?::(\w+))?(\*)?", item)
    if m is None:
        raise ValueError(f"shape {item!r} is not like 64x3x7x7, 64x3:bf16 or 64x3*")
    sizes = [int(n) for n in m[1].split("x")]
    return torch.zeros(sizes, dtype=TORCH_DTYPE[m[2] or "f32"], device=device, requires_grad=bool(m[3]))


def cut(case: Case) -> str:
    """The anchor's text."""
    inputs = [_tensor(item, case.device) for item in case.shapes.split()]
    graphs = capture_graphs(case.run, inputs, train=case.direction != "inference")
    regions: list[Region] = []
    for graph in graphs:
        if graph.kind == case.direction:
            take_for_cuda(graph.gm.graph)
            regions += partition(graph.gm.graph, PartitionConfig(products=True)).regions
    if not regions:
        raise ValueError(f"{case.family}, {case.name}: its {case.direction} graph has no region")
    return print_program(max(regions, key=_weight).program)


def _weight(region: Region) -> tuple[bool, int]:
    anchors = any(OPS[o.fn].kind in (Kind.DOT, Kind.SCAN) for o in region.program.ops)
    return anchors, region.bytes_moved


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Writes the programs of the families' benchmark.")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    lines = [json.dumps(as_line(case)) for case in all_cases()]
    arguments.out.write_text("".join(line + "\n" for line in lines))
    print(f"{len(lines)} programs in {arguments.out}")


def as_line(case: Case) -> dict[str, str]:
    shape = case.shapes.replace("*", "")
    named = {"family": case.family, "name": case.name, "direction": case.direction, "shape": shape}
    return named | {"text": cut(case)}


if __name__ == "__main__":
    main()
