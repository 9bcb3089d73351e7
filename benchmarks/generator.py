"""How good is the model? Held-out programs, 8 samples each: built, right, and against Inductor alone.

    python -m benchmarks.generator --model cudal1_compile/generate/model --data trainer/data --out OUT

Every program of heldout.json: half were cut by the partitioner from real models, half are generated structures
that were never trained on. The model writes 8 replies (designs at temperature 0.8, different ones as far as there
are) from the round-1 prompt (no exemplars).
Each is parsed, built, checked on three input distributions against the float64 oracle, and timed (GPU-busy) beside
aten and Inductor compiling the program alone with dynamic=False.

    builds                        share of samples that parse and build
    right_1, right_8              share of samples that are right; of programs with at least one right of 8
    speedup_best8_over_inductor   geomean over all programs of the fastest right reply, 1 where none is faster
    speedup_best8_raw             the same without that clamp (1 where none is right)

OUT/generator.replies.jsonl and OUT/generator.rows.jsonl grow while it runs; existing replies are reused.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.duel import Config, Job, Row, duel_into
from benchmarks.regions import family_of
from benchmarks.result_file import bootstrap, geomean, mean, write_result
from cudal1_compile.codegen.replies import complete
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.generate.protocol import Generator, token_counter
from cudal1_compile.kernel.candidate import CandidateError, parse_reply
from cudal1_compile.runtime.cores import usable_cores
from cudal1_compile.runtime.target import detect_target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.heldout import HeldOutProgram, read_heldout
from cudal1_trainer.tasks.variants import write_variants

BATCH = 96  # programs whose samples are drawn together
TEMPLATE_CONTROL = "teacher"
LENGTHS = (4, 10, 20, 32, 48, 64)  # upper ends of the length bins


@dataclass(frozen=True, slots=True)
class Sampled:
    """One program and its replies."""

    ident: str
    program: HeldOutProgram
    replies: tuple[str, ...]


def load_generator(model: Path, device: str, as_drawn: bool = False) -> Generator:
    """`teacher` in place of a folder: the templates behind the same protocol, as a control.

    as_drawn: replies are samples of the model, without a choice among their designs.
    """
    if str(model) == TEMPLATE_CONTROL:
        from cudal1_trainer.data.template_generator import TemplateGenerator

        return TemplateGenerator()
    from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator

    config = BundledConfig(model, device, temperature=0.8, greedy_first=False)
    return BundledGenerator(replace(config, draws=1) if as_drawn else config)


def sample_all(
    generator: Generator, programs: Sequence[HeldOutProgram], facts: str, n: int, path: Path, seed: int
) -> list[Sampled]:
    """Replies of every program from the prompt without exemplars; appends to `path`."""
    count = token_counter(generator)
    prompts = {
        p.fingerprint: [build_prompt(facts, p.text, (), generator.budget_tokens, count, stages=False)]
        for p in programs
    }
    known = ask_all(generator, prompts, n, path, seed)
    return [Sampled(str(i), p, tuple(known[p.fingerprint])) for i, p in enumerate(programs)]


def ask_all(
    generator: Generator, prompts: Mapping[str, Sequence[str]], n: int, path: Path, seed: int
) -> dict[str, list[str]]:
    """`n` replies to each of a program's prompts, by its fingerprint; appends to `path`, which knows some already.

    The shortest prompts come first, so that a batch's rows are alike.
    """
    known = read_replies(path)
    todo = sorted((f for f in prompts if f not in known), key=lambda f: sum(map(len, prompts[f])))
    with path.open("a") as stream:
        for start in range(0, len(todo), BATCH):
            group = todo[start : start + BATCH]
            answers = iter(generator.propose([p for f in group for p in prompts[f]], n, seed + start))
            for f in group:
                known[f] = [reply for _ in prompts[f] for reply in next(answers)]
                stream.write(json.dumps({"fingerprint": f, "replies": known[f]}) + "\n")
            stream.flush()
    return known


def read_replies(path: Path) -> dict[str, list[str]]:
    """Of every program by its fingerprint."""
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {r["fingerprint"]: r["replies"] for r in rows}


def make_job(item: Sampled, teachers: int) -> tuple[Job, dict[str, str]]:
    """A job with one name for each distinct code; sample -> that name, or why the sample has no code."""
    codes: dict[str, str] = {}
    of_sample = name_codes(item.program.text, item.replies, codes, "s")
    named = tuple((name, code) for code, name in codes.items())
    if teachers:
        written = write_variants(item.program.program, teachers)
        named += tuple((f"teacher/{v.name}", v.reply.code) for v in written)
    return Job(item.ident, item.program.text, named), of_sample


def name_codes(text: str, replies: Sequence[str], codes: dict[str, str], prefix: str) -> dict[str, str]:
    """Sample -> its code's name, or ! and why it has none; adds to `codes` (code -> name) those that are new.

    text: of the program.
    """
    program = parse_program(text)
    of_sample: dict[str, str] = {}
    for i, reply in enumerate(replies):
        try:
            code = complete(program, parse_reply(reply)).code
        except CandidateError as error:
            of_sample[f"{prefix}{i}"] = f"!{error}"
            continue
        of_sample[f"{prefix}{i}"] = codes.setdefault(code, f"{prefix}{i}")
    return of_sample


@dataclass(frozen=True, slots=True)
class Outcome:
    """One program's figures."""

    builds: float  # share of its samples
    right: float
    best_us: float | None  # fastest right reply
    inductor_us: float | None
    aten_us: float | None
    teacher_us: float | None

    @property
    def raw(self) -> float:
        """Best reply over Inductor; 1 where none is right."""
        return self.inductor_us / self.best_us if self.best_us and self.inductor_us else 1.0

    @property
    def clamped(self) -> float:
        return max(1.0, self.raw)


def judge_row(row: Row, of_sample: dict[str, str]) -> Outcome:
    stages = {name: why.partition(":")[0] for name, why in row.failures.items()}
    unbuilt = {"text", "build"}
    builds = [not n.startswith("!") and stages.get(n) not in unbuilt for n in of_sample.values()]
    right = [n in row.busy for n in of_sample.values()]
    times = [t[0] for n, t in row.busy.items() if n in set(of_sample.values())]
    teacher = [t[0] for n, t in row.busy.items() if n.startswith("teacher/")]
    return Outcome(
        mean([float(b) for b in builds]) if builds else 0.0,
        mean([float(r) for r in right]) if right else 0.0,
        min(times, default=None),
        row.us("inductor"),
        row.us("aten"),
        min(teacher, default=None),
    )


def usable(row: Row) -> bool:
    """Whether the program could be measured: a finite reference and an Inductor time, or lost to its samples."""
    return "inductor" in row.busy or lost_to_samples(row)


def lost_to_samples(row: Row) -> bool:
    return bool(re.match(r"lost at s\d", row.failures.get("program", "")))


def figures(outcomes: Sequence[Outcome]) -> dict[str, float | int]:
    return {
        "n": len(outcomes),
        "builds": mean([o.builds for o in outcomes]),
        "right_1": mean([o.right for o in outcomes]),
        "right_8": mean([float(o.right > 0) for o in outcomes]),
        "speedup_best8_over_inductor": geomean([o.clamped for o in outcomes]),
        "speedup_best8_raw": geomean([o.raw for o in outcomes]),
        "wins": mean([float(o.raw > 1.0) for o in outcomes]),
    }


def labels(item: HeldOutProgram) -> dict[str, str]:
    """The bins a program falls into."""
    program = item.program
    length = next(str(top) for top in (*LENGTHS, 10**9) if len(program.ops) <= top)
    return {
        "length": f"up to {length}",
        "rank": str(max((len(v) for v in program.value_axes.values()), default=0)),
        "family": family_of(program),
        "dtype": _dtype(program),
        "source": "generated" if item.seed is not None else "models",
        "model": item.source.partition("/")[0],
        "vectors": "divide" if _vectors_divide(program) else "do not divide",
    }


def _dtype(program: Program) -> str:
    floats = sorted({d for d in program.value_dtype.values() if d in ("f32", "f16", "bf16", "f64")})
    return "+".join(floats) or "integers"


def _vectors_divide(program: Program) -> bool:
    """Whether the innermost axis of every input with several elements is a multiple of 4."""
    inner = [program.axis[i.axes[-1]].size for i in program.inputs if i.axes]
    return all(size % 4 == 0 for size in inner if size > 1)


def summarise(
    items: Sequence[Sampled], rows: Sequence[Row], names: dict[str, dict[str, str]]
) -> tuple[dict[str, Any], int, dict[str, tuple[float, float]], dict[str, Any]]:
    """(summary, n, intervals, detail)."""
    by_ident = {i.ident: i for i in items}
    measured = [r for r in rows if usable(r)]
    outcomes = {r.ident: judge_row(r, names[r.ident]) for r in measured}
    every = list(outcomes.values())
    groups: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for ident, outcome in outcomes.items():
        for kind, label in labels(by_ident[ident].program).items():
            groups[kind][label].append(outcome)
    detail: dict[str, Any] = {
        kind: {label: figures(found) for label, found in sorted(group.items())} for kind, group in groups.items()
    }
    stages = Counter(
        "reply" if n.startswith("!") else r.failures.get(n, "right: ").partition(":")[0]
        for r in measured
        for n in names[r.ident].values()
    )
    detail["samples"] = dict(stages.most_common())
    taught = [max(1.0, o.inductor_us / o.teacher_us) for o in every if o.teacher_us and o.inductor_us]
    detail["teacher"] = {"n": len(taught), "best_over_inductor_clamped": geomean(taught)}
    detail["not_measured"] = {
        by_ident[r.ident].program.source + " " + r.ident: r.failures for r in rows if not usable(r)
    }
    detail["programs"] = [
        _program_detail(by_ident[r.ident], r, outcomes[r.ident], names[r.ident]) for r in measured
    ]
    summary = {k: v for k, v in figures(every).items() if k != "n"}
    intervals = {
        "right_1": bootstrap([o.right for o in every], mean),
        "right_8": bootstrap([float(o.right > 0) for o in every], mean),
        "speedup_best8_over_inductor": bootstrap([o.clamped for o in every], geomean),
        "speedup_best8_raw": bootstrap([o.raw for o in every], geomean),
    }
    return summary, len(every), intervals, detail


def _program_detail(item: Sampled, row: Row, outcome: Outcome, names: dict[str, str]) -> dict[str, Any]:
    wrong = {n: why for n, why in row.failures.items() if n in set(names.values())}
    return (
        {"source": item.program.source, "fingerprint": item.program.fingerprint}
        | labels(item.program)
        | asdict(outcome)
        | {"raw": outcome.raw, "operations": len(item.program.program.ops), "failures": wrong}
    )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Held-out programs: built, right, and against Inductor.")
    add_sampling(parser)
    parser.add_argument("--data", type=Path, required=True, help="folder with heldout.json")
    parser.add_argument("--limit", type=int, default=0, help="programs, a random choice; 0 is all")
    parser.add_argument(
        "--templates", type=int, default=0, help="also measure so many template variants a program"
    )
    parser.add_argument("--seconds", type=float, default=450.0, help="of measuring, after the sampling")
    return parser.parse_args(argv)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The arguments of every run that samples a model and measures its replies."""
    parser.add_argument(
        "--model", type=Path, required=True, help="folder of the bundled model, or `teacher`: templates"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--dry", action="store_true", help="on the CPU's host target: proves the script, no result"
    )


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    programs = list(read_heldout(arguments.data / "heldout.json").programs)
    random.Random(arguments.seed).shuffle(programs)  # a run that is cut short has measured a fair part
    programs = programs[: arguments.limit] if arguments.limit else programs
    items = sample(arguments, programs, arguments.out / "generator.replies.jsonl")
    print(f"{len(items)} programs, {sum(len(i.replies) for i in items)} replies, {since(start)}", flush=True)
    jobs, names = [], {}
    for item in items:
        job, names[item.ident] = make_job(item, arguments.templates)
        jobs.append(job)
    config = Config(arguments.workers, dry=arguments.dry)
    deadline = time.monotonic() + arguments.seconds
    rows = duel_into(arguments.out / "generator.rows.jsonl", jobs, config, start, deadline)
    summary, n, intervals, detail = summarise(items, rows, names)
    detail["held_out"], detail["reached"] = len(jobs), len(rows)
    name = "generator.teacher" if str(arguments.model) == TEMPLATE_CONTROL else "generator"
    path = write_result(arguments.out, name, summary, n, intervals, detail, arguments.dry)
    print(json.dumps(summary | {"n": n}, indent=1))
    for key in ("source", "family", "length", "dtype", "vectors", "samples", "teacher"):
        print(key, json.dumps(detail.get(key)))
    print(path, since(start))


def sample(arguments: argparse.Namespace, programs: Sequence[HeldOutProgram], path: Path) -> list[Sampled]:
    """Loads the model, samples, and lets go of the device before anything is timed."""
    device = "cpu" if arguments.dry else "cuda"
    generator = load_generator(arguments.model, device)
    facts = detect_target(torch.device(device)).facts()
    items = sample_all(generator, programs, facts, arguments.samples, path, arguments.seed)
    del generator
    if not arguments.dry:
        torch.cuda.empty_cache()
    return items


def since(start: float) -> str:
    return f"{time.monotonic() - start:.0f} s"


if __name__ == "__main__":
    main()
