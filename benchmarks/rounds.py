"""Do measured variants in the prompt pay? A first round of replies, then a second one in three ways.

    python -m benchmarks.rounds --model cudal1_compile/generate/model --out OUT --seconds 560

    first      8 replies a program from the prompt without variants; judged, and timed against aten
    again      8 more from the same prompt
    random     8 more from two prompts that each show two right variants of the first round, drawn uniformly,
    buckets    or of two score buckets, as synthesis chooses them (exemplars.py)

Programs are those of held-out patterns; where nothing of the first round is right, all prompts are alike. Then all
codes of a program are judged together, and the quickest of every way is measured side by side with Inductor, as in
ablation_rows.py. What synthesis shows beside variants, why others were refused, is left out here.

    summary    rows of way, right_1 (of its own replies), speedup (geomean of the best reply of the first round and
               this one over Inductor, clamped at 1 a program), interval, faster (share of programs whose best
               reply of the first round it beats by 1%)
    detail     paired: quotients of two ways' speedups with their 95% intervals; programs: every row

The same command goes on where a run was cut.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.ablation_rows import (
    CONTEST,
    SILENCE_S,
    Sample,
    draws,
    held_out_patterns,
    interval,
    judge_contest,
    judge_rows,
    known_rows,
    read_rows,
    why_left_out,
)
from benchmarks.generator import ask_all, load_generator, read_replies, sample_all
from benchmarks.result_file import write_result
from benchmarks.side_by_side import OutOfTime, ends_at
from cudal1_compile.generate.exemplars import Choice, ExemplarConfig, choose_exemplars
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.generate.protocol import Generator, token_counter
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_compile.runtime.target import HOST, detect_target
from cudal1_trainer.data.practice import fits
from cudal1_trainer.scores.outcome import RIGHT, Code, classify
from cudal1_trainer.scores.referee import Group, Referee, make_referee, open_judge
from cudal1_trainer.scores.scorebook import drop_torn_line
from cudal1_trainer.tasks.heldout import HeldOutProgram

FIRST = "first"
WAYS: dict[str, Choice] = {"again": "none", "random": "random", "buckets": "buckets"}
PAIRS = (("again", FIRST), ("random", "again"), ("buckets", "again"), ("buckets", "random"))
PROMPTS = 2  # of one program in a second round, as in synthesis
TOGETHER = 48  # programs that the judge is given together
FASTER = 1.01
END_S = 8.0  # before this command's end


def score_first(programs: Sequence[HeldOutProgram], out: Path, index: int | None) -> dict[str, list[Exemplar]]:
    """Right codes of the first round with their scores; kept in `out`."""
    path = out / "variants.jsonl"
    found = {row["fingerprint"]: [Exemplar(*e) for e in row["variants"]] for row in read_rows(path)}
    replies = read_replies(out / f"replies.{FIRST}.jsonl")
    todo = [p for p in programs if p.fingerprint not in found]
    read = {p.fingerprint: [classify(reply, p.text, ()) for reply in replies[p.fingerprint]] for p in todo}
    codes = {f: tuple(dict.fromkeys(c.code for c in every if isinstance(c, Code))) for f, every in read.items()}
    with make_referee(index, SILENCE_S, 0) as referee, path.open("a") as stream:
        for start in range(0, len(todo), TOGETHER):
            part = todo[start : start + TOGETHER]
            referee.submit(start, [Group(p.text, codes[p.fingerprint], None) for p in part])
            rulings = referee.result(start)
            for p in part:
                scored = [(code, rulings[p.text, code]) for code in codes[p.fingerprint]]
                right = [(code, ruling.score) for code, ruling in scored if ruling is not None and ruling.score]
                found[p.fingerprint] = [Exemplar(*one) for one in right]
                stream.write(json.dumps({"fingerprint": p.fingerprint, "variants": right}) + "\n")
            stream.flush()
    return found


def sample_second(
    generator: Generator,
    programs: Sequence[HeldOutProgram],
    variants: Mapping[str, Sequence[Exemplar]],
    way: str,
    facts: str,
    samples: int,
    out: Path,
) -> None:
    """Appends replies to the way's file."""
    count, config = token_counter(generator), ExemplarConfig(WAYS[way])

    def prompt(p: HeldOutProgram, seed: int) -> str:
        chosen = choose_exemplars(variants[p.fingerprint], config, seed)
        return build_prompt(facts, p.text, chosen, generator.budget_tokens, count, stages=False)

    prompts = {p.fingerprint: [prompt(p, seed) for seed in range(PROMPTS)] for p in programs}
    # the first round's seeds begin at 0
    ask_all(generator, prompts, samples // PROMPTS, out / f"replies.{way}.jsonl", 1)


def summarise(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], int, dict[str, tuple[float, float]], dict[str, Any]]:
    """(summary, n, intervals, detail). Raises ValueError where no program counts."""
    left_out = {r["fingerprint"]: why for r in rows if (why := why_left_out(r["runs"])) is not None}
    kept = [r for r in rows if r["fingerprint"] not in left_out]
    if not kept:
        raise ValueError(f"none of {len(rows)} programs says anything: {sorted(set(left_out.values()))}")
    first_P = np.array([_best(r["runs"][FIRST]) for r in kept])
    best = {way: np.maximum(first_P, [_best(r["runs"][way]) for r in kept]) for way in (FIRST, *WAYS)}
    draws_PB = draws(len(kept))
    log = {way: np.log(np.maximum(1.0, best_P)) for way, best_P in best.items()}
    drawn = {way: log_P @ draws_PB for way, log_P in log.items()}
    intervals = {way: interval("speedup", drawn_B) for way, drawn_B in drawn.items()}
    ways = [
        {
            "way": way,
            "right_1": fmean([_right(r["runs"][way]) for r in kept]),
            "speedup": math.exp(log[way].mean()),
            "interval": intervals[way],
            "faster": float((best[way] > FASTER * first_P).mean()),
        }
        for way in best
    ]
    paired = {
        f"{a} against {b}": (math.exp((log[a] - log[b]).mean()), *interval("speedup", drawn[a] - drawn[b]))
        for a, b in PAIRS
    }
    return {"ways": ways}, len(kept), intervals, {"paired": paired, "left_out": left_out, "programs": kept}


def _best(samples: Sequence[Sequence[Any]]) -> float:
    """Of one program's replies over Inductor; 0 where none is right."""
    return max((s.speed or 0.0 for s in (Sample(*row) for row in samples)), default=0.0)


def _right(samples: Sequence[Sequence[Any]]) -> float:
    return fmean([float(Sample(*row).kind in RIGHT) for row in samples]) if samples else 0.0


def run(a: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows that are there, after every step that adds some."""
    index = None if a.dry else 0
    target = HOST if index is None else detect_target(torch.device("cuda", index))
    programs = [p for p in held_out_patterns(a.data) if not a.dry or fits(p.program, target, 0, 0)][
        : a.limit or None
    ]
    generator = load_generator(a.model, "cpu" if a.dry else "cuda")
    sample_all(generator, programs, target.facts(), a.samples, a.out / f"replies.{FIRST}.jsonl", 0)
    variants = score_first(programs, a.out, index)
    for way in WAYS:
        sample_second(generator, programs, variants, way, target.facts(), a.samples, a.out)
    replies = {way: read_replies(a.out / f"replies.{way}.jsonl") for way in (FIRST, *WAYS)}
    path, setup = a.out / "rows.jsonl", partial(open_judge, index, None, CONTEST)
    with Referee(target, setup, SILENCE_S, judge_contest) as referee:
        for end in range(TOGETHER, len(programs) + TOGETHER, TOGETHER):
            judge_rows(programs[:end], replies, referee, path)
            yield known_rows(programs, replies, path)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Whether measured variants in the prompt pay.")
    parser.add_argument(
        "--model", type=Path, required=True, help="folder of the bundled model, or `teacher`: templates"
    )
    parser.add_argument("--data", type=Path, default=Path("trainer/data"), help="folder with heldout.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=8, help="of a program in a round")
    parser.add_argument("--limit", type=int, default=160, help="held-out programs; 0 is all")
    parser.add_argument("--seconds", type=float, default=560.0, help="until this command ends")
    parser.add_argument("--dry", action="store_true", help="on the host target: proves the script, no result")
    a = parser.parse_args(argv)
    a.out.mkdir(parents=True, exist_ok=True)
    for path in a.out.glob("*.jsonl"):
        drop_torn_line(path)
    rows: list[dict[str, Any]] = []
    try:
        with ends_at(time.monotonic() + a.seconds - END_S):
            for rows in run(a):
                print(f"{len(rows)} programs", flush=True)
    except OutOfTime:
        print("the time is over: give the same command again", flush=True)
    if rows:
        summary, n, intervals, detail = summarise(rows)
        for row in summary["ways"]:
            print(json.dumps(row))
        print(json.dumps(detail["paired"]))
        print(write_result(a.out, "rounds", summary, n, intervals, detail, a.dry))


if __name__ == "__main__":
    main()
