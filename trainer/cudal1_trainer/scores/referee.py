"""The judge in a process of its own, so that nothing it does or meets can stop training.

    referee.submit(key, groups)     at once; the judge works while the caller samples or learns
    referee.result(key)             Ruling of every (program, code); None where the judge was lost over it

The judge's own limits end a kernel that hangs. What is guarded here is the judge itself: where it says nothing for
`silence_s` its process is killed with its children, the chunk it worked on is judged again code by code, and a
code that does it twice is out (`lost` counts them). A judge that cannot even start raises.

A gain that is hard to believe is measured a second time: over SUSPICIOUS times the best of its program so far, or
of its own group's median where nothing is known. The published limit of 3x is over a strong baseline; the quick
timing compares with single aten operations, which a fused chain beats by more than that honestly. What is like a
known hack (book.py) goes through the finalists' gates as well, whatever it gains.

Of large programs proofs take a hundred times as long as times. Groups that are `timed_first` are only held against
the native reference on one case, and timed; what would be a program's new best by RECORD goes through all gates
before that stands, the fastest first until one passes, and so does what is like a known hack.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from types import TracebackType

import torch

from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.timing.speedup import agree, round_toward_one
from cudal1_compile.judge.verdict import Accepted, Rejected, Timed, Verdict
from cudal1_compile.runtime.target import HOST, Target, detect_target
from cudal1_compile.synthesis.records import score
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.measure import Mark
from cudal1_trainer.scores.workers import Finished, Lost, Pool

log = logging.getLogger(__name__)

CHUNK_CODES = 192  # builds of a chunk run ahead of the device, which waits for the first of each
SUSPICIOUS = 2.0
RECORD = 1.1  # times the best: a proof takes as long as a dozen times, and of designs 0.4% are wrong
SUITES_BYTES = 20 << 30  # of 96 tasks and more, each of which comes again after a few steps
# host_s: of a second look's check on the host target, which takes 10 s over a product
TRAINING = Limits(inductor=False, cached_suites_bytes=SUITES_BYTES, host_s=2.0)


@dataclass(frozen=True, slots=True)
class Group:
    """Distinct codes for one program."""

    text: str
    codes: tuple[str, ...]
    best: float | None  # score of the program's best so far
    suspects: frozenset[str] = frozenset()  # codes that are measured again whatever they gain
    timed_first: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """The judge's verdict; `second` where a gain was measured again."""

    verdict: Verdict
    second: Verdict | None = None

    @property
    def score(self) -> float:
        """Baseline over candidate, rounded toward 1; the lower of two measurements; 0 where refused."""
        lowest = min(_score(v) or 0.0 for v in (self.verdict, self.second) if v is not None)
        return round_toward_one(lowest) if lowest else 0.0


Chunk = tuple[Group, ...]
Rulings = dict[tuple[str, str], Ruling | None]


@dataclass(frozen=True, slots=True)
class Job:
    key: int
    chunks: tuple[Chunk, ...]


def open_judge(index: int | None, seed: int | None) -> Judge:
    """For CUDA device `index`; None: the host target, where a seed repeats it all."""
    torch.set_num_threads(1)
    if index is None:
        return Judge(HOST, seed=seed)
    torch.cuda.set_device(index)
    return Judge(detect_target(torch.device("cuda", index)), TRAINING)


class Referee:
    """One judge process. Close it, or use it in a with statement."""

    def __init__(self, target: Target, setup: Callable[[], Judge], silence_s: float) -> None:
        self.target = target
        self.lost = 0  # codes over which the judge was lost
        self.spent_s: dict[str, float] = {}  # by the judge's steps, since it was started last
        self._pool = Pool(_counted, setup, 1, silence_s)
        self._waiting: list[Job] = []
        self._found: dict[int, Rulings] = {}
        self._done: set[int] = set()

    def __enter__(self) -> Referee:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, trace)

    def submit(self, key: int, groups: Sequence[Group]) -> None:
        self._waiting.append(Job(key, _chunks(groups)))
        self._found[key] = {}
        self._feed()

    def result(self, key: int) -> Rulings:
        """Waits for the job of this key. Raises RuntimeError where the judge cannot be started."""
        assert key in self._found, f"nothing was submitted under {key}"
        while key not in self._done:
            for outcome in self._pool.poll(0.5):
                self._take(outcome)
            self._feed()
        self._done.remove(key)
        return self._found.pop(key)

    def _feed(self) -> None:
        if self._waiting and self._pool.idle:
            self._pool.submit(self._waiting.pop(0))

    def _take(self, outcome: Finished | Lost) -> None:
        job: Job = outcome.job
        if isinstance(outcome, Finished):
            rulings, self.spent_s = outcome.result
            self._found[job.key] |= rulings
            self._done.add(job.key)
            return
        if not outcome.mark.isdigit():
            raise RuntimeError(f"the judge was lost before its first candidate: {outcome.reason.strip()}")
        at = int(outcome.mark)
        log.warning("the judge was lost and is started again: %s", outcome.reason.strip().splitlines()[-1])
        chunk = job.chunks[at]
        singles = tuple((replace(g, codes=(code,)),) for g in chunk for code in g.codes)
        if len(singles) == 1:
            self.lost += 1
            self._found[job.key][chunk[0].text, chunk[0].codes[0]] = None
            singles = ()
        # what was judged before the loss went with the process: it is judged again
        self._waiting.insert(0, Job(job.key, job.chunks[:at] + singles + job.chunks[at + 1 :]))


def make_referee(index: int | None, silence_s: float, seed: int) -> Referee:
    """On CUDA device `index`, or on the host target."""
    target = HOST if index is None else detect_target(torch.device("cuda", index))
    return Referee(target, partial(open_judge, index, seed), silence_s)


def _chunks(groups: Sequence[Group]) -> tuple[Chunk, ...]:
    found: list[list[Group]] = []
    for group in (g for g in groups if g.codes):
        if not found or sum(len(g.codes) for g in found[-1]) + len(group.codes) > CHUNK_CODES:
            found.append([])
        found[-1].append(group)
    return tuple(tuple(chunk) for chunk in found)


def _counted(judge: Judge, job: Job, mark: Mark) -> tuple[Rulings, dict[str, float]]:
    """In the judge's process: with its seconds by step."""
    return _rule(judge, job, mark), judge.spent_s


def _rule(judge: Judge, job: Job, mark: Mark) -> Rulings:
    """In the judge's process."""
    found: Rulings = {}
    for i, chunk in enumerate(job.chunks):
        mark(str(i))
        programs = {g.text: parse_program(g.text) for g in chunk}
        if chunk[0].timed_first:
            found |= _timed_first(judge, chunk, programs)
            continue
        verdicts = iter(judge.judge_tasks([(programs[g.text], code) for g in chunk for code in g.codes]))
        for group in chunk:
            first = {code: next(verdicts) for code in group.codes}
            limit = _limit(group.best, list(first.values()))
            for code, verdict in first.items():
                most = 0.0 if code in group.suspects else limit
                found[group.text, code] = Ruling(verdict, _second(judge, group.text, code, verdict, most))
    return found


def _timed_first(judge: Judge, chunk: Chunk, programs: Mapping[str, Program]) -> Rulings:
    """All are."""

    def asked(tasks: Sequence[tuple[str, str]]) -> list[tuple[Program, str]]:
        return [(programs[text], code) for text, code in tasks]

    tasks = [(g.text, code) for g in chunk for code in g.codes]
    first = dict(zip(tasks, judge.time_tasks(asked(tasks)), strict=True))
    scores = {task: s for task, verdict in first.items() if (s := _score(verdict)) is not None}
    suspects = [
        (g.text, code) for g in chunk for code in g.codes if code in g.suspects and (g.text, code) in scores
    ]
    second = dict(zip(suspects, judge.examine_tasks(asked(suspects)), strict=True))
    waiting = {g.text: _records(g, scores) for g in chunk}
    while now := [(text, codes.pop(0)) for text, codes in waiting.items() if codes]:
        new = [task for task in now if task not in second]
        second |= dict(zip(new, judge.examine_tasks(asked(new)), strict=True))
        for text, code in now:
            if isinstance(second[text, code], Accepted):
                waiting[text].clear()
    return {task: Ruling(verdict, second.get(task)) for task, verdict in first.items()}


def _records(group: Group, scores: Mapping[tuple[str, str], float]) -> list[str]:
    """The group's codes that would be a new best, the fastest first."""
    own = {
        code: s
        for code in group.codes
        if (s := scores.get((group.text, code), 0.0)) > RECORD * (group.best or 0.0)
    }
    return sorted(own, key=own.__getitem__, reverse=True)


def _limit(best: float | None, verdicts: Sequence[Verdict]) -> float:
    """The score from which a gain is measured again."""
    scores = [s for v in verdicts if (s := _score(v)) is not None]
    return SUSPICIOUS * (best or (median(scores) if scores else 0.0))


def _score(verdict: Verdict) -> float | None:
    """None for what is refused, and where the baseline could not be timed."""
    if isinstance(verdict, Timed):
        return verdict.timing.speedup if verdict.timing is not None else None
    if not isinstance(verdict, Accepted) or not (verdict.proof.timing or verdict.proof.host_cost):
        return None
    return score(verdict.proof)


def _second(judge: Judge, text: str, code: str, verdict: Verdict, limit: float) -> Verdict | None:
    """None where no second look is needed. The two measurements must agree within a tenth."""
    first = _score(verdict)
    if first is None or first <= limit:
        return None
    (again,) = judge.finalists(parse_program(text), [code])
    second = _score(again)
    if second is not None and not agree(first, second):
        return Rejected("time", f"measured {first:.2f}x, and {second:.2f}x when measured again")
    return again
