"""What reinforcement learning starts from, on `rlval`: the model before it, the schedule prior, all variants.

    python -m benchmarks.rl --model SFT --rl RL --data trainer/data --out OUT --seconds 540

Every program of rlval.jsonl (rlval_cut.py), every arm's candidates in one duel (duel.py), beside aten and Inductor
compiling the program alone. A program's arms:

    sft_greedy     one reply, of the likeliest tokens
    sft_draw       one reply, drawn
    sft_best8      eight replies as in use: different designs, the first of the likeliest tokens
    rl_greedy, rl_best8    the same of the model --rl, which learnt on from the other one, where there is one
    rl_distinct8   eight of its draws without replacement from all designs, the first the likeliest
    prior_best8    the eight variants of the templates that the schedule prior takes for the fastest, no model
    all_arms       all of them, 64 at most
    prior_first    the first of them
    contrastive_in_use, plain_in_use, search_in_use    prior_best8 and eight more each (rl_second.py)

`summary.rows` has a row an arm; a program weighs as much as the better of aten and Inductor takes there:

    right_1, right_8    share of its candidates that are right; of programs with a right one
    over_best           speed over that baseline (geomean); over_sft_greedy: over the greedy reply's. The baseline
                        runs where nothing right is faster; with _raw only where nothing is right
    candidates          distinct ones a program, without weight

Intervals are of programs drawn anew, the same for all arms; `.plain` ones, as detail.plain, are without weight.
OUT/rl.*.jsonl grow while it runs, and a second run with the same arms on such a device goes on. What the time did
not reach is named, and the file is then called rl.partial.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import torch

from benchmarks.duel import Config, Job, duel_into
from benchmarks.families import FamilyProgram, read_families
from benchmarks.generator import (
    TEMPLATE_CONTROL,
    add_sampling,
    load_generator,
    name_codes,
    sample_all,
    since,
)
from benchmarks.result_file import device_stem, write_result
from benchmarks.rl_rows import GREEDY, Measured, read_row, summarise
from benchmarks.rl_second import FIRST, WAYS, known_after, second_round
from benchmarks.rlval_cut import COUNTS, RLVAL, is_in_tf32
from cudal1_compile.codegen.prior.regression import Prior
from cudal1_compile.codegen.ranking import ranked
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.protocol import Generator
from cudal1_compile.kernel.candidate import print_reply
from cudal1_compile.runtime.target import detect_target
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.fit_prior import need_prior

# replies; the first a greedy one; without replacement
MODEL_ARMS = {GREEDY: (1, True, False), "sft_draw": (1, False, False), "sft_best8": (8, True, False)}
PRIOR_ARMS = {"prior_best8": 8, "all_arms": 64, "prior_first": 1}  # variants; no program has more than 61
FIRST_SHARE = 0.4  # of the time, for the first round of the arms in use
RL_ARMS = {"rl_greedy": MODEL_ARMS[GREEDY], "rl_best8": MODEL_ARMS["sft_best8"], "rl_distinct8": (8, True, True)}
ARMS = (*MODEL_ARMS, *RL_ARMS, *PRIOR_ARMS, *WAYS)


def ask_arms(arguments: argparse.Namespace, programs: Sequence[FamilyProgram]) -> dict[str, list[Sequence[str]]]:
    """Each arm's replies to every program; the device is free again."""
    prior = need_prior(arguments.data)
    found: dict[str, list[Sequence[str]]] = {}
    for arm in (arm for arm in arguments.arms if arm not in WAYS):
        if arm in MODEL_ARMS:
            found[arm] = _sampled(arguments, programs, arm, arguments.model, *MODEL_ARMS[arm])
        elif arm in RL_ARMS:
            found[arm] = _sampled(arguments, programs, arm, arguments.rl, *RL_ARMS[arm])
        else:
            found[arm] = [list(islice(likeliest(p.text, prior), PRIOR_ARMS[arm])) for p in programs]
    if not arguments.dry:
        torch.cuda.empty_cache()
    return found


def _sampled(
    arguments: argparse.Namespace,
    programs: Sequence[FamilyProgram],
    arm: str,
    model: Path,
    count: int,
    greedy_first: bool,
    distinct: bool,
) -> list[Sequence[str]]:
    device = torch.device("cpu" if arguments.dry else "cuda")
    generator = load_model(model, device.type, greedy_first, distinct)
    named = generator.name.replace(":", "-")
    path = arguments.out / f"rl.{arm}.{named}.{arguments.seed}.replies.{device_stem()}.jsonl"
    facts = detect_target(device).facts()
    items = sample_all(generator, [p.held_out for p in programs], facts, count, path, arguments.seed)
    return [item.replies for item in items]


def ask_second(
    arguments: argparse.Namespace,
    programs: Sequence[FamilyProgram],
    asked: Mapping[str, list[Sequence[str]]],
    config: Config,
    start: float,
) -> dict[str, list[Sequence[str]]]:
    """Of the arms in use, after their first round has been timed. asked: the other arms' replies."""
    ways = [way for way in WAYS if way in arguments.arms]
    if not ways:
        return {}
    if FIRST not in asked:
        asked = ask_arms(argparse.Namespace(**vars(arguments) | {"arms": [FIRST]}), programs)
    first = asked[FIRST]
    made = [make_job(p, {FIRST: replies}) for p, replies in zip(programs, first, strict=True)]
    path = arguments.out / f"rl.first.{device_stem()}.jsonl"
    deadline = start + arguments.seconds * FIRST_SHARE
    rows = {row.ident: row for row in duel_into(path, [job for job, _ in made], config, start, deadline, True)}
    known = [
        known_after(p, replies, rows.get(job.ident), names[FIRST])
        for p, replies, (job, names) in zip(programs, first, made, strict=True)
    ]
    model, device = arguments.rl or arguments.model, "cpu" if arguments.dry else "cuda"
    generator = cache(lambda: load_model(model, device, greedy_first=True))
    facts = detect_target(torch.device(device)).facts()
    kept = {way: arguments.out / f"rl.{way}.{arguments.seed}.replies.{device_stem()}.jsonl" for way in ways}
    return {way: second_round(way, known, generator, facts, kept[way], arguments.seed) for way in ways}


def load_model(model: Path, device: str, greedy_first: bool, distinct: bool = False) -> Generator:
    """As in use, but for where the first reply comes from, and how first rounds are drawn."""
    if str(model) == TEMPLATE_CONTROL:
        return load_generator(model, device)
    return BundledGenerator(BundledConfig(model, device, greedy_first=greedy_first, distinct=distinct))


def likeliest(text: str, prior: Prior) -> Iterator[str]:
    """Replies of the templates' variants, as `ranked` has them."""
    return (print_reply(reply) for _, reply in ranked(parse_program(text), prior))


def make_job(
    program: FamilyProgram, replies: Mapping[str, Sequence[str]]
) -> tuple[Job, dict[str, dict[str, str]]]:
    """All arms' distinct codes; of each arm sample -> the name of its code. The ident tells what is measured."""
    codes: dict[str, str] = {}
    names = {arm: name_codes(program.text, some, codes, f"{arm}/") for arm, some in replies.items()}
    ident = hashlib.sha256(json.dumps([program.text, codes]).encode()).hexdigest()[:16]
    named = tuple((name, code) for code, name in codes.items())
    return Job(ident, program.text, named, tf32=is_in_tf32(program.family)), names


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What reinforcement learning starts from, on rlval's programs.")
    add_sampling(parser)
    parser.add_argument("--data", type=Path, required=True, help="folder of the schedule prior's scores")
    parser.add_argument("--programs", type=Path, default=RLVAL, help="as benchmarks.rlval_cut writes them")
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run, sampling included")
    parser.add_argument("--rl", type=Path, help="a model that reinforcement learning made of --model")
    parser.add_argument("--arms", nargs="+", choices=ARMS, help="by default all that there are models for")
    arguments = parser.parse_args(argv)
    known = [arm for arm in ARMS if arguments.rl or arm not in RL_ARMS]
    arguments.arms = arguments.arms or known
    if not set(arguments.arms) <= set(known):
        parser.error(f"{', '.join(RL_ARMS)}: name the model, --rl")
    return arguments


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    programs = read_families(arguments.programs, tuple(COUNTS))
    random.Random(arguments.seed).shuffle(programs)  # a run that is cut short has measured a fair part
    config = Config(arguments.workers, dry=arguments.dry, cold=True)
    replies = ask_arms(arguments, programs)
    replies |= ask_second(arguments, programs, replies, config, start)
    print(f"{len(programs)} programs, {len(replies)} arms, {since(start)}", flush=True)
    made = [make_job(p, {arm: replies[arm][i] for arm in arguments.arms}) for i, p in enumerate(programs)]
    path, jobs = arguments.out / f"rl.rows.{device_stem()}.jsonl", [job for job, _ in made]
    rows = duel_into(path, jobs, config, start, start + arguments.seconds, go_on=True)
    by_ident = {row.ident: row for row in rows}
    found: list[Measured] = []
    missing: dict[str, str] = {}
    for program, (job, names) in zip(programs, made, strict=True):
        row = by_ident.get(job.ident)
        if row is not None and (read := read_row(program, row, names)) is not None:
            found.append(read)
        else:
            missing[f"{program.name}, {program.shape}"] = json.dumps(row.failures) if row else "not reached"
    summary, intervals, detail = summarise(found, arguments.arms)
    detail["not_measured"] = missing
    name = "rl.partial" if len(rows) < len(jobs) else "rl"
    written = write_result(arguments.out, name, summary, len(found), intervals, detail, arguments.dry)
    print(json.dumps(summary | {"n": len(found)}, indent=1))
    print(written, since(start))


if __name__ == "__main__":
    main()
