"""Judges imported kernels on this machine: built from source, verified and timed as a fresh candidate is.

    with judges() as verify:
        import_bundle(store, bundle, origin, verify)

One judge for each target of this machine that is asked for. A kernel for another target is postponed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from cudal1_cache import Entry, Region
from cudal1_cache.bundle import Postponed, Refused, Verification, Verified, Verify
from cudal1_compile.candidate import Reply, parse_candidate
from cudal1_compile.errors import BuildError, CandidateError
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_compile.synthesis.records import Proposal, is_win, score, to_attempt, to_entry
from cudal1_fx_passes.canonical import fingerprint
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.text import parse_program

IMPORTED = "import"  # stands where a generator's name would


@contextmanager
def judges() -> Iterator[Verify]:
    """Yields a `verify` for bundles; its judges' worker processes end with the block."""
    targets = {t.key: t for t in local_targets()}
    open_judges: dict[str, Judge] = {}
    with ExitStack() as stack:

        def verify(region: Region, entry: Entry) -> Verification:
            target = targets.get(entry.target)
            if target is None:
                return Postponed("it was made for another GPU; import it on a machine that has one")
            if target.key not in open_judges:
                open_judges[target.key] = stack.enter_context(Judge(target))
            return verify_entry(region, entry, target, open_judges[target.key])

        yield verify


def local_targets() -> list[Target]:
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    return [detect_target(torch.device(d)) for d in devices]


def verify_entry(region: Region, entry: Entry, target: Target, judge: Judge) -> Verification:
    """One kernel before the judge. Nothing of the bundle is believed but its source."""
    try:
        program = parse_program(region.text)
        if fingerprint(program) != region.fingerprint:
            return Refused("the fingerprint is not that of the region's text")
        candidate = parse_candidate(entry.code, program)
    except (ProgramError, CandidateError) as error:
        return Refused(str(error))
    verdict = judge.finalists(program, [entry.code])[0]
    match verdict:
        case Rejected(stage, reason):
            return Refused(f"{stage}: {reason}")
        case Deferred(reason):
            return Postponed(reason)
        case Accepted(proof) if not is_win(proof):
            return Refused(f"time: right, but it does not win here (score {score(proof):.2f}, over 1 wins)")
    try:
        binary = build(program, candidate, target)
    except BuildError as error:
        return Refused(f"build: {error}")
    proposal = Proposal(region, IMPORTED, "", Reply("", "", entry.code), entry.code)
    verified = to_entry(region, to_attempt(proposal, verdict, target), verdict.proof, target, binary)
    return Verified(replace(verified, attempt_id=""))  # the import is no attempt of this machine's
