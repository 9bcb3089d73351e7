"""The training loop: one model, one stream of batches, a limit in minutes.

    Training(recipe, tokenizer, out).run(maker, heldout_maker) -> report

It knows no programs: `maker` makes chunks of batches (loader.py), `heldout_maker` the batches of the final loss.
State is saved every `checkpoint_s` seconds and a killed run goes on from it, on the same data in the same order.
A loss that is not finite stops the run and keeps the last good state. A full disk costs checkpoints and metrics.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from cudal1_compile.judge.sandbox.isolation import die_with_parent
from cudal1_trainer.data.loader import Batch, ChunkMaker, Cursor, Feed, targets
from cudal1_trainer.errors import NotFinite
from cudal1_trainer.model.base import Base, fresh_base
from cudal1_trainer.model.checkpoint import Checkpoints, load_trained, no_room, room_for_the_end, trained_state
from cudal1_trainer.model.model import ReplyLoss, compile_blocks, count_parameters
from cudal1_trainer.model.muon import Muon
from cudal1_trainer.model.ranks import SharedClock
from cudal1_trainer.model.sharding import in_one_piece, load_optimizer, optimizer_state, settle
from cudal1_trainer.recipe import Recipe, TrainRecipe
from cudal1_trainer.sft.metrics import Metrics, forget_after, write_report

log = logging.getLogger(__name__)

CHECK_EVERY = 20  # steps between looks at the loss; each look waits for the device
PREFETCH = 8  # batches
SMALL = 256  # hidden size up to which one thread is enough on a CPU


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: what a checkpoint stores beside weights and optimiser."""

    step: int = 0
    elapsed_s: float = 0.0
    tokens: int = 0  # padded ones, all processes together
    cursor: Cursor = Cursor()


@dataclass(frozen=True, slots=True)
class Step:
    """One batch on its device."""

    tokens_BT: Tensor
    places_N: Tensor
    ids_N: Tensor
    cursor: Cursor  # after this batch
    waited_s: float


def learning_rate(recipe: TrainRecipe, step: int, done: float) -> float:
    """done: share of the run's time that has passed."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    return recipe.lr * warm * (recipe.min_lr + (1.0 - recipe.min_lr) * cosine)


def make_optimizers(loss: ReplyLoss, recipe: TrainRecipe, fused: bool) -> list[torch.optim.Optimizer]:
    """AdamW for embeddings and vectors; for the matrices of the layers AdamW or Muon, at the same rate."""
    trained = [(n, p) for n, p in loss.named_parameters() if p.requires_grad]
    inner = [p for n, p in trained if p.ndim == 2 and ".layers." in n]
    outer = [p for n, p in trained if p.ndim == 2 and ".layers." not in n]
    vectors = [p for _, p in trained if p.ndim < 2]
    muon: list[torch.optim.Optimizer] = []
    if recipe.muon and inner:
        muon = [Muon(inner, recipe.lr, recipe.weight_decay)]
    else:
        outer += inner
    groups = [{"params": outer, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.95), fused=fused), *muon]


class Training:
    """One run: model, optimiser, progress and its folder."""

    def __init__(self, recipe: Recipe, tokenizer: Path, out: Path, base: Base | None = None) -> None:
        """`base`: where weights are not to be fresh ones; it brings its own tokenizer."""
        self.recipe, self.out = recipe, out
        cuda = torch.cuda.is_available()
        self.accelerator = Accelerator(mixed_precision="bf16" if cuda else "no", cpu=not cuda)
        settle(self.accelerator, bool(recipe.model.lora), recipe.train.muon)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.manual_seed(recipe.seed)
        self.base = base or fresh_base(recipe, tokenizer)
        if not cuda and self.base.lm.config.hidden_size <= SMALL:
            torch.set_num_threads(1)  # two threads on busy cores wait for each other: ten times slower
        out.mkdir(parents=True, exist_ok=True)
        self.loss = ReplyLoss(self.base.lm)
        self.loss.to(self.accelerator.device)
        self.optimizers = make_optimizers(self.loss, recipe.train, fused=cuda)
        self.checkpoints = Checkpoints(out, self.accelerator)
        if recipe.train.compile and cuda and not self.base.foreign:
            compile_blocks(self.loss)
        self.step_module, *self.steppers = self.accelerator.prepare(self.loss, *self.optimizers)
        self.progress = self._resume()
        if self.accelerator.is_main_process:
            forget_after(out / "metrics.jsonl", self.progress.step)
        self.metrics = Metrics(out, self.accelerator.is_main_process)

    def run(self, maker: ChunkMaker, heldout_maker: Callable[[], list[Batch]]) -> dict[str, Any]:
        """Trains until the recipe's minutes are over; returns and writes the report."""
        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        with _background(heldout_maker) as heldout:
            with Feed(maker, self.recipe.data.workers, self.progress.cursor, rank, ranks) as feed:
                self._warm_up()
                self._loop(self._prefetched(feed))
            if not self.save():
                raise OSError(no_room("last checkpoint", self.out))
            report = self._report(self.heldout_loss(heldout.result()))
        self.accelerator.wait_for_everyone()
        self.metrics.close()
        return report

    def _warm_up(self) -> None:
        """Compiles the model while the producers make their first chunks; changes no weight."""
        if self.accelerator.device.type != "cuda":
            return
        for rows, length in ((40, 1024), (24, 1792)):
            tokens = torch.zeros(rows, length, dtype=torch.int64, device=self.accelerator.device)
            places = torch.arange(rows * length // 2, device=self.accelerator.device)
            self.accelerator.backward(self.step_module(tokens, places, tokens.flatten()[places]))
            for stepper in self.steppers:
                stepper.zero_grad(set_to_none=True)

    def _loop(self, steps: Iterator[Step]) -> None:
        clock, saved_s = SharedClock(self.accelerator, self.progress.elapsed_s), self.progress.elapsed_s
        losses: list[Tensor] = []
        waited = 0.0
        last = (time.monotonic(), self.progress.tokens)
        while True:
            elapsed_s = clock.read()
            done = self._done(elapsed_s)
            if done >= 1.0:
                break
            batch = next(steps)
            rate = learning_rate(self.recipe.train, self.progress.step, done)
            losses.append(self._step(batch, rate))
            waited += batch.waited_s
            p = self.progress
            size = batch.tokens_BT.numel() * self.accelerator.num_processes
            self.progress = Progress(p.step + 1, elapsed_s, p.tokens + size, batch.cursor)
            if self.progress.step % CHECK_EVERY == 0 or self.progress.step == 1:
                mean = self._look(losses)
                now = time.monotonic()
                speed = (self.progress.tokens - last[1]) / (now - last[0])
                values = {"loss": mean, "lr": rate, "tokens_per_s": speed, "wait_s": waited}
                values |= {"elapsed_s": elapsed_s, "tokens": float(self.progress.tokens)}
                self.metrics.write(self.progress.step, values)
                losses, waited, last = [], 0.0, (now, self.progress.tokens)
            if elapsed_s - saved_s > self.recipe.train.checkpoint_s:
                self._look(losses)
                self.save()
                saved_s = elapsed_s
        self._look(losses)

    def _step(self, batch: Step, rate: float) -> Tensor:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss: Tensor = self.step_module(batch.tokens_BT, batch.places_N, batch.ids_N)
        self.accelerator.backward(loss)
        norm: Tensor = self.accelerator.clip_grad_norm_(self.step_module.parameters(), self.recipe.train.clip)
        for stepper in self.steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        return loss.detach() + 0.0 * norm  # so that a gradient that is not finite shows

    def _look(self, losses: list[Tensor]) -> float:
        """Mean of the losses since the last look; raises NotFinite."""
        if not losses:
            return math.nan
        mean = float(torch.stack(losses).mean())
        if not math.isfinite(mean):
            raise NotFinite(
                f"loss or gradient is not finite (mean loss {mean}) at step {self.progress.step}; {self._advice()}"
            )
        return mean

    def _advice(self) -> str:
        return (
            f"the last good state is {self.out / 'state.pt'}. "
            f"Lower train.lr (now {self.recipe.train.lr}) or raise train.warmup_steps, and start again"
        )

    def _done(self, elapsed_s: float) -> float:
        """Share of the run that is over."""
        recipe = self.recipe.train
        return self.progress.step / recipe.steps if recipe.steps else elapsed_s / (recipe.minutes * 60)

    def _prefetched(self, feed: Feed) -> Iterator[Step]:
        """Lays batches on the device in a thread, PREFETCH ahead."""
        ready: queue.Queue[Step | BaseException] = queue.Queue(maxsize=PREFETCH)
        thread = threading.Thread(target=self._fill, args=(feed, ready), daemon=True)
        thread.start()
        while True:
            start = time.monotonic()
            got = ready.get()
            if isinstance(got, BaseException):
                raise got
            yield Step(got.tokens_BT, got.places_N, got.ids_N, got.cursor, time.monotonic() - start)

    def _fill(self, feed: Feed, ready: queue.Queue[Step | BaseException]) -> None:
        try:
            for batch, cursor in feed:
                ready.put(Step(*self._to_device(batch), cursor, 0.0))
        except BaseException as error:  # noqa: BLE001  a thread hands whatever ended it to the loop
            ready.put(error)

    def _to_device(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        places, ids = targets(batch)
        tokens = torch.from_numpy(batch.tokens.astype("int64"))
        found = [tokens, torch.from_numpy(places), torch.from_numpy(ids)]
        if self.accelerator.device.type == "cuda":
            found = [x.pin_memory().to(self.accelerator.device, non_blocking=True) for x in found]
        return found[0], found[1], found[2]

    def heldout_loss(self, batches: list[Batch]) -> float:
        """Mean loss a reply token over the held-out pairs."""
        total, count = 0.0, 0
        with torch.no_grad(), self.accelerator.autocast():
            for batch in batches:
                tokens, places, ids = self._to_device(batch)
                total += float(self.loss(tokens, places, ids)) * ids.numel()
                count += ids.numel()
        return total / count if count else math.nan

    def save(self) -> bool:
        """A kill at any moment leaves the old or the new state whole; False where there is no room.

        Raises NotFinite where the weights are not finite, and leaves the old state.
        """
        p = self.progress
        model = trained_state(self.loss)
        if not all(bool(x.isfinite().all()) for x in model.values()):
            raise NotFinite(f"the weights are not finite at step {p.step}; {self._advice()}")
        state = {
            "recipe": self.recipe.digest + self.base.digest,
            "model": model,
            "optimizers": [optimizer_state(self.loss, o) for o in self.optimizers],
            "elapsed_s": p.elapsed_s,
            "tokens": p.tokens,
        }
        main = self.accelerator.is_main_process
        # chunks hold different numbers of batches, so each process stands somewhere else in its own
        return self.checkpoints.save(p.step, state if main else None, {"cursor": asdict(p.cursor)})

    def _resume(self) -> Progress:
        found = self.checkpoints.load(self.accelerator.device)
        if found is None:
            return Progress()
        state, own = found
        if state["recipe"] != self.recipe.digest + self.base.digest:
            raise ValueError(f"{self.out} holds a run of another recipe or base: give another --out")
        load_trained(self.loss, state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            load_optimizer(self.loss, optimizer, saved)
        log.info("goes on at step %d, %.0f s", state["step"], state["elapsed_s"])
        return Progress(state["step"], state["elapsed_s"], state["tokens"], Cursor(**own["cursor"]))

    def _report(self, heldout: float) -> dict[str, Any]:
        report = {
            "recipe": asdict(self.recipe),
            "parameters": count_parameters(self.loss),
            "steps": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.elapsed_s, 1),
            "tokens_per_s": round(self.progress.tokens / max(1e-9, self.progress.elapsed_s)),
            "heldout_loss": heldout,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "torch": torch.__version__,
            "processes": self.accelerator.num_processes,
        }
        plain = replace(self.base, lm=in_one_piece(self.base.lm))
        if self.accelerator.is_main_process:
            with room_for_the_end(self.out):
                plain.save(self.out / "model")
                write_report(self.out, report)
        return report


class _background:
    """Runs a function in a process of its own while the body runs."""

    def __init__(self, function: Callable[[], list[Batch]]) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=die_with_parent)
        self._future = self._pool.submit(function)

    def __enter__(self) -> Future[list[Batch]]:
        return self._future

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
