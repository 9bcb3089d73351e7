"""Rewards: what a reply scores, how scores are smoothed, what the group makes of them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stage_toys import FAST, REPLIES, SLOW, TASKS, WRONG, verdict_on

from cudal1_compile.codegen.templates import write_analysis
from cudal1_compile.judge.verdict import Accepted, Deferred, HostCost, Proof, Rejected, Timing
from cudal1_compile.kernel.candidate import Exemplar, Reply, print_reply
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.pairs import H100
from cudal1_trainer.rl.reward import group_advantages, leave_one_out, smooth
from cudal1_trainer.scores.outcome import Code, Outcome, agrees, classify, conclude
from cudal1_trainer.scores.referee import Ruling

SHOWN = [Exemplar(SLOW, 0.94), Exemplar(FAST, 1.2)]


def _reply(code: str, analysis: str = "Bound by memory.") -> str:
    return print_reply(Reply(analysis, "pointwise", code))


def _timed(speedup: float) -> Accepted:
    return Accepted(Proof("cuda", "exact", (), 0, Timing(1.0, speedup, None, speedup, speedup, 9, True)))


def test_the_templates_comparison_agrees_with_the_measured_order_and_its_reverse_does_not() -> None:
    written = write_analysis(parse_program(TASKS[0]), SHOWN)
    assert agrees(written, SHOWN)
    assert not agrees(write_analysis(parse_program(TASKS[0]), [Exemplar(SLOW, 1.3), SHOWN[1]]), SHOWN)
    assert not agrees(written.replace("1.20x", "0.00x").replace("0.94x", "1.20x"), SHOWN)
    assert not agrees("Bound by memory.", SHOWN) and agrees("Bound by memory.", [])


def test_the_text_decides_what_it_can() -> None:
    agreeing = write_analysis(parse_program(TASKS[0]), SHOWN)
    new = FAST.replace("64", "128")
    assert isinstance(classify(_reply(new, agreeing), TASKS[0], SHOWN), Code)
    assert classify(_reply(FAST, agreeing), TASKS[0], SHOWN) == Outcome("copied")
    kinds = {
        "contradicts": _reply(new),
        "malformed": REPLIES[3],
        "forbidden": _reply("__device__ int calls;\n" + new, agreeing),
    }
    for kind, reply in kinds.items():
        found = classify(reply, TASKS[0], SHOWN)
        assert isinstance(found, Outcome) and (found.kind, found.score) == (kind, 0.0)
    without_kernel = classify(_reply(new.replace("f<<<", "g<<<")), TASKS[0], [])
    assert isinstance(without_kernel, Outcome) and without_kernel.kind == "malformed"


@given(st.integers(0, len(REPLIES[1])), st.integers(0, 40), st.text(max_size=40))
@example(REPLIES[1].index("<<<") + 3, 0, "(" * 20_000)
@example(REPLIES[1].index("<<<") + 3, 0, "9" * 10_000 + " * ")
def test_no_reply_whatever_ends_a_run(at: int, cut: int, junk: str) -> None:
    assert isinstance(classify(REPLIES[1][:at] + junk + REPLIES[1][at + cut :], TASKS[0], []), Outcome | Code)


def test_a_judge_s_word_becomes_an_outcome_and_gains_are_rounded_toward_one() -> None:
    assert (
        conclude(Ruling(Accepted(Proof("host", "exact", (), 0, None, HostCost(1.0, 1.118)))), HOST).score == 1.11
    )
    assert conclude(Ruling(_timed(0.992)), H100).score == 1.0
    assert conclude(Ruling(_timed(3.0), _timed(2.9)), H100).score == 2.9
    assert conclude(Ruling(_timed(9.0), Rejected("time", "2.0x")), H100).kind == "unbelievable"
    assert conclude(Ruling(Rejected("time", "too fast")), H100).kind == "unbelievable"
    assert conclude(Ruling(Rejected("time", "cost")), HOST).kind == "slow"
    assert conclude(Ruling(verdict_on(WRONG)), HOST).kind == "wrong"
    assert conclude(Ruling(Deferred("busy")), HOST).kind == "undecided"
    assert conclude(Ruling(Rejected("task", "vacuous")), HOST).kind == "undecided"
    assert conclude(Ruling(_timed(9.0), Rejected("task", "vacuous")), H100).kind == "undecided"
    assert conclude(None, HOST).kind == "lost"


def test_scores_are_smoothed_by_the_task_s_right_replies_and_clipped() -> None:
    assert smooth([2.0, 1.0, None], [1.0, 1.0, 2.0, 2.0]) == [pytest.approx(1.0), pytest.approx(-1.0), None]
    assert smooth([100.0], [1.0] * 9 + [100.0]) == [1.5]
    assert smooth([1.0, None], [1.0, 1.0]) == [0.0, None]
    assert smooth([0.0, 1.2, 0.0], [1.2]) == [-1.5, 0.0, -1.5]
    assert smooth([0.0, 0.0], []) == [-1.5, -1.5]


@given(st.lists(st.sampled_from([0.0, 0.9, 1.0, 1.05, 3.0]), min_size=2, max_size=16))
def test_refusals_do_not_change_what_right_replies_are_worth(scores: list[float]) -> None:
    right = [s for s in scores if s]
    values = smooth(scores, right)
    assert [v for v, s in zip(values, scores, strict=True) if s] == smooth(right, right)
    assert all(v == -1.5 for v, s in zip(values, scores, strict=True) if not s)


def test_speed_teaches_though_some_replies_are_wrong() -> None:
    """One of twelve: a reply that is 5% faster was worth a sixth of what the wrong one cost."""
    scores = [1.2] * 10 + [1.26, 0.0]
    *_, faster, wrong = leave_one_out(smooth(scores, [s for s in scores if s]))
    assert 0.9 < faster < 1.6 and wrong < -1.5


def test_the_clock_s_noise_teaches_less_than_a_wrong_reply() -> None:
    noise, wrong = [1.20, 1.21, 1.19, 1.20], [1.20, 1.21, 0.0, 1.20]
    quiet, loud = (group_advantages(smooth(s, [x for x in s if x])) for s in (noise, wrong))
    assert max(map(abs, quiet)) < 0.35 < 1.5 < max(map(abs, loud))
    faster = group_advantages(smooth([1.2, 1.8], [1.2, 1.8] * 4))
    assert faster == pytest.approx([-1.0, 1.0])


def test_group_advantages_have_mean_zero_and_deviation_one() -> None:
    assert group_advantages([1.0, -1.0, None]) == [1.0, -1.0, 0.0]
    assert group_advantages([0.5, 0.5]) == [0.0, 0.0] == group_advantages([0.5, None])


def test_leave_one_out_leaves_the_reply_itself_out() -> None:
    assert leave_one_out([1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])
    assert leave_one_out([1.0, None]) == [0.0, 0.0]
