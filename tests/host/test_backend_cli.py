"""The commands on the host target: demo twice, warm then plan then explain."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_backend_compile import OneReply, fresh  # noqa: F401  a fixture for every test here

import cudal1_compile
from cudal1_compile import cli
from cudal1_compile.cli import demo, explain, warm
from cudal1_compile.cli.demo_models import DEMOS
from cudal1_compile.cli.errors import CommandFailed
from cudal1_compile.cli.workload import load_workload
from cudal1_compile.errors import OptionError
from cudal1_compile.inductor.graph_plan import PlannedRegion, SeenRegion
from cudal1_compile.pipeline import explanation, process_state

pytestmark = pytest.mark.host

TOTAL = re.compile(r"regions: (\d+), hit (\d+), new (\d+), unprofitable (\d+)")

WORKLOAD = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Softmax(-1))
    return model, torch.randn(32, 64)

def bad():
    return 3

def raises():
    return open("/nowhere/weights")

def stops():
    raise SystemExit(0)

def first_call_raises():
    return torch.nn.Linear(3, 4), torch.randn(5, 7)
"""


@pytest.fixture(autouse=True)
def one_session(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:  # noqa: F811
    new_session(monkeypatch)


def new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    made = process_state.Session()
    for module in (process_state, demo, warm):
        monkeypatch.setattr(module, "SESSION", made)


def demo_total(out: str) -> re.Match[str]:
    """Of a demo of one model; its lines come in this order."""
    line = iter(out.splitlines())
    assert "host target" in next(line)
    name = re.fullmatch(r"model 1 of 1: (.+), inference; Inductor .+", next(line))
    assert name and re.fullmatch(rf"{name[1]}: equal to eager \(largest difference \S+\), \d+ s", next(line))
    assert next(line).startswith("replies from the generator: ")
    total = TOTAL.fullmatch(next(line))
    assert total and next(line) == "where to look next:"
    commands = re.findall(r"cudal1 (\w+)", "\n".join(line))
    assert commands == ["explain", "cache", "cache", "warm"]
    return total


def test_the_demo_explains_a_model_that_it_compiled() -> None:
    found = load_workload(demo.EXPLAINED["host"])
    assert type(found.fn) is type(DEMOS[0].make()[0])


def test_demo_twice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    demos = [d for d in DEMOS if d.name == "softmax and cross-entropy"]
    assert len(demos) == 1
    first, second = OneReply(), OneReply()
    assert demo.run("host", first, 120, demos)
    said = capsys.readouterr()
    numbers = demo_total(said.out)
    assert int(numbers[3]) >= 1
    assert re.search(r"regions without a kernel: \d; preparing generator and judge, 120 s left\n", said.err)
    new_session(monkeypatch)
    assert demo.run("host", second, 120, demos)
    said = capsys.readouterr()
    again = demo_total(said.out)
    assert again and again[3] == "0" and again[1] == numbers[1]
    assert int(again[2]) + int(again[4]) == int(again[1])
    assert second.calls == 0 and "replies from the generator: 0\n" in said.out
    assert "without a kernel" not in said.err


def test_demo_without_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "MODEL_DIR", tmp_path)
    assert cli.main(["demo", "--target", "host"]) == 1
    assert "cudal1 demo: no model in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "gpu"], "option target='gpu': expected one of auto, host, cuda"),
        (["--budget-s", "-1"], "option budget_s=-1.0: expected seconds"),
        (
            ["--target", "host", "--generator", "/nowhere"],
            "generator='/nowhere': expected 'bundled', the directory",
        ),
        (["--target", "host", "--generator", "/"], "/ holds no config.json"),
    ],
)
def test_demo_with_what_it_cannot_use(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *arguments]) == 1
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


@pytest.mark.parametrize("replies", [0, 1])
def test_demo_with_a_generator_that_never_answers(replies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_one(*given: object) -> float:
        demo.SESSION.totals, demo.SESSION.replies = process_state.Totals(regions=1, untuned=1), replies
        return 0.0

    monkeypatch.setattr(demo, "run_one", run_one)
    if replies:
        assert demo.run("host", "bundled", 60, DEMOS[:1])
        return
    with pytest.raises(CommandFailed, match="no kernel was written"):
        demo.run("host", "bundled", 60, DEMOS[:1])


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "backend_workload.py").write_text(WORKLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    return "backend_workload:make"


def test_warm_plan_explain(
    workload: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    explain.plan(workload, text=True)
    out = capsys.readouterr().out
    count = int(re.search(r"(\d+) regions, (\d+) of them without", out)[1])  # type: ignore[index]
    assert count >= 3 and "region v1" in out, "forward and backward"
    monkeypatch.setattr(process_state, "make_generator", lambda name, device: OneReply())
    warm.warm(workload, budget_s=120)
    total = TOTAL.search(capsys.readouterr().out)
    assert total and int(total[2]) >= 2 and int(total[3]) == 0, "written before, then found"
    dot = tmp_path / "graph.dot"
    explain.explain(workload, dot=dot)
    out = capsys.readouterr().out
    assert "hit" in out and "outside: aten.addmm.default" in out and "forward graph:" in out
    assert dot.read_text().startswith('digraph "forward"')


@pytest.mark.parametrize(
    "name", ["nonsense", "no.such.module:make", "backend_workload:missing", "backend_workload:bad"]
)
def test_bad_workloads(name: str, workload: str) -> None:
    with pytest.raises(OptionError):
        load_workload(name)


@pytest.mark.parametrize(
    ("name", "theirs", "says"),
    [
        ("backend_workload:raises", 'open("/nowhere/weights")', "the factory backend_workload:raises raised File"),
        ("backend_workload:stops", "raise SystemExit(0)", "the factory backend_workload:stops raised SystemExit"),
        ("backend_workload:first_call_raises", "[5, 7] X [3, 4]", "the callable of backend_workload:first_call"),
        ("backend_broken:make", "import no_such_module", "backend_broken raised ModuleNotFoundError when it was"),
    ],
)
def test_what_the_users_code_raises_is_shown_as_theirs(
    name: str, theirs: str, says: str, workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "backend_broken.py").write_text("import no_such_module\n")
    assert cli.main(["explain", name]) == 1
    err = capsys.readouterr().err
    assert theirs in err and f"cudal1 explain: {'the module ' if 'broken' in name else ''}{says}" in err
    assert str(Path(cli.__file__).parent.parent) not in err, "no frame of ours"


@pytest.mark.parametrize(
    ("reads_copies", "expected"),
    [(True, [(["f"], pytest.approx(60.0)), (["f", "b"], 100.0)]), (False, [(["f", "b"], 100.0)])],
)
def test_warm_writes_last_what_kernels_of_the_forward_may_change(
    reads_copies: bool, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def region(name: str, phase: Any) -> PlannedRegion:
        seen = SeenRegion(name, " = dot", 3, 1, phase, False, True, 1.0, reads_copies and phase == "backward")
        return PlannedRegion(seen, "untuned", "")

    asked: list[tuple[list[str], float]] = []

    def synthesize(regions: list[PlannedRegion], limit_s: float) -> list[PlannedRegion]:
        asked.append(([r.fingerprint for r in regions], limit_s))
        return regions

    loaded = SimpleNamespace(target=lambda wanted: "host", explain=lambda *given: SimpleNamespace(graphs=()))
    monkeypatch.setattr(warm, "load_workload", lambda name: loaded)
    monkeypatch.setattr(warm, "distinct_regions", lambda found: [region("f", "forward"), region("b", "backward")])
    monkeypatch.setattr(warm, "Planner", lambda *given: SimpleNamespace(synthesize=synthesize))
    monkeypatch.setattr(warm, "compile_and_run", lambda *given: None)
    monkeypatch.setattr(warm, "report", lambda *given: None)
    warm.warm("module:name", budget_s=100.0, products=True)
    assert asked == expected


def test_warm_without_a_generator_fails(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warm, "compile_and_run", lambda *given: None)  # as Inductor does it, for seconds
    assert cli.main(["warm", workload, "--generator", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out.count(f"open: {tmp_path} holds no config.json") == 3
    assert "open regions: 3, nothing was done for them: " in said.err and "see --generator" in said.err


def test_warm_without_a_graph_for_kernels_fails(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["warm", workload, "--target", "cuda"]) == 1
    assert "no kernel can be used here: target='cuda', but the graph has no" in capsys.readouterr().err


def test_explain_from_python() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(torch.sort(x * 2 + 1).values, -1)
        torch._dynamo.graph_break()
        return y.exp() + 1

    assert cudal1_compile.explain is explanation.explain
    found: Any = cudal1_compile.explain(fn, torch.randn(16, 32), options={"target": "host"})
    assert len(found.graphs) == 2
    text = str(found)
    assert "untuned (no kernel yet)" in text and "aten.sort.default has no lowering" in text
    plain = cudal1_compile.explain(fn, torch.randn(16, 32))
    assert "plain inductor: no CUDA tensors" in str(plain)
