"""What is digested: 500 regions and the graphs of 83 modules by name, each made only when asked for."""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import project

DATA = Path(__file__).parents[2] / "trainer" / "data"
DTYPES = (None, "bf16", None, "f16", "f64")  # in turns; None: as drawn
RESIZED = {"structures": 60, "products": 50, "hard": 50, "written": 60, "gathered": 20}  # files of DATA
HELD_OUT, FAMILIES, TASKS, WIDENED = 110, 60, 5, 25  # TASKS: of each family of tasks
Regions = dict[str, Callable[[], project.Program]]


@dataclass(frozen=True)
class Subject:
    """A module whose graphs are collected. train: with its backward."""

    make: Callable[[], tuple[Callable[..., Any], Sequence[Any]]]
    train: bool
    dynamic: bool | None = None
    products: bool = False  # whether they may begin regions


def regions() -> Regions:
    """Programs by name; not all of them are canonical."""
    found: Regions = {}
    held = [item["text"] for item in json.loads((DATA / "heldout.json").read_text())["programs"]]
    families = [json.loads(line)["text"] for line in (DATA / "families.jsonl").read_text().splitlines()]
    for name, texts, count in (("held out", held, HELD_OUT), ("family", families, FAMILIES)):
        found |= {f"{name} {i}": partial(project.parse_program, texts[i]) for i in _spread(len(texts), count)}
    for name, count in RESIZED.items():
        found |= {f"{name} {i}": partial(_resized, name, i, n) for n, i in enumerate(_of_file(name, count))}
    for family in project.FAMILIES:
        found |= {f"task {family} {i}": partial(_task, family, i) for i in range(TASKS)}
    return found | {f"widened {i}": partial(project.make_task, project.WIDE_SEED + i) for i in range(WIDENED)}


def graphs() -> dict[str, Subject]:
    """Modules by name; in every second one products may begin regions."""
    found: dict[str, Subject] = {}
    for spec in (*project.ZOO, *project.CNNS):
        make = partial(project.build_zoo, spec, torch.device("cpu"), 1, True)
        found[f"zoo {spec.name}"] = Subject(make, True)
    for spec in project.MODULES:
        found[f"module {spec.name}"] = Subject(partial(spec.make, True), False)
        if spec.trains:
            found[f"module {spec.name}, training"] = Subject(partial(spec.make, True), True)
    for case in _cases():
        found[f"case {case.name}"] = Subject(case.make, case.train, case.dynamic or None)
    return {name: replace(s, products=bool(n % 2)) for n, (name, s) in enumerate(found.items())}


def _spread(length: int, count: int) -> Iterable[int]:
    return [i * length // count for i in range(count)]


def _of_file(name: str, count: int) -> Iterable[int]:
    return _spread(len(_texts(name)), count)


@cache
def _texts(name: str) -> tuple[str, ...]:
    return project.read_structures(DATA / f"{name}.jsonl.gz")


def _resized(name: str, at: int, number: int) -> project.Program:
    """One of three keeps the sizes of its small model."""
    program = project.parse_program(_texts(name)[at])
    if number % 3:
        program = project.resize(program, random.Random(f"golden {name} {at}"))
    return _retyped(program, number)


def _task(family: str, number: int) -> project.Program:
    return _retyped(project.generate_task(random.Random(f"golden {family} {number}"), family), number)


def _retyped(program: project.Program, number: int) -> project.Program:
    dtype = DTYPES[number % len(DTYPES)]
    return program if dtype is None else project.retype(program, dtype)


def _cases() -> Sequence[Any]:
    """The modules of the passes' tests, which import each other by their names alone."""
    folder = str(Path(__file__).parents[1] / "unit")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import fx_models

    return fx_models.CASES


def made(subject: Subject) -> tuple[Callable[..., Any], list[Any]]:
    """The module in its mode and its inputs."""
    torch.manual_seed(0)
    random.seed(0)
    run, inputs = subject.make()
    if isinstance(run, nn.Module):
        run = run.train(subject.train)
    is_wanted = subject.train and not any(x.requires_grad for x in inputs)
    return run, [x.requires_grad_() if is_wanted and x.is_floating_point() else x for x in inputs]


def collected(subject: Subject) -> list[tuple[str, list[project.SeenGraph]]]:
    """Of each graph that Dynamo makes, its key and what the pass of the backend sees."""
    run, inputs = made(subject)
    found: list[tuple[str, list[project.SeenGraph]]] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        key = project.graph_key_module.graph_key(gm, example_inputs, {}, subject.products)
        found.append((key, project.collect(gm, example_inputs, {}, None, subject.products)))
        return gm.forward

    torch._dynamo.reset()
    with torch.set_grad_enabled(subject.train):
        torch.compile(run, backend=backend, dynamic=subject.dynamic)(*inputs)
    torch._dynamo.reset()
    gc.collect()
    return found
