"""When does what happen in a first call? One job of coverage, with the steps of synthesis and the judge stamped.

    python -m benchmarks.timeline --job bert.train --out FILE    on a GPU, caches empty: FILE gets a line an event
    python -m benchmarks.timeline --read FILE                    phases, the judge's requests by kind, its steps

An event has `at` (seconds since the call began) and, where it lasted, `s` and `cpu_s` of its thread; an event that
lasted is noted at its end. The folders of caches come from the environment (CUDAL1_CACHE_DIR,
TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR): give each run new ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

from cudal1_fx_passes.program.text import print_program

Event = dict[str, Any]
Tell = Callable[[tuple[Any, ...], Any], Event]  # the arguments and the result of a call -> what is noted of it

SHOWN_CHARACTERS = 160
LEAST_S = 0.3  # of a step of the judge that is shown


class Stamps:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self._begun_s = time.monotonic()

    def begin(self) -> None:
        self._begun_s = time.monotonic()

    def note(self, kind: str, began_s: float | None = None, **known: Any) -> None:
        now_s = time.monotonic()
        lasted = {} if began_s is None else {"s": round(now_s - began_s, 4)}
        self.events.append({"at": round(now_s - self._begun_s, 4), "kind": kind, **lasted, **known})

    @contextmanager
    def around(self, owner: Any, name: str, kind: str, tell: Tell = lambda given, found: {}) -> Iterator[None]:
        """Each call of it is noted, also one that raises."""
        call = getattr(owner, name)

        def stamped(*given: Any, **named: Any) -> Any:
            began_s, cpu_s, found = time.monotonic(), time.thread_time(), None
            try:
                found = call(*given, **named)
                return found
            finally:
                self.note(kind, began_s, cpu_s=round(time.thread_time() - cpu_s, 4), **tell(given, found))

        with mock.patch.object(owner, name, stamped):
            yield


@contextmanager
def stamped(stamps: Stamps) -> Iterator[None]:
    """Imports all of it, as a first call does."""
    from cudal1_compile.judge.bench.device import DeviceBench
    from cudal1_compile.judge.bench.prefetch import Prefetch
    from cudal1_compile.judge.bench.worker_pool import Slot, WorkerPool
    from cudal1_compile.judge.judge import Judge
    from cudal1_compile.pipeline.compile import Pipeline
    from cudal1_compile.pipeline.heard import Heard
    from cudal1_compile.pipeline.progress import LineProgress
    from cudal1_compile.synthesis.proposals import Proposals

    def asked(given: tuple[Any, ...], found: Any) -> Event:
        verdicts = [_verdict(v) for v in found.verdicts] if found is not None else []
        return {**_request(given, found), "verdicts": verdicts}

    def spent(given: tuple[Any, ...], found: Any) -> Event:
        return {"spent": {step: round(s, 3) for step, s in given[0].spent_s.items()}}

    parts: list[tuple[Any, str, str, Tell]] = [
        (LineProgress, "__call__", "progress", lambda given, _: _progress(given[1])),
        (Slot, "ask", "ask", asked),
        (WorkerPool, "start", "worker starts", lambda given, _: {}),
        (Prefetch, "_make", "ahead", _request),
        (DeviceBench, "_build", "build", _built),
        (Proposals, "_make", "propose", lambda given, _: {"prompts": len(given[1].asked), "n": given[1].n}),
        (Judge, "close", "judge closes", spent),
        (Heard, "see", "heard", lambda given, _: {}),
        *((Pipeline, name, name, lambda given, _: {}) for name in ("collect", "_compile_inductors", "finish")),
    ]
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(stamps.around(*part))
        yield


def _built(given: tuple[Any, ...], found: Any) -> Event:
    reason = getattr(found, "reason", "")[:SHOWN_CHARACTERS]
    return {"program": _digest(print_program(given[1])), "result": type(found).__name__, "reason": reason}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _request(given: tuple[Any, ...], found: Any) -> Event:
    request = given[1]
    return {"op": request["op"], "program": _digest(str(request.get("program", "")))}


def _verdict(verdict: Any) -> str:
    why = getattr(verdict, "reason", "")
    return f"{type(verdict).__name__} {why}".strip()[:SHOWN_CHARACTERS]


def _progress(event: Any) -> Event:
    return {"event": type(event).__name__, "text": repr(event)[:SHOWN_CHARACTERS]}


def measure(job: str, out: Path) -> None:
    from benchmarks.coverage_job import make_step
    from benchmarks.coverage_jobs import job_named
    from benchmarks.coverage_measure import choices, first_call, settle

    step = make_step(job_named(job), torch.device("cuda", 0), tiny=False)
    stamps = Stamps()
    with ExitStack() as stack:

        def make() -> Any:
            from cudal1_compile.backend import cudal1

            stamps.begin()
            stack.enter_context(stamped(stamps))
            return torch.compile(step.module, backend=cudal1)

        compiled, found = first_call(step, make)
        stamps.note("first call ends", **found)
    stamps.note("trial ends", **settle(step, compiled), choices=choices())
    out.write_text("".join(json.dumps(event) + "\n" for event in stamps.events))


def summary(events: Sequence[Event]) -> Iterator[str]:
    """Its lines."""
    asked: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["kind"] in ("ask", "ahead", "build"):
            asked[f"{event['kind']} {event.get('op', '')}".strip()].append(event)
        elif event["kind"] != "progress" or event["event"] in ("Preparing", "Asking", "Decided"):
            what = event.get("text") or {k: v for k, v in event.items() if k not in ("at", "s", "kind", "spent")}
            yield f"{event['at']:8.2f} {event.get('s', ''):>8} {event['kind']:18} {what or ''}"
    for kind, some in asked.items():
        took, ends = sorted(e["s"] for e in some), [e["at"] for e in some]
        yield (
            f"{kind:18} {len(some):4} calls, {sum(took):6.1f} s, median {median(took):.2f}, longest "
            f"{took[-1]:.2f}, the first ends at {min(ends):.1f}, the last at {max(ends):.1f}"
        )
    for spent in (e["spent"] for e in events if "spent" in e):
        steps = sorted(((s, step) for step, s in spent.items() if s >= LEAST_S), reverse=True)
        yield "worker seconds: " + ", ".join(f"{step} {s:.1f}" for s, step in steps)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.read is not None:
        lines = arguments.read.read_text().splitlines()
        print("\n".join(summary([json.loads(line) for line in lines])))
    elif arguments.job and arguments.out:
        measure(arguments.job, arguments.out)
    else:
        parser.error("expected --job NAME with --out FILE, or --read FILE")
    return 0


if __name__ == "__main__":
    sys.exit(main())
