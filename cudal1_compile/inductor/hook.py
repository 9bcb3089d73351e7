"""Whether the hook into Inductor works here: a test per torch version, and the cases that it leaves alone.

The hook leans on private classes of Inductor (fused_lowering.py, splice.py, collect.py). So before the first
compile a tiny graph goes all the way through them with a stand-in kernel; where an import, a signature or the
result is not as expected, everything is plain Inductor and the reason is said. What has passed with these very
sources of torch and of this package is not tested again, which took half a second of each process.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch._dynamo.exc import RestartAnalysis, SkipFrame, TensorifyScalarRestartAnalysis
from torch._guards import TracingContext

from cudal1_compile.config import cache_dir
from cudal1_compile.inductor.graph_key import code_version

log = logging.getLogger(__name__)

DYNAMOS = (RestartAnalysis, SkipFrame, TensorifyScalarRestartAnalysis)  # ways of starting anew: no errors

_TEXT = """region v1
dims d0=64 d1=8
in0 f32[d0,d1]
t0 f32[d0,d1] = exp(in0)
t1 f32[d0,d1] = add(t0, 1.0)
out0 f32[d0,d1] = t1
"""
_ENTRY = "selftest"
_lock = threading.Lock()  # the stand-in has one name


def why_not(inductor: Mapping[str, Any]) -> str | None:
    """The reason for which a compile with these Inductor options is left to plain Inductor; None: none."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    if inductor.get("cpp_wrapper", config.cpp_wrapper):
        return "kernels are not called from cpp_wrapper's code"
    if V.aot_compilation:
        return "an ahead-of-time package cannot hold kernels of the cache"
    fault = _fault()
    return None if fault is None else f"the hook does not fit torch {torch.__version__} ({fault})"


def forget_symbols() -> None:
    """What a compile that failed had still to bind, before the same graph is compiled again.

    Its tracing finds sizes known only at run time left over otherwise (PendingUnbackedSymbolNotFound).
    """
    context = TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()


def _fault() -> str | None:
    sources = _sources()
    passed = cache_dir() / "hook" / sources
    if sources and passed.exists():
        return None
    fault = self_test()
    if fault is None and sources:
        with suppress(OSError):
            passed.parent.mkdir(exist_ok=True)
            passed.touch()
    return fault


@lru_cache(maxsize=1)
def _sources() -> str:
    """A digest of them; empty where they cannot be read."""
    try:
        from torch._inductor.codecache import torch_key

        found = hashlib.sha256(torch_key() + f"{sys.version} {code_version()}".encode())
    except Exception as error:  # noqa: BLE001  a torch that digests its sources otherwise, or no file of ours
        log.debug("the self-test runs in every process", exc_info=error)
        return ""
    return found.hexdigest()[:32]


@lru_cache(maxsize=1)
def self_test() -> str | None:
    """What is wrong with the hook in this torch, once a process; None where it works.

    It runs in a thread of its own: the caller is in the middle of tracing, and tracing state is per thread. Who is
    interrupted while it waits leaves a test behind, whose end the next one waits for.
    """
    found: list[str] = []
    thread = threading.Thread(target=_report_fault, args=(found,), name="cudal1-selftest")
    thread.start()
    thread.join()
    return found[0] if found else None


def _report_fault(found: list[str]) -> None:
    try:
        with _lock:
            _run()
    except Exception as error:  # noqa: BLE001  any error at all means that the hook does not fit
        log.debug("the hook's self-test failed", exc_info=error)
        found.append(f"{type(error).__name__}: {error}")


def _run() -> None:
    import torch._functorch.config as functorch_config
    from torch import fx
    from torch._inductor.compile_fx import compile_fx

    from cudal1_compile.dispatch import registry
    from cudal1_compile.inductor.splice import HOOK
    from cudal1_fx_passes.program.text import parse_program

    calls: list[int] = []
    reference = registry.load_reference(parse_program(_TEXT), torch.device("cpu"))

    def counted(*args: Any) -> None:
        calls.append(1)
        reference(*args)

    x, w = torch.linspace(-1, 1, 512).reshape(64, 8), torch.eye(8)
    # without anything that Inductor writes C++ for: its first takes 20 s of compilers, on a GPU's machine 60 s
    graph = fx.symbolic_trace(lambda x, w: (torch.exp(torch.mm(x, w)) + 1,))
    with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False), registry.stand_in(_ENTRY, counted):
        compiled: Any = compile_fx(graph, [x, w], config_patches={HOOK: _forced_splice()})
        (got,) = compiled(x, w)
    if not calls:
        raise RuntimeError("the pass was not called, or its kernel was not")
    if not torch.allclose(got, torch.exp(x) + 1):
        raise RuntimeError("a spliced kernel's result did not arrive")


def _forced_splice() -> Any:
    """A pass that puts the stand-in into whatever region there is."""
    from torch import fx

    from cudal1_compile.inductor.graph_plan import ChosenKernel
    from cudal1_compile.inductor.splice import Splice
    from cudal1_compile.kernel.candidate import Candidate
    from cudal1_fx_passes.fusion.partition import partition

    class Forced(Splice):
        def __call__(self, graph: fx.Graph) -> None:
            kernel = ChosenKernel(_ENTRY, _TEXT, Candidate("", (), ()))
            self.kernels = {r.fingerprint: kernel for r in partition(graph).regions}
            super().__call__(graph)

        def uuid(self) -> None:
            return

    return Forced(None, {})
