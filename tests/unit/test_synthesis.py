"""Synthesis with test doubles for generator and judge: what is asked, judged, stored and decided."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from synthesis_clock import Clock
from synthesis_doubles import GPU, ScriptedGenerator, ScriptedJudge, host_judge, kernel, program, reply

from cudal1_cache import CacheBusy, Store
from cudal1_compile.dispatch import fallback
from cudal1_compile.dispatch.fallback import is_atens, measured
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.errors import BuildError
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.exemplars import ExemplarConfig
from cudal1_compile.generate.prompt import with_stages
from cudal1_compile.judge import versions
from cudal1_compile.judge.verdict import Accepted, Deferred, Proof, Rejected, Timed, Timing, Verdict
from cudal1_compile.kernel.candidate import Candidate, Reply, print_reply
from cudal1_compile.kernel.text import normalised_digest
from cudal1_compile.synthesis import validity
from cudal1_compile.synthesis.budget import Budget, ProcessBudget
from cudal1_compile.synthesis.outcome import Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.records import KEPT_CHARACTERS, is_win
from cudal1_compile.synthesis.rounds import synthesize, synthesize_all
from cudal1_compile.synthesis.validity import why_outdated, why_stale
from cudal1_fx_passes.program.canonical import fingerprint
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

KEY = fingerprint(program())
ONE_SAMPLE = Budget(seconds=60, rounds=1, samples_per_round=1)
ONE_ROUND = Budget(seconds=60, rounds=1, samples_per_round=4)


def test_refuted_code_is_refused_before_it_is_judged_however_it_is_spelled() -> None:
    store, judge = Store.memory(normalised_digest), ScriptedJudge()
    first = synthesize(program(), ScriptedGenerator([["good_130"]]), judge, store, ONE_SAMPLE)
    assert isinstance(first.result, Won)
    store.refute(first.result.entry.entry_id, "out0[3] is 7, expected 1")
    other = print_reply(
        Reply("why", "how", kernel("good_130").replace("threadIdx.x; i", "threadIdx.x  ;  /* */ i"))
    )
    asked = len(judge.judged)
    again = synthesize(program(), ScriptedGenerator(lambda *_: [[other]]), judge, store, ONE_ROUND)
    assert not isinstance(again.result, Won) and len(judge.judged) == asked
    last = store.attempts(KEY, GPU.key)[-1]
    assert last.stage == "verify" and "wrong result in a user's call: out0[3] is 7" in last.reason


def test_the_fastest_that_is_proven_becomes_the_entry_with_its_proof() -> None:
    store = Store.memory()
    judge = ScriptedJudge()
    outcome = synthesize(
        program(), ScriptedGenerator([["good_110", "wrong_7", "good_130", "slow_80"]]), judge, store, ONE_ROUND
    )
    assert isinstance(outcome.result, Won)
    entry = store.find_entry(KEY, GPU.key)
    assert entry == outcome.entry
    assert entry is not None and entry.status == "kernel" and entry.speedup == 1.3
    assert "good_130" in entry.code
    assert json.loads(entry.proof_json)["timing"]["final"] is True
    versions = json.loads(entry.versions_json)
    made_by = versions["generator"], versions["model"], versions["torch"]
    assert made_by == ("teacher", "scripted", torch.__version__)
    assert judge.examined == ["good_130"]  # good_110 is no better, and slow_80 cannot win
    assert (outcome.attempts, outcome.judged, outcome.proposed) == (4, 5, 4)
    stored = {a.code.split("<<<")[0].split()[-1]: a for a in store.attempts(KEY, GPU.key)}
    assert stored["wrong_7"].stage == "verify"
    assert stored["wrong_7"].reason == "out0 differs by 7.0 at d0=3, d1=5"
    assert stored["slow_80"].stage == "timed" and stored["slow_80"].speedup == 0.8
    assert stored["good_110"].stage == "timed" and stored["good_130"].stage == "accepted"
    assert stored["good_130"].baseline_us == 10.0
    assert stored["good_130"].id == entry.attempt_id
    assert stored["good_130"].analysis == "analysis of good_130"
    region = store.get_region(KEY)
    assert region is not None and region.text == print_program(program())


def test_round_one_shows_nothing_and_round_two_shows_measured_variants() -> None:
    generator = ScriptedGenerator([["slow_80", "wrong_1", "good_140", "good_141"], ["good_150"]])
    budget = Budget(seconds=60, rounds=2, samples_per_round=4, prompts_per_round=1)
    synthesize(program(), generator, ScriptedJudge(), Store.memory(), budget)
    first, second = generator.prompts
    assert "variant" not in first
    assert first == with_stages(f"{GPU.facts()}\n{print_program(program())}")
    shown = [line for line in second.splitlines() if line.startswith("variant")]
    assert shown[0] == "variant 0.80x"
    assert shown[1] in ("variant 1.40x", "variant 1.41x")
    assert len(shown) == 2  # 1.40 and 1.41 share a bucket
    assert kernel("slow_80").strip() in second
    assert "wrong_1" not in second


def test_a_contrastive_round_spreads_its_samples_over_prompts() -> None:
    generator = ScriptedGenerator([["slow_80", "good_110", "good_140", "good_170"], ["good_150"]])
    budget = Budget(seconds=60, rounds=2, samples_per_round=4, prompts_per_round=2)
    config = ExemplarConfig(tau=5.0)
    for seed in range(20):
        generator.calls.clear()
        synthesize(program(), generator, ScriptedJudge(), Store.memory(), budget, seed=seed, exemplars=config)
        if len(generator.prompts) == 3:
            break
    assert [n for _, n, _ in generator.calls] == [4, 2]
    assert generator.prompts[1] != generator.prompts[2]


def test_an_instructed_generator_is_told_what_was_refused() -> None:
    generator = ScriptedGenerator([["wrong_3", "wrong_4"], ["good_120"]], budget_tokens=30_000)
    budget = Budget(seconds=60, rounds=2, samples_per_round=2, prompts_per_round=1)
    synthesize(program(), generator, ScriptedJudge(), Store.memory(), budget)
    assert "refused before" not in generator.prompts[0]
    assert "- verify: out0 differs by 3.0 at d0=3, d1=5" in generator.prompts[1]


def test_equal_code_is_judged_once_however_it_comes() -> None:
    spaced = reply("good_120").replace("    for", "  // the loop\n\n        for")
    other = reply("good_120").replace("one warp", "another text")
    names = {0: [reply("good_120"), spaced, other, reply("wrong_2")]}
    judge = ScriptedJudge()
    store = Store.memory()
    generator = ScriptedGenerator(lambda call, prompts, n: [names.get(call, names[0]) for _ in prompts])
    budget = Budget(seconds=60, rounds=2, samples_per_round=4, prompts_per_round=1)
    synthesize(program(), generator, judge, store, budget)
    assert sorted(judge.judged) == ["good_120", "wrong_2"]
    rows = store.attempts(KEY, GPU.key)
    assert len(rows) == 8
    assert {a.code_digest for a in rows} == {Candidate(kernel(n), (), ()).digest for n in ("good_120", "wrong_2")}
    assert {a.stage for a in rows} == {"accepted", "verify"}  # also the rows that were never judged themselves
    assert all(a.reason for a in rows if a.stage == "verify")
    # another call with another generator finds the verdicts in the store
    again = ScriptedJudge()
    stranger = ScriptedGenerator([["good_120", "wrong_2"]])
    stranger.name = "other:model"
    synthesize(program(), stranger, again, store, Budget(seconds=60, rounds=1, samples_per_round=2))
    assert again.judged == []


def test_nothing_faster_is_stored_as_unprofitable() -> None:
    store = Store.memory()
    outcome = synthesize(
        program(), ScriptedGenerator([["slow_80", "lucky_150", "wrong_1"]]), ScriptedJudge(), store, ONE_ROUND
    )
    assert isinstance(outcome.result, Unprofitable)
    entry = store.find_entry(KEY, GPU.key)
    assert entry is not None and entry.status == "unprofitable"
    assert entry.reason == "3 candidates, 2 timed, the best at 0.97 of the baseline"
    versions = json.loads(entry.versions_json)
    assert (versions["generator"], versions["rounds"], versions["seconds"]) == ("teacher:scripted", 1, 60)


def test_unprofitable_counts_real_verdicts() -> None:
    """Not those that wait, each code once."""
    script = [[reply("slow_80"), reply("slow_80"), reply("wrong_1"), "no sections"]]
    outcome = synthesize(
        program(), ScriptedGenerator(lambda c, p, n: script), ScriptedJudge(), Store.memory(), ONE_ROUND
    )
    assert isinstance(outcome.result, Unprofitable)
    assert (outcome.result.entry.status, outcome.result.entry.verdicts) == ("unprofitable", 3)


def test_what_a_machine_refused_that_cannot_judge_waits() -> None:
    store, broken = Store.memory(), ScriptedJudge()
    broken.why = "the machine cannot build and run a known-good kernel: no g++"
    generator = ScriptedGenerator([["wrong_1", "slow_80"]])
    outcome = synthesize(program(), generator, broken, store, ONE_ROUND)
    assert outcome.result == Unfinished(broken.why) and store.find_entry(KEY, GPU.key) is None
    assert {a.reason or a.stage for a in store.attempts(KEY, GPU.key)} == {broken.why, "timed"}
    judge = ScriptedJudge()
    assert isinstance(synthesize(program(), generator, judge, store, ONE_ROUND).result, Unprofitable)
    assert judge.judged == ["wrong_1"] and len(generator.calls) == 2  # the first round was no whole one


@pytest.mark.parametrize("change", ["a month", "a version", "the header"])
def test_what_no_longer_holds_is_asked_again(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.memory()
    generator = ScriptedGenerator([["slow_80", "wrong_1", "slow_70", "slow_60"], ["good_130"]])
    first = synthesize(program(), generator, ScriptedJudge(), store, ONE_ROUND).result
    assert isinstance(first, Unprofitable) and why_stale(first.entry, GPU) is None
    assert isinstance(synthesize(program(), generator, ScriptedJudge(), store, ONE_ROUND).result, Unprofitable)
    assert len(generator.calls) == 1
    if change == "a month":
        monkeypatch.setattr(validity, "HOLDS_S", -1.0)
    elif change == "a version":
        monkeypatch.setattr(versions, "VERIFIER_VERSION", versions.VERIFIER_VERSION + 1)
    else:
        monkeypatch.setattr(validity, "header_digest", lambda target: "another")
    assert why_stale(first.entry, GPU) is not None
    again = synthesize(program(), generator, ScriptedJudge(), store, ONE_ROUND)
    assert isinstance(again.result, Won) and len(generator.calls) == 2


def test_a_new_search_judges_known_code_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, generator, judge = Store.memory(), ScriptedGenerator([["wrong_1", "wrong_2"]]), ScriptedJudge()
    budget = replace(ONE_ROUND, samples_per_round=2)
    synthesize(program(), generator, judge, store, budget)
    monkeypatch.setattr(versions, "VERIFIER_VERSION", versions.VERIFIER_VERSION + 1)
    outcome = synthesize(program(), generator, judge, store, budget)
    assert judge.judged == ["wrong_1", "wrong_2"] * 2
    assert isinstance(outcome.result, Unprofitable) and outcome.result.entry.verdicts == 2
    assert why_stale(outcome.result.entry, GPU) is None


def test_none_right_names_the_stages() -> None:
    store = Store.memory()
    script = [[reply("wrong_1"), "no sections", reply("wrong_2").replace("launch:", "lunch:")]]
    outcome = synthesize(program(), ScriptedGenerator(lambda c, p, n: script), ScriptedJudge(), store, ONE_ROUND)
    assert isinstance(outcome.result, Unprofitable)
    assert outcome.result.entry.reason.startswith("3 candidates, none accepted (1 at verify, 2 at text)")
    texts = [a for a in store.attempts(KEY, GPU.key) if a.stage == "text"]
    assert any(a.code == "no sections" and "lacks the sections" in a.reason for a in texts)


def test_the_fastest_are_examined_until_one_passes() -> None:
    judge = ScriptedJudge()
    names = ["fake_200", "fake_210", "good_120", "good_105"]
    outcome = synthesize(program(), ScriptedGenerator([names]), judge, Store.memory(), ONE_ROUND)
    assert judge.examined == ["fake_210", "fake_200", "good_120"]
    assert outcome.entry is not None and "good_120" in outcome.entry.code


def test_deferred_is_never_unprofitable_and_is_judged_again_without_the_generator() -> None:
    store = Store.memory()
    first = synthesize(program(), ScriptedGenerator([["unsure_1"]]), ScriptedJudge(), store, ONE_ROUND)
    assert first.result == Unfinished("the device is busy")
    assert store.find_entry(KEY, GPU.key) is None
    judge = ScriptedJudge()
    late = synthesize(program(64), ScriptedGenerator([["late_150"]]), judge, store, ONE_ROUND)
    assert late.result == Unfinished("the times vary too much")
    assert judge.examined == ["late_150"]


def test_a_failing_judge_keeps_the_candidates_for_a_later_call(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedJudge):
        def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
            raise BuildError("no C++ compiler")

    store = Store.memory()
    with caplog.at_level(logging.WARNING):
        outcome = synthesize(program(), ScriptedGenerator([["good_120"] * 4]), Broken(), store, ONE_ROUND)
    assert outcome.result == Unfinished("the judge failed: no C++ compiler")
    assert "the judge failed" in caplog.text
    silent = ScriptedGenerator([["wrong_1"]])
    later = synthesize(program(), silent, ScriptedJudge(), store, ONE_ROUND)
    assert later.entry is not None
    assert silent.calls == []


def test_a_crashing_generator_leaves_what_was_right_to_win(caplog: pytest.LogCaptureFixture) -> None:
    def script(call: int, prompts: Sequence[str], n: int) -> list[list[str]]:
        if call == 0:
            return [[reply("good_120")] for _ in prompts]
        raise GeneratorError("the server is gone")

    budget = Budget(seconds=60, rounds=3, samples_per_round=1)
    outcome = synthesize(program(), ScriptedGenerator(script), ScriptedJudge(), Store.memory(), budget)
    assert outcome.entry is not None
    assert "the server is gone" in caplog.text

    def crash(call: int, prompts: Sequence[str], n: int) -> list[list[str]]:
        raise ZeroDivisionError

    outcome = synthesize(program(), ScriptedGenerator(crash), ScriptedJudge(), Store.memory(), budget)
    assert isinstance(outcome.result, Unfinished)
    assert "ZeroDivisionError" in outcome.result.reason


def test_a_hanging_generator_ends_with_the_budget() -> None:
    def hang(call: int, prompts: Sequence[str], n: int) -> list[list[str]]:
        time.sleep(60)
        return []

    start = time.monotonic()
    budget = Budget(seconds=1.0, rounds=2, samples_per_round=2)
    outcome = synthesize(program(), ScriptedGenerator(hang), ScriptedJudge(), Store.memory(), budget)
    assert time.monotonic() - start < 3.0
    assert isinstance(outcome.result, Unfinished)
    assert "no answer within" in outcome.result.reason


def test_a_round_that_the_deadline_cut_off_is_no_round() -> None:
    class Cut(ScriptedGenerator):
        def propose_until(self, prompts: Sequence[str], n: int, seed: int, deadline: float) -> list[list[str]]:
            found = self.propose(prompts, n, seed)
            if len(self.calls) == 1:
                return found
            time.sleep(max(0.0, deadline - time.monotonic()))
            return [group[:1] for group in found]

    store, tried = Store.memory(), ["wrong_1", "wrong_2", "wrong_3", "wrong_4"]
    cut = synthesize(
        program(), Cut([tried]), ScriptedJudge(), store, Budget(seconds=0.5, rounds=2, samples_per_round=4)
    )
    assert cut.result == Unfinished("the time budget ended") and cut.proposed == 5
    generator = ScriptedGenerator([tried])
    budget = Budget(seconds=60, rounds=2, samples_per_round=4)
    assert isinstance(synthesize(program(), generator, ScriptedJudge(), store, budget).result, Unprofitable)
    assert len(generator.calls) == 1  # the second round again


def test_the_budget_holds_and_the_most_valuable_regions_come_first() -> None:
    judge = ScriptedJudge()
    judge.before = lambda name: time.sleep(0.05)
    generator = ScriptedGenerator(lambda call, prompts, n: [[reply(f"good_{120 + call}")] * n for _ in prompts])
    sizes = [16, 256, 64, 512, 32, 128]
    budget = Budget(seconds=2.0, rounds=1, samples_per_round=2, regions_at_once=1)
    slow = ScriptedGenerator(lambda c, p, n: time.sleep(0.6) or generator.propose(p, n, 0))  # type: ignore[func-returns-value]
    start = time.monotonic()
    found = synthesize_all([program(n) for n in sizes], slow, judge, Store.memory(), budget)
    assert time.monotonic() - start < 3.5
    won = [size for size, outcome in zip(sizes, found, strict=True) if outcome.entry is not None]
    assert 1 <= len(won) < 6
    assert won and set(won) == set(sorted(sizes, reverse=True)[: len(won)])
    assert all(isinstance(o.result, Unfinished) for o in found if o.entry is None)
    asked = [int(p.split("d0=")[1].split()[0]) for p in slow.prompts]
    assert asked == sorted(asked, reverse=True)


def test_a_judge_that_is_too_slow_leaves_candidates_for_the_next_call() -> None:
    store, slow = Store.memory(), ScriptedJudge()
    slow.before = lambda name: time.sleep(0.2)
    names = [f"good_{120 + i}" for i in range(10)]
    budget = Budget(seconds=0.5, rounds=1, samples_per_round=10)
    first = synthesize(program(), ScriptedGenerator([names]), slow, store, budget)
    assert 1 <= len(slow.judged) <= 4
    assert first.result == Unfinished("the time budget ended")
    silent, quick = ScriptedGenerator([["wrong_1"]]), ScriptedJudge()
    later = synthesize(program(), silent, quick, store, Budget(seconds=60, rounds=1, samples_per_round=10))
    assert len(quick.judged) == 10 - len(slow.judged)
    assert silent.calls == []
    assert later.entry is not None and "good_129" in later.entry.code


def test_no_more_candidates_go_to_the_judge_than_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slow = Clock(), ScriptedJudge()
    monkeypatch.setattr(time, "monotonic", clock)
    slow.before = lambda name: clock.spend(1.0)
    replies = ScriptedGenerator([[f"good_{120 + i}" for i in range(30)]])
    synthesize(program(), replies, slow, Store.memory(), Budget(seconds=12, rounds=1, samples_per_round=30))
    assert len(slow.judged) == 12


def test_no_time_for_the_finalists_is_unfinished_and_not_unprofitable() -> None:
    store, slow = Store.memory(), ScriptedJudge()
    slow.before = lambda name: time.sleep(0.3)
    budget = Budget(seconds=0.2, rounds=1, samples_per_round=1)
    first = synthesize(program(), ScriptedGenerator([["good_130"]]), slow, store, budget)
    assert isinstance(first.result, Unfinished)
    assert slow.judged == ["good_130"] and slow.examined == []
    later = synthesize(program(), ScriptedGenerator([]), ScriptedJudge(), store, ONE_SAMPLE)
    assert later.entry is not None and later.proposed == 0


def test_further_rounds_of_one_region_leave_time_for_the_first_of_the_next() -> None:
    def slow(call: int, prompts: Sequence[str], n: int) -> list[list[str]]:
        time.sleep(0.15)
        return [[reply(f"good_{110 + call}")] for _ in prompts]

    generator = ScriptedGenerator(slow)
    budget = Budget(seconds=1.5, rounds=50, samples_per_round=1, prompts_per_round=1, regions_at_once=1)
    found = synthesize_all([program(32), program(16)], generator, ScriptedJudge(), Store.memory(), budget)
    asked = [p.split("d0=")[1].split()[0] for p in generator.prompts]
    assert asked.count("32") >= 2 and asked.count("16") >= 2
    assert all(o.entry is not None for o in found)


def test_given_values_rule_the_order_and_twins_are_worked_on_once() -> None:
    generator = ScriptedGenerator([["good_120"]])
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, regions_at_once=1)
    programs = [program(16), program(32), program(16)]
    found = synthesize_all(programs, generator, ScriptedJudge(), Store.memory(), budget, values=[1.0, 3.0, 2.0])
    assert [p.split("d0=")[1].split()[0] for p in generator.prompts] == ["32", "16"]
    assert found[0] == found[2]


def test_several_regions_share_one_call() -> None:
    generator = ScriptedGenerator([["good_120"]])
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, regions_at_once=4)
    found = synthesize_all([program(n) for n in (8, 16, 24)], generator, ScriptedJudge(), Store.memory(), budget)
    assert [len(prompts) for prompts, _, _ in generator.calls] == [3]
    assert all(o.entry is not None for o in found)
    assert len({o.fingerprint for o in found}) == 3


def test_relatives_are_exemplars_where_the_region_has_none() -> None:
    store = Store.memory()
    synthesize(program(64), ScriptedGenerator([["good_133"]]), ScriptedJudge(), store, ONE_ROUND)
    generator = ScriptedGenerator([["wrong_1"], ["good_140"], ["wrong_2"]])
    budget = Budget(seconds=60, rounds=3, samples_per_round=1, prompts_per_round=1)
    synthesize(program(32), generator, ScriptedJudge(), store, budget)
    assert "variant" not in generator.prompts[0]
    assert "variant 1.33x" in generator.prompts[1]
    assert "variant 1.40x" in generator.prompts[2]
    assert "1.33x" not in generator.prompts[2]


def test_a_region_too_long_for_the_generator_is_untried_and_says_so() -> None:
    generator = ScriptedGenerator([["good_120"]], budget_tokens=10)
    outcome = synthesize(program(), generator, ScriptedJudge(), Store.memory(), ONE_ROUND)
    assert isinstance(outcome.result, Unprofitable)
    assert "the generator takes 10" in outcome.result.entry.reason
    assert (outcome.result.entry.status, outcome.result.entry.verdicts) == ("untried", 0)
    assert generator.calls == []


@pytest.mark.parametrize(
    ("names", "rounds"),
    [
        (["good_149"], 1),  # the region moves 128 cost units at least and 194 one operation at a time: 1.52
        (["good_120"], 2),
        (["good_120", "good_140", "good_141"], 3),
        (["wrong_1", "slow_96", "slow_97"], 4),
    ],
)
def test_a_host_winner_is_final_at_the_floor_or_after_a_round_in_vain(names: list[str], rounds: int) -> None:
    budget = Budget(seconds=60, rounds=4, samples_per_round=1, prompts_per_round=1)
    generator, on_gpu = (ScriptedGenerator([[name] for name in names]) for _ in range(2))
    synthesize(program(), generator, host_judge(), Store.memory(), budget)
    synthesize(program(), on_gpu, ScriptedJudge(), Store.memory(), budget)
    assert (len(generator.calls), len(on_gpu.calls)) == (rounds, 4)


def test_a_host_region_of_one_operation_is_untried() -> None:
    text = "region v1\ndims d0=64 d1=64\nin0 f32[d0,d1]\nt0 f32[d1] = sum(in0) over d0\nout0 f32[d1] = t0\n"
    generator = ScriptedGenerator([["good_120"]])
    outcome = synthesize(parse_program(text), generator, host_judge(), Store.memory(), ONE_ROUND)
    assert isinstance(outcome.result, Unprofitable) and outcome.result.entry.status == "untried"
    assert outcome.result.entry.reason == "one operation at a time costs 130, and no kernel costs less than 130"
    assert generator.calls == []


def test_a_region_that_cannot_be_verified_is_untried_after_one_round() -> None:
    generator, judge = ScriptedGenerator([["vain_1"], ["good_130"]]), ScriptedJudge()
    budget = Budget(seconds=60, rounds=2, samples_per_round=1)
    outcome = synthesize(program(), generator, judge, Store.memory(), budget)
    assert isinstance(outcome.result, Unprofitable)
    assert outcome.result.entry.reason == "out0 cannot be told from a constant"
    assert (outcome.result.entry.status, outcome.result.entry.verdicts) == ("untried", 0)
    assert len(generator.calls) == 1 and judge.examined == ["vain_1"]


def test_a_failing_store_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise CacheBusy("locked for 10 s")

    store = Store.memory()
    for name in ("add_regions", "add_attempts", "put_entry", "clear_miss", "histories", "best_relatives"):
        monkeypatch.setattr(store, name, fail)
    outcome = synthesize(
        program(), ScriptedGenerator([["good_120"], ["good_130"]]), ScriptedJudge(), store, Budget(seconds=60)
    )
    assert outcome.entry is not None and "good_130" in outcome.entry.code
    assert caplog.text.count("the kernel cache failed") == 1


def test_no_time_at_all_asks_nobody() -> None:
    generator, judge = ScriptedGenerator([["good_120"]]), ScriptedJudge()
    outcome = synthesize(program(), generator, judge, Store.memory(), Budget(seconds=0))
    assert outcome.result == Unfinished("the time budget ended")
    assert generator.calls == [] and judge.judged == []


def test_the_same_seed_asks_for_the_same_and_a_resumed_call_for_something_else() -> None:
    def seeds(store: Store, rounds: int) -> list[int]:
        generator = ScriptedGenerator([["wrong_1"], ["wrong_2"], ["wrong_3"]])
        budget = Budget(seconds=60, rounds=rounds, samples_per_round=1)
        synthesize(program(), generator, ScriptedJudge(), store, budget, seed=7)
        return [seed for _, _, seed in generator.calls]

    once = seeds(Store.memory(), 3)
    assert once == seeds(Store.memory(), 3)
    assert len(set(once)) == 3
    store = Store.memory()
    assert seeds(store, 1) + seeds(store, 3) == once


CHILD = """
    import os, signal, sys
    sys.path[:0] = {paths!r}
    from pathlib import Path
    from synthesis_doubles import ScriptedGenerator, ScriptedJudge, program
    from cudal1_compile.dispatch.kernel_cache import open_store
    from cudal1_compile.synthesis.budget import Budget
    from cudal1_compile.synthesis.rounds import synthesize
    judge = ScriptedJudge()
    def before(name):
        if name == "good_140":
            os.kill(os.getpid(), signal.SIGKILL)
    judge.before = before
    generator = ScriptedGenerator([["slow_80", "wrong_1", "good_140", "good_110"]])
    synthesize(program(), generator, judge, open_store(Path({place!r})),
               Budget(seconds=60, rounds=2, samples_per_round=4, prompts_per_round=1))
"""


def test_a_killed_process_goes_on_from_what_is_stored(tmp_path: Path) -> None:
    paths = [p for p in (str(Path(__file__).parent), *sys.path) if p]
    script = textwrap.dedent(CHILD).format(paths=paths, place=str(tmp_path))
    child = subprocess.run([sys.executable, "-c", script], env=dict(os.environ), timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    store = open_store(tmp_path)
    stages = [a.stage for a in store.attempts(KEY, GPU.key)]
    assert sorted(stages) == ["deferred", "deferred", "timed", "verify"]
    judge = ScriptedJudge()
    generator = ScriptedGenerator([["good_150"]])
    budget = Budget(seconds=60, rounds=2, samples_per_round=4, prompts_per_round=1)
    outcome = synthesize(program(), generator, judge, store, budget)
    assert judge.judged[:2] == ["good_140", "good_110"]  # the first round is finished, not repeated
    assert len(generator.prompts) == 1 and generator.prompts[0].count("variant ") == 2
    assert outcome.entry is not None and "good_150" in outcome.entry.code


def test_process_budget_grants_what_is_left() -> None:
    total = ProcessBudget(30.0)
    assert total.take(20.0) == 20.0
    total.give_back(5.0)
    assert total.take(20.0) == 15.0
    assert total.take(20.0) == 0.0
    total.give_back(-3.0)
    assert total.take(1.0) == 0.0
    with pytest.raises(ValueError, match="rounds=0"):
        Budget(rounds=0)


def test_the_verdicts_of_the_doubles_are_the_real_ones() -> None:
    verdict = ScriptedJudge().judge_tasks([(program(), kernel("good_130"))])[0]
    assert isinstance(verdict, Timed) and verdict.timing is not None and verdict.timing.speedup == 1.3


def test_a_quick_measurement_never_wins() -> None:
    judge = ScriptedJudge()
    final = judge.examine(program(), kernel("good_130"))
    assert isinstance(final, Accepted) and final.proof.timing is not None and is_win(final.proof)
    assert not is_win(replace(final.proof, timing=replace(final.proof.timing, final=False)))


def test_what_is_only_timed_is_no_entry_and_no_baseline_is_skipped() -> None:
    """Its speed is stored and shown to the generator; the entry waits for a proof."""
    store, judge = Store.memory(), ScriptedJudge()
    judge.examine = lambda program, code: Deferred("the device is busy")  # type: ignore[method-assign]
    outcome = synthesize(program(), ScriptedGenerator([["good_150"]]), judge, store, ONE_SAMPLE)
    assert outcome.result == Unfinished("the device is busy") and store.entries() == []
    assert [(a.stage, a.speedup) for a in store.attempts(KEY, GPU.key)] == [("timed", 1.5)]


def test_a_region_at_its_floor_costs_no_candidate() -> None:
    store, judge, generator = Store.memory(), ScriptedJudge(), ScriptedGenerator([["good_130"]])
    timing = Timing(10.0, 10.0, None, 1.0, 1.0, 70, final=True, floor_us=9.5, floor_share=0.93)
    judge.baseline = Accepted(Proof(GPU.key, "exact", (), 1, timing))
    outcome = synthesize(program(), generator, judge, store, ONE_ROUND)
    assert isinstance(outcome.result, Unprofitable) and outcome.result.entry.status == "at_floor"
    assert outcome.result.entry.reason == "aten takes 10.0 us, 0.95 of the floor of 9.5 us"
    assert generator.calls == [] and judge.compared == [(32, False)]
    timing = fallback.timed(outcome.result.entry)
    assert timing is not None and (timing.baseline_us, timing.floor_us) == (10.0, 9.5)


def test_a_region_that_inductor_runs_at_its_floor_gives_its_candidates_up() -> None:
    class Floor(ScriptedJudge):
        def baselines(self, program: Program, inductor: bool) -> Verdict:
            super().baselines(program, inductor)
            timing = Timing(20.0, 20.0, None, 1.0, 1.0, 70, final=True, floor_us=9.5, floor_share=0.45)
            if inductor:
                timing = replace(timing, inductor_us=10.0, floor_share=0.93)
            return Accepted(Proof(GPU.key, "exact", (), 1, timing))

    judge, store, start = Floor(), Store.memory(), time.monotonic()
    outcome = synthesize(program(), ScriptedGenerator([["good_130"]]), judge, store, ONE_ROUND)
    assert time.monotonic() - start < 10.0  # they are not waited for
    assert isinstance(outcome.result, Unprofitable) and outcome.result.entry.status == "at_floor"
    assert judge.examined == [] and store.find_entry(KEY, GPU.key) == outcome.result.entry


def test_regions_are_worked_on_by_what_they_may_gain_in_all_their_uses() -> None:
    class Uneven(ScriptedJudge):
        def baselines(self, program: Program, inductor: bool) -> Verdict:
            super().baselines(program, inductor)
            us = {16: 10.0, 32: 6.0, 64: 100.0}[program.axes[0].size]
            floor_us = {16: 5.0, 32: 1.0, 64: 90.0}[program.axes[0].size]  # 5, 2 x 5, 10 us to gain
            timing = Timing(us, us, 2 * us, 2.0, 1.9, 70, final=True, floor_us=floor_us, floor_share=0.5)
            return Accepted(Proof(GPU.key, "exact", (), 1, timing))

    generator = ScriptedGenerator([["good_120"]])
    budget = Budget(seconds=60, rounds=1, samples_per_round=1, regions_at_once=1)
    programs = [program(n) for n in (16, 32, 64)]
    synthesize_all(programs, generator, Uneven(), Store.memory(), budget, values=[9.0, 1.0, 2.0], counts=[1, 3, 1])
    assert [p.split("d0=")[1].split()[0] for p in generator.prompts] == ["32", "64", "16"]


def test_the_judge_is_told_first_which_regions_come_and_last_that_none_does() -> None:
    judge, generator = ScriptedJudge(), ScriptedGenerator([["good_130"]])
    synthesize_all([program(), program(64)], generator, judge, Store.memory(), Budget(rounds=1))
    assert judge.expected == [2, 2, 0]  # at first by value, then by what they may gain


# an unprofitable entry tells what runs the region instead


def test_unprofitable_holds_aten_against_inductor() -> None:
    store, judge = Store.memory(), ScriptedJudge()
    outcome = synthesize(program(), ScriptedGenerator([["slow_80"]]), judge, store, ONE_SAMPLE)
    assert isinstance(outcome.result, Unprofitable) and judge.compared == [(32, False), (32, True)]
    entry = store.find_entry(KEY, GPU.key)
    assert entry is not None
    timing = measured(entry)
    assert timing is not None and is_atens(timing)
    assert (timing.aten_us, timing.inductor_us, timing.lower_bound) == (10.0, 16.0, 1.58)
    assert fallback.describe(entry) == "aten (aten 10.0 us, inductor 16.0 us: aten 1.60x, at least 1.58x)"
    assert why_outdated(entry, GPU) is None
    assert entry.reason == "1 candidates, 1 timed, the best at 0.80 of the baseline"


def test_a_region_that_is_too_long_has_baselines() -> None:
    judge, store = ScriptedJudge(), Store.memory()
    outcome = synthesize(program(), ScriptedGenerator([[]], budget_tokens=1), judge, store, ONE_SAMPLE)
    assert isinstance(outcome.result, Unprofitable) and len(judge.compared) == 2
    assert measured(outcome.result.entry) is not None and "tokens" in outcome.result.entry.reason


def test_baselines_that_cannot_be_compared_are_inductors() -> None:
    judge = ScriptedJudge()
    judge.baseline = Rejected("time", "Inductor has no CUDA graph of this region")
    outcome = synthesize(program(), ScriptedGenerator([["slow_80"]]), judge, Store.memory(), ONE_SAMPLE)
    assert isinstance(outcome.result, Unprofitable)
    assert fallback.describe(outcome.result.entry) == "inductor (aten was not measured)"


@pytest.mark.parametrize("failure", ["busy", "error", "time"])
def test_without_an_answer_the_region_stays_open_and_only_that_is_asked_again(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(judge: ScriptedJudge, program: Program, inductor: bool) -> Verdict:
        if failure == "error":
            raise RuntimeError("the worker is gone")
        return Deferred("the device may be busy")

    store, generator, failing = Store.memory(), ScriptedGenerator([["slow_80"]]), ScriptedJudge()
    budget = ONE_SAMPLE
    if failure == "time":
        failing.before, budget = lambda name: time.sleep(0.3), replace(ONE_SAMPLE, seconds=0.2)
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedJudge, "baselines", compare)
        outcome = synthesize(program(), generator, failing, store, budget)
    assert isinstance(outcome.result, Unfinished) and store.find_entry(KEY, GPU.key) is None
    judge = ScriptedJudge()
    assert isinstance(synthesize(program(), generator, judge, store, ONE_SAMPLE).result, Unprofitable)
    assert (len(generator.calls), len(judge.compared)) == (1, 2)
    assert judge.judged == (["slow_80"] if failure == "error" else [])  # it ended the first call before any reply


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\ud800", r"the reply holds U\+D800 at character 0, which is no text"),
        (f"{reply('good_150')}\0", r"the reply holds U\+0000 at character \d+, which is no text"),
        ("x" * 70_000_000, "a reply of 70000000 bytes, at most 131072 are allowed"),
        ("\u2264" * 50_000, "a reply of 150000 bytes, at most 131072 are allowed"),
        ("## a" + " " * 100_000, "reply lacks the sections"),
    ],
    ids=["surrogate", "nul", "long", "wide", "blanks"],
)
def test_what_can_be_no_reply_is_one_refused_reply(text: str, reason: str, tmp_path: Path) -> None:
    """The others count, the region's later rounds are asked for, and hardly any of it is kept."""
    start = time.process_time()
    generator = ScriptedGenerator(lambda call, prompts, n: [[text, reply("good_110")][:n] for _ in prompts])
    two_rounds = Budget(seconds=60, rounds=2, samples_per_round=2)
    with open_store(tmp_path) as store:
        outcome = synthesize(program(), generator, ScriptedJudge(), store, two_rounds)
    with open_store(tmp_path) as store:
        refused = [a for a in store.attempts(KEY, GPU.key) if a.stage == "text"]
    assert isinstance(outcome.result, Won) and len(generator.calls) == 2
    assert refused and all(re.match(reason, a.reason) for a in refused)
    assert all(len(a.code) <= KEPT_CHARACTERS or len(text) == len(a.code) for a in refused)
    assert time.process_time() - start < 5.0
