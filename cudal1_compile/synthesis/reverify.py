"""A kernel that was proven elsewhere, or under other versions, before the judge of this machine.

Built from source, verified and timed as a fresh candidate is. `cudal1 cache import` uses it for strangers'
kernels (cli/reverify.py), a compile for its own after an update (planner.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from cudal1_cache import Entry, RegionText, Store
from cudal1_cache.bundle import EntryVerification, Postponed, Refused, Verification, Verified, Verify, settle
from cudal1_compile.errors import BuildError
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Timed
from cudal1_compile.kernel.candidate import CandidateError, Reply, parse_candidate
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_compile.synthesis.proven import build_proven
from cudal1_compile.synthesis.records import Proposal, is_win, score, to_attempt, to_entry, with_binary
from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint, shape_agnostic_fingerprint
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

MAX_REGION_CHARACTERS = 16 * 1024  # of a stranger's; the longest of our own have 2,700
IMPORTED = "import"  # stands where a generator's name would


def verify_again(store: Store, program: Program, entry: Entry, target: Target, judge: Judge) -> Verification:
    """A kernel of this machine's own. Stores the verdict; a postponed one changes nothing.

    program: of the region, canonical. Raises CacheError, and what a judge that fails raises.
    """
    region = RegionText(entry.fingerprint, shape_agnostic_fingerprint(program), print_program(program))
    made_by = json.loads(entry.versions_json)
    found = verify_entry(region, entry, target, judge, f"{made_by['generator']}:{made_by['model']}")
    settle(store, EntryVerification(entry.entry_id, found))
    return found


def verify_entry(
    region: RegionText, entry: Entry, target: Target, judge: Judge, made_by: str = IMPORTED
) -> Verification:
    """One kernel before the judge. Nothing of the entry is believed but its source."""
    try:
        if len(region.text) > MAX_REGION_CHARACTERS:
            return Refused(
                f"a region of {len(region.text)} characters, at most {MAX_REGION_CHARACTERS} are allowed"
            )
        program = parse_program(region.text)
        if not all(axis.size for axis in program.axes):
            return Refused("the region has a size of zero: there is nothing to compute")
        if fingerprint(program) != region.fingerprint:
            return Refused("the fingerprint is not that of the region's text")
        if print_program(canonicalise(program)) != region.text:
            # inputs in another order than the kernel will be given; or a spelling that no id was made of
            return Refused("the region's text is not in canonical form")
        parse_candidate(entry.code, program)
    except (ProgramError, CandidateError, ValueError, OverflowError, RecursionError) as error:
        return Refused(str(error))  # numbers without end, chains too long to follow
    verdict = judge.finalists(program, [entry.code])[0]
    assert not isinstance(verdict, Timed), "finalists are proven"
    match verdict:
        case Rejected(stage, reason):
            why = judge.trouble()
            return Refused(f"{stage}: {reason}") if why is None else Postponed(why)
        case Deferred(reason):
            return Postponed(reason)
        case Accepted(proof) if not is_win(proof):
            return Refused(f"time: right, but it does not win here (score {score(proof):.2f}, over 1 wins)")
    try:
        binary = build_proven(program, entry.code, target)
    except BuildError as error:
        return Refused(f"build: {error}")
    except OSError as error:
        return Postponed(str(error))
    proposal = Proposal(region, made_by, "", Reply("", "", entry.code), entry.code)
    verified = to_entry(region, to_attempt(proposal, verdict, target), verdict.proof, target)
    # the import is no attempt of this machine's
    return Verified(replace(with_binary(verified, binary), attempt_id=""))


@contextmanager
def judges() -> Iterator[Verify]:
    """Yields a `verify` for bundles; its judges' worker processes end with the block."""
    targets = {t.key: t for t in local_targets()}
    open_judges: dict[str, Judge] = {}
    with ExitStack() as stack:

        def verify(region: RegionText, entry: Entry) -> Verification:
            target = targets.get(entry.target)
            if target is None:
                return Postponed("it was made for another GPU; import it on a machine that has one")
            if target.key not in open_judges:
                try:
                    open_judges[target.key] = stack.enter_context(Judge(target))
                except (BuildError, OSError) as error:
                    return Postponed(f"nothing can be built here: {error}")
            return verify_entry(region, entry, target, open_judges[target.key])

        yield verify


def local_targets() -> list[Target]:
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    return [detect_target(torch.device(d)) for d in devices]
