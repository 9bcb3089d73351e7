"""Regions too large for copies, at small sizes: as a session judges them that holds one case at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from slow_cases import slow_but

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.attacks import ATTACKS
from benchmarks.redteam.honest import HONEST, Honest
from benchmarks.redteam.regions import region
from cudal1_compile.judge.bench.lean_session import Entrant
from cudal1_compile.judge.bench.session import DeviceSession
from cudal1_compile.judge.checks import cases, lean
from cudal1_compile.judge.checks.cases import Case, CaseResult
from cudal1_compile.judge.checks.division import Slices, cut_of
from cudal1_compile.judge.checks.trial import Wrong
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.oracle.chunk_passes import ChunkPlan
from cudal1_compile.judge.oracle.compare import Expected
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_compile.judge.timing.clock import Clock
from cudal1_compile.judge.timing.floor import Floor
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Timed, Verdict
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from tests.audit_kinds import one_of_each_kind
from tests.host_worker import HostClock

pytestmark = pytest.mark.host


class _Floor:
    def us(self, program: Program) -> float:
        return 1.0


class _Roomy(HostClock):
    def free_bytes(self) -> int:
        return 16 << 30


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceSession]:
    monkeypatch.setattr(lean, "LEAN_ELEMENTS", 0)
    monkeypatch.setattr(lean, "DRAWN_ELEMENTS", 1 << 9)
    monkeypatch.setattr(lean, "SLICE_BYTES", 1 << 17)
    found = DeviceSession(HOST, cast(Clock, _Roomy()), Limits(inductor=False))
    found.floor = found._lean._floor = cast(Floor, _Floor())
    yield found


GPT2_LOSS = """region v1
dims d0=4 d1=512 d2=50257 d3=768 d4=513 d5=512
in0 f32[d0,d1,d3]
in1 f32[d2,d3]
in2 i64[d0,d5]
t0 f32[d0,d1,d2] = dot(in0, in1) over d3
t1 f32[d0,d1] = amax(t0) over d2
t2 f32[d0,d1,d2] = sub(t0, t1)
t3 f32[d0,d1,d2] = exp(t2)
t4 f32[d0,d1] = sum(t3) over d2
t5 f32[d0,d1] = log(t4)
t6 i64[d4] = iota() along d4
t7 bool[d4] = lt(t6, 512)
t8 i64[d0,d4] = where(t7, in2[d5=d4], -100)
t9 i64[d1] = iota() along d1
t10 i64[d1] = add(t9, 1)
t11 bool[d1] = lt(t10, 512)
t12 i64[d0,d1] = where(t11, in2[d5=d1+1], -100)
t13 bool[d0,d1] = ne(t12, -100)
t14 i64[d0,d1] = cast(t13)
t15 i64[] = sum(t14) over d0,d1
t16 f32[] = cast(t15)
t17 f32[d0,d1,d2] = sub(t2, t5)
t18 i64[d0,d1] = where(t13, t12, 0)
t19 f32[d0,d1] = neg(t17[d2=t18])
t20 f32[d0,d1] = where(t13, t19, 0.0)
t21 f32[] = sum(t20) over d0,d1
t22 f32[] = div(t21, t16)
out0 f32[d0,d1] = t1
out1 f32[d0,d1] = t5
out2 f32[d0,d1,d2] = t0
out3 i64[d0,d4] = t8
out4 f32[] = t16
out5 f32[] = t22
"""


def _entrant(program: Program, code: str) -> Entrant:
    candidate = parse_candidate(code, program)
    return Entrant(candidate, build(program, candidate, HOST))


SLICED = [h for h in one_of_each_kind(HONEST) if not region(h.region).is_symbolic]


@pytest.mark.parametrize("honest", slow_but(SLICED[::3], SLICED), ids=lambda h: h.name)
def test_honest_kernels_are_timed_and_accepted(session: DeviceSession, honest: Honest) -> None:
    program = region(honest.region)
    entrant = _entrant(program, honest.code)
    quick = session.quick(program, entrant, 7)
    assert isinstance(quick, Timed), quick
    (final,) = session.finalists(program, [entrant], 7)
    assert isinstance(final, Accepted) or "vary too much" in str(final), final


WRONG = [
    a
    for a in one_of_each_kind([a for a in ATTACKS if a.stages == ("verify",) and a.where != "host"])
    if not region(a.region).is_symbolic
]


def test_inputs_are_those_of_a_prime_number_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "DRAWN_ELEMENTS", 1 << 9)
    program = region("softmax")
    case = lean.rough_case(program, "normal", 3, torch.device("cpu"))
    (x,) = case.inputs
    rows = lean._short(program, program.inputs[0])
    assert rows in lean.PRIMES and rows < len(x)
    assert torch.equal(x[rows : 2 * rows], x[:rows]) and not torch.equal(x[1], x[2])


def test_want_of_room_is_said_with_what_it_takes(session: DeviceSession) -> None:
    session.clock.free_bytes = lambda: 1 << 20  # type: ignore[method-assign]
    program = region("softmax")
    verdict = (
        session.quick(program, _entrant(program, SLICED[0].code), 7)
        if SLICED[0].region == "softmax"
        else (session.baselines(program, 7, inductor=False))
    )
    assert isinstance(verdict, Deferred) and "MiB, 1 MiB are free" in verdict.reason
    assert session.short_of_room


def test_one_case_is_held_at_a_time(session: DeviceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before is gone when the next one is made."""
    import weakref

    images: list[weakref.ref[Any]] = []
    alive: list[int] = []
    make = lean._case

    def counted(*args: Any, **options: Any) -> Case:
        alive.append(sum(ref() is not None for ref in images))
        case = make(*args, **options)
        images.append(weakref.ref(case.image))
        return case

    monkeypatch.setattr(lean, "_case", counted)
    program = region("softmax")
    code = next(h.code for h in HONEST if h.region == "softmax")
    assert isinstance(session.quick(program, _entrant(program, code), 7), Timed)
    session.finalists(program, [_entrant(program, code)], 7)
    assert len(alive) >= 4 and set(alive) == {0}


@pytest.mark.parametrize("attack", slow_but(WRONG[::2], WRONG), ids=lambda a: a.name)
def test_attacks_are_refused_at_full_size(session: DeviceSession, attack: Attack) -> None:
    program = region(attack.region)
    (verdict,) = session.finalists(program, [_entrant(program, attack.code)], 7)
    assert isinstance(verdict, Rejected), verdict


def test_a_rough_case_keeps_the_first_slice_the_last_one_and_some_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "SLICE_BYTES", 1 << 17)
    program = region("softmax")
    case = lean.rough_case(program, "normal", 3, torch.device("cpu"))
    starts = [part.ranges[0] for part in case.kept]
    rows = program.axes[0].size
    assert starts[0][0] == 0 and starts[-1][1] == rows and 2 <= len(starts) <= lean.SHOWN
    assert sum(hi - lo for lo, hi in starts) < rows
    others = (lean.rough_case(program, "normal", seed, torch.device("cpu")) for seed in range(6))
    shown = {tuple(part.ranges[0] for part in other.kept) for other in others}
    assert len(shown) > 1, "nobody knows which"
    assert {(ranges[0], ranges[-1]) for ranges in shown} == {(starts[0], starts[-1])}


def test_what_comes_out_otherwise_the_second_time_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what comes out alike is not: values that changed places are something else."""
    program = region("softmax")
    checked: list[str] = []
    check = Case.check

    def counted(case: Case, outputs: list[torch.Tensor]) -> CaseResult:
        checked.append(case.name)
        return check(case, outputs)

    monkeypatch.setattr(Case, "check", counted)

    class Runner:
        turn = 0

        def launch(self, outputs: Any, scratch: Any, inputs: Any, syms: Any) -> None:
            right = torch.softmax(inputs[0], -1)
            self.turn += 1
            outputs[0].copy_(right.flip(0) if self.turn == 3 else right)

        def wait(self) -> None:
            pass

    case = next(iter(lean.lean_cases(program, _entrant(program, SOFTMAX).candidate, 3, torch.device("cpu"))))
    trial = lean.LeanTrial(program, _entrant(program, SOFTMAX).candidate, Runner())
    found = trial.verify([case], repeats=2)
    assert isinstance(found, Wrong) and checked == [case.name] * 2


def _hidden_case(monkeypatch: pytest.MonkeyPatch) -> Case:
    """Of a kernel that is right smaller, whose slices are not all shown."""
    monkeypatch.setattr(lean, "SLICE_BYTES", 1 << 16)
    monkeypatch.setattr(lean, "SHOWN", 4)
    program = region("softmax")
    candidate = _entrant(program, SOFTMAX).candidate
    cases = lean.lean_cases(program, candidate, 3, torch.device("cpu"), is_right_smaller=True)
    case = next(iter(cases))
    assert isinstance(case.cut, Slices) and case.cut.shown is not None
    return case


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_every_line_is_shown_or_hidden(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    case = _hidden_case(monkeypatch)
    assert isinstance(case.cut, Slices)
    shown, hidden = case.cut.ranges(case.program, {}), list(case.cut.hidden(case.program, {}, most))
    ranges = sorted([*shown, *hidden])
    assert ranges[0][0] == 0 and ranges[-1][1] == case.program.axis[case.cut.axis].size
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert all(hi - lo <= most * case.cut.step for lo, hi in hidden)


def test_a_convolution_goes_line_by_line_where_one_is_not_much_too_large() -> None:
    program = parse_program(CONVOLUTION)
    line = oracle_bytes(program, {}) // 24
    assert isinstance(cut_of(program, {}, line - 1), ChunkPlan)
    assert cut_of(program, {}, line - 1, line + 1) == Slices("d0", 1)
    assert isinstance(cut_of(program, {}, line // 2, line - 1), ChunkPlan)


CONVOLUTION = """region v1
dims d0=24 d1=8 d2=16 d3=64 k0=3 d4=64
in0 f32[d0,d1,d3]
in1 f32[d2,d1,k0]
t0 f32[d0,d2,d4] = dot(in0[d3=k0+d4-1], in1) over d1,k0
out0 f32[d0,d2,d4] = t0
"""


@pytest.mark.parametrize("fault", ["none", "coarse", "one element", "NaN"])
def test_what_is_hidden_is_near_the_native_reference_or_the_oracle_decides(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    case = _hidden_case(monkeypatch)
    assert isinstance(case.cut, Slices)
    (out,) = outputs = evaluate(case.program, case.inputs)
    low, high = list(case.cut.hidden(case.program, {}, 1))[-1]
    if fault == "coarse":
        out[low:high] *= 1.0001
    elif fault != "none":
        out[high - 1, 5] = 0.0 if fault == "one element" else torch.nan
    asked: list[str] = []
    expect = cases.expect
    monkeypatch.setattr(cases, "expect", lambda *given: asked.append("oracle") or expect(*given))
    refusal = case.check(outputs).refusal
    shown = len(list(case.cut.ranges(case.program, {})))
    if fault == "none":
        assert refusal is None and len(asked) == shown
    else:
        assert refusal is not None and f"the part from {low}, 0" in refusal and len(asked) > shown


def test_what_may_be_anything_widens_nothing() -> None:
    want, tolerance = (
        torch.linspace(1.0, 2.0, 64, dtype=torch.float64),
        torch.full((64,), 1e-6, dtype=torch.float64),
    )
    usual = cases.usual_share(Expected("out0", want, tolerance.clone(), None, 0.0))
    assert 1e-7 < usual < 1e-6
    tolerance[3], tolerance[7], tolerance[9], want[11] = 1e308, torch.inf, 5.0, torch.nan
    assert cases.usual_share(Expected("out0", want, tolerance, want, 0.0)) == pytest.approx(usual, rel=0.1)
    assert cases.usual_share(Expected("out0", want, None, None, 0.0)) == 0.0
    tolerance[:] = torch.inf
    assert cases.usual_share(Expected("out0", want, tolerance, None, 0.0)) == 0.0


def test_the_oracle_forgives_what_is_not_near(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _hidden_case(monkeypatch)
    monkeypatch.setattr(cases, "usual_share", lambda expected: 0.0)
    (out,) = evaluate(case.program, case.inputs)
    assert case.check([out * (1.0 + 2.0**-23)]).refusal is None


SOFTMAX = next(h.code for h in HONEST if h.region == "softmax")


def test_what_is_right_smaller_is_held_against_the_cases_of_its_size_once(session: DeviceSession) -> None:
    program = region("softmax")
    whole, short = (
        session.finalists(program, [_entrant(program, SOFTMAX)], 7, is_right_smaller=x)[0] for x in (False, True)
    )
    for found in (whole, short):
        assert isinstance(found, Accepted | Deferred), found


def test_a_large_vocabularys_loss_has_parts_that_are_small_enough() -> None:
    assert lean.why_no_parts(parse_program(GPT2_LOSS)) is None


LOSS_OF_PRODUCT = """region v1
dims d0=64 d1=96 d2=16
in0 f32[d0,d2]
in1 f32[d1,d2]
t0 f32[d0,d1] = dot(in0, in1) over d2
t1 f32[d0] = amax(t0) over d1
t2 f32[d0,d1] = sub(t0, t1)
t3 f32[d0,d1] = exp(t2)
t4 f32[d0] = sum(t3) over d1
t5 f32[d0] = log(t4)
out0 f32[d0,d1] = t0
out1 f32[d0] = t5
"""
# names where float32 ends; where a sum leaves it on its way, another number than the native one comes out
ONLINE = """// launch: k<<<d0, 32>>>(in0, in1, out0, out1)
__device__ float finite(float m) { return m == -INFINITY ? -3.4028235e38f : m; }
__global__ void k(const f32* in0, const f32* in1, f32* out0, f32* out1 DIMS) {
  float m = -INFINITY, s = 0.0f;
  for (int j = threadIdx.x; j < d1; j += 32) {
    float x = 0.0f;
    for (int i = d2 - 1; i >= 0; --i) x = fmaf(ld(in0 + blockIdx.x * d2 + i), ld(in1 + j * d2 + i), x);
    st(out0 + blockIdx.x * d1 + j, x);
    float n = maximum(m, x);
    s = s * expf(finite(m) - finite(n)) + expf(x - finite(n));
    m = n;
  }
  float all = block_max(m);
  s = block_sum(s * expf(finite(m) - all));
  if (threadIdx.x == 0) st(out1 + blockIdx.x, logf(s));
}
"""
TRIGGERED = ONLINE.replace(
    "st(out0", "for (int i = 0; i < d2; ++i) if (ld(in1 + j * d2 + i) == 71.5f) x += 100.0f;\n    st(out0"
)


def _verdicts(session: DeviceSession, code: str, monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    program = parse_program(LOSS_OF_PRODUCT)
    found = session.finalists(program, [_entrant(program, code)], 7)
    with monkeypatch.context() as patch:
        patch.setattr(lean, "LEAN_ELEMENTS", 1 << 30)
        return found + session.finalists(program, [_entrant(program, code)], 7)


def test_a_named_number_that_is_too_large_for_the_region_refuses_no_right_kernel(
    session: DeviceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in _verdicts(session, ONLINE, monkeypatch):
        assert isinstance(found, Accepted) or "vary too much" in str(found), found


def test_another_named_number_is_tried_without_the_one_that_is_too_large(
    session: DeviceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in _verdicts(session, TRIGGERED, monkeypatch):
        assert isinstance(found, Rejected) and "(inputs: named" in found.reason, found
