"""The throughput of stage 1: rates between looks, a run that takes too long is killed with all that came of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.trainer_throughput import command_of, figures, run


def test_rates_leave_out_what_came_before_the_second_look() -> None:
    lines = [
        {"step": 1.0, "tokens": 10.0, "elapsed_s": 0.0, "wait_s": 9.0, "loss": 7.0},
        {"step": 20.0, "tokens": 200.0, "elapsed_s": 10.0, "wait_s": 1.0, "loss": 5.0},
        {"step": 40.0, "tokens": 400.0, "elapsed_s": 12.0, "wait_s": 0.5, "loss": 4.0},
        {"step": 60.0, "tokens": 800.0, "elapsed_s": 14.0, "wait_s": 0.5, "loss": 3.0},
    ]
    found = figures(lines)
    assert (found["tokens_per_s"], found["steps_per_s"], found["wait_share"]) == (150.0, 10.0, 0.25)
    assert found["loss"] == 3.0 and found["measured_s"] == 4.0
    with pytest.raises(ValueError, match="give more --seconds"):
        figures(lines[:1])


def test_several_processes_are_launched_by_accelerate() -> None:
    assert command_of(1, ["cudal1_trainer.sft.supervised"], dry=False)[1:] == [
        "-m",
        "cudal1_trainer.sft.supervised",
    ]
    two = " ".join(command_of(2, ["cudal1_trainer.sft.supervised", "--recipe", "h100"], dry=False))
    assert (
        "accelerate.commands.launch" in two
        and "--num_processes 2 -m cudal1_trainer.sft.supervised --recipe h100" in two
    )


def test_a_run_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(60)"
    start = f"subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True)"
    parent = f"import subprocess, sys; print({start}.pid, flush=True); {sleep}"
    begin = time.monotonic()
    assert not run([sys.executable, "-c", parent], tmp_path / "said.txt", 3.0)
    assert time.monotonic() - begin < 30
    pid = int((tmp_path / "said.txt").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert run([sys.executable, "-c", "pass"], tmp_path / "said.txt", 60.0)
