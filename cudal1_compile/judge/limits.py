"""Limits of the judge, all in one place."""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_compile.runtime.cores import usable_cores

GIB = 1 << 30
CORES_A_WORKER = 4  # beside it run builds, and what the caller does
MAX_WORKERS = 3  # times are taken one after the other


@dataclass(frozen=True, slots=True)
class Limits:
    """What a trial may take. Times in seconds unless the name says otherwise."""

    memory_bytes: int = 24 * GIB  # of the device; never more than half of what is free
    verify_s: float = 1.0  # one launch on a GPU may take this long before it counts as hanging
    host_s: float = 10.0  # one run on the host target, of CPU time
    request_s: float = 60.0  # one candidate in the worker, case suite included
    finalists_s: float = 240.0  # one group of finalists, Inductor's compile included
    start_s: float = 120.0  # a worker, until it answers
    quick_ms: float = 2.5  # device time of the quick timing: about 12 rounds, enough to rank
    final_ms: float = 30.0  # device time a contender of the final timing; 60 find the same within their spread
    slow_builds_s: float = 30.0  # CPU time of all builds of a region, beyond what one usually takes
    build_threads: int = 0  # parallel builds; 0: one a core
    workers: int = 0  # processes that judge on one GPU, where there is room; 0: by the number of cores
    cached_suites_bytes: int = 2 * GIB  # regions that all workers together keep ready
    finalist_repeats: int = 6  # further runs of one case, to find races
    sanitize: bool = False  # compute-sanitizer over finalists, where it is installed: seconds each
    sanitizer_s: float = 30.0  # each of its tools, over one candidate
    inductor: bool = True  # compile the Inductor baseline for finalists
    products_in_tf32: bool = False  # whether the user allows that, as baselines then have it
    distributions: tuple[str, ...] = ()  # empty: all that the region's size allows

    @property
    def build_count(self) -> int:
        return self.build_threads or usable_cores()

    @property
    def worker_count(self) -> int:
        return self.workers or max(1, min(MAX_WORKERS, usable_cores() // CORES_A_WORKER))
