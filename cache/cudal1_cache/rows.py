"""Rows of the store as frozen dataclasses of plain columns; the field's name is the column's name.

Times are Unix seconds, durations microseconds, `*_json` is JSON text. The tables are made in schema.py,
the conversion to and from columns is codec.py's.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Literal

# unprofitable: candidates were judged, and none wins; untried: decided without one, for the reason it gives;
# at_floor: so is one that runs near its physical floor without a kernel
EntryStatus = Literal["kernel", "unprofitable", "untried", "at_floor"]
# without kernels: inductor, no_layout_opt (it too, convolutions not in channels-last), fused_convolutions (it too,
# convolutions with their ReLU by cuDNN), aten (not even Inductor); captured: one of them, or all_kernels, as a
# CUDA graph
PlanChoice = Literal[
    "inductor",
    "no_layout_opt",
    "fused_convolutions",
    "aten",
    "all_kernels",
    "unfusible_only",
    "no_products",
    "captured_inductor",
    "captured_fused",
    "captured_aten",
    "captured_kernels",
    "deciding",
]

ACCEPTED = "accepted"  # the stage of an attempt that passed every gate; otherwise the gate that refused it
TIMED = "timed"  # or that it was measured, and nothing is proven of it: an exemplar, and never an entry
UNVERIFIED = "unverified"  # begins the reason of an entry that no judge of this machine has seen
REFUTED = "refuted"  # begins the reason of an entry that gave a wrong result in a user's call


def new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class RegionText:
    """A region's canonical text. `relative` is equal for regions that differ in sizes only."""

    fingerprint: str
    relative: str
    text: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate and its verdict, failures included: exemplar base and training data."""

    fingerprint: str
    target: str  # Target.key
    code_digest: str
    generator: str
    model: str
    prompt_digest: str
    analysis: str
    design: str
    code: str
    stage: str  # ACCEPTED, TIMED, or the gate that refused it: task, text, build, verify, time
    reason: str  # empty when accepted
    speedup: float | None = None  # over the best permitted plan; None where it was not timed
    candidate_us: float | None = None
    baseline_us: float | None = None
    proof_json: str = "{}"
    id: str = field(default_factory=new_id)
    created: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the cache holds for (region, target): a kernel with its proof, or why there is none."""

    entry_id: str  # EntryKey.id of a kernel, else UnprofitableKey.id
    fingerprint: str
    target: str
    status: EntryStatus
    attempt_id: str = ""
    code: str = ""
    image: bytes = b""  # cubin or shared object
    image_arch: str = ""
    proof_json: str = "{}"
    speedup: float | None = None
    numerics: str = ""
    versions_json: str = "{}"  # of generator, torch, CUDA, header; without a kernel also the budget
    quarantined: bool = False  # never used for a compile
    reason: str = ""  # why it is quarantined, or what was tried in vain
    created: float = field(default_factory=time.time)
    verdicts: int = 0  # how many real verdicts stand behind `unprofitable`; 0 for kernels

    @property
    def is_unverified(self) -> bool:
        return self.quarantined and self.reason.startswith(UNVERIFIED)


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """What was decided for one graph on one target, so that the next process decides the same."""

    graph_key: str
    target: str
    decisions_json: str  # {fingerprint: entry id, or "inline"}
    regions_json: str = "[]"  # the region table that the summary and explain print
    choice: PlanChoice = "deciding"
    ratio: float | None = None  # of the chosen plan over the kernel-free plan, > 1 is faster
    created: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Miss:
    """A region that was wanted and not found. `value_us`: what a call spends in it, at its highest."""

    fingerprint: str
    target: str
    value_us: float = 0.0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Refuted:
    """Code that gave a wrong result in a user's call: no entry of it is used, whoever wrote this row."""

    fingerprint: str
    target: str
    code_digest: str  # of the normalised code
    reason: str
    created: float = field(default_factory=time.time)
