"""What stages 2 and 3 share: one loop of sample, judge, learn.

    tasks in order -> method.show: exemplars -> sampler: groups of replies -> text decides, or the referee judges
                   -> method.weigh: an advantage a reply -> Policy's loss -> optimiser -> weights into the sampler

With `ahead` 1 the next batch is sampled, and the last one learnt from, while the judge works: replies are then one
step older than the weights, which the clipped ratio corrects. With 0 everything waits for everything and is on
policy. On one GPU both share the device by time slices; a slice is far longer than a timed call, and a score is a
median of paired rounds: it costs the judge speed rather than truth, and gains that stand out are measured again.
Where a recipe has more tasks than `at_once`, those whose replies are alike make room for others, and come again
after these.

Several processes (`accelerate launch`; weights in parts: sharding.py): each samples, judges on its own device and
remembers its own tasks; the gradient is averaged. A killed run goes on from its checkpoint, the batches under way
included. A loss that is not finite ends the run and keeps the last good state; a full disk costs checkpoints and
metrics, not the run.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from accelerate import Accelerator

from cudal1_compile.kernel.candidate import Exemplar
from cudal1_trainer.data.practice import order
from cudal1_trainer.errors import NotFinite
from cudal1_trainer.model.base import Base, load_base
from cudal1_trainer.model.checkpoint import Checkpoints, no_room, room_for_the_end
from cudal1_trainer.model.ranks import SharedClock
from cudal1_trainer.model.sampler import Sampling
from cudal1_trainer.model.served import ServedSampler
from cudal1_trainer.model.sharding import settle
from cudal1_trainer.recipe import Recipe, StageRecipe
from cudal1_trainer.rl.book import Book
from cudal1_trainer.rl.examine import Marks, examine, summary
from cudal1_trainer.rl.gate import decidable
from cudal1_trainer.rl.learner import Learner
from cudal1_trainer.rl.policy import Objective
from cudal1_trainer.rl.rollouts import Batch, Item, number_of, open_desk, restore_batch
from cudal1_trainer.scores.outcome import HACKS, Code, Outcome, alike
from cudal1_trainer.scores.referee import Referee
from cudal1_trainer.sft.metrics import Metrics, append, forget_after, write_report
from cudal1_trainer.sft.plots import plot
from cudal1_trainer.sft.training import SMALL

log = logging.getLogger(__name__)

SHARE = 0.7  # of the device's memory that training may take; the judge's process works on the same one


class Method(Protocol):
    """What makes stage 2 or an arm of stage 3."""

    name: str
    objective: Objective
    nearest: bool  # whether of a design that cannot be lowered the nearest counts, as in use

    def show(self, book: Book, task: int, island: int, seed: int) -> list[Exemplar]:
        """The variants of a prompt."""

    def weigh(self, book: Book, task: int, outcomes: Sequence[Outcome]) -> list[float]:
        """An advantage for every reply of one prompt."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One run. Texts of programs: those practised on and those held out."""

    recipe: Recipe
    stage: StageRecipe
    model: Path
    out: Path
    tasks: Sequence[str]
    probes: Sequence[str]
    hacks: Sequence[str] = ()  # codes of known ones


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands."""

    step: int = 0  # batches learnt from
    sampled: int = 0  # batches
    elapsed_s: float = 0.0
    replies: int = 0


def start_accelerator() -> Accelerator:
    cuda = torch.cuda.is_available()
    accelerator = Accelerator(mixed_precision="bf16" if cuda else "no", cpu=not cuda)
    if cuda:  # what the allocator keeps for later passes is no room for the judge, which then decides nothing
        torch.cuda.set_per_process_memory_fraction(SHARE)  # of the current device; one process's has no index
    return accelerator


class Stage:
    """One run: policy, book, batches under way, and its folder."""

    def __init__(self, setup: Setup, method: Method, accelerator: Accelerator, referee: Referee) -> None:
        self.setup, self.stage, self.method = setup, setup.stage, method
        self.accelerator, self.out = accelerator, setup.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.rank, self.ranks = accelerator.process_index, accelerator.num_processes
        torch.manual_seed(setup.recipe.seed)
        settle(accelerator, bool(setup.recipe.model.lora))
        self.base = load_base(setup.model, setup.recipe.model.lora)
        self.learner = Learner(accelerator, self.base, self.stage, method.objective)
        if accelerator.device.type == "cpu" and self.learner.lm.config.hidden_size <= SMALL:
            torch.set_num_threads(1)
        self.book = Book(self.stage.islands, self.stage.window)
        plain = replace(self.base, lm=self.learner.gather())
        desk = open_desk(plain, setup.tasks, referee, self.book, self.stage.max_new, self._sampler(plain))
        self.desk = replace(desk, nearest=method.nearest, timed_first=desk.target.kind == "cuda")
        self.checkpoints = Checkpoints(self.out, accelerator)
        self.standing, self.under_way = Standing(), deque[Batch]()
        self.tasks: list[int] = []  # this process's own, in turn
        self.waiting: list[int] = []  # for the place of one whose replies are alike
        self.before: Marks | None = None
        self.kinds: Counter[str] = Counter()
        self.sample_s = 0.0  # of the last batch
        if not self._resume():
            self._begin()
        self.metrics = Metrics(self.out, accelerator.is_main_process)

    def _sampler(self, plain: Base) -> Sampling:
        if self.stage.server:
            return ServedSampler(self.stage.server, plain, self.out / f"served.{self.rank}")
        return plain.sampler(plain.lm.device)

    def run(self) -> dict[str, Any]:
        """Until the recipe's minutes or steps are over; returns and writes the report."""
        self._loop()
        if not self.save():
            raise OSError(no_room("last checkpoint", self.out))
        report = self._report()
        self.accelerator.wait_for_everyone()
        return report

    # the loop

    def _loop(self) -> None:
        clock, saved_s = SharedClock(self.accelerator, self.standing.elapsed_s), self.standing.elapsed_s
        for batch in self.under_way:
            self.desk.submit(batch)
        while (done := self._done()) < 1.0:
            while len(self.under_way) <= self.stage.ahead:
                self.under_way.append(self._sample())
            self._step(self.under_way.popleft(), done)
            self.standing = replace(self.standing, elapsed_s=clock.read())
            if self.standing.elapsed_s - saved_s > self.stage.checkpoint_s:
                self.save()
                saved_s = self.standing.elapsed_s

    def _sample(self) -> Batch:
        """The next batch, on its way to the judge."""
        step = self.standing.sampled
        seed = number_of(self.setup.recipe.seed, "replies", step, self.rank)
        begin = time.monotonic()
        batch = self.desk.sample(step, self._items(step), self.stage.group, self.stage.temperature, seed)
        self.sample_s = time.monotonic() - begin
        self.desk.submit(batch)
        self.learner.measure(batch.rollouts)
        self.standing = replace(self.standing, sampled=step + 1)
        return batch

    def _items(self, step: int) -> list[Item]:
        prompts = max(1, self.stage.prompts // self.ranks)
        items = []
        for i, at in enumerate(order(self.setup.recipe.seed + self.rank, step, prompts, len(self.tasks))):
            task, island = self.tasks[at], (step * prompts + i) % self.stage.islands
            seed = number_of(self.setup.recipe.seed, "exemplars", step, i, self.rank)
            items.append(Item(task, island, self.method.show(self.book, task, island, seed)))
        return items

    def _step(self, batch: Batch, done: float) -> None:
        begin = time.monotonic()
        outcomes = self.desk.conclude(batch)
        judged = time.monotonic()
        self._record(self._hacks, HACKS, batch, outcomes)
        self._record(self._wrong, ("wrong",), batch, outcomes)
        weights = [
            self.method.weigh(self.book, item.task, row) for item, row in zip(batch.items, outcomes, strict=True)
        ]
        differ = self._relieve(batch, outcomes)
        rate = self.stage.lr * min(1.0, (self.standing.step + 1) / self.stage.warmup_steps) * (1.0 - 0.9 * done)
        try:
            values = self.learner.learn(batch.rollouts, [w for row in weights for w in row], rate)
        except NotFinite as error:
            raise NotFinite(
                f"{error} at step {self.standing.step}; the last good state is {self.out / 'state.pt'}. "
                f"Lower lr (now {self.stage.lr}) and start again"
            ) from None
        self.desk.sampler.synchronise(self.learner.gather())
        step = self.standing.step + 1
        self.standing = replace(self.standing, step=step, replies=self.standing.replies + len(batch.rollouts))
        if self.stage.islands > 1 and step % self.stage.migrate_steps == 0:
            self.book.migrate()
        every = [o for row in outcomes for o in row]
        self.kinds.update(o.kind for o in every)
        seconds = {"judge_wait_s": judged - begin, "learn_s": time.monotonic() - judged, "sample_s": self.sample_s}
        shown = fmean([float(len(i.shown)) for i in batch.items])
        extra = {"lr": rate, "shown": shown, "differ": differ, "elapsed_s": self.standing.elapsed_s}
        self.metrics.write(step, summary(every) | values | seconds | extra)

    def _relieve(self, batch: Batch, outcomes: Sequence[Sequence[Outcome]]) -> float:
        """Sends tasks whose replies are alike behind those that wait; returns the share of the others."""
        settled = [item.task for item, row in zip(batch.items, outcomes, strict=True) if alike(row)]
        for task in settled:
            if self.waiting and task in self.tasks:
                self.tasks[self.tasks.index(task)] = self.waiting.pop(0)
                self.waiting.append(task)
        return 1 - len(settled) / len(batch.items)

    def _record(
        self, path: Path, kinds: Collection[str], batch: Batch, outcomes: Sequence[Sequence[Outcome]]
    ) -> None:
        """For people to read."""
        lines = []
        for item, row in zip(batch.items, outcomes, strict=True):
            for read, rollout, outcome in zip(item.read, item.rollouts, row, strict=True):
                if outcome.kind in kinds:
                    case = {"program": self.setup.tasks[item.task], "kind": outcome.kind, "reason": outcome.reason}
                    code = read.code if isinstance(read, Code) else rollout.text
                    lines.append(json.dumps(case | {"step": self.standing.step + 1, "code": code}) + "\n")
        try:
            if lines:
                append(path, "".join(lines))
        except OSError as error:
            log.warning("%s is not written: %s", path.name, error)

    def _write_fastest(self) -> None:
        """fastest.RANK.jsonl: each task's fastest right reply, its design (empty: of no design) and its code."""
        rows = [
            {"text": self.setup.tasks[task], "score": e.speedup, "design": e.design, "code": e.code}
            for task, e in sorted(self.book.fastest().items())
        ]
        path = self.out / f"fastest.{self.rank}.jsonl"
        try:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        except OSError as error:
            log.warning("%s is not written: %s", path.name, error)

    @property
    def _hacks(self) -> Path:
        """The database of hacking cases; the book holds the digests."""
        return self.out / f"hacks.{self.rank}.jsonl"

    @property
    def _wrong(self) -> Path:
        return self.out / f"wrong.{self.rank}.jsonl"

    def _done(self) -> float:
        if self.stage.steps:
            return self.standing.step / self.stage.steps
        return self.standing.elapsed_s / (self.stage.minutes * 60)

    # beginning, end and what lies between two processes

    def _begin(self) -> None:
        """Tasks that this process owns and that the judge can decide; a look at the model as it comes.

        Those that wait are not tried: where the judge can decide nothing of one, its replies are alike.
        """
        self._forget_after(-1)
        self.book.suspect(self.setup.hacks)
        own = range(self.rank, len(self.setup.tasks), self.ranks)
        at_once = max(1, self.stage.at_once // self.ranks) if self.stage.at_once else len(own)
        self.tasks, self.waiting = decidable(self.desk, own, at_once)
        if not self.tasks:
            raise ValueError(f"none of {len(self.setup.tasks)} tasks can be judged here; nothing to practise on")
        self.before = self._examine()
        self.save()

    def _examine(self) -> Marks | None:
        if not self.accelerator.is_main_process or not self.setup.probes:
            return None
        desk = replace(self.desk, texts=self.setup.probes)
        return examine(desk, self.stage.probe_samples, self.stage.temperature, self.setup.recipe.seed)

    def _identity(self) -> str:
        kind = f"{self.ranks}{' in parts' if self.learner.in_parts else ''}"
        tasks = number_of(*self.setup.tasks)
        return f"{self.setup.recipe.digest} {self.method.name} {self.base.digest} {tasks} {kind}"

    def save(self) -> bool:
        shared = self.learner.state() | {"run": self._identity(), "elapsed_s": self.standing.elapsed_s}
        own = {
            "standing": asdict(self.standing),
            "tasks": self.tasks,
            "waiting": self.waiting,
            "book": self.book.state(),
            "under_way": [b.state() for b in self.under_way],
            "kinds": dict(self.kinds),
            "before": None if self.before is None else asdict(self.before),
        }
        main = self.accelerator.is_main_process
        return self.checkpoints.save(self.standing.step, shared if main else None, own)

    def _resume(self) -> bool:
        found = self.checkpoints.load(self.accelerator.device)
        if found is None:
            return False
        shared, own = found
        if shared["run"] != self._identity():
            raise ValueError(
                f"{self.out} holds a run of another recipe, arm, model, process count or other tasks: "
                "give another --out"
            )
        self.learner.load(shared)
        self.standing = Standing(**own["standing"])
        self.tasks, self.waiting, self.kinds = own["tasks"], own["waiting"], Counter(own["kinds"])
        self.before = None if own["before"] is None else Marks(**own["before"])
        self.book.load(own["book"])
        self.under_way = deque(restore_batch(b) for b in own["under_way"])
        self._forget_after(self.standing.step)
        self.desk.sampler.synchronise(self.learner.gather())
        log.info("goes on at step %d, %.0f s", self.standing.step, self.standing.elapsed_s)
        return True

    def _forget_after(self, step: int) -> None:
        for path in (self._hacks, self._wrong):
            forget_after(path, step)
        if self.accelerator.is_main_process:
            forget_after(self.out / "metrics.jsonl", step)

    def _report(self) -> dict[str, Any]:
        after = self._examine()
        report = {
            "stage": self.method.name,
            "recipe": asdict(self.setup.recipe),
            "steps": self.standing.step,
            "seconds": round(self.standing.elapsed_s, 1),
            "replies": self.standing.replies * self.ranks,
            "tasks": len(self.tasks) + len(self.waiting),
            "kinds": dict(self.kinds),
            "judge_lost": self.desk.referee.lost,
            "judge_s": {step: round(spent, 1) for step, spent in self.desk.referee.spent_s.items()},
            "before": None if self.before is None else asdict(self.before),
            "after": None if after is None else asdict(after),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "processes": self.ranks,
        }
        self.metrics.close()
        self._write_fastest()
        if self.accelerator.is_main_process:
            with room_for_the_end(self.out):
                replace(self.base, lm=self.learner.lm).save(self.out / "model")
                write_report(self.out, report)
                plot(self.out)
        return report
