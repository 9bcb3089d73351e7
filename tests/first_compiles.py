"""What the first compiles of a fork server's fork still import and register, by a module that runs in the fork."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.redteam.regions import region
from cudal1_compile.judge.sandbox.fork_server import ForkServer
from cudal1_compile.judge.sandbox.process import Worker
from cudal1_fx_passes.program.text import print_program

LIMIT_S = 120.0
# the last two: a lock that all forks would share, and what Triton builds with a C compiler
THEIRS = ("torch.", "triton.", "sympy.", "multiprocessing.", "cuda_utils")
CODE = "torch._inductor.runtime.compile_tasks."
IN_FORK = """
import json, os, sys
from cudal1_compile.judge.sandbox.isolation import take_over_pipes

def main():
    requests, replies = take_over_pipes()
    os.write(replies, b'{"given_up": {"nothing": true}}\\n')
    asked = json.loads(os.read(requests, 1 << 16))
    loaded = set(sys.modules)

    import torch
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.fx_passes import fuse_attention, joint_graph, post_grad, pre_grad
    from cudal1_compile.judge.timing.ahead import compile_ahead
    from cudal1_fx_passes.program.text import parse_program

    AsyncCompile.cpp_pybinding = lambda *_, **__: lambda *_: None  # all but the C++ compiler
    inits = [fuse_attention._sfdp_init, *(module.lazy_init for module in (pre_grad, joint_graph, post_grad))]
    before = [init.cache_info().misses for init in inits]
    for text in asked["texts"]:
        compile_ahead(parse_program(text), torch.device(asked["device"]))
    found = {
        "imported": sorted(set(sys.modules) - loaded),
        "registered": [init.cache_info().misses - n for init, n in zip(inits, before, strict=True)],
        "sum": torch.ones(2, device=asked["device"]).sum().item(),
    }
    os.write(replies, json.dumps(found).encode() + b"\\n")
"""


def check_first_compiles(
    names: tuple[str, ...], device: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """How often patterns were registered: attention's, and those of each of Inductor's three passes.

    Nothing is imported, and the fork can use the device afterwards. folder: for the module and Inductor's code.
    """
    (folder / "compiles_for_tests.py").write_text(IN_FORK)
    monkeypatch.syspath_prepend(folder)  # processes that this one starts have its path
    server = ForkServer()
    worker = Worker("compiles_for_tests", compiled=folder, fork_server=server)
    texts = [print_program(region(name)) for name in names]
    try:
        found = worker.ask({"texts": texts, "device": device}, LIMIT_S)
    finally:
        worker.kill()
        server.close()
    compiled = {name for name in found["imported"] if name.startswith(CODE)}
    assert len(compiled) >= len(names)
    assert not [name for name in found["imported"] if name.startswith(THEIRS) and name not in compiled]
    assert found["sum"] == 2.0
    registered: list[int] = found["registered"]
    return registered
