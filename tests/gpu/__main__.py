"""Every file of tests/gpu, slow tests too, each in a process of its own and alone on its GPU.

    python -m tests.gpu --logs LOGS [--gpus 2] [--seconds 540] [FILE ...]

LOGS/FILE.log has what pytest printed, and PASSED at its end where the file did: it is not run again, so a run that
was cut off goes on. Ends with 1 where a file failed, was skipped whole, or was not run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

from benchmarks.coverage import gpu_places
from benchmarks.side_by_side import Place, start_child, stop_children

PASSED = "PASSED\n"
POLL_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.gpu", description=__doc__)
    parser.add_argument("files", nargs="*", help="names in tests/gpu; by default all")
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=0, help="so many files at a time, each on a GPU of its own")
    parser.add_argument("--seconds", type=float, default=3e5)
    arguments = parser.parse_args(argv)
    arguments.logs.mkdir(parents=True, exist_ok=True)
    folder = Path(__file__).parent
    files = [folder / name for name in arguments.files] or sorted(folder.glob("test_*.py"))
    waiting: SimpleQueue[Path] = SimpleQueue()
    for file in files:
        if not has_passed(log_of(arguments.logs, file)):
            waiting.put(file)
    end, places = time.monotonic() + arguments.seconds, gpu_places(arguments.gpus, "")
    with ThreadPoolExecutor(len(places)) as lanes:
        list(lanes.map(lambda place: run_some(place, waiting, arguments.logs, end), places))
    return int(not all(has_passed(log_of(arguments.logs, file)) for file in files))


def run_some(place: Place, waiting: SimpleQueue[Path], logs: Path, end: float) -> None:
    """Until nothing waits, or the time (monotonic) is over."""
    while time.monotonic() < end:
        try:
            file = waiting.get_nowait()
        except Empty:
            return
        begin, log = time.monotonic(), log_of(logs, file)
        with log.open("wb") as stream:
            child = start_child([sys.executable, "-m", "pytest", "-ra", str(file)], place, stream)
            while (code := child.poll()) is None and time.monotonic() < end:
                time.sleep(POLL_S)
            stop_children([child])
        lines = log.read_text().splitlines()
        said = "cut off" if code is None else lines[-1] if lines else f"exit code {code}"
        if code == 0 and " passed" in said:
            log.write_text("\n".join([*lines, PASSED]))
        print(f"{file.stem} [{time.monotonic() - begin:.0f} s] {said}", flush=True)


def log_of(logs: Path, file: Path) -> Path:
    return logs / f"{file.stem}.log"


def has_passed(log: Path) -> bool:
    return log.is_file() and log.read_text().endswith(PASSED)


if __name__ == "__main__":
    sys.exit(main())
