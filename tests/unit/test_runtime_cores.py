"""The number of cores, in a process that may not use all of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cudal1_compile.runtime.cores import usable_cores

JUDGE = (
    "import os, sys\n"
    "os.sched_setaffinity(0, {int(sys.argv[1])})\n"
    "from cudal1_compile.judge.limits import Limits\n"
    "from cudal1_compile.runtime.cores import usable_cores\n"
    "print(usable_cores(), Limits().worker_count)\n"
)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no process to cores")
def test_a_pinned_process_counts_its_own_cores() -> None:
    core = str(max(os.sched_getaffinity(0)))
    said = subprocess.run([sys.executable, "-c", JUDGE, core], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1", "1"]
    assert usable_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("cores", "counted"), [(6, 6), (None, 1)])
def test_a_system_that_pins_nothing_counts_all(
    cores: int | None, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert usable_cores() == counted
