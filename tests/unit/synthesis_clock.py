"""Doubles with the delays that were measured on an H100, on a clock that only they move.

A call of the generator takes 2 s and 4 ms a reply, a candidate before the judge 1/26 s, the finalists of a region
1.1 s. Three of five regions are easy: nearly every reply is right. Of the others one reply in fifty is. What is
4 times as fast as aten is, in the long measurement, between 0.8 and 1.4 of Inductor.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from synthesis_doubles import ScriptedJudge, reply

from cudal1_compile.judge.verdict import Accepted, Rejected, Verdict
from cudal1_fx_passes.program.ir import Program

CALL_S, REPLY_S, CANDIDATE_S, FINALS_S = 2.0, 0.004, 1 / 26, 1.1
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
    """Quick timings are against aten only, as the real ones are."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.judged_s = self.measured_s = 0.0
        self.before = self._spend

    def _spend(self, name: str) -> None:
        self.clock.spend(CANDIDATE_S)
        self.judged_s += CANDIDATE_S

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        return [_against(v, inductor=False) for v in super().judge_tasks(tasks)]

    def finalists(self, program: Program, codes: Sequence[str]) -> list[Verdict]:
        self.clock.spend(FINALS_S)
        self.measured_s += FINALS_S
        return [_against(v, inductor=True) for v in super().finalists(program, codes)]


def _against(verdict: Verdict, inductor: bool) -> Verdict:
    """The double's verdict with aten slower than Inductor."""
    if not isinstance(verdict, Accepted):
        assert isinstance(verdict, Rejected)
        return verdict
    timing = verdict.proof.timing
    assert timing is not None
    aten_us = timing.aten_us * INDUCTOR_OVER_ATEN
    inductor_us = timing.aten_us if inductor else None
    value = timing.aten_us / timing.candidate_us if inductor else aten_us / timing.candidate_us
    timed = replace(timing, aten_us=aten_us, inductor_us=inductor_us, speedup=value, lower_bound=value - 0.02)
    return Accepted(replace(verdict.proof, timing=timed))
