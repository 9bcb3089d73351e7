"""Replies and verdicts as rows of the store, and rows as verdicts again.

A score is what exemplars show and rows are ordered by: on a GPU the speedup over the best baseline, on the
host target the baseline's declared cost over the candidate's. The two never meet, because a row belongs to
one target. This module decides nothing and calls neither judge nor generator.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from cudal1_cache.keys import EntryKey, UnprofitableKey
from cudal1_cache.rows import ACCEPTED, TIMED, Attempt, Entry, EntryStatus, RegionText
from cudal1_compile.codegen.replies import complete, design_of
from cudal1_compile.judge.verdict import (
    Accepted,
    Deferred,
    HostCost,
    Proof,
    Rejected,
    Timed,
    Timing,
    Verdict,
    parse_proof,
)
from cudal1_compile.judge.versions import versions
from cudal1_compile.kernel.candidate import CandidateError, Reply, parse_reply, text_fault
from cudal1_compile.kernel.text import normalised_digest
from cudal1_compile.runtime.build import Binary
from cudal1_compile.runtime.target import Target
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.validity import HEADER, KERNELS, header_digest
from cudal1_fx_passes.program.text import parse_program

DEFERRED = "deferred"  # the stage of an attempt that still waits for a verdict
UNPROFITABLE: EntryStatus = "unprofitable"
UNTRIED: EntryStatus = "untried"
AT_FLOOR: EntryStatus = "at_floor"
UNPAIRED = 1.05  # how far a ratio of times of different moments may be off
FLOOR_SHARE = 0.92  # of the faster baseline, from which on no candidate is asked for
TASK = "task"  # the stage of an attempt of whose region none can be verified
KEPT_CHARACTERS = 400  # of what is no reply


@dataclass(frozen=True, slots=True)
class Proposal:
    """One reply of a generator for a region, before any verdict."""

    region: RegionText
    generator: str
    prompt_digest: str
    reply: Reply | None  # with its code; None: it is in no form of Reply V2, or leads to no kernel
    text: str
    fault: str = ""  # why there is no Reply

    @property
    def code(self) -> str:
        return self.reply.code if self.reply else self.text

    @property
    def code_digest(self) -> str:
        return normalised_digest(self.code)


def read_proposal(region: RegionText, generator: str, prompt: str, text: str) -> Proposal:
    """What no reply can be (text_fault) is refused, and the beginning alone is kept of it."""
    key = hashlib.sha256(prompt.encode()).hexdigest()
    if (fault := text_fault(text)) is not None:
        kept = text[:KEPT_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "?")
        return Proposal(region, generator, key, None, kept, fault)
    try:
        reply = parse_reply(text)
        whole = reply if reply.code else complete(parse_program(region.text), reply)
        return Proposal(region, generator, key, whole, text)
    except CandidateError as error:
        return Proposal(region, generator, key, None, text, str(error))


def score(proof: Proof) -> float:
    """Larger is better, 1 is the baseline. Speedup, or on the host target the quotient of declared costs."""
    return proof.timing.speedup if proof.timing is not None else _cost_score(proof.host_cost)


def _cost_score(cost: HostCost | None) -> float:
    assert cost is not None, "what was measured holds a timing or a cost"
    return cost.baseline / max(cost.candidate, 1.0)


def is_at_floor(timing: Timing) -> bool:
    return timing.floor_share >= FLOOR_SHARE


def is_win(proof: Proof) -> bool:
    """Whether a finalist's proof allows the kernel to run instead of the fallback."""
    if proof.timing is not None:
        # a speedup is rounded toward 1: what is 1.00 then is a tie
        return proof.timing.final and proof.timing.lower_bound >= 1.0 and proof.timing.speedup > 1.0
    return proof.host_cost is not None and proof.host_cost.candidate < proof.host_cost.baseline


def final_proof(attempt: Attempt, target: Target) -> Proof | None:
    """That of a long measurement under this software; None where there is none, or none that can be read."""
    try:
        proof, now = parse_proof(json.loads(attempt.proof_json)), versions(target)
    except (ValueError, KeyError, TypeError):  # written by another version
        return None
    is_final = proof.timing is not None and proof.timing.final
    return proof if is_final and all(now.get(name) == version for name, version in proof.versions) else None


def upper_bound(attempt: Attempt) -> float:
    """Of a timed candidate's score over its baseline; the score itself where no bound can be read."""
    known, timing = attempt.speedup or 0.0, _timing(attempt)
    if timing is None:
        return known
    scale = (attempt.baseline_us or timing.baseline_us) / timing.baseline_us
    return (timing.upper_bound or known) * scale * (1.0 if scale == 1.0 else UNPAIRED)


def is_sure(attempt: Attempt) -> bool:
    """Whether it was timed in pairs with the baseline that it is held against, and is faster beyond its error."""
    timing = _timing(attempt)
    return timing is not None and timing.lower_bound > 1.0 and attempt.baseline_us == timing.baseline_us


def _timing(attempt: Attempt) -> Timing | None:
    """None where there is none that can be read."""
    return _read_timing(attempt.proof_json)


@lru_cache(4096)
def _read_timing(proof_json: str) -> Timing | None:
    try:
        return Timing(**json.loads(proof_json)["timing"])
    except (ValueError, KeyError, TypeError):
        return None


def to_attempt(proposal: Proposal, verdict: Verdict, target: Target) -> Attempt:
    reply = proposal.reply
    kind, _, model = proposal.generator.partition(":")
    row = Attempt(
        fingerprint=proposal.region.fingerprint,
        target=target.key,
        code_digest=proposal.code_digest,
        generator=kind,
        model=model,
        prompt_digest=proposal.prompt_digest,
        analysis=reply.analysis if reply else "",
        design=design_of(reply) if reply else "",
        code=proposal.code,
        stage=DEFERRED,
        reason="",
    )
    return with_verdict(row, verdict)


def with_verdict(attempt: Attempt, verdict: Verdict) -> Attempt:
    """The same row, judged (again)."""
    match verdict:
        case Accepted(proof):
            timing = proof.timing
            return replace(
                attempt,
                stage=ACCEPTED,
                reason="",
                speedup=score(proof) if timing or proof.host_cost else None,
                candidate_us=timing.candidate_us if timing else None,
                baseline_us=timing.baseline_us if timing else None,
                proof_json=json.dumps(asdict(proof), sort_keys=True),
            )
        case Timed(timing, cost):
            found = {"timing": timing and asdict(timing), "host_cost": cost and asdict(cost)}
            return replace(
                attempt,
                stage=TIMED,
                reason="",
                speedup=timing.speedup if timing else _cost_score(cost),
                candidate_us=timing.candidate_us if timing else None,
                baseline_us=timing.baseline_us if timing else None,
                proof_json=json.dumps(found, sort_keys=True),
            )
        case Rejected(stage, reason):
            return replace(attempt, stage=stage, reason=reason)
        case Deferred(reason):
            return replace(attempt, stage=DEFERRED, reason=reason)
    raise AssertionError(f"{verdict!r} is no verdict")


def repeat_of(proposal: Proposal, known: Attempt, target: Target) -> Attempt:
    """A row for a reply whose code has a verdict already."""
    fresh = to_attempt(proposal, Deferred(""), target)
    return replace(
        fresh,
        stage=known.stage,
        reason=known.reason,
        speedup=known.speedup,
        candidate_us=known.candidate_us,
        baseline_us=known.baseline_us,
        proof_json=known.proof_json,
    )


def to_entry(region: RegionText, attempt: Attempt, proof: Proof, target: Target) -> Entry:
    """A kernel's entry, proven just now. Without its binary it is built when it is first loaded."""
    proof = replace(proof, versions=tuple((versions(target) | dict(proof.versions)).items()))
    header = header_digest(target)
    key = EntryKey(region.text, attempt.code_digest, header, target.arch, proof.numerics)
    made_by = {"generator": attempt.generator, "model": attempt.model}
    return Entry(
        entry_id=key.id,
        fingerprint=region.fingerprint,
        target=target.key,
        status="kernel",
        attempt_id=attempt.id,
        code=attempt.code,
        proof_json=json.dumps(asdict(proof), sort_keys=True),
        speedup=score(proof),
        numerics=proof.numerics,
        versions_json=json.dumps(made_by | dict(proof.versions) | {HEADER: header}),
    )


def with_binary(entry: Entry, binary: Binary) -> Entry:
    kernels = {name: asdict(found) for name, found in binary.kernels.items()}
    known = json.loads(entry.versions_json) | {KERNELS: kernels}
    return replace(entry, image=binary.image, image_arch=binary.arch, versions_json=json.dumps(known))


def to_unprofitable(
    region: RegionText,
    target: Target,
    generator: str,
    budget: Budget,
    tried: Sequence[Attempt],
    baselines: Proof | None,
    reason: str = "",
) -> Entry:
    """baselines: aten against Inductor, where they were timed. reason: where nothing could be tried at all.

    Without a real verdict on a candidate it is not unprofitable, but at the floor, or untried.
    """
    timing = baselines.timing if baselines else None
    at_floor = timing is not None and is_at_floor(timing)
    verdicts = len({a.code_digest for a in tried if a.stage not in (DEFERRED, TASK)})
    right = [a.speedup for a in tried if a.stage in (ACCEPTED, TIMED) and a.speedup is not None]
    tried_with = {
        "generator": generator,
        "seconds": budget.seconds,
        "rounds": budget.rounds,
        "samples_per_round": budget.samples_per_round,
        HEADER: header_digest(target),
    }
    return Entry(
        entry_id=UnprofitableKey(region.fingerprint, target.key).id,
        fingerprint=region.fingerprint,
        target=target.key,
        status=AT_FLOOR if at_floor else UNTRIED if reason or not verdicts else UNPROFITABLE,
        proof_json=json.dumps(asdict(baselines), sort_keys=True) if baselines else "{}",
        versions_json=json.dumps(tried_with | versions(target)),
        speedup=max(right, default=None),
        reason=_floor_reason(timing) if timing and at_floor else reason or _why_none(tried, right),
        verdicts=verdicts,
    )


def _floor_reason(timing: Timing) -> str:
    name = "inductor" if timing.is_inductors else "aten"
    share = timing.floor_us / timing.baseline_us
    return f"{name} takes {timing.baseline_us:.1f} us, {share:.2f} of the floor of {timing.floor_us:.1f} us"


def _why_none(tried: Sequence[Attempt], right: Sequence[float]) -> str:
    if right:
        return f"{len(tried)} candidates, {len(right)} timed, the best at {max(right):.2f} of the baseline"
    if not tried:
        return "no candidate"
    stages = [a.stage for a in tried]
    counts = ", ".join(f"{stages.count(s)} at {s}" for s in dict.fromkeys(stages))
    return f"{len(tried)} candidates, none accepted ({counts}); the last: {tried[-1].reason}"
