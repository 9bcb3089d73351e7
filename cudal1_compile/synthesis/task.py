"""One region on its way to a kernel: what to ask for next, what to judge, how it ended.

    take_baselines -> at the floor, and decided
    prompts(round) -> replies -> take_replies -> to_judge -> take_verdicts: timed
    -> to_examine -> take_exam -> result

Everything that a reply or a verdict brings is stored at once, so a killed process loses at most what the
judge was working on; the next one counts the stored replies of this generator and goes on from there.
It asks nobody itself: rounds.py does.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from cudal1_cache.rows import ACCEPTED, TIMED, Attempt, Entry, RegionText
from cudal1_cache.store import History, Store
from cudal1_compile.codegen.replies import lower_nearest, nearby, schedule_lines
from cudal1_compile.codegen.templates import STUMBLES
from cudal1_compile.errors import BuildError
from cudal1_compile.generate.errors import PromptTooLong
from cudal1_compile.generate.exemplars import DESIGNS, ExemplarConfig, choose_exemplars
from cudal1_compile.generate.prompt import build_prompt, shown_variants
from cudal1_compile.generate.protocol import Generator, WritesDesigns, token_counter
from cudal1_compile.judge.timing.least_bytes import floor_cost
from cudal1_compile.judge.verdict import Accepted, Deferred, Proof, Rejected, Timing, Verdict
from cudal1_compile.kernel.candidate import CandidateError, Exemplar, Reply
from cudal1_compile.kernel.text import normalised_digest
from cudal1_compile.runtime.build import Binary
from cudal1_compile.runtime.host_cost import baseline_cost
from cudal1_compile.runtime.target import Target
from cudal1_compile.synthesis.archive import Archive
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.outcome import Ending, Outcome, Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.proven import begin_proven
from cudal1_compile.synthesis.records import (
    Proposal,
    final_proof,
    is_at_floor,
    is_win,
    read_proposal,
    repeat_of,
    score,
    to_attempt,
    to_entry,
    to_unprofitable,
    upper_bound,
    with_binary,
    with_verdict,
)
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint, shape_agnostic_fingerprint
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

HEIRLOOMS = 3  # designs that won at other sizes, or lost least, before anybody is asked
INHERITED, SEARCHED = "inherited:", "edited:"  # the generator of such candidates
REFUSALS = 6  # reasons of refused candidates that a prompt may carry
IMPROVES = 1.02  # over a winner's score: what a quick measurement must show to be worth another examination
WAITS = "waits for the judge"
CLOSER = "a closer look shows that it cannot win"
MORE = 0.08  # that the best of eight replies is faster than one; than two half of that, than four a quarter


def region_of(program: Program) -> RegionText:
    form = canonicalise(program)
    return RegionText(fingerprint(form), shape_agnostic_fingerprint(form), print_program(form))


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how many replies it should get."""

    prompt: str
    n: int  # that are taken
    spare: int = 0  # that are asked for besides, in the place of what was tried and the prompt does not show


class RegionTask:
    def __init__(
        self,
        program: Program,
        generator: Generator,
        target: Target,
        store: Store,
        budget: Budget,
        seed: int,
        exemplars: ExemplarConfig,
        history: History | None = None,
    ) -> None:
        """history: of its region, where that was read already."""
        self.program = canonicalise(program)
        self.region = region_of(program)
        self.generator, self.target, self.budget = generator, target, budget
        self.seed, self.exemplars = seed, exemplars
        self.archive = Archive(store, self.region, target, history)
        self.judged = 0
        self.proposed = 0
        self.result: Ending | None = None
        self._asked = 0  # rounds that this call asked for
        self._has_searched = False
        self._winner: Entry | None = None
        self._building: Future[Binary] | None = None  # of the winner
        self._won_in = 0  # rounds that were asked for before the winner was found
        self.is_ours = False  # no other process may work on it now
        self._examined: set[str] = set()  # digests, not to be examined again
        self._baselines: Accepted | Rejected | None = None  # aten against Inductor, or why they are not compared
        self._baseline_us: float | None = None  # once it is known
        self.is_compared = False  # Inductor was timed too, or cannot be
        self._refused: set[str] = set()  # digests, in this call
        self._deferred = ""  # why the last long measurement left a verdict open
        self._trouble = ""  # what ended the proposals early
        self._hopeless = _why_none_wins(self.program, target)  # no reply of this generator
        self._learn_finals()

    def refresh(self) -> None:
        """With what others have stored since it was made."""
        self.archive.read()
        self._learn_finals()

    def _learn_finals(self) -> None:
        """What earlier calls, or others, have examined; what won has an entry, or lost it and may win again."""
        accepted = self.archive.accepted()
        finals = [(a, proof) for a in accepted if (proof := final_proof(a, self.target)) is not None]
        self._examined |= {a.code_digest for a, proof in finals if not is_win(proof)}
        if self._baseline_us is None:
            self._baseline_us = next((p.timing.baseline_us for _, p in finals if p.timing), None)

    # proposals

    @property
    def rounds_done(self) -> int:
        """Rounds of this generator that are stored, or were asked for in this call."""
        kind, _, model = self.generator.name.partition(":")
        mine = sum(a.generator == kind and a.model == model for a in self.archive.current)
        return max(self._asked, mine // self.budget.samples_per_round)

    @property
    def wants_round(self) -> bool:
        stopped = (
            self.result is not None
            or self._trouble
            or self._hopeless
            or self._is_final
            or self.is_at_floor
            or self._is_beaten
        )
        return not stopped and self.rounds_done < self.budget.rounds

    @property
    def _is_final(self) -> bool:
        """Whether more rounds are in vain: on the host target costs are exact, on a GPU times are not.

        A winner is final at the floor, or once a round that could see it found nothing better.
        """
        if self.target.kind == "cuda" or self._winner is None:
            return False
        bar = IMPROVES * (self._winner.speedup or 0.0)  # which a better one has to pass
        return self._asked > self._won_in or bar * floor_cost(self.program) > baseline_cost(self.program)

    def requests(self, share: float) -> list[Request]:
        """The prompts of the next round; none where the region's text alone is too long for the generator.

        share: of a round's samples.
        """
        done = self.rounds_done
        self._asked = done + 1
        try:
            return self._requests(done, math.ceil(share * self.budget.samples_per_round))
        except PromptTooLong as error:
            self._hopeless = str(error)
            return []

    def _requests(self, done: int, samples: int) -> list[Request]:
        if done == 0:
            return [Request(self._prompt(None), samples)]
        prompts = [
            self._prompt(self._number(f"exemplars {done} {i}")) for i in range(self.budget.prompts_per_round)
        ]
        share = -(-samples // len(prompts))
        counts: dict[str, int] = {}
        for i, prompt in enumerate(prompts):
            counts[prompt] = counts.get(prompt, 0) + min(share, max(0, samples - i * share))
        most = 0
        if isinstance(self.generator, WritesDesigns):
            tried = len({a.code_digest for a in self.archive.current})
            most = tried + samples - min(len(shown_variants(p)) for p in counts)  # prompts may bring the same
        return [Request(prompt, n, max(0, most - n)) for prompt, n in counts.items() if n]

    def _prompt(self, seed: int | None) -> str:
        chosen, in_designs = list[Exemplar](), isinstance(self.generator, WritesDesigns)
        if seed is not None:
            own = self.archive.exemplars()
            others = (
                [] if own else [Exemplar(a.code, a.speedup or 0.0, a.design) for a in self.archive.relatives()]
            )
            config = replace(self.exemplars, count=DESIGNS) if in_designs else self.exemplars
            chosen = choose_exemplars(own, config, seed, others)
        return build_prompt(
            self.target.facts(),
            self.region.text,
            chosen,
            self.generator.budget_tokens,
            token_counter(self.generator),
            self.archive.refusals(REFUSALS),
            designs=in_designs,
            stages=not in_designs,
        )

    def call_seed(self) -> int:
        """Another one after each stored attempt, so that a resumed call does not repeat the replies it has."""
        return self._number(f"replies {len(self.archive.attempts)}")

    def _number(self, purpose: str) -> int:
        text = f"{self.seed} {self.region.fingerprint} {purpose}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])

    def heritage(self) -> list[Reply]:
        """What the fastest designs at other sizes lead to at these; none for a region that was asked for."""
        if self.archive.attempts or self.rounds_done or not self.wants_round:
            return []
        found: dict[str, Reply] = {}
        for relative in self.archive.relatives():
            if len(found) == HEIRLOOMS:
                break
            if (reply := lower_nearest(self.program, relative.design)) is not None:
                found.setdefault(normalised_digest(reply.code), reply)
        return list(found.values())

    def inherit(self, heritage: Sequence[Reply]) -> None:
        """In place of a first round of proposals."""
        self._take_own(heritage, INHERITED)

    def search(self) -> bool:
        """A round of random edits of the fastest design, in place of one of proposals; once, where there are any.

        Over the best of 12 designs eight edits are worth 1.02x, all other designs 1.005x (edits.h200, rl.h200).
        """
        if self._has_searched or not self.rounds_done or self.target.kind == "host" or self.to_judge():
            return False
        best = next((a for a in self.archive.scored() if schedule_lines(a.design)), None)
        if best is None or not isinstance(self.generator, WritesDesigns):
            return False
        self._has_searched = True
        rng = random.Random(self._number(f"edits {len(self.archive.attempts)}"))
        try:
            found = nearby(self.program, best.design, rng, self.budget.samples_per_round)
        except STUMBLES as error:
            log.warning("no edits: %r on a program of %d operations", error, len(self.program.ops))
            return False
        new = [r for r in found if self.archive.verdict_on(normalised_digest(r.code)) is None]
        if new:
            self._take_own(new, SEARCHED)
        return bool(new)

    def _take_own(self, replies: Sequence[Reply], name: str) -> None:
        """A round that no generator was asked for."""
        self._asked = self.rounds_done + 1
        rows = [Proposal(self.region, name, "", reply, reply.code) for reply in replies]
        self.archive.put([self._first_row(row) for row in rows])

    def take_replies(self, request: Request, replies: Sequence[str]) -> None:
        """Stores the replies: refused text and known code with their verdict, new code as waiting for one.

        Where some are spare, those that are not known, as many as are taken.
        """
        found = [read_proposal(self.region, self.generator.name, request.prompt, reply) for reply in replies]
        if request.spare:
            tried = {a.code_digest for a in self.archive.current}
            found = [proposal for proposal in found if proposal.code_digest not in tried][: request.n]
        self.proposed += len(found)
        self.archive.put([self._first_row(proposal) for proposal in found])

    def _first_row(self, proposal: Proposal) -> Attempt:
        if proposal.reply is None:
            return to_attempt(proposal, Rejected("text", proposal.fault), self.target)
        if (why := self.archive.why_refuted(proposal.code)) is not None:
            wrong = Rejected("verify", f"the same code gave a wrong result in a user's call: {why}")
            return to_attempt(proposal, wrong, self.target)
        known = self.archive.verdict_on(proposal.code_digest)
        if known is not None:
            return repeat_of(proposal, known, self.target)
        return to_attempt(proposal, Deferred(WAITS), self.target)

    # verdicts

    def to_judge(self) -> list[Attempt]:
        return self.archive.waiting() if self.result is None and not self.is_at_floor else []

    def take_verdicts(self, attempts: Sequence[Attempt], verdicts: Sequence[Verdict]) -> None:
        """Stores the verdicts, also on other rows of the same code."""
        self.judged += len(verdicts)
        unverifiable = (v.reason for v in verdicts if isinstance(v, Rejected) and v.stage == "task")
        self._hopeless = next(unverifiable, self._hopeless)
        pairs = zip(attempts, verdicts, strict=True)
        self._refused |= {a.code_digest for a, v in pairs if isinstance(v, Rejected) and v.stage != "text"}
        changed: list[Attempt] = []
        for attempt, verdict in zip(attempts, verdicts, strict=True):
            same = [a for a in self.archive.attempts if a.code_digest == attempt.code_digest]
            changed += [self._scored(with_verdict(a, verdict)) for a in same]
        self.archive.put(changed)

    @property
    def best(self) -> float | None:
        found = self.archive.scored()
        return found[0].speedup if found else None

    @property
    def _is_beaten(self) -> bool:
        """Whether a round's candidates are measured, and the best is behind by more than another round gains."""
        if self._baseline_us is None or self.to_judge():
            return False
        mine = {a.id for a in self.archive.current}
        scored = [a for a in self.archive.scored() if a.id in mine]
        return len(scored) > 1 and max(map(upper_bound, scored)) < 1.0 - MORE / len(scored)

    # the examination

    def to_examine(self) -> Attempt | None:
        """The fastest that may win and nothing is proven of."""
        return next((a for a in self._unproven() if self._may_win(a)), None)

    @property
    def is_begun(self) -> bool:
        """Whether candidates are left to time or to examine."""
        return bool(self.to_judge()) or self.to_examine() is not None

    def _unproven(self) -> list[Attempt]:
        """Fastest first. Proofs that an earlier version gave count for nothing."""
        found = [a for a in self.archive.scored() if a.code_digest not in self._examined and a.reason != CLOSER]
        return [] if self.is_at_floor else found

    def _may_win(self, attempt: Attempt) -> bool:
        if self._winner is None:
            return upper_bound(attempt) > 1.0
        return (attempt.speedup or 0.0) >= IMPROVES * (self._winner.speedup or 0.0)

    def take_exam(self, attempt: Attempt, verdict: Verdict) -> None:
        """Stores a winner's entry at once; where a verdict is only deferred the region stays open."""
        if isinstance(verdict, Deferred):
            self._deferred = verdict.reason
            return
        self._deferred = ""
        self._examined.add(attempt.code_digest)
        self.take_verdicts([attempt], [verdict])
        if isinstance(verdict, Accepted):
            self._take_proof(attempt, verdict.proof)

    def _take_proof(self, attempt: Attempt, proof: Proof) -> None:
        if proof.timing is not None:
            self._learn_baseline(proof.timing)
        if is_win(proof) and (self._winner is None or score(proof) > (self._winner.speedup or 0.0)):
            self._winner = to_entry(self.region, attempt, proof, self.target)
            self.archive.put_entry(self._winner)
            self._building = begin_proven(self.program, attempt.code, self.target)
            self._won_in = self._asked

    def _learn_baseline(self, timing: Timing) -> None:
        """From now on every score is over the faster baseline."""
        self._baseline_us = timing.baseline_us
        self.archive.put([self._scored(a) for a in self.archive.attempts if a.stage == TIMED])

    def _scored(self, attempt: Attempt) -> Attempt:
        """A timed candidate's row with its score over the faster baseline, where that one is known."""
        known = self._baseline_us is not None and attempt.stage == TIMED and attempt.candidate_us
        if self._baseline_us is None or not known or not attempt.candidate_us:
            return attempt
        return replace(attempt, speedup=self._baseline_us / attempt.candidate_us, baseline_us=self._baseline_us)

    def _take_binary(self, winner: Entry, limit_s: float) -> Entry:
        """The entry, with its binary where that is built in time; else it is built when it is first loaded."""
        if self._building is None:
            return winner
        try:
            winner = with_binary(winner, self._building.result(max(0.0, limit_s)))
            self.archive.put_entry(winner)
        except TimeoutError:
            log.debug("kernel %s is still being built", winner.entry_id[:12])
        except (BuildError, CandidateError, OSError) as error:
            log.warning("kernel %s was proven but not built again: %s", winner.entry_id[:12], error)
        self._building = None
        return winner

    # what runs the region without a kernel

    def take_baselines(self, verdict: Verdict, with_inductor: bool) -> None:
        """aten alone orders the regions; nothing is examined before Inductor is timed too."""
        if isinstance(verdict, Deferred):
            self._deferred = verdict.reason
        elif isinstance(verdict, Accepted | Rejected):
            self._baselines, self.is_compared = verdict, with_inductor
        if self.baselines is not None:
            self._learn_baseline(self.baselines)

    @property
    def baselines(self) -> Timing | None:
        """As far as they are timed."""
        return self._baselines.proof.timing if isinstance(self._baselines, Accepted) else None

    @property
    def is_at_floor(self) -> bool:
        return self._winner is None and self.baselines is not None and is_at_floor(self.baselines)

    @property
    def is_decided(self) -> bool:
        """Whether it has a kernel, or need not have one; once it is closed, also that nothing wins."""
        return self._winner is not None or self.is_at_floor or isinstance(self.result, Won | Unprofitable)

    @property
    def won(self) -> float | None:
        """The winner's score."""
        return None if self._winner is None else self._winner.speedup

    @property
    def may_gain_us(self) -> float | None:
        """By one call, at most; None where nothing is timed."""
        found = self.baselines
        return None if found is None else max(0.0, found.baseline_us - found.floor_us)

    @property
    def _is_unprofitable(self) -> bool:
        """Whether all was tried, or nothing can be, or need be."""
        if self._winner is not None or (self._trouble and not self.is_at_floor):
            return False
        is_open = self.wants_round or self.to_judge() or self.to_examine() or not self.archive.current
        return bool(self._hopeless) or self.is_at_floor or not is_open

    # the end

    def fail(self, reason: str) -> None:
        """Ends the proposals for this call; what is right already may still win."""
        self._trouble = self._trouble or reason

    @property
    def needs_canary(self) -> bool:
        """Whether it holds only on a machine that can judge."""
        return bool(self._refused) or (self._is_unprofitable and not self.is_at_floor)

    def distrust(self, why: str) -> None:
        """The machine could not judge: what it refused in this call waits for another one."""
        self.fail(why)
        refused = [
            a for a in self.archive.attempts if a.code_digest in self._refused and a.stage not in (ACCEPTED, TIMED)
        ]
        self.archive.put([with_verdict(a, Deferred(why)) for a in refused])

    def close(self, why_not_all: str, binary_s: float) -> None:
        """Won by a proven kernel; Unprofitable where all was tried, and loses to aten or both; else Unfinished.

        binary_s: that the winner's binary is waited for.
        """
        if self._winner is not None:
            self._winner = self._take_binary(self._winner, binary_s)
            self.result = Won(self._winner)
        elif self._is_unprofitable and self._baselines is not None and self._is_held_against_any:
            self._end_without(self._baselines)
        else:
            put_off = next((a.reason for a in self.to_judge() if a.reason != WAITS), "")
            why = self._trouble or self._deferred or put_off or why_not_all or "the generator gave no reply"
            self.result = Unfinished(why)

    @property
    def _is_held_against_any(self) -> bool:
        """Against both baselines, or aten's alone: what loses to that loses to the faster one."""
        return self.is_compared or (self.baselines is not None and not self._deferred)

    def _end_without(self, found: Accepted | Rejected) -> None:
        baselines = found.proof if isinstance(found, Accepted) else None
        name, tried = self.generator.name, self.archive.current
        entry = to_unprofitable(self.region, self.target, name, self.budget, tried, baselines, self._hopeless)
        self.archive.put_entry(entry)
        self.result = Unprofitable(entry)

    def outcome(self) -> Outcome:
        assert self.result is not None, "an outcome exists once the task is closed"
        return Outcome(
            self.region.fingerprint,
            self.result,
            len(self.archive.attempts),
            self.judged,
            self.proposed,
            self.baselines,
        )


def _why_none_wins(program: Program, target: Target) -> str:
    """On the host target alone, where costs are known before anything is tried; empty where a kernel may win."""
    baseline, floor = baseline_cost(program), floor_cost(program)
    if target.kind == "cuda" or baseline > floor:
        return ""
    return f"one operation at a time costs {baseline}, and no kernel costs less than {floor}"
