"""The audit on a GPU: every attack is rejected, no honest kernel is refused, hangs cost little."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.redteam.attacks import Attack, attacks_for
from benchmarks.redteam.attacks_reach import REACH
from benchmarks.redteam.honest import HONEST, SILU_SCALAR, SILU_VECTOR, Honest
from benchmarks.redteam.regions import region
from cudal1_compile.judge.bench.worker_pool import properties_of
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import landlock, wire
from cudal1_compile.judge.sandbox.isolation import worker_environment
from cudal1_compile.judge.sandbox.process import Worker, _Alone
from cudal1_compile.judge.timing.clock import Clock
from cudal1_compile.judge.verdict import Accepted, Rejected, Verdict
from cudal1_compile.runtime.target import detect_target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu

ATTACKS = attacks_for("cuda")
CONVOLUTION = """region v1
dims d0=8 d1=28 d2=28 d3=128 d4=28 d5=28 d6=128 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d6,d3,k0,k1]
t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d1=d4+k0-1, d2=d5+k1-1], in1) over d3,k0,k1
t1 f32[d6] = sum(t0) over d0,d4,d5
out0 f32[d0,d4,d5,d6] = t0
out1 f32[d6] = t1
"""
# what a process of a judge does with a region
MASKED = """region v1
dims d0=64 d1=256
in0 f32[d0,d1]
t0 bool[d0,d1] = gt(in0, 0.5)
t1 f32[d0,d1] = where(t0, in0, 0.0)
out0 f32[d0,d1] = t1
"""
ODD_PRODUCT = """region v1
dims d0=2048 d1=2050 d2=768
in0 bf16[d0,d2]
in1 bf16[d2,d1]
t0 bf16[d0,d1] = dot(in0, in1) over d2
out0 bf16[d0,d1] = t0
"""
WHOLE = """
import sys, torch
from torch._dynamo.utils import counters
from cudal1_compile.judge.timing.baseline import inductor_baselines
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_fx_passes.program.text import parse_program
program, device = parse_program(sys.argv[1]), torch.device("cuda", 0)
print(len(inductor_baselines(program, device, make_inputs(program, "normal", 1, device))))
print(counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    with Judge(detect_target(torch.device("cuda")), Limits()) as made:
        yield made


@pytest.fixture(scope="session")
def attack_verdicts(judge: Judge) -> dict[str, Verdict]:
    """Some attacks are seen by the host's memory check alone, which only finalists get."""
    tasks = [(region(a.region), a.code) for a in ATTACKS]
    verdicts = judge.judge_tasks(tasks)
    passed = [i for i, v in enumerate(verdicts) if isinstance(v, Accepted)]
    finals = [judge.submit_finalists(tasks[i][0], [tasks[i][1]])[0] for i in passed]
    found = dict(enumerate(verdicts)) | {i: v.result() for i, v in zip(passed, finals, strict=True)}
    return {a.name: found[i] for i, a in enumerate(ATTACKS)}


@pytest.fixture(scope="session")
def honest_verdicts(judge: Judge) -> dict[str, Verdict]:
    verdicts = judge.judge_tasks([(region(h.region), h.code) for h in HONEST])
    return {h.name: v for h, v in zip(HONEST, verdicts, strict=True)}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_rejects(attack: Attack, attack_verdicts: dict[str, Verdict]) -> None:
    verdict = attack_verdicts[attack.name]
    assert isinstance(verdict, Rejected), verdict
    assert verdict.stage in attack.stages, verdict


@pytest.mark.parametrize("honest", HONEST, ids=lambda h: h.name)
def test_accepts_with_a_time(honest: Honest, honest_verdicts: dict[str, Verdict]) -> None:
    verdict = honest_verdicts[honest.name]
    assert isinstance(verdict, Accepted), verdict
    timing = verdict.proof.timing
    assert timing is not None
    assert 0 < timing.candidate_us < 1e5
    assert timing.aten_us > 0


def test_finalists_are_measured_against_inductor(judge: Judge) -> None:
    verdicts = judge.finalists(region("silu"), [SILU_SCALAR, SILU_VECTOR])
    accepted = [v for v in verdicts if isinstance(v, Accepted)]
    assert accepted, verdicts
    for verdict in accepted:
        timing = verdict.proof.timing
        assert timing is not None
        assert timing.final
        assert timing.inductor_us is not None


def test_a_known_good_kernel_passes(judge: Judge) -> None:
    assert judge.trouble() is None


def test_a_good_candidate_right_after_a_hang_is_accepted(judge: Judge) -> None:
    hang = next(a for a in ATTACKS if a.name == "never ends")
    first, second = judge.judge_tasks([(region("silu"), hang.code), (region("silu"), SILU_SCALAR)])
    assert isinstance(first, Rejected)
    assert isinstance(second, Accepted)


def test_later_finalists_of_a_region_find_inductors_kernel_compiled(judge: Judge) -> None:
    judge.finalists(region("silu"), [SILU_SCALAR])
    before_s = judge.spent_s["inductor"]
    (verdict,) = judge.finalists(region("silu"), [SILU_VECTOR])
    assert isinstance(verdict, Accepted) and verdict.proof.timing is not None
    assert verdict.proof.timing.inductor_us is not None
    assert judge.spent_s["inductor"] == before_s > 0


@pytest.mark.parametrize(
    "program",
    [*map(region, ("softmax", "running_sum", "argmax")), *map(parse_program, (CONVOLUTION, MASKED, ODD_PRODUCT))],
    ids=["softmax", "scan", "argmax", "convolution", "constants", "padded"],
)
def test_a_baseline_is_compiled_ahead_for_the_device_without_it(program: Program, tmp_path: Path) -> None:
    """Both of them, where Inductor might pad a product."""
    made = 2 if program == parse_program(ODD_PRODUCT) else 1
    ahead = Worker(compiled=tmp_path)
    reply = ahead.ask(wire.compile_request(program, "cuda:0", properties_of(0)), 120.0)
    assert isinstance(ahead._process, _Alone)
    tasks = Path(f"/proc/{ahead._process._process.pid}/task").glob("*/comm")
    assert "cuda-EvtHandlr" not in {task.read_text().strip() for task in tasks}, "it has a CUDA context"
    ahead.kill()
    assert "why_not" not in reply, reply
    assert made == 2 or list(tmp_path.rglob("*.cubin"))
    other = [sys.executable, "-c", WHOLE, print_program(program)]
    environment = dict(worker_environment(tmp_path, tmp_path))
    done = subprocess.run(other, env=environment, capture_output=True)
    assert done.stdout.split() == [*map(str.encode, map(str, (made, made, 0)))], done.stderr.decode()


def test_the_clock_flushes_twice_the_cache_on_a_stream_of_its_own(judge: Judge) -> None:
    clock = Clock(torch.device("cuda", 0), judge.target.l2_bytes)
    assert clock._flush.numel() * clock._flush.element_size() >= 2 * judge.target.l2_bytes > 0
    assert clock.stream_handle not in (0, torch.cuda.default_stream().cuda_stream)


def test_workers_are_limited_and_restarts_are_seen(judge: Judge) -> None:
    before = judge.counts["worker restarts"]
    hang = next(a for a in ATTACKS if a.name == "never ends")
    judge.judge(region("silu"), hang.code + "constexpr int again = 1;\n")
    assert judge.counts["worker restarts"] == before + 1
    assert judge.isolation["dies_with_parent"]
    assert judge.isolation["read_only_files"] == (landlock.version() > 0)


def test_several_workers_judge_at_once_and_a_fault_of_one_is_not_the_others() -> None:
    """With a hang and an illegal write among them, verdicts are those of one worker, in order."""
    bad = {a.name: a for a in ATTACKS if a.name in ("never ends", "writes far away")}
    tasks = [(h.region, h.code) for h in HONEST] + [(a.region, a.code) for a in bad.values()]
    found = {}
    for workers in (1, 3):
        with Judge(detect_target(torch.device("cuda")), Limits(workers=workers, inductor=False)) as several:
            end = time.monotonic() + 60.0
            while several.workers < workers and time.monotonic() < end:
                several.judge_tasks([(region(name), code) for name, code in tasks[: len(HONEST)]])
            assert several.workers == workers
            found[workers] = [type(v) for v in several.judge_tasks([(region(n), c) for n, c in tasks])]
            assert several.counts["worker restarts"] == len(bad) == 2
            if workers > 1:
                assert several.spent_s["waited for the device"] > 0
    assert found[3] == found[1] == [Accepted] * len(HONEST) + [Rejected] * 2


def test_short_of_room_one_worker_judges() -> None:
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - (9 << 30)), dtype=torch.uint8, device="cuda")
    with Judge(detect_target(torch.device("cuda")), Limits(workers=3, inductor=False)) as judge:
        verdicts = judge.judge_tasks([(region(h.region), h.code) for h in HONEST[:8]])
        assert all(isinstance(v, Accepted) for v in verdicts), verdicts
        assert judge.workers == 1
    del held
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def plain_judge() -> Iterator[Judge]:
    """Gates 1 to 5: nothing that runs on the host looks at what a kernel touches."""
    with Judge(detect_target(torch.device("cuda")), Limits(workers=1, inductor=False)) as made:
        yield made


@pytest.mark.parametrize("attack", REACH, ids=lambda a: a.name)
def test_what_jumps_over_canaries_is_refused_and_harms_no_other_candidate(
    attack: Attack, plain_judge: Judge
) -> None:
    right = next(h.code for h in HONEST if h.region == attack.region)
    right += (
        f"constexpr int behind_{REACH.index(attack)} = 1;\n"  # a verdict that was given before is not given again
    )
    verdicts = plain_judge.judge_tasks([(region(attack.region), c) for c in (attack.code, right)])
    assert isinstance(verdicts[0], Rejected), verdicts[0]
    assert verdicts[0].stage == "verify"
    assert isinstance(verdicts[1], Accepted), verdicts[1]
