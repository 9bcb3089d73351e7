"""`cudal1 train`: rebuilds the bundled model, step by step; each step can be given alone.

    cudal1 train --recipe nano                       every step, on a CPU in minutes
    cudal1 train export-misses misses.jsonl          tasks from this machine's kernel cache
    cudal1 train compare OLD NEW [--install]         held-out programs; the better bundle in the old one's place

    heldout    evaluation programs, written first and never trained on; kept where the file exists
    tokenizer  on a sample of the corpus; kept where it exists
    scores     measures variants on the GPU; skipped without one, existing scores stay in use
    corpus     what stage 1 reads, into OUT/chunks, as much as the recipe says; goes on where it was interrupted
    sft        stage 1, into OUT/model
    self_supervised, contrastive    stages 2 and 3, into OUT/STAGE/model, each from the model of the one before

With --fresh the steps named write anew what exists.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from cudal1_compile.runtime.target import detect_target
from cudal1_trainer.data.corpus import texts_for_tokenizer
from cudal1_trainer.errors import MISTAKES
from cudal1_trainer.model.checkpoint import forget
from cudal1_trainer.model.tokenizer import save_tokenizer, train_tokenizer
from cudal1_trainer.recipe import Recipe, load_recipe
from cudal1_trainer.scores.scorebook import score_files
from cudal1_trainer.tasks.heldout import build_heldout, read_heldout, write_heldout

log = logging.getLogger(__name__)

STEPS = ("heldout", "tokenizer", "scores", "corpus", "sft", "self_supervised", "contrastive")
HELD_OUT_TASKS = 240
DATA = Path("trainer/data")

train = typer.Typer(add_completion=False, pretty_exceptions_enable=False, invoke_without_command=True)


def make_heldout(recipe: Recipe, data: Path, out: Path, fresh: bool) -> None:
    path = data / "heldout.json"
    if path.exists() and not fresh:
        log.info("heldout: %d programs kept", len(read_heldout(path).programs))
        return
    heldout = build_heldout(data / "regions.jsonl", HELD_OUT_TASKS)
    write_heldout(heldout, path)
    log.info("heldout: %d programs", len(heldout.programs))


def make_tokenizer(recipe: Recipe, data: Path, out: Path, fresh: bool) -> None:
    directory = data / "tokenizer"
    if (directory / "tokenizer.json").is_file() and not fresh:
        log.info("tokenizer: kept")
        return
    tokenizer = train_tokenizer(texts_for_tokenizer(recipe, data), recipe.tokenizer.vocab)
    save_tokenizer(tokenizer, directory)
    log.info("tokenizer: %d tokens", len(tokenizer))


def make_scores(recipe: Recipe, data: Path, out: Path, fresh: bool) -> None:
    if not torch.cuda.is_available():
        log.info("scores: no CUDA device; %d existing files stay in use", len(score_files(data)))
        return
    from cudal1_trainer.scores.collect import Budget, run

    run(data, out / "scores", Budget(recipe.scores.seconds, recipe.scores.programs, recipe.scores.variants))
    for part in sorted((out / "scores").glob("scores*.jsonl.gz")):
        shutil.copy(part, data / f"scores.{out.name}.{part.name.removeprefix('scores.')}")


def make_corpus(recipe: Recipe, data: Path, out: Path, fresh: bool) -> None:
    from cudal1_trainer.data.chunks import make_chunks
    from cudal1_trainer.data.loader import producers

    if fresh:
        shutil.rmtree(out / "chunks", ignore_errors=True)
    if recipe.data.ahead:
        make_chunks(recipe, data, out / "chunks", recipe.data.ahead, producers(recipe.data.workers))


def run_sft(recipe: Recipe, data: Path, out: Path, fresh: bool) -> None:
    from cudal1_trainer.sft.supervised import train as train_model

    if fresh:
        forget(out)
    train_model(recipe, data, out, chunks=out / "chunks" if recipe.data.ahead else None)


def run_self_supervised(recipe: Recipe, data: Path, out: Path, fresh: bool) -> None:
    from cudal1_trainer.rl.self_supervised import train as train_model

    train_model(recipe, out / "model", data, _folder(out / "self_supervised", fresh))


def run_contrastive(recipe: Recipe, data: Path, out: Path, fresh: bool) -> None:
    from cudal1_trainer.rl.contrastive import train as train_model

    before = out / "self_supervised" / "model"
    model = before if before.is_dir() else out / "model"
    train_model(recipe, model, data, _folder(out / "contrastive", fresh))


def _folder(out: Path, fresh: bool) -> Path:
    if fresh:
        forget(out)
    return out


_RUN: dict[str, Callable[[Recipe, Path, Path, bool], None]] = {
    "heldout": make_heldout,
    "tokenizer": make_tokenizer,
    "scores": make_scores,
    "corpus": make_corpus,
    "sft": run_sft,
    "self_supervised": run_self_supervised,
    "contrastive": run_contrastive,
}


@train.callback()
def run_steps(
    recipe: Annotated[str, typer.Option(help="a built-in recipe (h100, nano) or a YAML file")] = "h100",
    data: Annotated[Path, typer.Option(help="folder of held-out programs, tokenizer and scores")] = DATA,
    out: Annotated[Path | None, typer.Option(help="folder of this run; runs/RECIPE by default")] = None,
    steps: Annotated[str, typer.Option(help="which steps, in order")] = ",".join(STEPS),
    minutes: Annotated[float | None, typer.Option(help="of stage 1, instead of the recipe's")] = None,
    fresh: Annotated[bool, typer.Option(help="write anew what exists already")] = False,
    context: typer.Context = None,  # type: ignore[assignment]
) -> None:
    """Rebuild the bundled model: held-out programs, tokenizer, scores, stages 1 to 3."""
    if context is not None and context.invoked_subcommand is not None:
        return
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    unknown = [s for s in steps.split(",") if s not in STEPS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: the steps are {', '.join(STEPS)}", param_hint="--steps")
    try:
        loaded = load_recipe(recipe)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from None
    try:
        if minutes is not None:
            loaded = replace(loaded, train=replace(loaded.train, minutes=minutes, steps=0))
        data.mkdir(parents=True, exist_ok=True)
        for step in steps.split(","):
            _RUN[step](loaded, data, out or Path("runs") / loaded.name, fresh)
    except MISTAKES as error:
        typer.echo(f"cudal1 train: {error}", err=True)
        raise typer.Exit(1) from None


@train.command()
def export_misses(
    path: Annotated[Path, typer.Argument(help="the file of tasks to write, for --tasks of a stage")],
    limit: Annotated[int, typer.Option(min=1, help="regions, the most valuable first")] = 1000,
) -> None:
    """Write the regions that this machine's kernel cache had no kernel for."""
    from cudal1_compile.dispatch.kernel_cache import open_store
    from cudal1_trainer.tasks.misses import export_misses as export

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with open_store() as store:
        count = export(store, detect_target(device).key, path, limit)
    typer.echo(f"{count} regions in {path}" if count else f"no region was missed; {path} is not written")


@train.command()
def compare(
    old: Annotated[Path, typer.Argument(help="bundle in use")],
    new: Annotated[Path, typer.Argument(help="bundle that may replace it")],
    recipe: Annotated[str, typer.Option(help="says how many held-out programs and samples")] = "h100",
    data: Annotated[Path, typer.Option(help="folder of held-out programs")] = DATA,
    put: Annotated[bool, typer.Option("--install", help="put NEW in OLD's place if it is no worse")] = False,
    force: Annotated[bool, typer.Option(help="install also what is worse")] = False,
) -> None:
    """Try two bundles on the same held-out programs."""
    from cudal1_trainer.rl.contest import contest, held_out, install, is_worse, table

    try:
        loaded = load_recipe(recipe)
        before, after = contest(loaded, held_out(loaded, data), old, new)
    except MISTAKES as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(table(before, after))
    if put and is_worse(after, before) and not force:
        raise typer.BadParameter(f"{new} is worse than {old}, which stays; --force installs it all the same")
    if put:
        try:
            install(new, old)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


def main() -> None:
    train()


if __name__ == "__main__":
    main()
