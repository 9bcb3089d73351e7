"""A machine's trouble is no verdict: on a broken machine a region stays open, and a healthy one decides it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from softmax_kernels import BUDGET, as_reply, code, program, scripted
from synthesis_doubles import ScriptedGenerator

from cudal1_cache import Store
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.judge.bench import canary
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import build_budget
from cudal1_compile.judge.verdict import Rejected
from cudal1_compile.runtime import hostbuild, toolchain
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.outcome import Unfinished, Won
from cudal1_compile.synthesis.rounds import synthesize
from cudal1_fx_passes.program.canonical import fingerprint
from tests.runtime_kernels import BOMB

KILLED = "g++: fatal error: Killed signal terminated program cc1plus"
# of each candidate; what else the judge builds goes through
KILLS_ITSELF, DRIVER_SAYS_SO = "kill -KILL $$", f"echo '{KILLED}' >&2; exit 1"
VANISHED = "echo 'as: what is this?' >&2; exit 1"  # on no list
FAKE = '#!/bin/sh\ncase "$*" in *candidate.cu*) {action};; esac\nexec {compiler} "$@"\n'

CHILD = """
    import json, sys
    sys.path[:0] = {paths!r}
    from pathlib import Path
    from test_judge_trouble import ask
    print(json.dumps(ask(Path({place!r}))))
"""


def ask(place: Path) -> tuple[str, str]:
    """The outcome's kind and its reason."""
    codes = [code(32), code(64), code(96), "__global__ broken"]
    budget = replace(BUDGET, rounds=1, samples_per_round=4)
    with Judge(HOST, Limits(build_threads=2)) as judge, open_store(place) as store:
        found = synthesize(program(), scripted(codes), judge, store, budget).result
    return type(found).__name__, getattr(found, "reason", "")


def ask_within(limit: str, place: Path) -> list[str]:
    """The same of a process that shell text limits."""
    paths = [str(Path(__file__).parent), *(p for p in sys.path if p)]
    script = textwrap.dedent(CHILD).format(paths=paths, place=str(place))
    command = ["bash", "-c", f'{limit}\nexec "$0" "$@"', sys.executable, "-c", script]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def stages(place: Path) -> list[str]:
    with open_store(place) as store:
        assert store.stats().unprofitable == 0
        return sorted(a.stage for a in store.attempts(fingerprint(program()), HOST.key))


@contextmanager
def compiler_is(path: Path) -> Iterator[None]:
    caches = (toolchain.compiler, toolchain.compiler_version, toolchain.compiler_build, hostbuild._build_header)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(path))
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


def check_undecided(kind: str, reason: str, why: str, place: Path) -> None:
    assert kind == "Unfinished" and why in reason
    assert stages(place) == ["deferred", "deferred", "deferred", "text"]
    assert ask(place)[0] == "Won"
    assert stages(place) == ["accepted", "text", "timed", "timed"]


def test_a_machine_without_memory_decides_nothing_and_a_healthy_one_does(tmp_path: Path) -> None:
    check_undecided(*ask_within("ulimit -v 4000000", tmp_path), "no address space", tmp_path)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (KILLS_ITSELF, "SIGKILL"),
        (DRIVER_SAYS_SO, "Killed signal terminated program cc1plus"),
        (VANISHED, "what is"),
    ],
    ids=["killed", "cc1plus", "unlisted"],
)
def test_a_broken_compiler_decides_nothing_and_a_healthy_one_does(action: str, why: str, tmp_path: Path) -> None:
    fake = tmp_path / "g++"
    fake.write_text(FAKE.format(action=action, compiler=toolchain.compiler()))
    fake.chmod(0o755)
    with compiler_is(fake):
        kind, reason = ask(tmp_path)
    check_undecided(kind, reason, why, tmp_path)


@pytest.fixture
def own_compiler() -> Iterator[None]:
    """Headers of this test's own. The tests' compiler would give a canary that it built before."""
    others = [p for p in os.environ["PATH"].split(os.pathsep) if not p.startswith(os.environ["CUDAL1_TEST_RUN"])]
    real = shutil.which("g++", path=os.pathsep.join(others))
    assert real is not None
    with compiler_is(Path(real)):
        yield


@pytest.fixture
def broken_header(own_compiler: None, cudal1_cache_dir: Path) -> Callable[[], None]:
    """Cuts what is precompiled; returns what repairs it."""
    hostbuild.prepare()
    kept = {p: p.read_bytes() for p in (hostbuild.precompiled_header(c) / "host.h.gch" for c in (True, False))}
    for path, whole in kept.items():
        path.chmod(0o644)
        path.write_bytes(whole[: len(whole) // 2])
    return lambda: [path.write_bytes(whole) for path, whole in kept.items()] and None


def test_a_header_cut_in_half_is_the_machines(broken_header: Callable[[], None]) -> None:
    with Judge(HOST, Limits(build_threads=2)) as judge, Store.memory() as store:
        outcome = synthesize(program(), ScriptedGenerator(_one_reply), judge, store, BUDGET)
        assert isinstance(outcome.result, Unfinished) and "precompiled header" in outcome.result.reason
        broken_header()
        assert isinstance(synthesize(program(), ScriptedGenerator(_one_reply), judge, store, BUDGET).result, Won)


def _one_reply(call: int, prompts: object, n: int) -> list[list[str]]:
    return [[as_reply(code())]]


def test_words_of_a_machines_in_a_candidates_error_put_nothing_off() -> None:
    lying = code().replace("{", "{ bad_alloc();", 1)
    with Judge(HOST, Limits(build_threads=1)) as judge:
        verdict = judge.judge(program(), lying)
    assert isinstance(verdict, Rejected) and verdict.stage == "build" and "bad_alloc" in verdict.reason


def test_a_text_that_eats_the_compilers_memory_is_refused_where_others_have_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hostbuild.prepare()
    monkeypatch.setattr(toolchain, "MEMORY_BYTES", 200 << 20)  # the canary has room in it
    loops = "for (int i = 0; i < 4096; i++) for (int j = 0; j < 1024; j++) c[i * 1024 + j] = j;"
    table = f"struct T {{ int c[1 << 22]; constexpr T() : c() {{ {loops} }} }}; constexpr T t;"
    hungry = code().replace("{", f"{{ {table} if (t.c[3] == 2) return;", 1)
    with Judge(HOST, Limits(build_threads=1)) as judge:
        verdict = judge.judge(program(), hungry)
    assert isinstance(verdict, Rejected) and "memory" in verdict.reason


def test_a_pass_holds_for_a_while_and_a_failure_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, None, "broken", None])
    found = canary.Canary(lambda: next(answers))
    now = 100.0
    monkeypatch.setattr(canary.time, "monotonic", lambda: now)
    assert found.trouble() is None and found.trouble() is None
    now = 131.0
    assert found.trouble() is None
    assert found.trouble(since=131.0) is None  # that run began no earlier
    now = 132.0
    assert "known-good kernel: broken" in (found.trouble(since=132.0) or "")
    assert found.trouble() is None


def test_bombs_of_a_region_share_its_build_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_budget, "USUAL_S", 1.0)
    monkeypatch.setattr(hostbuild, "COMPILE_LIMIT_S", 4.0)
    bombs = [BOMB.replace("grown", f"grown{i}") + code() for i in range(4)]
    bombs = [text.replace("ld(row + i)", f"grown{i}(ld(row + i))", 1) for i, text in enumerate(bombs)]
    with Judge(HOST, Limits(build_threads=1, slow_builds_s=2.0)) as judge:
        found = judge.judge_many(program(), [code(), *bombs])
    assert not isinstance(found[0], Rejected)
    assert all(isinstance(v, Rejected) and v.stage == "build" for v in found[1:]), found
    assert [build_budget.USED_UP in getattr(v, "reason", "") for v in found[1:]] == [True] * 4
