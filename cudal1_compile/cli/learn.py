"""`cudal1 warm --learn`: stage 3 of the trainer on a workload's own regions, before kernels are asked for.

    regions without a kernel -> cudal1_trainer.rl.own, a process of its own
                             -> CACHE/learned/TARGET.BASE/model, where that is no worse on these regions
                             -> each region's fastest design waits for the judge, before anything is proposed

So plain warming's candidates are still all asked for, in what is left of the budget. A later call learns on from
the model that was kept. Where nothing could be learned, one line says why, and warming goes on as without --learn.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cudal1_cache.store import Store
from cudal1_compile.cli.workload import device_of
from cudal1_compile.codegen.replies import lower_nearest
from cudal1_compile.config import cache_dir
from cudal1_compile.errors import OptionError
from cudal1_compile.generate.factory import BUNDLED, own_directory, stored_name
from cudal1_compile.judge.verdict import Deferred
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_compile.runtime.warden import watched
from cudal1_compile.synthesis.archive import Archive
from cudal1_compile.synthesis.records import Proposal, to_attempt
from cudal1_compile.synthesis.task import WAITS, region_of
from cudal1_fx_passes.program.text import parse_program

LEARN_SHARE = 0.5  # of the budget
LEAST_S = 60.0  # in which anything is learned: before and after it programs are judged and models tried
OVERRUN = 1.5  # of its seconds, after which the process is ended
LEARNED = "learned:"  # the generator of such candidates
FASTEST = "fastest.0.jsonl"  # as cudal1_trainer.rl.own writes it


def base_model(generator: str) -> Path:
    """What learns. Raises OptionError for a generator that cannot."""
    directory = own_directory(generator)
    if directory is None:
        raise OptionError(
            f"--learn trains a model of the bundled form, got generator={generator!r}: expected bundled, or "
            "bundled:PATH of such a model"
        )
    return directory


def learn_from(texts: Sequence[str], target: str, model: Path, seconds: float, store: Store) -> Path | None:
    """The model to ask; None for the one that there was, where nothing better was learned.

    texts: of regions. target: host or cuda.
    """
    if seconds < LEAST_S:
        print(f"nothing is learned in {seconds:.0f} s: half of --budget-s must be at least {LEAST_S:.0f}")
        return None
    place = detect_target(device_of(target))
    base = stored_name(f"{BUNDLED}{model}") or ""
    out = cache_dir() / "learned" / f"{place.key[:12]}.{base.removeprefix(BUNDLED)}"
    kept = out / "model"
    try:
        out.mkdir(parents=True, exist_ok=True)
        tasks = out / "tasks.jsonl"
        tasks.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    except OSError as error:
        print(f"nothing is learned: {error}")
        return None
    if (kept / "config.json").is_file():
        model = kept
    print(f"learning from {len(texts)} regions for about {seconds:.0f} s, see {out / 'learn.log'}", flush=True)
    why = _run(tasks, model, out, target, seconds)
    if why:
        print(f"nothing was learned: {why}")
        return None
    print(f"learned: {offer(out / FASTEST, place, store)} practised designs wait for the judge")
    if not (kept / "config.json").is_file():
        return None
    print(f"generator={f'{BUNDLED}{kept}'!r} is the model")
    return kept


def _run(tasks: Path, model: Path, out: Path, target: str, seconds: float) -> str:
    """Why nothing was learned; empty where something was."""
    given = ["-m", "cudal1_trainer.rl.own", str(tasks), "--model", str(model), "--out", str(out)]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if target == "host" else {}
    log = out / "learn.log"
    with log.open("wb") as stream:
        child = subprocess.Popen(
            [sys.executable, *given, "--seconds", str(seconds)],
            env=os.environ | hidden,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    with child, watched(child.pid):
        try:
            child.wait(OVERRUN * seconds)
        except subprocess.TimeoutExpired:
            return f"it took longer than {OVERRUN * seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    said = (log.read_text(errors="replace").splitlines() or ["no word"])[-1]
    return "" if child.returncode == 0 else said


def offer(fastest: Path, target: Target, store: Store) -> int:
    """Puts practised designs where the judge takes candidates from; how many. They are lowered here once more."""
    offered = 0
    for line in fastest.read_text().splitlines():
        row = json.loads(line)
        program = parse_program(row["text"])
        reply = lower_nearest(program, row["design"])
        if reply is None:
            continue
        archive = Archive(store, region_of(program), target)
        proposal = Proposal(archive.region, LEARNED, "", reply, reply.code)
        if archive.verdict_on(proposal.code_digest) is None:
            archive.put([to_attempt(proposal, Deferred(WAITS), target)])
            offered += 1
    return offered
