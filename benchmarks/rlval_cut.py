"""Cuts `rlval`, what reinforcement learning is measured on: 160 programs never trained on, a JSON line each.

    python -m benchmarks.rlval_cut --out benchmarks/rlval.jsonl --keys trainer/data/rlval.keys     (CPU, a minute)

Layers of models as published (rlval_layers.py), cut as the families' are (family_cut.py) at batches drawn by the
seed: the tensors of a program take 8 to 512 MiB, and its floor at an H100's rates is at most LONGEST_US, so that
none outweighs the others. Products and convolutions have most of the time. What is held out, among the families or
among the fresh regions is left out; training skips the keys (cudal1_trainer/tasks/heldout.py).
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import cache
from itertools import chain, islice, zip_longest
from pathlib import Path

from benchmarks.family_cases import Case, Row
from benchmarks.family_cut import as_line
from benchmarks.floor import HOPPER, Floor
from benchmarks.fresh import REGIONS
from benchmarks.rlval_layers import LAYERS
from cudal1_compile.judge.inputs.sizes import tensor_bytes
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.precision import products_in_tf32
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.heldout import read_heldout
from cudal1_trainer.tasks.variants import canonical_key

DATA = Path(__file__).parents[1] / "trainer" / "data"
FAMILIES = DATA / "families.jsonl"
RLVAL = Path(__file__).with_name("rlval.jsonl")
OTHERS = {"norm": 8, "softmax": 6, "pool": 6, "scan": 5, "reduction": 5, "pointwise": 5, "loss": 5}
COUNTS = {  # programs of each kind
    "product_f32": 12,
    "product_tf32": 12,
    "product_half": 16,
    "batched": 12,
    "conv1d": 8,
    "conv2d": 16,
    "conv3d": 8,
    "conv_transposed": 10,
    "conv_depthwise": 8,
    "conv_chain": 12,
    "conv_gradient": 6,
    **OTHERS,
}
BATCHES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
LEAST_BYTES, MOST_BYTES = 8 << 20, 512 << 20  # of inputs and outputs
LONGEST_US = 500.0
H100 = Floor(3.0e6, HOPPER)  # 3.0e6: bytes that a large copy moves in a microsecond


def programs(seed: int) -> Iterator[dict[str, str]]:
    """Lines as in families.jsonl, kind by kind."""
    for kind in COUNTS:
        yield from kind_programs(kind, seed)


def kind_programs(kind: str, seed: int) -> Iterator[dict[str, str]]:
    """Its layers in turn."""
    each = [layer_programs(kind, layer, seed) for layer in LAYERS[kind]]
    found = (line for turn in zip_longest(*each) for line in turn if line is not None)
    yield from islice(found, COUNTS[kind])


def layer_programs(kind: str, layer: Row, seed: int) -> Iterator[dict[str, str]]:
    """A layer at all batches that may be taken, in an order drawn by the seed."""
    name, run, shapes = layer
    for batch in random.Random(f"{seed} {kind} {name}").sample(BATCHES, len(BATCHES)):
        case = Case(kind, name, run, sized(shapes, batch), "backward" if "*" in shapes else "inference")
        line = _cut(case)
        if line is not None and _is_wanted(parse_program(line["text"]), kind):
            yield line


def _cut(case: Case) -> dict[str, str] | None:
    """None for a tensor of 2**31 elements or more, which is in no region."""
    with suppress(ValueError), products_in_tf32() if is_in_tf32(case.family) else nullcontext():
        return as_line(case)
    return None


def sized(shapes: str, batch: int) -> str:
    return re.sub(r"(\d*)B", lambda m: str(int(m[1] or 1) * batch), shapes)


def is_in_tf32(kind: str) -> bool:
    """Whether the user has allowed TF32 in products, which is not torch's default; in convolutions it is."""
    return kind == "product_tf32"


def _is_wanted(program: Program, kind: str) -> bool:
    fits = LEAST_BYTES <= tensor_bytes(program) <= MOST_BYTES and H100.us(program) <= LONGEST_US
    return fits and program.has_product == (kind not in OTHERS) and canonical_key(program) not in keys_elsewhere()


@cache
def keys_elsewhere() -> frozenset[str]:
    """Of all programs that other measurements hold out."""
    lines = chain.from_iterable(path.read_text().splitlines() for path in (FAMILIES, REGIONS))
    others = (canonical_key(parse_program(json.loads(line)["text"])) for line in lines)
    return read_heldout(DATA / "heldout.json").fingerprints.union(others)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Writes the programs that reinforcement learning is measured on.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keys", type=Path, help="their fingerprints too, for training to skip")
    parser.add_argument("--seed", type=int, default=0, help="the same file for the same one")
    arguments = parser.parse_args(argv)
    lines = list(programs(arguments.seed))
    arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if arguments.keys is not None:
        arguments.keys.write_text("".join(canonical_key(parse_program(line["text"])) + "\n" for line in lines))
    print(f"{len(lines)} programs in {arguments.out}")


if __name__ == "__main__":
    main()
