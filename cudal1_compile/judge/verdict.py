"""Verdicts: what the judge says about one candidate, with its evidence, as plain data and as JSON.

Accepted carries a Proof; Timed was measured before anything is proven; Rejected names the gate and a sentence that
goes into the next prompt; Deferred says that the judge could not decide now (no room, a busy device) and that the
candidate may be tried again.
A host cost is never a speedup: the two live in different fields. Nothing here measures or compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

# task: of this program no candidate can be verified
VerdictStage = Literal["task", "text", "build", "verify", "time"]
NumericsLabel = Literal["exact", "reassociates", "f32_split", "assumes_finite"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Device-busy times of one candidate and its baselines, measured together."""

    candidate_us: float  # median of one call
    aten_us: float  # the region run one aten operation at a time
    inductor_us: float | None  # Inductor compiling the region alone; None where not measured
    speedup: float  # best baseline over candidate, rounded toward 1
    lower_bound: float  # of the speedup over every baseline, 99% one-sided
    rounds: int  # paired rounds behind the figures
    final: bool  # the long measurement of the finalists, not the quick one
    upper_bound: float | None = None  # of the speedup over the faster baseline; None where not measured
    floor_us: float = 0.0  # that the region's bytes and products need at least; 0 where not measured
    # of the faster baseline, at least: the floor over the slowest that it may be
    floor_share: float = 0.0

    @property
    def baseline_us(self) -> float:
        """Of the faster one."""
        return min(self.aten_us, self.inductor_us or self.aten_us)

    @property
    def is_inductors(self) -> bool:
        """Whether Inductor is the faster one."""
        return self.inductor_us is not None and self.inductor_us < self.aten_us


@dataclass(frozen=True, slots=True)
class HostCost:
    """Declared, deterministic cost on the host target (no unit; never a time)."""

    candidate: float
    baseline: float  # the region run one operation at a time

    @property
    def cost_ratio(self) -> float:
        """Candidate over baseline: below 1 the candidate wins."""
        return self.candidate / self.baseline


@dataclass(frozen=True, slots=True)
class Proof:
    """Why a candidate was accepted. `errors`: for each distribution the worst share of the error budget used."""

    target_key: str
    numerics: NumericsLabel
    errors: tuple[tuple[str, float], ...]
    seed: int
    timing: Timing | None = None
    host_cost: HostCost | None = None
    versions: tuple[tuple[str, str], ...] = ()
    checks: tuple[tuple[str, str], ...] = ()  # of memory and races, GPU finalists: each tool and what it said

    @property
    def speedup(self) -> float | None:
        """Best baseline over candidate on a GPU; None on the host target, which knows no speed."""
        return self.timing.speedup if self.timing else None


@dataclass(frozen=True, slots=True)
class Accepted:
    proof: Proof


@dataclass(frozen=True, slots=True)
class Timed:
    """Right on one case, as far as the native reference tells, and measured. No proof: never to be loaded."""

    timing: Timing | None = None
    host_cost: HostCost | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    stage: VerdictStage
    reason: str  # one sentence, names the element, size or error: it goes into the next prompt


@dataclass(frozen=True, slots=True)
class Deferred:
    reason: str


Verdict = Accepted | Timed | Rejected | Deferred


def to_json(verdict: Verdict) -> str:
    """One JSON object on one line; `from_json` reads it back to an equal verdict."""
    match verdict:
        case Accepted(proof):
            body: dict[str, Any] = {"verdict": "accepted", "proof": asdict(proof)}
        case Timed(timing, cost):
            body = {"verdict": "timed", "timing": timing and asdict(timing), "host_cost": cost and asdict(cost)}
        case Rejected(stage, reason):
            body = {"verdict": "rejected", "stage": stage, "reason": reason}
        case Deferred(reason):
            body = {"verdict": "deferred", "reason": reason}
    return json.dumps(body, sort_keys=True)


def from_json(text: str) -> Verdict:
    """Raises ValueError for anything that `to_json` did not write."""
    body = json.loads(text)
    try:
        match body["verdict"]:
            case "accepted":
                return Accepted(parse_proof(body["proof"]))
            case "timed":
                return Timed(_timing(body["timing"]), _host_cost(body["host_cost"]))
            case "rejected" if body["stage"] in get_args(VerdictStage):
                return Rejected(body["stage"], body["reason"])
            case "deferred":
                return Deferred(body["reason"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a verdict: {text[:80]!r} ({error})") from None
    raise ValueError(f"not a verdict: {text[:80]!r}; expected accepted, timed, rejected or deferred")


def parse_proof(body: Mapping[str, Any]) -> Proof:
    """Raises KeyError or TypeError for what is no proof."""
    return Proof(
        target_key=body["target_key"],
        numerics=body["numerics"],
        errors=tuple((name, float(share)) for name, share in body["errors"]),
        seed=body["seed"],
        timing=_timing(body["timing"]),
        host_cost=_host_cost(body["host_cost"]),
        versions=tuple((name, version) for name, version in body["versions"]),
        checks=tuple((name, said) for name, said in body.get("checks", ())),
    )


def _timing(body: Mapping[str, Any] | None) -> Timing | None:
    return Timing(**body) if body else None


def _host_cost(body: Mapping[str, Any] | None) -> HostCost | None:
    return HostCost(**body) if body else None
