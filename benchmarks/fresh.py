"""Regions of modules that nobody trained on: which of the model's replies are right, on the host target.

    python -m benchmarks.fresh --model cudal1_compile/generate/model --out OUT [--programs 120]

fresh_regions.jsonl holds the regions, products on, that were cut from 177 modules written for this alone: products
and convolutions of every kind with what follows them, norms, pooling, scans, losses, blocks; forward and backward,
sizes odd and even. Unlike the programs of heldout.json they share structures with the training data where people's
modules do (a plain product is one). None of the modules was drawn from, and no structure of written.jsonl.gz, cut
from other modules that were written for training, is one of theirs; but authors of both are alike. Eight samples
each (of different designs as far as there are, at temperature 0.8, code at 0.1), judged for rightness alone: no
GPU, no times.

    right_1, right_8    share of samples that are right; of regions with at least one right of 8

OUT/fresh.replies.jsonl grows while it runs; existing replies are reused: `--sample-only` on a GPU (half a minute),
the judge at home. Eight seconds a region on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.generator import BATCH, ask_all, load_generator
from benchmarks.result_file import bootstrap, mean, write_result
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.generate.protocol import token_counter
from cudal1_compile.judge.judge import Judge
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.outcome import RIGHT, Code, Kind, classify, conclude
from cudal1_trainer.scores.referee import Ruling

REGIONS = Path(__file__).with_name("fresh_regions.jsonl")
FACTS = "target sm_90a, 132 SMs, 227 KB shared a block, 50 MB L2"  # kernels are asked for as for an H100
SAMPLES = 8
AT_ONCE = {"cpu": 12, "cuda": BATCH}  # regions whose replies a device holds


@dataclass(frozen=True, slots=True)
class Region:
    family: str
    name: str  # of the module
    direction: str
    text: str

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_regions(count: int, seed: int) -> list[Region]:
    """`count` of them, drawn; all if there are fewer."""
    found = [Region(**json.loads(line)) for line in REGIONS.read_text().splitlines()]
    return random.Random(seed).sample(found, min(count, len(found)))


def judge_replies(judge: Judge, text: str, replies: Sequence[str]) -> list[Kind]:
    """What became of each."""
    told = [classify(reply, text, ()) for reply in replies]
    codes = list(dict.fromkeys(t.code for t in told if isinstance(t, Code)))
    verdicts = dict(zip(codes, judge.judge_many(parse_program(text), codes), strict=True))
    return [conclude(Ruling(verdicts[t.code]), HOST).kind if isinstance(t, Code) else t.kind for t in told]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Rightness on regions of modules that nobody trained on.")
    parser.add_argument("--model", type=Path, required=True, help="a model's folder, or `teacher`: templates")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--programs", type=int, default=10**6, help="draw so many of the regions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample-only", action="store_true", help="write the replies, judge none")
    arguments = parser.parse_args(argv)
    regions = read_regions(arguments.programs, arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = load_generator(arguments.model, device)
    count = token_counter(generator)
    replies: dict[str, list[str]] = {}
    by_length = sorted(regions, key=lambda r: len(r.text))
    for at in range(0, len(by_length), AT_ONCE[device]):
        some = by_length[at : at + AT_ONCE[device]]
        prompts = {
            r.fingerprint: [build_prompt(FACTS, r.text, (), generator.budget_tokens, count, stages=False)]
            for r in some
        }
        replies = ask_all(generator, prompts, SAMPLES, arguments.out / "fresh.replies.jsonl", arguments.seed)
    if arguments.sample_only:
        return
    detail = {}
    shares: dict[str, list[float]] = defaultdict(list)
    every: Counter[str] = Counter()
    with Judge(HOST) as judge:
        for region in regions:
            outcomes = judge_replies(judge, region.text, replies[region.fingerprint])
            share = mean([float(o in RIGHT) for o in outcomes])
            for group in ("all", region.family, region.direction):
                shares[group].append(share)
            every.update(outcomes)
            detail[region.fingerprint[:12]] = {
                "family": region.family,
                "name": region.name,
                "direction": region.direction,
                "right": share,
                "refused": dict(Counter(o for o in outcomes if o not in RIGHT)),
            }
    families = {
        name: {"n": len(found), "right_1": mean(found), "right_8": _some(found)}
        for name, found in shares.items()
        if name != "all"
    }
    summary = {
        "right_1": mean(shares["all"]),
        "right_8": _some(shares["all"]),
        "groups": families,
        "outcomes": dict(every),
    }
    intervals = {"right_1": bootstrap(shares["all"], mean), "right_8": bootstrap(shares["all"], _some)}
    print(write_result(arguments.out, "fresh", summary, len(regions), intervals, detail))


def _some(shares: Sequence[float]) -> float:
    return mean([float(s > 0) for s in shares])


if __name__ == "__main__":
    main()
