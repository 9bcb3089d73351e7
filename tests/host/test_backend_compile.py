"""The whole way on the host target with real kernels: written (by a template), judged, stored, called, found.

And what must not stop a job: no compiler, no model, a damaged or read-only cache, a generator that hangs, a
candidate that crashes, a broken hook. Each falls back, with a sentence that says why.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from slow_cases import slow_but
from tmpfs import run_on_tmpfs
from torch import Tensor
from torch.nn import functional as F

import cudal1_compile
from cudal1_cache.schema import FILE_NAME
from cudal1_compile import backend, cli
from cudal1_compile.dispatch import registry
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.generate import bundled
from cudal1_compile.inductor import fused_lowering, hook
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import fork_server
from cudal1_compile.options import Options
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline import place, preparation, process_state
from cudal1_compile.pipeline.background import Background
from cudal1_compile.runtime import hostrun, nvrtc, target, toolchain
from cudal1_trainer.data.template_generator import TemplateGenerator

pytestmark = pytest.mark.host

BUDGET_S = 60.0


class OneReply:
    """The templates' first reply for each prompt: one build a region instead of many. Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.templates = TemplateGenerator()

    @property
    def name(self) -> str:
        return "teacher:first"

    @property
    def budget_tokens(self) -> int:
        return self.templates.budget_tokens

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        self.calls += 1
        return [group[:1] for group in self.templates.propose(prompts, 1, 0)]


class Fixed:
    """Replies with the same code for every region."""

    name = "teacher:fixed"
    budget_tokens = 1 << 20

    def __init__(self, body: str, launch: str = "<<<1, 32>>>") -> None:
        self.body, self.launch = body, launch

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        kernel = f"__global__ void k(const f32* in0, f32* out0 DIMS) {{ {self.body} }}"
        code = f"// launch: k{self.launch}(in0, out0)\n{kernel}"
        reply = f"## Performance Analysis\nx\n## Algorithm Design\nx\n## Code\n```cuda\n{code}\n```\n"
        return [[reply] for _ in prompts]


def forget() -> None:
    """What this process knows of kernels and graphs."""
    registry._loaded.clear()
    torch._dynamo.reset()
    process_state.SESSION.__init__()  # type: ignore[misc]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process: no store open, no kernel loaded, nothing compiled."""
    monkeypatch.setattr(process_state, "SESSION", process_state.Session())
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_stores", [])
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def model(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1) + 1


def compile_(generator: Any, fn: Any = model, **options: Any) -> Any:
    given = {"target": "host", "generator": generator, "budget_s": BUDGET_S, "process_budget_s": 1e6} | options
    return torch.compile(fn, backend="cudal1", options=given)


def check(fast: Any, fn: Any = model, rows: int = 32) -> None:
    x = torch.randn(rows, 64)
    torch.testing.assert_close(fast(x), fn(x))


def summary(captured: pytest.CaptureFixture[str]) -> str:
    """The line of the one compile; how its synthesis goes is said before."""
    lines = [line for line in captured.readouterr().err.splitlines() if line.startswith("cudal1:")]
    lines = [line for line in lines if not line.endswith(" s left")]
    assert len(lines) == 1, lines
    return lines[0]


def test_written_once_and_found_again(capsys: pytest.CaptureFixture[str], cudal1_cache_dir: Path) -> None:
    generator = OneReply()
    check(compile_(generator))
    assert summary(capsys) == "cudal1: regions: 1, hit 0, new 1, unprofitable 0"
    calls = generator.calls
    torch._dynamo.reset()
    process_state.SESSION.__init__()  # type: ignore[misc]
    check(compile_(generator))
    assert summary(capsys) == "cudal1: regions: 1, hit 1, new 0, unprofitable 0"
    assert calls >= 1 and generator.calls == calls
    (entry,) = open_store(cudal1_cache_dir).entries()
    assert entry.status == "kernel" and entry.image


def test_unprofitable_holds_for_the_generator_that_did_not_win(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for generator in (Fixed("syntax error"), Fixed("st(out0, 1.0f);"), OneReply()):  # two of one name
        forget()
        check(compile_(generator))
        said.append(summary(capsys))
    line = "cudal1: regions: 1, hit 0, new {}, unprofitable {}"
    assert said == [line.format(0, 1), line.format(0, 1), line.format(1, 0)]


def test_exact_kernels_alone_where_nothing_else_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    check(compile_(generator := OneReply(), numerics="exact"))
    assert summary(capsys) == "cudal1: regions: 1, hit 0, new 0, unprofitable 0, untried 1"
    assert generator.calls == 0  # none of its kernels could run

    def masked(x: Tensor) -> Tensor:
        return torch.where(x.relu() > 0.5, x, -1.0)

    forget()
    check(compile_(generator, masked, numerics="exact"), masked)
    assert summary(capsys) == "cudal1: regions: 1, hit 0, new 1, unprofitable 0"
    forget()
    check(compile_(generator))  # what is allowed now
    assert summary(capsys) == "cudal1: regions: 1, hit 0, new 1, unprofitable 0"


def test_a_judge_is_prepared_where_it_may_be_asked_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def may_ask(kind: str = "cuda", **options: Any) -> bool:
        made = object.__new__(pipeline.Pipeline)
        place: Any = SimpleNamespace(target=SimpleNamespace(kind=kind))
        made.job, made.session = SimpleNamespace(options=Options(**options), place=place), process_state.Session()
        return made._may_ask_the_judge

    assert may_ask() and not may_ask("host")
    assert not may_ask(on_miss="fallback") and not may_ask(budget_s=0.0) and not may_ask(process_budget_s=0.0)
    done: list[str] = []
    begin, close, collect = preparation.Preparation.begin, Judge.close, pipeline.collect

    def note(name: str, run: Any) -> Any:
        return lambda *args: (done.append(name), run(*args))[1]

    monkeypatch.setattr(fork_server, "prepare", lambda: None)
    monkeypatch.setattr(preparation.Preparation, "begin", note("begin", begin))
    monkeypatch.setattr(Judge, "close", note("close", close))
    monkeypatch.setattr(pipeline, "collect", note("collect", collect))
    monkeypatch.setattr(pipeline.Pipeline, "_may_ask_the_judge", True)
    for _ in range(2):
        check(compile_(OneReply()))
        forget()
    assert done == ["begin", "collect", "close"], "one judge, and none where the plan is stored"


def test_a_generator_leaves_its_device_when_it_is_no_longer_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Leaving(OneReply):
        def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
            done.append("asked")
            return super().propose(prompts, n, seed)

        def leave_device(self) -> None:
            done.append("left")

    finish = pipeline.Pipeline.finish
    monkeypatch.setattr(pipeline.Pipeline, "finish", lambda *args: (done.append("compiles"), finish(*args))[1])
    check(compile_(Leaving()))
    assert [*dict.fromkeys(done)] == ["asked", "left", "compiles"] and done.count("left") == 1


def test_split_products_run_only_where_they_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    class Split(OneReply):
        """Its kernels use the header's word for them."""

        def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
            groups = super().propose(prompts, n, seed)
            return [[text.replace("{\n", "{\n  typedef f32_split Unused;\n", 1) for text in g] for g in groups]

    check(compile_(Split(), numerics="reassociates"))
    assert summary(capsys) == "cudal1: regions: 1, hit 0, new 0, unprofitable 0, untuned 1"
    forget()
    check(compile_(Split()))
    assert summary(capsys) == "cudal1: regions: 1, hit 1, new 0, unprofitable 0"


def test_overlapping_pooling_has_kernels_forward_and_backward(capsys: pytest.CaptureFixture[str]) -> None:
    def pooled(x: Tensor) -> Tensor:
        return F.max_pool2d(F.silu(x), 3, 2, 1)

    x = torch.randn(2, 3, 12, 14, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    out, expected = compile_(OneReply(), pooled)(x), pooled(y)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert summary(capsys) == "cudal1: regions: 2, hit 0, new 2, unprofitable 0"


def test_the_backward_has_kernels_too(capsys: pytest.CaptureFixture[str]) -> None:
    fast = compile_(OneReply())
    x = torch.randn(32, 64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    fast(x).square().sum().backward()
    model(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert summary(capsys) == "cudal1: regions: 2, hit 0, new 2, unprofitable 0"
    gc.collect()
    assert not any(fused_lowering._calls.values()), "the graphs of a compile end with it"


def test_cpu_tensors_are_inductors_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    check(torch.compile(model, backend="cudal1"))
    assert 'options={"target": "host"}' in summary(capsys)


def test_a_miss_may_be_left_alone(capsys: pytest.CaptureFixture[str], cudal1_cache_dir: Path) -> None:
    generator = OneReply()
    check(compile_(generator, on_miss="fallback"))
    assert summary(capsys) == "cudal1: regions: 1, hit 0, new 0, unprofitable 0, untuned 1"
    assert generator.calls == 0
    store = open_store(cudal1_cache_dir)
    assert len(store.misses(store.targets()[0])) == 1


def test_the_background_swaps_at_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Background] = []
    start = Background.__init__

    def remember(self: Background, *args: Any) -> None:
        made.append(self)
        start(self, *args)

    traced_by: list[threading.Thread] = []
    collect = pipeline.Pipeline.collect

    def note(*args: Any) -> Any:
        traced_by.append(threading.current_thread())
        return collect(*args)

    monkeypatch.setattr(pipeline.Pipeline, "collect", note)
    monkeypatch.setattr(Background, "__init__", remember)
    fast = compile_(OneReply(), on_miss="background")
    x = torch.randn(32, 64, requires_grad=True)
    before = fast(x)  # its backward is still to come when the swap happens
    first = made[0]._current
    made[0].worker.join(BUDGET_S)
    torch.testing.assert_close(fast(x), before)
    assert made[0]._current is not first, "the kernels were not taken"
    assert traced_by == [threading.main_thread()], "a thread beside the user's may not trace"
    before.square().sum().backward()
    y = x.detach().clone().requires_grad_()
    model(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    x.grad = None
    fast(x).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def train(generator: Any) -> None:
    """A forward and a backward with kernels, held against eager."""
    x = torch.randn(32, 64, requires_grad=True)
    compile_(generator)(x).square().sum().backward()
    y = x.detach().clone().requires_grad_()
    model(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def child_environment(**folders: Path) -> dict[str, str]:
    """For a process that imports this file."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path} | {name: str(folder) for name, folder in folders.items()}


LOADED = """
import sys, torch, cudal1_compile
x = torch.linspace(-1, 1, 64 * 32).reshape(64, 32)
torch.compile(lambda x: torch.softmax(x * 2, -1) + 1, backend="cudal1", options={"target": "host"})(x)
print(*{r.outcome for last in cudal1_compile.last_plans() for r in last.plan.regions})
print(*(name.removeprefix("cudal1_compile.") for name in sys.modules if name.startswith("cudal1_compile.")))
"""
# what tells whether an entry holds, and the oracle, which each kernel's first call is compared with
WARM_MODULES = {
    "judge": {"verdict", "versions", "checks", "checks.cases", "checks.division", "checks.guarded_memory"}
    | {"inputs", "inputs.lines", "inputs.names", "sandbox", "sandbox.device_lock"},
    "synthesis": {"budget", "validity"},
    "codegen": set(),
}


def test_a_warm_start_loads_nothing_that_writes_or_judges_kernels() -> None:
    x = torch.linspace(-1, 1, 64 * 32).reshape(64, 32)
    compile_(OneReply())(x)
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=200)
    outcomes, modules = done.stdout.splitlines()
    assert outcomes == "hit", done.stderr[-3000:]
    for folder, needed in WARM_MODULES.items():
        loaded = {m.removeprefix(f"{folder}.") for m in modules.split() if m.startswith(f"{folder}.")}
        assert {m for m in loaded if not m.startswith("oracle")} <= needed


def test_two_threads_compile(capsys: pytest.CaptureFixture[str]) -> None:
    failures: list[BaseException] = []

    def work(rows: int) -> None:
        try:
            check(compile_(OneReply(), lambda x: model(x) * rows), lambda x: model(x) * rows, rows)
        except BaseException as error:  # noqa: BLE001  a thread hands its failure to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (16, 48)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    assert capsys.readouterr().err.count("new 1") == 2


# what must not stop a job


def test_no_model(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    check(compile_(str(tmp_path / "empty")))
    assert "untuned 1" in summary(capsys)
    assert "no kernels can be written" in caplog.text and "config.json" in caplog.text


def test_a_generator_that_names_nothing_is_the_users_mistake() -> None:
    with pytest.raises(ValueError, match="generator="):
        check(compile_("nowhere/at/all"))


def test_no_bundled_model(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(bundled, "BundledConfig", partial(bundled.BundledConfig, tmp_path))
    check(compile_("bundled"))
    assert "untuned 1" in summary(capsys)
    assert f"no kernels can be written: no model in {tmp_path}: " in caplog.text
    assert "make retrain" in caplog.text


def test_no_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """None for candidates; Inductor's own code for the CPU still needs one."""
    monkeypatch.setattr(toolchain, "shutil", SimpleNamespace(which=lambda name, **_: None))
    toolchain.compiler.cache_clear()
    check(compile_(OneReply()))
    assert "untuned 1" in summary(capsys)
    assert "no kernels can be written: no c++ compiler found: install g++, or set CXX" in caplog.text


def test_no_compiler_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Then Inductor compiles nothing for a CPU either."""
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        check(compile_(OneReply(), on_miss="fallback"))
    assert "cudal1: eager: inductor finds no C++ compiler" in capsys.readouterr().err


def test_no_nvrtc(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The same graph for a GPU's target; no GPU is reached, because the judge says first what it lacks."""
    gpu = target.Target("cuda", "NVIDIA H100", "sm_90a", 132, 227 * 1024, 50 << 20)
    monkeypatch.setattr(place, "detect_target", lambda device: gpu)
    monkeypatch.setattr(pipeline, "may_try", lambda: False)
    monkeypatch.setattr(nvrtc, "_candidates", list)
    nvrtc.library.cache_clear()
    check(compile_(OneReply()))
    assert "untuned 1" in summary(capsys)
    assert (
        "no kernels can be written: no NVRTC found (pip install nvidia-cuda-nvrtc, or set CUDA_HOME)"
        in caplog.text
    )
    store = open_store(process_state.cache_dir())
    assert not store.entries() and len(store.misses(gpu.key)) == 1, "a later process with NVRTC tries again"


def test_a_generator_that_hangs(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    class Hangs(OneReply):
        def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
            time.sleep(600)
            return []

    start = time.monotonic()
    check(compile_(Hangs(), budget_s=1))
    assert time.monotonic() - start < 60
    assert "untuned 1" in summary(capsys) and "gave no answer" in caplog.text


@pytest.mark.parametrize("body", ["*(volatile int*)0 = 1;", "while (true) { }", "st(out0, 1.0f);", "syntax error"])
def test_candidates_that_crash_hang_or_lie(
    body: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cudal1_compile.judge.judge.Judge", partial(Judge, limits=Limits(host_s=2.0)))
    check(compile_(Fixed(body), budget_s=30))
    line = summary(capsys)
    assert "unprofitable 1" in line or "untuned 1" in line
    assert "new 0" in line


def test_a_machine_too_busy_for_the_judge_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run gets to its end; a later process judges what was written."""
    with monkeypatch.context() as busy:
        busy.setattr(hostrun, "PATIENCE", 0)
        busy.setattr(hostrun, "GRACE_S", 0.0)
        busy.setenv("CUDAL1_DEBUG", "1")
        check(compile_(OneReply()))
    said = capsys.readouterr().err
    assert (
        "new 0, unprofitable 0, untuned 1" in said and "untuned (the machine is too busy: a run got less" in said
    )
    forget()
    told = str(cudal1_compile.explain(model, torch.randn(32, 64), options={"target": "host"}))
    assert "untuned (no kernel yet: the machine is too busy" in told
    check(compile_(OneReply()))
    assert "new 1" in summary(capsys)


SOFTMAX = """
const int at = blockIdx.y * d1 + threadIdx.x;
const float x = ld(in0 + at) * 2.0f;
const float e = expf(x - block_max(x));
{planted}
st(out0 + at, e / block_sum(e) + 1.0f);
"""


def test_a_launch_over_the_limits(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """A kernel that is right at the sizes of its proof is called with too many rows for its grid."""
    kernel = Fixed(SOFTMAX.format(planted=""), "<<<dim3(1, d0), d1>>>")
    fast = compile_(kernel)
    for rows in (32, 70_000, 48, 80_000):
        x = torch.randn(rows, 64)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(fast(x), model(x))
    assert "new 1" in summary(capsys)
    assert caplog.text.count("is refused, its region runs with aten") == 1
    assert "grid (1, 70000, 1)" in caplog.text


NONE = ("70000 - d0", "fewer than no elements")
SIZES = [("64 + 0 * (d1 / (70000 - d0))", "division by zero or less"), NONE]


@pytest.mark.parametrize(("size", "why"), slow_but([NONE], SIZES))
def test_scratch_that_cannot_be(
    size: str, why: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """At sizes that no case has: Inductor's code asks for the memory before the launcher can refuse the call."""
    body = f"\n// scratch: s0 f32[{size}]\n" + SOFTMAX.format(planted="").replace("blockIdx.y", "blockIdx.x")
    fast = compile_(Fixed(body, "<<<d0, d1>>>"))
    for rows in (32, 70_001, 48):
        x = torch.randn(rows, 64)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(fast(x), model(x))
    assert "new 1" in summary(capsys)
    assert caplog.text.count("is refused, its region runs with aten") == 1 and why in caplog.text


def test_a_kernel_that_fails_in_a_users_call(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Threads wait for each other in vain, but only at a value that no proof has."""
    kernel = Fixed(
        SOFTMAX.format(planted="if (ld(in0) == 1234.5f && threadIdx.x < 20) __syncthreads();"),
        "<<<dim3(1, d0), d1>>>",
    )
    fast = compile_(kernel)
    check(fast)
    assert "new 1" in summary(capsys)
    x = torch.randn(32, 64)
    x[0, 0] = 1234.5
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x))
    check(fast)
    assert (
        caplog.text.count("is refused, its region runs with aten") == 1 and "k: barrier_divergence" in caplog.text
    )


def test_a_damaged_cache(capsys: pytest.CaptureFixture[str], cudal1_cache_dir: Path) -> None:
    cudal1_cache_dir.mkdir(parents=True)
    (cudal1_cache_dir / FILE_NAME).write_bytes(b"no database " * 1000)
    check(compile_(OneReply()))
    assert "new 1" in summary(capsys)
    assert any("damaged" in p.name for p in cudal1_cache_dir.iterdir()), "the damaged file is kept"


@pytest.mark.parametrize("damage", ["an entry", "a plan"])
def test_an_altered_row(
    damage: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, cudal1_cache_dir: Path
) -> None:
    check(compile_(OneReply()))
    with sqlite3.connect(cudal1_cache_dir / FILE_NAME) as db:
        change = {
            "an entry": "update entries set code = 'no plan'",
            "a plan": "update plans set regions_json = '['",
        }
        assert db.execute(change[damage]).rowcount == 1
    summary(capsys)
    forget()
    check(compile_(OneReply()))
    table = {"an entry": "entries", "a plan": "plans"}[damage]
    assert f"rows of {table} in {cudal1_cache_dir / FILE_NAME} carry neither this user's MAC" in caplog.text
    assert ("hit 1" if damage == "a plan" else "new 1") in summary(capsys)


def test_a_read_only_cache(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDAL1_CACHE_DIR", "/proc/cudal1")
    check(compile_(OneReply()))
    assert "new 1" in summary(capsys)
    assert any("cannot be written" in r.getMessage() for r in caplog.records)


def test_without_the_key_inductor_runs(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(compile_(OneReply()))
    for key_file, says in (("/proc/cudal1/key", "key cannot be had"), (None, "rows of entries in")):
        with monkeypatch.context() as patch:
            patch.setenv("CUDAL1_KEY_FILE", key_file or f"{os.environ['CUDAL1_CACHE_DIR']}-key/another")
            forget()
            capsys.readouterr()
            check(compile_(OneReply(), on_miss="fallback"))
            assert "hit 0, new 0, unprofitable 0, untuned 1" in summary(capsys)
            assert sum(says in r.getMessage() for r in caplog.records) == 1
    forget()
    check(compile_(OneReply(), on_miss="fallback"))
    assert "hit 1" in summary(capsys)


def test_what_another_user_signed_is_a_hit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check(compile_(OneReply()))
    assert cli.main(["cache", "sign"]) == 0
    public = capsys.readouterr().out.rpartition("CUDAL1_TRUSTED_KEYS=")[2].strip()
    monkeypatch.setenv("CUDAL1_KEY_FILE", str(tmp_path / "reader" / "key"))
    for trusted, says in (("00" * 32, "hit 0, new 0, unprofitable 0, untuned 1"), (public, "hit 1")):
        monkeypatch.setenv("CUDAL1_TRUSTED_KEYS", trusted)
        forget()
        check(compile_(OneReply(), on_miss="fallback"))
        assert says in summary(capsys)


FULL_DISK = """
import logging, os, sys, tempfile
from pathlib import Path
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from test_backend_compile import OneReply, check, compile_, forget, model
disk = Path(os.environ["CUDAL1_CACHE_DIR"])

def step(name, fn):
    forget()
    print(f"-- {name}", file=sys.stderr, flush=True)
    check(compile_(OneReply(), fn), fn)

def fill():
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass

step("small", model)
fill()
step("full", lambda x: model(x) * 3)
tempfile.tempdir = str(disk)
step("no room at all", lambda x: model(x) * 5)
tempfile.tempdir = None
(disk / "ballast").unlink()
step("room again", model)
"""


@pytest.mark.slow  # in every run: a store on one, test_cache_places
def test_a_full_disk(tmp_path: Path) -> None:
    """A real one, where this user may mount a tmpfs in a namespace of its own; first it lacks room for headers."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = run_on_tmpfs(disk, "1m", FULL_DISK, environment=child_environment(CUDAL1_CACHE_DIR=disk))
    _, small, full, none, again = done.stderr.split("-- ")
    assert "built for this process only, its folder cannot be used" in small and "hit 0, new 1," in small
    assert "cannot be written" in full and "full" in full and "hit 0, new 1," in full
    assert "No space left on device" in none and "untuned 1" in none
    assert "hit 1, new 0," in again, "what was stored before is still there"


def test_a_broken_hook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hook, "self_test", lambda: "ImportError: no lowering")
    check(compile_(OneReply()))
    assert "the hook does not fit torch" in summary(capsys)


def test_what_passed_with_these_sources_is_not_tested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tests: list[str | None] = [None, "another torch", None]
    monkeypatch.setattr(hook, "self_test", lambda: tests.pop(0))
    assert hook._fault() is None and hook._fault() is None and len(tests) == 2
    sources = hook._sources()
    monkeypatch.setattr(hook, "_sources", lambda: sources[::-1])
    assert hook._fault() == "another torch"  # no file is left that says it passed
    assert hook._fault() is None and tests == []
    monkeypatch.setattr(hook, "_sources", lambda: "")
    monkeypatch.setattr(hook, "self_test", lambda: "unknown sources are tested")
    assert hook._fault() is not None


def test_the_self_test_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's first C++ takes 20 s in a fresh cache, also where all that is compiled runs on a GPU."""
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with config.patch({"cpp.cxx": (None, str(tmp_path / "none"))}):
        hook._run()


def test_a_self_test_that_an_interrupt_left_behind() -> None:
    left: list[str] = []
    thread = threading.Thread(target=hook._report_fault, args=(left,))
    thread.start()  # Ctrl-C ends the compile that waits for it, not the thread
    assert hook.self_test.__wrapped__() is None
    thread.join()
    assert left == []


def test_an_error_of_our_own(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(backend, "_compile", fail)
    check(compile_(OneReply()))
    assert "plain inductor, because of RuntimeError: planted" in caplog.text


def test_cpp_wrapper_is_inductors(capsys: pytest.CaptureFixture[str]) -> None:
    with torch._inductor.config.patch(cpp_cache_precompile_headers=False):  # 7 s, for one graph
        check(compile_(OneReply(), cpp_wrapper=True))
    assert "cpp_wrapper" in summary(capsys)


def test_a_users_own_pass_still_runs(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    check(compile_(OneReply(), post_grad_custom_pre_pass=lambda graph: seen.append(len(graph.nodes))))
    assert seen and "new 1" in summary(capsys)


# kernels that are gone when a generated module asks for them

TEXT = """region v1
dims d0=64 d1=8
in0 f32[d0,d1]
t0 f32[d0,d1] = exp(in0)
out0 f32[d1,d0] = t0
"""


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("d0=64", "d0=?32")])
def test_load_falls_back_to_the_region(text: str, caplog: pytest.LogCaptureFixture) -> None:
    run = registry.load("0" * 64, "cpu", 0, text)
    assert "runs with aten" in caplog.text
    x, out, scratch = torch.randn(64, 8), torch.empty(8, 64), torch.empty(3)
    sizes = [64] if "?" in text else []
    run(out, scratch, x, *sizes, 0)
    torch.testing.assert_close(out, x.exp().t())


def test_a_damaged_image_is_built_again(cudal1_cache_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    check(compile_(OneReply()))
    with open_store(cudal1_cache_dir) as store:
        (entry,) = store.entries()
        store.put_entry(replace(entry, image=b"\x7fELF" + entry.image[4:200]))
    forget()
    check(compile_(OneReply()))
    assert "does not load, so it is built" in caplog.text
