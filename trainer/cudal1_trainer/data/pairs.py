"""Training pairs: a prompt and the reply to learn.

Plain: facts and region, target one template's reply. Contrastive: the prompt also shows measured variants of the
same program, slowest first, and the target is one that is strictly faster than all; its analysis opens with a
comparison of the fastest of them that agrees with the measurement. Replies and variants are designs: codegen
writes their code. Prompts come from the compiler's own template, so that a pair never differs from what the model
is asked in use.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cudal1_compile.codegen.replies import as_design, design_of
from cudal1_compile.codegen.templates import write_analysis
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.kernel.candidate import Exemplar, Reply, print_reply
from cudal1_compile.runtime.target import HOST, Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

Kind = Literal["plain", "scored", "contrastive"]

_KB, _MB = 1024, 1024 * 1024
H100 = Target("cuda", "NVIDIA H100 80GB HBM3", "sm_90a", 132, 227 * _KB, 50 * _MB)
# name, share of unmeasured pairs: kernels do not differ by target, but the facts line must never be a surprise
TARGETS: tuple[tuple[Target, float], ...] = (
    (H100, 0.45),
    (Target("cuda", "NVIDIA H200", "sm_90a", 132, 227 * _KB, 60 * _MB), 0.1),
    (Target("cuda", "NVIDIA A100-SXM4-80GB", "sm_80", 108, 163 * _KB, 40 * _MB), 0.1),
    (Target("cuda", "NVIDIA GeForce RTX 3090", "sm_86", 82, 99 * _KB, 6 * _MB), 0.05),
    (Target("cuda", "NVIDIA L40S", "sm_89", 142, 99 * _KB, 96 * _MB), 0.05),
    (Target("cuda", "NVIDIA B200", "sm_100a", 148, 227 * _KB, 126 * _MB), 0.05),
    (HOST, 0.2),
)


@dataclass(frozen=True, slots=True)
class Pair:
    kind: Kind
    prompt: str
    reply: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A right reply with its GPU time."""

    reply: Reply
    us: float


def choose_facts(rng: random.Random) -> str:
    targets, weights = zip(*TARGETS, strict=True)
    return str(rng.choices(targets, weights)[0].facts())


def plain_pair(facts: str, program: Program, reply: Reply, kind: Kind = "plain") -> Pair:
    prompt = build_prompt(facts, print_program(program), (), 1, lambda _: 0)
    return Pair(kind, prompt, print_reply(as_design(reply)))


def contrastive_pair(
    facts: str, program: Program, shown: Sequence[Measured], target: Measured, baseline_us: float
) -> Pair:
    """`shown`: slower variants than `target`. Their speedups are printed against `baseline_us`."""
    if any(s.us <= target.us for s in shown):
        raise ValueError(f"target takes {target.us} us, not less than each of {[s.us for s in shown]}")
    ordered = sorted(shown, key=lambda s: -s.us)
    exemplars = [Exemplar(s.reply.code, baseline_us / s.us, design_of(s.reply)) for s in ordered]
    prompt = build_prompt(facts, print_program(program), exemplars, 1, lambda _: 0, designs=True)
    reply = replace(target.reply, analysis=write_analysis(program, exemplars))
    return Pair("contrastive", prompt, print_reply(as_design(reply)))


def choose_shown(
    measured: Sequence[Measured], min_gap: float, most: int, rng: random.Random
) -> tuple[list[Measured], Measured] | None:
    """Variants to show and a target faster than each by `min_gap`; None where there is no such gap.

    The target is mostly the fastest. As many as there are up to some number are shown, the faster ones more often.
    """
    ordered = sorted(measured, key=lambda m: m.us)
    possible = [t for t in ordered if any(s.us >= t.us * min_gap for s in ordered)]
    if not possible:
        return None
    target = possible[0] if rng.random() < 0.75 else rng.choice(possible)
    slower = [s for s in ordered if s.us >= target.us * min_gap]
    shown: list[Measured] = []
    for _ in range(min(len(slower), rng.randint(1, most))):
        shown.append(_lean(slower, rng))
        slower = [s for s in slower if s is not shown[-1]]
    return shown, target


def choose_baseline(measured: Sequence[Measured], aten_us: float | None, rng: random.Random) -> float:
    """What speedups are printed against: aten, or a baseline near the fastest variant, as Inductor mostly is."""
    if aten_us is not None and rng.random() < 0.3:
        return aten_us
    return min(m.us for m in measured) * rng.uniform(0.7, 1.5)


def _lean(choices: Sequence[Measured], rng: random.Random) -> Measured:
    """Draws with weight 1, 1/2, 1/3, ... from the front."""
    return rng.choices(list(choices), [1 / (i + 1) for i in range(len(choices))])[0]
