"""The device session's logic without a device: host objects stand in for cubins, a fake clock for CUDA."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from slow_cases import slow_but

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.attacks import ATTACKS
from benchmarks.redteam.attacks_reach import REACH
from benchmarks.redteam.honest import HONEST, SILU_SCALAR, Honest
from benchmarks.redteam.regions import region
from cudal1_compile.errors import LaunchError
from cudal1_compile.judge.bench.lean_session import Entrant
from cudal1_compile.judge.bench.session import DeviceSession, _Final, _Region
from cudal1_compile.judge.checks.case_suite import CaseSuite, prepare_suite
from cudal1_compile.judge.checks.case_suite_file import make_ahead
from cudal1_compile.judge.inputs.sizes import counts_in_floats
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.oracle.f32_accumulation import unrounded
from cudal1_compile.judge.timing import contenders as contenders_module
from cudal1_compile.judge.timing.clock import Clock, Contender
from cudal1_compile.judge.timing.floor import Floor
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Timed, Timing, Verdict
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from tests.audit_kinds import one_of_each_kind
from tests.host_worker import HostClock, HostFloor, Replayed

pytestmark = pytest.mark.host


def _session() -> DeviceSession:
    clock = cast(Clock, HostClock())
    made = DeviceSession(HOST, clock, Limits(inductor=False))
    made.floor = HostFloor(clock)
    return made


@pytest.fixture(scope="module")
def session() -> DeviceSession:
    return _session()


def _entrant(program: Program, code: str) -> Entrant:
    candidate = parse_candidate(code, program)
    return Entrant(candidate, build(program, candidate, HOST))


# test_judge_attacks asks, with the same exams, about every honest kernel and every attack


KINDS = one_of_each_kind(HONEST)


@pytest.mark.parametrize("honest", slow_but(KINDS[::2], KINDS), ids=lambda h: h.name)
def test_accepts_honest_kernels_with_a_quick_time(session: DeviceSession, honest: Honest) -> None:
    program = region(honest.region)
    verdict = session.judge(program, _entrant(program, honest.code), seed=7)
    assert isinstance(verdict, Accepted), verdict
    assert verdict.proof.timing is not None
    assert verdict.proof.timing.candidate_us > 0
    assert not verdict.proof.timing.final


ELSEWHERE = {  # what the judge reads in the text, and distances, which only the host target varies
    "asks a literal whether it is rounded",
    "asks a number of a name whether it is rounded",
    "asks a macro whether it is rounded",
    "zeros where an input lies a third of itself behind another",
}
HARMLESS = [
    a
    for a in ATTACKS
    if a.stages == ("verify",)
    and a.where != "host"
    and a.hack not in ("C18", "C20", "C21", "C27")
    and a.name not in ELSEWHERE
    # which the judge refuses by its text
    and not counts_in_floats(region(a.region), parse_candidate(a.code, region(a.region)))
]


FIRST = {a.hack: a for a in reversed(HARMLESS)}
TRIED = {a.name: a for a in (*FIRST.values(), *one_of_each_kind(HARMLESS))}


@pytest.mark.parametrize("attack", slow_but(FIRST.values(), TRIED.values()), ids=TRIED)
def test_rejects_attacks(session: DeviceSession, attack: Attack) -> None:
    program = region(attack.region)
    exact = unrounded(program, parse_candidate(attack.code, program))  # which the judge asks about first
    codes = [exact.code, attack.code] if exact else [attack.code]
    verdicts = [session.judge(program, _entrant(program, code), seed=7) for code in codes]
    assert any(isinstance(v, Rejected) and v.stage == "verify" for v in verdicts), verdicts


@pytest.mark.parametrize("attack", slow_but(REACH[::2], REACH), ids=lambda a: a.name)
def test_what_jumps_over_canaries_is_refused_and_harms_no_other_candidate(
    session: DeviceSession, attack: Attack
) -> None:
    """These kernels run in this process, as on a GPU: nothing stops their writes."""
    program = region(attack.region)
    right = next(h.code for h in HONEST if h.region == attack.region)
    for seed in (7, 8):  # case suites are made anew, or used again
        assert isinstance(session.judge(program, _entrant(program, attack.code), seed), Rejected)
        assert isinstance(session.judge(program, _entrant(program, right), seed), Accepted)


def test_finalists_are_measured_together_and_the_wrong_one_is_named(session: DeviceSession) -> None:
    program = region("softmax")
    right = [h.code for h in HONEST if h.region == "softmax"]
    wrong = next(a.code for a in ATTACKS if a.name == "softmax sum without its last element")
    verdicts = session.finalists(program, [_entrant(program, c) for c in (*right[:2], wrong)], seed=7)
    assert isinstance(verdicts[2], Rejected)
    for verdict in verdicts[:2]:  # a loaded machine may make the times vary; then no verdict is given
        assert not isinstance(verdict, Rejected)
        if isinstance(verdict, Accepted):
            assert verdict.proof.timing is not None
            assert verdict.proof.timing.final


def test_a_case_suite_made_ahead_is_used_checked_and_made_anew_where_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, path = region("softmax"), tmp_path / "suite"
    right = next(h.code for h in HONEST if h.region == "softmax")
    wrong = next(a.code for a in ATTACKS if a.name == "softmax sum without its last element")
    assert make_ahead(program, 7, (), path)
    session = _session()
    made: list[int] = []
    monkeypatch.setattr(
        "cudal1_compile.judge.bench.session.prepare_suite", lambda *a: made.append(1) or prepare_suite(*a)
    )
    for code, verdict in ((wrong, Rejected), (right, Accepted)):
        assert isinstance(session.judge(program, _entrant(program, code), 7, suite=str(path)), verdict)
    assert not made
    path.unlink()
    assert isinstance(session.judge(program, _entrant(program, right), 7, suite=str(path)), Accepted)
    assert not made
    _spoil(session)
    session._intact_last = None
    assert isinstance(session.judge(program, _entrant(program, wrong), 7, suite=str(path)), Rejected)
    assert made


def _spoil(session: DeviceSession) -> None:
    """What a wild write could do: whatever comes next would be within the tolerance."""
    for found in session._regions.values():
        for expected in found.suite.cases[0].expected:  # type: ignore[union-attr]
            with torch.inference_mode():
                expected.tolerance.fill_(torch.inf)


def test_a_spoilt_case_suite_is_made_anew() -> None:
    session = _session()
    program, right = region("softmax"), next(h.code for h in HONEST if h.region == "softmax")
    wrong = next(a.code for a in ATTACKS if a.name == "softmax sum without its last element")
    assert isinstance(session.judge(program, _entrant(program, right), seed=7), Accepted)
    for code, verdict in ((wrong, Rejected), (right, Accepted)):
        assert isinstance(session.judge(region("silu"), _entrant(region("silu"), SILU_SCALAR), seed=7), Accepted)
        _spoil(session)  # as that one might have
        assert isinstance(session.judge(program, _entrant(program, code), seed=7), verdict)


def test_a_write_into_the_case_of_one_candidate_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case for the numbers that a kernel names is no part of the region's case suite."""
    session = _session()
    program, code = region("silu"), SILU_SCALAR.replace("+ 0.5f", "+ 0.5f + 77.25f * 0.0f")
    attempt = session._try

    def spoilt(*args: Any) -> Verdict:
        verdict = attempt(*args)
        with torch.inference_mode():
            named[0].cases[-1].expected[0].tolerance[3, 3] = torch.inf  # type: ignore[index]
        return verdict

    named: list[CaseSuite] = []
    of = CaseSuite.of
    monkeypatch.setattr(CaseSuite, "of", lambda suite, candidate: named.append(of(suite, candidate)) or named[0])
    assert isinstance(session.judge(program, _entrant(program, code), seed=7), Accepted)
    named.clear()
    monkeypatch.setattr(session, "_try", spoilt)
    verdict = session.judge(program, _entrant(program, code), seed=7)
    assert named[0].cases[-1].name == "named"
    assert isinstance(verdict, Rejected) and "held against" in verdict.reason


def test_a_candidate_that_reaches_the_case_suite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _session()
    program, codes = region("softmax"), [h.code for h in HONEST if h.region == "softmax"][:2]
    time, timing = session._time, session._final_timing

    def timed(program: Program, found: _Region, final: _Final, budget_ms: float) -> Timing | Rejected | None:
        result = time(program, found, final, budget_ms)
        _spoil(session)
        return result

    monkeypatch.setattr(session, "_time", timed)
    for ask in (session.judge, session.quick):
        verdict = ask(program, _entrant(program, codes[0]), 7)
        assert isinstance(verdict, Rejected) and "held against" in verdict.reason
    guilty = _entrant(program, codes[0])

    def spoils(program: Program, found: _Region, finals: Mapping[int, _Final], seed: int) -> dict[int, Verdict]:
        verdicts = timing(program, found, finals, seed)
        if any(f.trial.candidate is guilty.candidate for f in finals.values()):
            _spoil(session)
        return verdicts

    monkeypatch.setattr(session, "_final_timing", spoils)
    first, second = session.finalists(program, [guilty, _entrant(program, codes[1])], seed=7)
    assert isinstance(first, Rejected) and "held against" in first.reason
    assert not isinstance(second, Rejected)


def test_an_implausible_time_is_rejected(session: DeviceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    program = region("silu")
    monkeypatch.setattr(session.clock, "floor_us", lambda *_: 1e9)
    verdict = session.judge(program, _entrant(program, HONEST[0].code), seed=7)
    assert isinstance(verdict, Rejected)
    assert verdict.stage == "time"
    assert "bytes" in verdict.reason


class _FrozenClock(HostClock):
    """A graph that gives what it gave when it was captured, as one with static buffers of its own would."""

    def capture(self, call: Callable[[int], object], calls: int) -> Replayed:
        call(0)
        return Replayed(lambda _: None, calls)


def test_a_graph_that_ignores_its_inputs_is_refused() -> None:
    session = DeviceSession(HOST, cast(Clock, _FrozenClock()), Limits(inductor=False))
    program = region("silu")
    (verdict,) = session.finalists(program, [_entrant(program, SILU_SCALAR)], seed=7)
    assert isinstance(verdict, Rejected)
    assert "replayed in a CUDA graph with new inputs" in verdict.reason


def test_every_launch_goes_to_the_clocks_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HostClock()
    clock.stream_handle = 77
    streams: list[object] = []
    launch = contenders_module.KernelRunner.launch

    def recorded(self: contenders_module.KernelRunner, *args: object) -> None:
        kernel = self._kernel
        monkeypatch.setattr(self, "_kernel", lambda *a: (streams.append(a[-1]), kernel(*a)))
        launch(self, *args)  # type: ignore[arg-type]
        monkeypatch.setattr(self, "_kernel", kernel)

    monkeypatch.setattr(contenders_module.KernelRunner, "launch", recorded)
    session = DeviceSession(HOST, cast(Clock, clock), Limits(inductor=False))
    program = region("silu")
    assert isinstance(session.judge(program, _entrant(program, SILU_SCALAR), seed=7), Accepted)
    assert set(streams) == {77}


@pytest.mark.parametrize("judged", ["session", "host"])
def test_a_kernel_that_needs_more_alignment_than_a_caller_gives_is_refused(
    judged: str, session: DeviceSession
) -> None:
    """Right as long as an allocator's own addresses come in; a view of a larger tensor has others."""
    program = region("silu")
    code = SILU_SCALAR.replace("float t =", "float t = ((unsigned long long)in0 & 31) ? 0.0f :")
    if judged == "session":
        verdict = session.judge(program, _entrant(program, code), seed=7)
    else:
        with Judge(HOST, Limits(host_s=4.0)) as judge:
            verdict = judge.judge(program, code)
    assert isinstance(verdict, Rejected)
    assert "out0" in verdict.reason


# want of room: put off, tried again, never held against a candidate


def _full(monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> DeviceSession:
    def fail(*_: object, **__: object) -> None:
        raise error

    session = DeviceSession(HOST, cast(Clock, HostClock()), Limits(inductor=place == "inductor"))
    match place:
        case "load":
            monkeypatch.setattr("cudal1_compile.judge.bench.session.load", fail)
        case "inductor":
            monkeypatch.setattr("cudal1_compile.judge.timing.contenders.inductor_baselines", fail)
        case "suite":
            monkeypatch.setattr("cudal1_compile.judge.bench.session.prepare_suite", fail)
        case _:
            monkeypatch.setattr(session.clock, place, fail)
    return session


NO_ROOM = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory"),
    LaunchError("cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY (2)"),
]


PLACES = ["suite", "load", "wait", "capture", "inductor"]


@pytest.mark.parametrize(
    ("place", "error"), [*((place, NO_ROOM[0]) for place in PLACES), *(("load", error) for error in NO_ROOM[1:])]
)
def test_a_full_device_puts_off_and_the_candidate_is_right_later(
    place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = region("silu")
    entrant = _entrant(program, SILU_SCALAR)
    with monkeypatch.context() as full:
        session = _full(full, place, error)
        (verdict,) = session.finalists(program, [entrant], seed=7)
        assert isinstance(verdict, Deferred) and verdict.reason.endswith(str(error)), verdict
    session.limits = Limits(inductor=False)
    assert isinstance(session.judge(program, entrant, seed=7), Accepted)


def test_another_error_is_no_want_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    program = region("silu")
    session = _full(monkeypatch, "load", LaunchError("cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE (200)"))
    verdict = session.judge(program, _entrant(program, SILU_SCALAR), seed=7)
    assert isinstance(verdict, Rejected) and verdict.stage == "build"


def test_half_of_what_is_free_is_the_limit_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _session()
    program = region("silu")
    entrant = _entrant(program, SILU_SCALAR)
    monkeypatch.setattr(session.clock, "free_bytes", lambda: 1 << 16)
    verdict = session.judge(program, entrant, seed=7)
    assert isinstance(verdict, Deferred)
    assert "MiB are free" in verdict.reason
    monkeypatch.setattr(session.clock, "free_bytes", lambda: 1 << 30)
    assert isinstance(session.judge(program, entrant, seed=7), Accepted)


# aten against Inductor


class _ScriptedClock(HostClock):
    """Contenders take what the script says; `spread` makes the rounds of one differ."""

    def __init__(self, us: dict[str, float], spread: float = 1.0) -> None:
        super().__init__()
        self.us, self.spread = us, spread
        self.measured: list[list[str]] = []

    def measure(self, contenders: Sequence[Contender], rounds: int, rng: random.Random) -> list[list[float]]:
        self.measured.append([a.name for a in contenders])
        for contender in contenders:
            contender.reset()
            contender.graph.replay()
        return [
            [self.us[a.name] * (self.spread if a.name == "aten" and i % 2 else 1) for i in range(7)]
            for a in contenders
        ]


class _Floor:
    def us(self, program: Program) -> float:
        return 8.0


def test_baselines_are_timed_together_and_held_against_the_floor() -> None:
    clock = _ScriptedClock({"aten": 10.0, "inductor": 16.0})
    session = DeviceSession(HOST, cast(Clock, clock), Limits())
    session.floor = cast(Floor, _Floor())
    alone, both = (session.baselines(region("softmax"), 7, inductor=i) for i in (False, True))
    assert (
        isinstance(alone, Accepted) and isinstance(both, Accepted) and clock.measured[-1] == ["aten", "inductor"]
    )
    found, timing = alone.proof.timing, both.proof.timing
    assert found is not None and timing is not None
    assert (found.aten_us, found.inductor_us, found.speedup, found.floor_share) == (10.0, None, 1.0, 0.8)
    assert (timing.aten_us, timing.inductor_us, timing.speedup, timing.final) == (10.0, 16.0, 1.6, True)
    assert timing.lower_bound == pytest.approx(1.6) and (timing.floor_us, timing.floor_share) == (8.0, 0.8)
    session.clock = cast(Clock, _ScriptedClock({"aten": 10.0, "inductor": 16.0}, spread=1.9))
    unsteady = session.baselines(region("softmax"), 7, inductor=True)
    assert isinstance(unsteady, Accepted) and unsteady.proof.timing is not None
    assert unsteady.proof.timing.lower_bound < 1.0 < unsteady.proof.timing.speedup


def test_a_floor_that_an_unsteady_baseline_may_miss_is_not_reached() -> None:
    session = DeviceSession(HOST, cast(Clock, _ScriptedClock({"aten": 8.2}, spread=1.1)), Limits(inductor=False))
    session.floor = cast(Floor, _Floor())
    verdict = session.baselines(region("softmax"), 7, inductor=False)
    assert isinstance(verdict, Accepted) and verdict.proof.timing is not None
    assert verdict.proof.timing.floor_share == pytest.approx(8.0 / (8.2 * 1.1))


def test_candidates_are_timed_against_the_faster_baseline_that_is_known() -> None:
    clock = _ScriptedClock({"aten": 20.0, "inductor": 16.0, "candidate": 10.0})
    session = DeviceSession(HOST, cast(Clock, clock), Limits())
    session.floor = cast(Floor, _Floor())
    program = region("softmax")
    right, other = [h.code for h in HONEST if h.region == "softmax"][:2]
    first = session.quick(program, _entrant(program, right), 7)
    assert isinstance(session.baselines(program, 7, inductor=True), Accepted)
    second = session.quick(program, _entrant(program, other), 7)
    assert isinstance(first, Timed) and isinstance(second, Timed)
    assert first.timing is not None and second.timing is not None
    assert (first.timing.speedup, first.timing.inductor_us, first.timing.final) == (2.0, None, False)
    assert (second.timing.speedup, second.timing.aten_us, second.timing.inductor_us) == (1.6, 20.0, 16.0)
    assert second.timing.upper_bound == pytest.approx(1.6)


def test_what_is_grossly_wrong_is_not_timed() -> None:
    session = DeviceSession(HOST, cast(Clock, _ScriptedClock({"aten": 9.0, "candidate": 1.0})), Limits())
    program = region("softmax")
    wrong = next(a.code for a in ATTACKS if a.name == "softmax sum without its last element")
    grossly = next(h.code for h in HONEST if h.region == "softmax").replace("st(", "if (i % 3) st(")
    verdict = session.quick(program, _entrant(program, grossly), 7)
    assert isinstance(verdict, Rejected) and verdict.stage == "verify", verdict
    # what only a case suite sees is timed, and its examination refuses it
    assert isinstance(session.quick(program, _entrant(program, wrong), 7), Timed)
    assert isinstance(session.judge(program, _entrant(program, wrong), 7), Rejected)


LAZY = SILU_SCALAR.replace(
    "st(out0 + i, t * sigmoid(t) + 0.5f);",
    "float y = t * sigmoid(t) + 0.5f;\n  bool same = warp_min(out0[i - 2 * 12160] == y ? 1 : 0);\n"
    "  if (!same) st(out0 + i, y);",
)


@pytest.mark.parametrize("code", [LAZY, SILU_SCALAR + "  // and one byte behind a timed result"])
def test_all_calls_of_a_timed_graph_are_looked_at(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lazy one finds the results of the call before the last, 12160 elements before its own."""
    session = DeviceSession(HOST, cast(Clock, _ScriptedClock({"aten": 5.0, "candidate": 3.0})), Limits())
    program = region("silu")
    poison = contenders_module.CallBuffers.poison
    if code != LAZY:

        def spoil(slots: contenders_module.CallBuffers) -> None:
            poison(slots)
            end = slots.outputs(1)[0]
            torch.as_strided(end, (1,), (1,), end.storage_offset() + end.numel()).fill_(0.0)

        monkeypatch.setattr(contenders_module.CallBuffers, "poison", spoil)
    verdict = session.judge(program, _entrant(program, code), seed=7)
    assert isinstance(verdict, Rejected) and verdict.stage == "time", verdict
    assert "timed call" in verdict.reason


def test_the_host_target_has_no_baselines_to_compare() -> None:
    with Judge(HOST) as judge:
        assert "no clock" in str(judge.baselines(region("softmax")))


def test_an_answer_by_the_page_of_a_buffer_is_refused_whatever_places_are_drawn(session: DeviceSession) -> None:
    attack = next(a for a in ATTACKS if a.name == "zeros on odd pages")
    program = region(attack.region)
    entrant = _entrant(program, attack.code)
    assert not [seed for seed in range(12) if isinstance(session.judge(program, entrant, seed), Accepted)]


STEM = """region v1
dims d0=64 d1=8 d2=128
in0 f32[d0,d1]
in1 f32[d1,d2]
t0 f32[d0,d2] = dot(in0, in1) over d1
t1 f32[d0] = amax(t0) over d2
out0 f32[d0] = t1
"""


@pytest.mark.parametrize(("shape", "stage"), [("d0, d2", "verify"), ("2, d0, d2, 2", "text")])
def test_scratch_may_hold_the_products_that_a_library_writes_down(
    shape: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 KiB of them, between tensors of 6: as of a first layer whose results are pooled."""
    monkeypatch.setattr("cudal1_compile.judge.judge.MIN_SCRATCH_LIMIT", 1 << 10)
    program = parse_program(STEM)
    code = f"""// scratch: s0 f32[{shape}]
// launch: f<<<1, 32>>>(in0, in1, s0, out0)
__global__ void f(const f32* in0, const f32* in1, f32* s0, f32* out0 DIMS) {{
  if (threadIdx.x < d0) st(out0 + threadIdx.x, ld(s0 + threadIdx.x));
}}
"""
    with Judge(HOST) as judge:
        verdict = judge.judge(program, code)
    assert isinstance(verdict, Rejected) and verdict.stage == stage, verdict
    assert stage != "text" or "131072 bytes of scratch, at most 78336" in verdict.reason
