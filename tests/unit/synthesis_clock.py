"""Doubles with the delays that were measured on an H100, on a clock that only they move.

A call of the generator takes 2 s and 4 ms a reply, a candidate's timing 10 ms, an examination 1.1 s, a region's
baselines 30 ms. Three of five regions are easy: nearly every reply is right. Of the others one reply in fifty is.
What is 4 times as fast as aten is between 0.8 and 1.4 of Inductor.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from synthesis_doubles import ScriptedJudge, reply

from cudal1_compile.judge.verdict import Accepted, Proof, Timed, Timing, Verdict
from cudal1_fx_passes.program.ir import Program

CALL_S, REPLY_S, CANDIDATE_S, EXAM_S, BASELINES_S = 2.0, 0.004, 0.01, 1.1, 0.03
INDUCTOR_OVER_ATEN = 4.0
EASY_SHARE, EASY_RIGHT, HARD_RIGHT = 0.6, 0.95, 0.02


class Clock:
    """Stands in for time.monotonic."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds


class SlowGenerator:
    name = "bundled:simulated"
    budget_tokens = 4096
    prompts_at_once = 96

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.sampled_s = 0.0
        self.asked: list[list[int]] = []  # region sizes, call by call
        self.samples: list[int] = []  # a prompt, call by call

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        seconds = CALL_S + REPLY_S * n * len(prompts)
        self.clock.spend(seconds)
        self.sampled_s += seconds
        sizes = [int(p.split("d0=")[1].split()[0]) for p in prompts]
        self.asked.append(sizes)
        self.samples.append(n)
        return [self._replies(size, n, seed) for size in sizes]

    def _replies(self, size: int, n: int, seed: int) -> list[str]:
        ease, rng = random.Random(size), random.Random(f"{size} {seed}")
        right = EASY_RIGHT if ease.random() < EASY_SHARE else HARD_RIGHT
        best = 80 + int(60 * ease.random())  # of Inductor, in percent
        names = [
            f"good_{best - rng.randrange(20)}" if rng.random() < right else f"wrong_{rng.randrange(10**6)}"
            for _ in range(n)
        ]
        return [reply(name) for name in names]


class SlowJudge(ScriptedJudge):
    """Candidates are timed against aten until Inductor is timed, as the real ones may be."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.judged_s = self.examined_s = 0.0
        timing = Timing(40.0, 40.0, 10.0, 0.25, 0.24, 70, final=True, floor_us=5.0, floor_share=0.49)
        self.both = Accepted(Proof(self.target.key, "exact", (), 1, timing, None, (("torch", "test"),)))
        alone = replace(timing, inductor_us=None, speedup=1.0, lower_bound=1.0, floor_share=0.12)
        self.aten_alone = Accepted(replace(self.both.proof, timing=alone))
        self.before = self._spend

    def _spend(self, name: str) -> None:
        self.clock.spend(CANDIDATE_S)
        self.judged_s += CANDIDATE_S

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        return [Timed(_over_aten(v.timing)) if isinstance(v, Timed) else v for v in super().judge_tasks(tasks)]

    def baselines(self, program: Program, inductor: bool) -> Verdict:
        super().baselines(program, inductor)
        self.clock.spend(BASELINES_S)
        return self.both if inductor else self.aten_alone

    def examine(self, program: Program, code: str) -> Verdict:
        self.clock.spend(EXAM_S)
        self.examined_s += EXAM_S
        found = super().examine(program, code)
        if not isinstance(found, Accepted) or found.proof.timing is None:
            return found
        timing = replace(found.proof.timing, aten_us=10.0 * INDUCTOR_OVER_ATEN, inductor_us=10.0)
        return Accepted(replace(found.proof, timing=timing))


def _over_aten(timing: Timing | None) -> Timing:
    assert timing is not None
    value = timing.speedup * INDUCTOR_OVER_ATEN
    bounds = {"lower_bound": value - 0.08, "upper_bound": value + 0.08}
    return replace(timing, aten_us=timing.aten_us * INDUCTOR_OVER_ATEN, speedup=value, **bounds)
