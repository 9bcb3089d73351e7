"""The worker pool: results, errors, crashes, hangs, blame, deadlines; the lock of a dead process is free."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cudal1_trainer.scores.workers import Exclusive, Fault, Finished, Lost, Outcome, run_jobs


def _setup() -> int:
    return 100


def _work(state: int, job: str, mark: Any) -> int:
    mark(f"doing {job}")
    if job == "raise":
        raise ValueError("bad job")
    if job == "fault":
        raise Fault("context gone")
    if job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "hang":
        time.sleep(60)
    return state + len(job)


def _broken_setup() -> int:
    raise RuntimeError("no device")


def _all(jobs: list[str], **more: Any) -> list[Outcome]:
    return list(run_jobs(_work, _setup, iter(jobs), 2, 2.0, **more))


def test_every_job_ends_and_the_pool_survives_each_kind_of_loss() -> None:
    outcomes = {o.job: o for o in _all(["a", "raise", "die", "bb", "fault", "hang", "ccc"])}
    assert {j: o.result for j, o in outcomes.items() if isinstance(o, Finished)} == {
        "a": 101,
        "bb": 102,
        "ccc": 103,
    }
    lost = {j: o for j, o in outcomes.items() if isinstance(o, Lost)}
    assert set(lost) == {"raise", "die", "fault", "hang"}
    assert all(o.mark == f"doing {j}" for j, o in lost.items())
    assert "bad job" in lost["raise"].reason
    assert "silent" in lost["hang"].reason
    assert "code -9" in lost["die"].reason


def test_a_lost_job_can_be_sent_again_changed() -> None:
    outcomes = _all(["die"], again=lambda lost: "ok" if lost.job == "die" else None)
    assert [type(o) for o in outcomes] == [Lost, Finished]


def test_the_deadline_ends_an_endless_run() -> None:
    start = time.monotonic()
    endless = iter(lambda: "x", "")
    count = sum(1 for _ in run_jobs(_work, _setup, endless, 1, 5.0, start + 3))
    assert count > 3
    assert time.monotonic() - start < 10


def test_workers_that_cannot_start_end_the_run() -> None:
    with pytest.raises(RuntimeError, match="while starting"):
        list(run_jobs(_work, _broken_setup, iter("abcdefgh"), 1, 5.0))


def _hold(path: Path, held: Any) -> None:
    with Exclusive(path):
        held.set()
        time.sleep(60)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "lock", held), daemon=True)
    process.start()
    assert held.wait(30)
    process.kill()
    process.join()
    with Exclusive(tmp_path / "lock"):
        pass
