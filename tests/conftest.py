"""Every test gets its own cache directory; without a compiler or a GPU, tests that need one are skipped."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from absent_modules import WITHOUT
from hypothesis import settings

ROOT = Path(__file__).parent


def _start_run() -> Path:
    """A folder of this run. Processes that it starts find there a compiler which builds nothing twice."""
    folder = Path(tempfile.mkdtemp(prefix="cudal1-tests-"))
    compiler = shutil.which("g++")
    if compiler is not None:
        for name in ("bin", "built"):
            (folder / name).mkdir()
        found = folder / "bin" / "g++"
        call = f'set -- "{compiler}" "{folder}/built" "$@"\n. "{ROOT}/built_once.sh"\n'
        found.write_text(f"#!{shutil.which('bash')}\n{call}")
        found.chmod(0o755)
        os.environ["PATH"] = f"{found.parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["CUDAL1_TEST_RUN"] = str(folder)
    return folder


# before torch is imported: artifacts of an earlier run must not answer for the code under test, and one
# directory a run lets the workers of pytest-xdist, which inherit its name, share what was compiled
_RUN_DIR = Path(os.environ["CUDAL1_TEST_RUN"]) if "CUDAL1_TEST_RUN" in os.environ else _start_run()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_RUN_DIR / "inductor")
# the key that seals the tests' kernel caches: this user's own stays out of it
os.environ["CUDAL1_KEY_FILE"] = str(_RUN_DIR / "key")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# scalar code from Inductor: a graph costs a compiler 0.5 s instead of 1.4, and a process no 15 s of trials with
# this CPU's vectors first. Tested is which graphs Inductor gets, not its own loops; "" gives Inductor's default
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

# nor does Dynamo look for garbage behind each compile, a tenth of the time of tests that compile
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

_COUNT = itertools.count()  # of tests

# a shared machine is slow by turns: no deadline. By default few examples, the same in every run, so that a change
# is blamed for its own faults only; HYPOTHESIS_PROFILE=long looks for new ones and prints how to repeat them
settings.register_profile("default", deadline=None, max_examples=30, derandomize=True, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def cudal1_cache_dir(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that CUDAL1_CACHE_DIR names during this test.

    Not in its tmp_path: most tests make no file, and thousands of folders cost a run a minute.
    """
    directory = _RUN_DIR / f"cache-{os.getpid()}-{next(_COUNT)}"
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(directory))
    return directory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for folder in ("host", "gpu"):
            if ROOT / folder in item.path.parents:
                item.add_marker(folder)
    _skip_without(items, "host", shutil.which("g++") is not None, "no g++ on PATH")
    _skip_without(items, "gpu", _has_cuda(items), "no CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the collector, 4 s of a worker's time: nearly all that is imported for the tests stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # looked at every 700 new objects, a worker's millions take a tenth of its time and more
        gc.set_threshold(50_000, 20, 10)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the controller of pytest-xdist, or a run without it
        shutil.rmtree(_RUN_DIR, ignore_errors=True)


def _skip_without(items: list[pytest.Item], marker: str, present: bool, reason: str) -> None:
    if present:
        return
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


def _has_cuda(items: list[pytest.Item]) -> bool:
    if not any(item.get_closest_marker("gpu") for item in items):
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's workers are told so too: scalar code; a compiled header does not pay for one graph."""
    from cudal1_compile.judge.sandbox import isolation

    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    cheap = ("TORCHINDUCTOR_VEC_ISA_OK", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS")
    monkeypatch.setattr(isolation, "_PASSED_ON", (*isolation._PASSED_ON, *cheap))


@pytest.fixture
def products_in_f32() -> Iterator[None]:
    """As torch's default has it, whatever a training before has set for the process."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be spawned is forked, with all that it would import, 2 s each: for tests of what it does."""
    from multiprocessing import context

    monkeypatch.setitem(context._concrete_contexts, "spawn", context._concrete_contexts["fork"])


@pytest.fixture
def without_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that this one starts import no Inductor, 3 s each, where none is needed."""
    from cudal1_compile.judge.bench.worker import INDUCTOR

    (tmp_path / "sitecustomize.py").write_text(WITHOUT.format(names=INDUCTOR))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def no_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor's loops are not built, seconds a graph, and do nothing: for tests of graphs, not of results."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_, **__: lambda *_: None)
    yield
    PyCodeCache.cache_clear()  # other tests' graphs may be the same


@pytest.fixture(scope="module")
def built_quickly() -> Iterator[None]:
    """Plain host kernels at -O1: those of products are long texts, built in two thirds of the time."""
    from cudal1_compile.runtime import hostbuild

    def use(flags: tuple[str, ...]) -> None:
        hostbuild.PLAIN = flags
        hostbuild._flags.cache_clear()
        hostbuild._build_header.cache_clear()

    before = hostbuild.PLAIN
    assert "-O2" in before
    use(tuple("-O1" if flag == "-O2" else flag for flag in before))
    yield
    use(before)
