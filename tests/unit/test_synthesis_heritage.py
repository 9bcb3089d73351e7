"""Designs that were measured at one size are lowered for others of the structure, before these are asked for; what
was fastest in a first round is edited in the second."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from slow_cases import slow_but
from synthesis_doubles import GPU, ScriptedJudge

from cudal1_cache import Store
from cudal1_compile.codegen.replies import EDIT, complete, design_of, nearby, schedule_lines
from cudal1_compile.codegen.templates import variants, write_reply
from cudal1_compile.generate.prompt import shown_variants
from cudal1_compile.judge.verdict import Accepted, Rejected, Timed, Verdict
from cudal1_compile.kernel.candidate import Reply, parse_reply, print_reply
from cudal1_compile.kernel.text import normalised_digest
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.outcome import Outcome, Unprofitable, Won
from cudal1_compile.synthesis.rounds import synthesize_all
from cudal1_compile.synthesis.task import HEIRLOOMS
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

BUDGET = Budget(seconds=60, rounds=1, samples_per_round=4)


def rows(count: int, width: int = 1024) -> Program:
    return parse_program(
        f"region v1\ndims d0={count} d1={width}\nin0 f32[d0,d1]\nt0 f32[d0] = amax(in0) over d1\n"
        "t1 f32[d0,d1] = sub(in0, t0)\nout0 f32[d0,d1] = t1\n"
    )


class Templates:
    """Writes what templates would: designs and their code."""

    name = "bundled:templates"
    budget_tokens = 4096

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        sizes = [int(p.split("d0=")[1].split()[0]) for p in prompts]
        self.asked.append(sizes)
        return [self._replies(rows(size), n) for size in sizes]

    def _replies(self, program: Program, n: int) -> list[str]:
        found = (write_reply(program, schedule) for schedule in variants(program))
        return [print_reply(r) for r in found if r is not None][:n]


class Designs(Templates):
    writes_designs = True


class Judge(ScriptedJudge):
    """All that is written is right, and one and the same times as fast; notes what was judged for which size."""

    def __init__(self, score: float = 1.2) -> None:
        super().__init__()
        self.score = score
        self.tried: list[int] = []

    def _judge(self, program: Program, code: str) -> Verdict:
        self.tried.append(program.axes[0].size)
        return Rejected("verify", "out0 differs") if self.score == 0 else Timed(*self._measured(self.score, False))

    def examine(self, program: Program, code: str) -> Verdict:
        return Accepted(self._proof(self.score))


def written(store: Store, outcome: Outcome) -> set[str]:
    return {a.generator for a in store.attempts(outcome.fingerprint, GPU.key)}


@pytest.mark.parametrize(("kind", "asked"), [(Designs, [[512]]), (Templates, [[512, 256, 128]])])
def test_a_structure_is_asked_for_once(kind: type[Templates], asked: list[list[int]]) -> None:
    """By who writes designs: another's code serves at its own size."""
    generator, judge, store = kind(), Judge(), Store.memory()
    outcomes = synthesize_all([rows(512), rows(256), rows(128)], generator, judge, store, BUDGET)
    assert generator.asked == asked and all(isinstance(o.result, Won) for o in outcomes)
    if kind is Designs:
        assert [written(store, o) for o in outcomes] == [{"bundled"}, {"inherited"}, {"inherited"}]
        assert judge.tried.count(256) == judge.tried.count(128) == HEIRLOOMS


def test_a_structure_is_asked_for_once_beside_the_judge_too() -> None:
    """While the first one is judged, whatever else there is."""

    class Beside(Designs):
        gives_way = True

    generator, judge, store = Beside(), Judge(), Store.memory()
    text = "region v1\ndims d0=77 d1=64\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d0,d1] = t0\n"
    other = parse_program(text)
    budget = Budget(seconds=60, rounds=1, samples_per_round=4, regions_at_once=1)
    outcomes = synthesize_all([rows(512), rows(256), rows(128), other], generator, judge, store, budget)
    assert generator.asked == [[512], [77 * 64]]
    assert [written(store, o) for o in outcomes[1:3]] == [{"inherited"}, {"inherited"}]
    assert all(isinstance(o.result, Won) for o in outcomes[:3])


def test_what_an_earlier_call_measured_comes_before_the_generator() -> None:
    generator, judge, store = Templates(), Judge(), Store.memory()
    synthesize_all([rows(512)], generator, judge, store, BUDGET)
    (won,) = synthesize_all([rows(300)], generator, judge, store, BUDGET)
    assert generator.asked == [[512]] and isinstance(won.result, Won) and written(store, won) == {"inherited"}


def test_who_inherits_nothing_is_asked_for() -> None:
    """No reply of the first one's was right."""
    generator, judge, store = Designs(), Judge(score=0), Store.memory()
    outcomes = synthesize_all([rows(512), rows(256)], generator, judge, store, BUDGET)
    assert generator.asked == [[512], [256]]
    assert all(isinstance(o.result, Unprofitable) for o in outcomes)


def test_an_heir_that_loses_is_decided_too() -> None:
    generator, judge, store = Designs(), Judge(score=0.7), Store.memory()
    outcomes = synthesize_all([rows(512), rows(256)], generator, judge, store, Budget(seconds=60, rounds=3))
    assert generator.asked == [[512]], "too far behind for another round"
    assert all(isinstance(o.result, Unprofitable) for o in outcomes)


class FasterByEdits(Judge):
    """What no template writes is 1.5 times as fast."""

    def _judge(self, program: Program, code: str) -> Verdict:
        return Timed(*self._measured(self._score(program, code), False))

    def examine(self, program: Program, code: str) -> Verdict:
        return Accepted(self._proof(self._score(program, code)))

    def _score(self, program: Program, code: str) -> float:
        replies = (write_reply(program, schedule) for schedule in variants(program))
        plain = {normalised_digest(r.code) for r in replies if r is not None}
        return 1.2 if normalised_digest(code) in plain else 1.5


class BesideJudge(Designs):
    gives_way = True


@pytest.mark.parametrize("kind", slow_but([BesideJudge, Templates], [Designs, BesideJudge, Templates]))
def test_the_second_round_edits_the_fastest_design_and_the_third_asks_again(kind: type[Templates]) -> None:
    """Of who writes designs; another generator has all rounds."""
    generator, store = kind(), Store.memory()
    budget = Budget(seconds=60, rounds=3, samples_per_round=4)
    (won,) = synthesize_all([rows(512)], generator, FasterByEdits(), store, budget)
    assert isinstance(won.result, Won)
    attempts = store.attempts(won.fingerprint, GPU.key)
    edited = [a for a in attempts if a.generator == "edited"]
    if kind is Templates:
        assert not edited and len(generator.asked) == 3 and won.result.entry.speedup == 1.2
        return
    assert len(generator.asked) == 2 and won.result.entry.speedup == 1.5
    assert 1 <= len(edited) <= 4 and len({a.code_digest for a in edited}) == len(edited)
    assert all("\nedit " in a.design for a in edited)
    assert [complete(rows(512), reply_of(a.design)).code for a in edited] == [a.code for a in edited]


def reply_of(kept: str) -> Reply:
    """As a model would write what is kept of a reply."""
    lines = kept.splitlines()
    design = "\n".join(line for line in lines if not line.startswith(EDIT))
    return Reply("", design, "", "\n".join(line.removeprefix(EDIT) for line in lines if line.startswith(EDIT)))


def test_edits_near_a_design_keep_its_own_where_no_other_takes_their_place() -> None:
    program = rows(512)
    base = next(r for s in variants(program) if (r := write_reply(program, s)) is not None)
    first = nearby(program, base.design, random.Random(1), 6)
    assert len({r.code for r in first} - {base.code}) == len(first) == 6
    kept = design_of(first[0])
    second = nearby(program, kept, random.Random(2), 6)
    own = set(first[0].edits.splitlines())
    assert any(own < set(r.edits.splitlines()) for r in second)
    assert all(complete(program, replace(r, code="")).code == r.code for r in second)
    assert nearby(program, "grouped.\nstage 0: block, vector 3, block 257", random.Random(1), 4) == []
    assert nearby(program, "one warp", random.Random(1), 4) == []


class Draws(Designs):
    """Nothing that its prompt shows."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        self.counts.append(n)
        shown = [{e.design for e in shown_variants(p)} for p in prompts]
        every = super().propose(prompts, 100, seed)
        return [
            [t for t in texts if schedule_lines(design_of(parse_reply(t))) not in known][:n]
            for texts, known in zip(every, shown, strict=True)
        ]


def test_what_was_refused_is_asked_for_besides_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Judge):
        def _judge(self, program: Program, code: str) -> Verdict:
            self.score = 1.2 - self.score  # every second one is wrong
            return super()._judge(program, code)

    monkeypatch.setattr("cudal1_compile.synthesis.task.nearby", lambda *_: [])
    store, generator = Store.memory(), Draws()
    budget = Budget(seconds=60, rounds=3, samples_per_round=4)
    (outcome,) = synthesize_all([rows(512)], generator, Half(), store, budget)
    assert generator.counts == [4, 6, 8] and outcome.proposed == 12
    mine = [a for a in store.attempts(outcome.fingerprint, GPU.key) if a.generator == "bundled"]
    assert len({a.code_digest for a in mine}) == len(mine) == 12


def test_a_template_that_stumbles_over_edits_leaves_the_round_to_the_generator(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(*_: object) -> list[Reply]:
        raise KeyError("d7")

    monkeypatch.setattr("cudal1_compile.synthesis.task.nearby", stumble)
    generator, budget = Designs(), Budget(seconds=60, rounds=3, samples_per_round=4)
    (won,) = synthesize_all([rows(512)], generator, FasterByEdits(), Store.memory(), budget)
    assert isinstance(won.result, Won) and len(generator.asked) == 3
    assert "no edits: KeyError('d7')" in caplog.text
