"""Judge and generator: made beside tracing, raising where they are awaited, gone once, whatever comes between."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from generate_models import make_checkpoint

from cudal1_compile import backend
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.errors import BuildError
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.errors import GeneratorError, ModelMissing
from cudal1_compile.judge.sandbox import fork_server
from cudal1_compile.options import parse_options
from cudal1_compile.pipeline import process_state
from cudal1_compile.pipeline.generator_process import GeneratorProcess
from cudal1_compile.pipeline.place import TargetDevice
from cudal1_compile.pipeline.preparation import Preparation
from cudal1_compile.pipeline.process_state import Session
from cudal1_compile.runtime.target import Target

HOST = TargetDevice(torch.device("cpu"), Target("host", "cpu", "x86-64", 1, 48 << 10, 1 << 20))


class Judge:
    def __init__(self, made: list[Judge], wait: Callable[[], Any]) -> None:
        wait()
        self.thread, self.awake, self.closed = threading.current_thread(), 0, 0
        made.append(self)

    def wake(self) -> None:
        self.awake += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Judge]:
    found: list[Judge] = []
    monkeypatch.setattr("cudal1_compile.judge.judge.Judge", lambda target: Judge(found, lambda: None))
    monkeypatch.setattr(fork_server, "prepare", lambda: None)
    return found


class Generator:
    def __init__(self, wait: Callable[[], Any]) -> None:
        wait()
        self.thread, self.left = threading.current_thread(), 0

    def leave_device(self) -> None:
        self.left += 1


def prepared(generator: Any = None, session: Session | None = None) -> Preparation:
    return Preparation(HOST, session or Session(), generator)


def make_with(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]) -> list[tuple[str, str]]:
    """What is asked for by texts."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(process_state, "make_generator", lambda *wanted: asked.append(wanted) or make())
    return asked


def test_one_judge_for_all_that_is_asked(made: list[Judge]) -> None:
    with prepared() as preparing:
        preparing.begin()
        with preparing:
            judge: Any = preparing.judge()
        assert preparing.judge() is judge and judge.closed == 0
    assert [judge] == made and (judge.awake, judge.closed) == (1, 1)
    assert judge.thread is not threading.main_thread()


def test_without_a_beginning_it_is_made_when_it_is_asked_for(made: list[Judge]) -> None:
    preparing = prepared()
    for count in (1, 2):
        with preparing:
            assert preparing.judge() is made[-1] and len(made) == count
        assert made[-1].closed == 1


def test_a_judge_that_nobody_wants_is_closed_and_not_waited_for(
    made: list[Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("cudal1_compile.judge.judge.Judge", lambda target: Judge(made, go_on.wait))
    with prepared() as preparing:
        preparing.begin()
        assert preparing._judge._coming is not None
        thread = preparing._judge._coming._thread
    assert not made
    go_on.set()
    assert thread.ended.wait(10.0) and made[0].closed == 1


def test_what_its_making_raises_is_raised_where_it_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(target: Target) -> Any:
        raise BuildError("no NVRTC")

    monkeypatch.setattr("cudal1_compile.judge.judge.Judge", fail)
    monkeypatch.setattr(fork_server, "prepare", lambda: None)
    with prepared() as preparing:
        preparing.begin()
        for _ in range(2):
            with pytest.raises(BuildError, match="no NVRTC"):
                preparing.judge()


def test_the_bundled_generator_is_made_beside_and_leaves_the_device_at_the_end(
    made: list[Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = make_with(monkeypatch, lambda: Generator(lambda: None))
    session = Session()
    for times in (1, 2):
        with prepared("bundled", session) as preparing:
            preparing.begin()
            with preparing:
                generator: Any = preparing.generator()
            assert preparing.generator() is generator and generator.left == times - 1
        assert generator.left == times and generator.thread is not threading.main_thread()
    assert asked == [("bundled", "cpu")], "one a process"


@pytest.mark.parametrize("wanted", ["http://localhost:1/v1#model=m", "vllm:some/model", "no/such/directory"])
def test_another_generator_is_made_where_it_is_asked_for(
    made: list[Judge], monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    asked = make_with(monkeypatch, lambda: Generator(lambda: None))
    with prepared(wanted) as preparing:
        preparing.begin()
        preparing.judge()
        assert asked == []
        generator: Any = preparing.generator()
    assert generator.thread is threading.main_thread() and generator.left == 1


def test_on_a_gpu_the_bundled_generator_is_a_process_that_has_the_judges_fork_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepared_server, begun = fork_server.ForkServer(), list[fork_server.ForkServer]()
    monkeypatch.setattr(fork_server, "prepare", lambda: begun.append(prepared_server) or begun[-1])
    monkeypatch.setattr("cudal1_compile.judge.judge.Judge", lambda target: pytest.fail("it is not asked for"))
    make_checkpoint(tmp_path)
    own, other = BundledGenerator(BundledConfig(tmp_path, "cuda")), Generator(lambda: None)
    place = TargetDevice(torch.device("cuda", 0), Target("cuda", "H100", "sm_90a", 132, 227 << 10, 50 << 20))
    for wanted, made_of in (("bundled", own), ("vllm:some/model", other)):
        make_with(monkeypatch, lambda made_of=made_of: made_of)
        with Preparation(place, Session(), wanted) as preparing:
            found = preparing.generator()
        assert isinstance(found, GeneratorProcess) == (made_of is own)
        if isinstance(found, GeneratorProcess):
            assert found._fork_server is prepared_server and found.name == own.name
    assert begun == [prepared_server] * 2, "one a compile"


def test_a_generator_of_the_users_that_knows_no_device_stays_as_it_is(made: list[Judge]) -> None:
    mine = object()
    with prepared(mine) as preparing:
        preparing.begin()
        assert preparing.generator() is mine


def test_a_generator_that_is_late_is_not_waited_for_and_holds_nobody_up(
    made: list[Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    late: list[Generator] = []
    make_with(monkeypatch, lambda: late.append(Generator(go_on.wait)) or late[-1])
    session = Session()
    with prepared("bundled", session) as preparing:
        preparing.begin()
        assert session.budget(3.0).left_s == 3.0, "the session's own lock is free"
        assert preparing._generator._coming is not None
        thread = preparing._generator._coming._thread
        session.interrupt()
    assert not late
    go_on.set()
    assert thread.ended.wait(10.0) and late[0].left == 1


def test_a_generator_is_there_before_it_is_warm(made: list[Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without room is no fault: it is told when something is asked for."""
    go_on, warm = threading.Event(), threading.Event()

    class Cold(Generator):
        def warm_up(self) -> None:
            go_on.wait(10.0)
            warm.set()
            raise GeneratorError("the device has no room")

    make_with(monkeypatch, lambda: Cold(lambda: None))
    with prepared("bundled") as preparing:
        preparing.begin()
        assert preparing._generator._coming is not None
        thread = preparing._generator._coming._thread
        generator = preparing.generator()
        assert not warm.is_set()
        go_on.set()
        assert thread.ended.wait(10.0) and warm.is_set()
        assert preparing.generator() is generator


def test_a_model_that_is_missing_is_told_where_the_generator_is_awaited(
    made: list[Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise ModelMissing("no model in there")

    make_with(monkeypatch, fail)
    with prepared("bundled") as preparing:
        preparing.begin()
        assert preparing.judge() is made[0]
        for _ in range(2):
            with pytest.raises(ModelMissing, match="no model in there"):
                preparing.generator()


@pytest.mark.parametrize(
    ("device", "options", "has_store", "begins"),
    [
        ("cuda", {}, False, True),
        ("cuda", {}, True, False),
        ("cpu", {"target": "host"}, False, False),
        ("cuda", {"on_miss": "fallback"}, False, False),
        ("cuda", {"budget_s": 0.0}, False, False),
    ],
)
def test_processes_import_ahead_where_nothing_can_be_stored(
    device: str,
    options: dict[str, Any],
    has_store: bool,
    begins: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(fork_server, "prepare", lambda: begun.append(True))
    if has_store:
        open_store(tmp_path).close()
    backend._begin_ahead(parse_options(None, options | {"cache_dir": tmp_path}), torch.device(device))
    assert bool(begun) == begins


@pytest.mark.parametrize("has_device", [True, False])
def test_they_import_ahead_of_dynamo_where_the_model_is_on_a_gpu(
    has_device: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(fork_server, "prepare", lambda: begun.append(True))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: has_device)
    runpy.run_path(str(backend.__file__))
    assert bool(begun) == has_device
