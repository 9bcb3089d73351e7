"""Synthesis with the real judge on the host target; the generator is a labelled test double, or random weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from generate_models import make_checkpoint
from softmax_kernels import BUDGET, code, program, scripted
from synthesis_doubles import ScriptedGenerator

from cudal1_cache import Store
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.exemplars import ExemplarConfig
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Deferred
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.outcome import Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.rounds import synthesize
from cudal1_compile.synthesis.task import RegionTask
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint
from cudal1_fx_passes.program.text import parse_program


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    kept = os.environ.get("CUDAL1_CACHE_DIR")
    os.environ["CUDAL1_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    with Judge(HOST, Limits(build_threads=2), seed=5) as found:
        yield found
    os.environ.pop("CUDAL1_CACHE_DIR", None)
    if kept is not None:
        os.environ["CUDAL1_CACHE_DIR"] = kept


def test_good_wins_wrong_is_refused_and_round_two_sees_what_was_measured(judge: Judge) -> None:
    store = Store.memory()
    wrong = code(divisor="(total + 1.0f)")
    unsafe = code().replace("i < d1; i += blockDim.x) top", "i < d1 + 400; i += blockDim.x) top")
    generator = scripted([code(96), wrong, unsafe], [code(64), code(32), "__global__ broken"])
    outcome = synthesize(program(), generator, judge, store, BUDGET)
    assert isinstance(outcome.result, Won), outcome
    entry = outcome.result.entry
    assert entry.image.startswith(b"\x7fELF")
    assert entry.image_arch == HOST.arch
    assert entry.numerics == "reassociates"
    assert entry.speedup is not None and entry.speedup > 1.0
    assert "softmax<<<d0" in entry.code
    rows = store.attempts(fingerprint(program()), HOST.key)
    assert len(rows) == 6
    by_code = {a.code: a for a in rows}
    assert by_code[wrong + ""].stage == "verify" and "out0" in by_code[wrong].reason
    assert by_code[unsafe].stage == "verify" and by_code[unsafe].reason
    first, second = generator.prompts
    assert first.startswith("target host, cost")
    assert "variant" not in first
    good = by_code[code(96)]
    assert f"variant {good.speedup:.2f}x" in second and code(96).strip() in second
    assert code(divisor="(total + 1.0f)").strip() not in second
    assert entry.speedup == max(a.speedup for a in rows if a.stage == "accepted" and a.speedup is not None)


def test_designs_and_edits_alone_win_and_are_shown_and_inherited(judge: Judge) -> None:
    """From a generator with room for instructions, as a large language model is."""
    store = Store.memory()
    row_sum = (
        "region v1\ndims d0=64 d1={}\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nt1 f32[d0] = sum(t0) over d1\n"
        "out0 f32[d0] = t1\n"
    )
    region = canonicalise(parse_program(row_sum.format(512)))
    head = "## Performance Analysis\nx\n## Algorithm Design\n"
    design = "grouped.\nstage 0: block, vector 4, block 128"
    edits = "f0: unroll 8\n- float p1 = 0.0f;\n+ float p1 = -0.0f;"
    replies = [
        f"{head}{design}\n## Code\n",
        f"{head}{design}\n## Code\n```edits\n{edits}\n```\n",
        f"{head}{design.replace('vector 4', 'vector 3')}\n## Code\n",
    ]
    generator = ScriptedGenerator(lambda call, prompts, n: [replies for _ in prompts], budget_tokens=32_768)
    outcome = synthesize(region, generator, judge, store, BUDGET)
    assert isinstance(outcome.result, Won), outcome
    rows = {a.design: a for a in store.attempts(fingerprint(region), HOST.key)}
    kept = f"{design}\nedit " + edits.replace("\n", "\nedit ")
    plain, edited = rows[design], rows[kept]
    assert (
        plain.code != edited.code
        and "-0.0f" in edited.code
        and {plain.stage, edited.stage} <= {"accepted", "timed"}
    )
    refused = next(a for a in rows.values() if a.stage == "text")
    assert "'block, vector 3, block 128' cannot be lowered here; the nearest is" in refused.reason
    last = generator.prompts[-1]
    assert f"x\n{kept}\n```cuda" in last and refused.reason in last
    other = canonicalise(parse_program(row_sum.format(768)))
    heirs = RegionTask(other, generator, HOST, store, BUDGET, 0, ExemplarConfig()).heritage()
    assert any("-0.0f" in heir.code for heir in heirs)


def test_duplicates_cost_no_second_trial(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = Judge.submit_quick

    def counting(self: Judge, tasks):  # type: ignore[no-untyped-def]
        asked.extend(text for _, text in tasks)
        return real(self, tasks)

    monkeypatch.setattr(Judge, "submit_quick", counting)
    commented = code().replace("float total", "// the sum\n    float total")
    store = Store.memory()
    outcome = synthesize(program(), scripted([code(), commented, code()]), judge, store, BUDGET)
    assert outcome.entry is not None
    assert len(asked) == 1
    assert len(store.attempts(fingerprint(program()), HOST.key)) == 6


def test_want_of_room_is_never_unprofitable_and_the_same_candidates_are_judged_later(judge: Judge) -> None:
    store = Store.memory()
    with Judge(HOST, Limits(build_threads=1, memory_bytes=1000), seed=5) as cramped:
        first = synthesize(program(), scripted([code(), code(64)]), cramped, store, BUDGET)
    assert isinstance(first.result, Unfinished), first
    assert store.find_entry(fingerprint(program()), HOST.key) is None
    silent = scripted([])
    later = synthesize(program(), silent, judge, store, replace(BUDGET, rounds=1, samples_per_round=2))
    assert isinstance(later.result, Won), later
    assert silent.prompts == []


def test_random_weights_write_nothing_and_that_is_unprofitable(judge: Judge, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, positions=1024, max_new=64)
    store = Store.memory()
    generator = BundledGenerator(BundledConfig(tmp_path))
    outcome = synthesize(program(), generator, judge, store, BUDGET)
    assert isinstance(outcome.result, Unprofitable)
    assert "none accepted" in outcome.result.entry.reason
    rows = store.attempts(fingerprint(program()), HOST.key)
    assert {a.stage for a in rows} == {"text"}
    assert all(a.generator == "bundled" and a.model for a in rows)


CHILD = """
    import os, signal, sys
    sys.path[:0] = {paths!r}
    from pathlib import Path
    from cudal1_compile.dispatch.kernel_cache import open_store
    from cudal1_compile.judge.judge import Judge
    from cudal1_compile.runtime.target import HOST
    from cudal1_compile.synthesis.rounds import synthesize
    from cudal1_compile.judge.limits import Limits
    from cudal1_compile.synthesis.progress import Judging
    from softmax_kernels import BUDGET, code, program, scripted

    def stop(event):
        if isinstance(event, Judging) and event.candidate == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    with Judge(HOST, Limits(build_threads=1)) as judge:
        synthesize(program(), scripted([code(96), code(divisor="2.0f"), code(64)]), judge,
                   open_store(Path({place!r})), BUDGET, stop)
"""


def test_kill_in_the_middle_and_go_on(judge: Judge, tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), *(p for p in sys.path if p)]
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD).format(paths=paths, place=str(tmp_path))],
        timeout=150,
        check=False,
        env=dict(os.environ),
    )
    assert child.returncode == -signal.SIGKILL
    store = open_store(tmp_path)
    rows = store.attempts(fingerprint(program()), HOST.key)
    assert sorted(a.stage for a in rows) == ["deferred", "timed", "verify"]
    generator = scripted([code(32)])
    outcome = synthesize(program(), generator, judge, store, BUDGET)
    assert outcome.entry is not None
    assert outcome.attempts == 4
    assert len(generator.calls) == 1 and "variant" in generator.prompts[0]


def test_a_region_that_torch_cannot_run_costs_the_others_nothing(judge: Judge) -> None:
    """Its own inputs hold a zero, by which torch does not divide integers on a CPU."""
    text = "region v1\ndims d0=6\nin0 i64[d0]\nin1 i64[d0]\nt0 i64[d0] = remainder(in0, in1)\nout0 i64[d0] = t0\n"
    kernel = "__global__ void k(const i64* in0, const i64* in1, i64* out0 DIMS) {}"
    kernel = f"// launch: k<<<1, 32>>>(in0, in1, out0)\n{kernel}"
    failed, sound = judge.judge_tasks([(parse_program(text), kernel), (program(), code())])
    assert isinstance(failed, Deferred) and "ZeroDivision" in failed.reason
    assert isinstance(sound, Accepted)
