"""Stage 1: supervised fine-tuning on templates' replies, from scratch or a checkpoint.

Method: next-token prediction over `<bos> prompt <sep> reply <eos>`, prompts masked. Pairs are made on the fly by
producer processes (loader.py, corpus.py); at least 30% are contrastive: the prompt shows two measured variants,
the target is a strictly faster third. AdamW with betas 0.9 and 0.95, linear warm-up, cosine tied to wall time,
gradients clipped, bf16 autocast. As in CUDA-L1's stage 1 only right kernels are taught; unlike there, measured
plain targets are mostly the fastest ones. Replies come from the kernel templates (codegen/) and from any language
model whose right kernels lie in the data folder (llm_replies.py). Left out: dropout, several epochs.

    python -m cudal1_trainer.data.chunks --recipe h100 --data trainer/data --out runs/h100/chunks      CPUs only
    python -m cudal1_trainer.sft.supervised --recipe h100 --data DATA --out runs/h100 --chunks runs/h100/chunks
    accelerate launch --multi_gpu --num_processes 4 -m cudal1_trainer.sft.supervised --recipe h100 ...

With --model another base is taught, of any architecture and with its own tokenizer (base.py); `model: {lora: 16}`
in the recipe trains adapters of that rank in place of all its weights. The recipe `further` teaches the bundled
model on; chunks serve it as long as its tokenizer is the data folder's.

A run that was killed goes on from its last checkpoint when the same command is given again. Everything appears
under --out: metrics.jsonl and tensorboard/ (continuously), state.pt, model/ (the bundle), report.json, plots/.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cudal1_trainer.data.chunks import Stored, check_stamp
from cudal1_trainer.data.corpus import CorpusMaker, heldout_batches
from cudal1_trainer.data.loader import producers
from cudal1_trainer.data.scored import SCORED, write_scored
from cudal1_trainer.errors import mistakes_told
from cudal1_trainer.model.base import load_base
from cudal1_trainer.recipe import Recipe, load_recipe
from cudal1_trainer.scores.fit_prior import build_prior, is_current
from cudal1_trainer.sft.plots import plot
from cudal1_trainer.sft.training import Training

log = logging.getLogger(__name__)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stage 1: supervised fine-tuning from scratch.")
    parser.add_argument("--recipe", default="h100", help="name of a built-in recipe, or a YAML file")
    parser.add_argument("--data", type=Path, required=True, help="folder with tokenizer/, heldout.json, scores")
    parser.add_argument("--out", type=Path, required=True, help="folder of this run; an interrupted one goes on")
    parser.add_argument("--model", type=Path, help="checkpoint to begin with, of any architecture")
    parser.add_argument("--chunks", type=Path, help="folder of chunks made before (chunks.py)")
    parser.add_argument("--minutes", type=float, help="instead of the recipe's minutes or steps")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    arguments = parse_arguments(argv)
    recipe = load_recipe(arguments.recipe)
    if arguments.minutes is not None:
        recipe = replace(recipe, train=replace(recipe.train, minutes=arguments.minutes, steps=0))
    train(recipe, arguments.data, arguments.out, arguments.model, arguments.chunks)


def train(
    recipe: Recipe, data: Path, out: Path, model: Path | None = None, chunks: Path | None = None
) -> dict[str, Any]:
    """Stage 1 from a data folder (corpus.py says what is in it) into `out`; returns the report."""
    if model is not None and chunks is not None and not _same_tokenizer(model, data / "tokenizer"):
        raise ValueError(f"--chunks hold ids of {data / 'tokenizer'}, {model} has others: leave --chunks out")
    recipe = replace(recipe, data=replace(recipe.data, workers=producers(recipe.data.workers)))
    if chunks is not None:
        if not chunks.is_dir():
            raise ValueError(f"--chunks {chunks}: no such folder; cudal1_trainer.data.chunks --out makes one")
        check_stamp(chunks, recipe, data)
    if os.environ.get("RANK", "0") == "0" and not is_current(data):
        build_prior(data)
    base = load_base(model, recipe.model.lora) if model is not None else None
    training = Training(recipe, data / "tokenizer", out, base)
    accelerator = training.accelerator
    scored = chunks / SCORED if chunks is not None and (chunks / SCORED).is_file() else out / SCORED
    if accelerator.is_local_main_process and recipe.data.draws_measured and not scored.is_file():
        write_scored(data, scored, recipe.data.workers)
    accelerator.wait_for_everyone()
    live = CorpusMaker(recipe, data, scored if scored.is_file() else None, model)
    maker = Stored(live, chunks) if chunks is not None else live
    report = training.run(maker, partial(heldout_batches, recipe, data, model))
    if accelerator.is_main_process:
        plot(out)
    log.info("%s", json.dumps({k: v for k, v in report.items() if k != "recipe"}))
    return report


def _same_tokenizer(model: Path, tokenizer: Path) -> bool:
    mine, other = model / "tokenizer.json", tokenizer / "tokenizer.json"
    return mine.is_file() and mine.read_bytes() == other.read_bytes()


if __name__ == "__main__":
    with mistakes_told():
        main()
