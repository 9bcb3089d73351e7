"""Candidates that hang, crash, write anywhere and ask for all memory, mixed among right and wrong ones.

    python -m benchmarks.judge_faults --out benchmarks/results             judge_faults.h100.json, or .host.json
    python -m benchmarks.judge_faults --n 500 --seconds 120 --out OUT      shorter

One judge gets `--n` candidates that differ in their text, a share `--faults` of them harmful: endless loops,
deadlocks, wild and misaligned accesses, terabytes of scratch, floods of text, texts that no compiler finishes.
What must come out: each candidate has its own verdict (right ones accepted, all others refused, none put off), no
process is left, no file, no memory, and the caller's own device context works. Exit code 1 where that is not so.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from benchmarks.redteam.attacks import attacks_for
from benchmarks.redteam.honest import HONEST, SILU_SCALAR
from benchmarks.redteam.regions import region
from benchmarks.result_file import bootstrap, mean, write_result
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import fork_server
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Verdict
from cudal1_compile.runtime import warden
from cudal1_compile.runtime.target import HOST, Target, detect_target

log = logging.getLogger(__name__)

HARMFUL = ("C18", "C19", "C20", "C21", "C27")  # rows of the catalogue: they harm their surroundings
BATCH = 64
WARM_BATCHES = 4  # before memory and files are counted
MAX_GROWTH_MIB = 256.0
INLINED = 12  # levels, each with three copies of the one below

Kind = Literal["right", "wrong", "fault"]


@dataclass(frozen=True, slots=True)
class Sample:
    kind: Kind
    name: str
    region: str
    code: str


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds at one moment."""

    resident_mib: float
    files: int


def main() -> None:
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    target = detect_target(torch.device("cuda")) if torch.cuda.is_available() else HOST
    samples = draw(target, arguments.n, arguments.faults, arguments.bombs, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tempfile.tempdir = folder  # of all that the judge makes
        report = run(target, samples, Path(folder), arguments.seconds, arguments.threads)
        tempfile.tempdir = None
    summary = report.summary()
    lost = [float(not ok) for ok in report.as_expected]
    intervals = {"unexpected": bootstrap(lost, mean)}
    path = write_result(
        arguments.out, "judge_faults", summary, len(lost), intervals, report.detail(), arguments.dry
    )
    for key, value in summary.items():
        print(f"{key:28s} {value}")
    print(path)
    sys.exit(0 if report.is_sound else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no batch after this time")
    parser.add_argument("--faults", type=float, default=0.02, help="share of harmful candidates")
    parser.add_argument("--bombs", type=int, default=2, help="texts that no compiler finishes")
    parser.add_argument("--threads", type=int, default=0, help="parallel builds; 0: one a core")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="a try: the file says so, and is no result")
    return parser.parse_args()


def draw(target: Target, n: int, faults: float, bombs: int, seed: int) -> list[Sample]:
    """Texts that all differ; harmful ones anywhere among the others."""
    rng = random.Random(seed)
    attacks = attacks_for(target.kind)
    pools: dict[Kind, list[Sample]] = {
        "right": [Sample("right", h.name, h.region, h.code) for h in HONEST],
        "wrong": [Sample("wrong", a.name, a.region, a.code) for a in attacks if a.hack not in HARMFUL],
        "fault": [Sample("fault", a.name, a.region, a.code) for a in attacks if a.hack in HARMFUL],
    }
    kinds: list[Kind] = ["right", "wrong", "fault"]
    weights = [0.4 * (1 - faults), 0.6 * (1 - faults), faults]
    found = [rng.choice(pools[kind]) for kind in rng.choices(kinds, weights, k=n - bombs)]
    for _ in range(bombs):
        found.insert(rng.randrange(len(found)), Sample("fault", "inlines without end", "silu", _bomb()))
    return [Sample(s.kind, s.name, s.region, f"{s.code}constexpr int tag = {i};\n") for i, s in enumerate(found)]


def _bomb() -> str:
    lines = ["__device__ __forceinline__ float g0(float x) { return sinf(x) + x; }"]
    for i in range(INLINED):
        calls = f"g{i}(x) + g{i}(x * 1.1f) + g{i}(x * 2.0f)"
        lines.append(f"__device__ __forceinline__ float g{i + 1}(float x) {{ return {calls}; }}")
    plan, kernel = SILU_SCALAR.split("\n", 1)
    return "\n".join([plan, *lines, kernel.replace("sigmoid(t)", f"sigmoid(t) + g{INLINED}(t)")])


@dataclass(frozen=True, slots=True)
class Report:
    samples: list[Sample]
    verdicts: list[Verdict | None]
    counts: dict[str, int]
    isolation: dict[str, bool]
    warm: Held
    end: Held
    left_processes: list[str]
    left_files: list[str]
    caller_alive: bool
    seconds: float

    @property
    def as_expected(self) -> list[bool]:
        return [_is_expected(s, v) for s, v in zip(self.samples, self.verdicts, strict=True)]

    @property
    def growth_mib(self) -> float:
        return self.end.resident_mib - self.warm.resident_mib

    @property
    def is_sound(self) -> bool:
        nothing_left = not self.left_processes and not self.left_files and self.end.files <= self.warm.files
        return all(self.as_expected) and nothing_left and self.caller_alive and self.growth_mib < MAX_GROWTH_MIB

    def summary(self) -> dict[str, float | int | str]:
        pairs = list(zip(self.samples, self.verdicts, strict=True))
        return {
            "candidates": len(pairs),
            "faults": sum(s.kind == "fault" for s in self.samples),
            "lost": sum(v is None for v in self.verdicts),
            "deferred": sum(isinstance(v, Deferred) for v in self.verdicts),
            "right_refused": sum(s.kind == "right" and not _is_expected(s, v) for s, v in pairs),
            "wrong_accepted": sum(s.kind != "right" and isinstance(v, Accepted) for s, v in pairs),
            "left_processes": len(self.left_processes),
            "left_files": len(self.left_files),
            "open_files_grown": self.end.files - self.warm.files,
            "resident_grown_mib": round(self.growth_mib, 1),
            "caller_alive": int(self.caller_alive),
            "candidates_per_second": round(len(pairs) / self.seconds, 2),
        }

    def detail(self) -> dict[str, object]:
        pairs = list(zip(self.samples, self.verdicts, self.as_expected, strict=True))
        by_kind = Counter(f"{s.kind}: {_word(v)}" for s, v, _ in pairs)
        by_fault = Counter(f"{s.name}: {_word(v)}" for s, v, _ in pairs if s.kind == "fault")
        unexpected = [{"name": s.name, "region": s.region, "verdict": repr(v)} for s, v, ok in pairs if not ok]
        return {
            "verdicts": dict(sorted(by_kind.items())),
            "faults": dict(sorted(by_fault.items())),
            "unexpected": unexpected[:40],
            "counts": self.counts,
            "isolation": self.isolation,
            "left": self.left_processes + self.left_files,
            "seconds": round(self.seconds, 1),
        }


def run(target: Target, samples: list[Sample], folder: Path, seconds: float, threads: int) -> Report:
    """One judge over all samples, batch by batch. `folder` holds every temporary file of this process."""
    before, others = _caller(), processes(folder)
    begin = time.monotonic()
    verdicts: list[Verdict | None] = []
    warm = end = held()
    with Judge(target, Limits(inductor=False, host_s=1.0, build_threads=threads)) as judge:
        for start in range(0, len(samples), BATCH):
            if time.monotonic() - begin > seconds:
                break
            verdicts += _judge_batch(judge, samples[start : start + BATCH])
            end = held()
            if start // BATCH < WARM_BATCHES:
                warm = end
            log.info("%d judged, %s, %s", len(verdicts), end, judge.counts)
        counts, isolation = judge.counts, judge.isolation
    fork_server.take().close()  # it would stay a minute for the next judge
    elapsed = time.monotonic() - begin
    _await_warden(folder, others)
    left_files = [p.name for p in folder.iterdir()]
    alive = torch.equal(before, _caller())
    done = samples[: len(verdicts)]
    left = [line for line in processes(folder) if line not in others]
    return Report(done, verdicts, counts, isolation, warm, end, left, left_files, alive, elapsed)


def _await_warden(folder: Path, others: list[str]) -> None:
    """It goes by itself once it has held nothing for a while."""
    end = time.monotonic() + 2 * warden.KEPT_S
    while time.monotonic() < end and any(str(warden.PROGRAM) in x for x in processes(folder) if x not in others):
        time.sleep(0.1)


def _judge_batch(judge: Judge, batch: list[Sample]) -> list[Verdict | None]:
    """Candidates of one region stand together, as in a synthesis. What passes is judged as a finalist."""
    order = sorted(range(len(batch)), key=lambda i: batch[i].region)
    found = judge.judge_tasks([(region(batch[i].region), batch[i].code) for i in order])
    by_place: dict[int, Verdict] = dict(zip(order, found, strict=False))
    passed = [i for i, v in by_place.items() if batch[i].kind != "right" and isinstance(v, Accepted)]
    finals = {i: judge.submit_finalists(region(batch[i].region), [batch[i].code]) for i in passed}
    by_place |= {i: final.result() for i, (final,) in finals.items()}
    return [by_place.get(i) for i in range(len(batch))]


def _caller() -> torch.Tensor:
    """Work of the calling process on its own device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.arange(1024, dtype=torch.float32, device=device)
    return (x * x).sum().cpu()


def held() -> Held:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Held(round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1), len(os.listdir("/proc/self/fd")))


def processes(folder: Path) -> list[str]:
    """Command lines of children, and of whatever works in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_ours(entry, folder):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


def _is_ours(entry: Path, folder: Path) -> bool:
    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return parent == os.getpid() or str(folder) in os.readlink(entry / "cwd")


def _is_expected(sample: Sample, verdict: Verdict | None) -> bool:
    if sample.kind != "right":
        return isinstance(verdict, Rejected)
    # on the host target a right kernel may be refused for its declared cost
    loses = isinstance(verdict, Rejected) and verdict.stage == "time" and verdict.reason.startswith("cost")
    return isinstance(verdict, Accepted) or loses


def _word(verdict: Verdict | None) -> str:
    if isinstance(verdict, Rejected):
        return f"refused by {verdict.stage}"
    return type(verdict).__name__.lower()


if __name__ == "__main__":
    main()
