"""Seeded mutants of the source, and which of them the tests kill: the same ones before and after a change.

    python tests/mutants.py draw mutants.json cudal1_compile.judge cudal1_fx_passes --count 200 --seed 1
    python tests/mutants.py run mutants.json --jobs 16 --names names.json --found found.jsonl

A mutant is one changed comparison, condition, sum, product, number or result, or one statement left out. It names
its module, its function and its line's text, so that it is found again where code has moved; `names` maps modules
and identifiers of old to new. Tried are the files of tests whose imports lead to the module, the nearest first,
until a test fails that passes without the mutant. `found` gets a line of JSON for each mutant as it is decided; a
run goes on from there. Each job has a copy of the tree.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {".": ("cudal1_compile", "benchmarks"), "fx_passes": ("cudal1_fx_passes",), "cache": ("cudal1_cache",)}
SOURCES["trainer"] = ("cudal1_trainer",)
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", ".hypothesis")
BOTH_WAYS = ("Lt LtE", "Gt GtE", "Eq NotEq", "In NotIn", "Is IsNot", "And Or", "Add Sub", "Mult FloorDiv")
SWAPPED = {"Div": "Mult", "Mod": "FloorDiv", "Pow": "Mult"}
SWAPPED |= {a: b for pair in BOTH_WAYS for a, b in (pair.split(), pair.split()[::-1])}


class Mutant(NamedTuple):
    module: str
    function: str  # "Class.method"; "" for the module's own statements
    line: str
    change: str
    nth: int  # of such changes on such lines of the function


def _changed(node: Any) -> tuple[str, ast.AST] | None:
    new: Any = copy.copy(node)
    operator = type((getattr(node, "ops", None) or [getattr(node, "op", None)])[0]).__name__
    if operator in SWAPPED:
        new.op = getattr(ast, SWAPPED[operator])()
        new.ops = [new.op, *getattr(node, "ops", [])[1:]]
        return f"{operator} to {SWAPPED[operator]}", new
    match node:
        case ast.UnaryOp(op=ast.Not()):
            return "no not", node.operand
        case ast.Constant(value=bool() | int() | float() as value):
            new.value = not value if isinstance(value, bool) else value + 1
            return f"{value} to {new.value}", new
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            return "nothing returned", ast.Return()
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return "left out", ast.Pass()
    return None


def _nodes(node: Any, function: str = "") -> Iterator[tuple[str, Any]]:
    """All that runs, and the function in which it stands. Within f-strings Python 3.11 does not know where."""
    yield function, node
    children = [] if isinstance(node, ast.JoinedStr) else list(ast.iter_child_nodes(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function, children = f"{function}.{node.name}".lstrip("."), [*node.body]
    elif isinstance(node, ast.AnnAssign):
        children = [node.value] if node.value else []
    for child in children:
        yield from _nodes(child, function)


@cache
def modules() -> dict[str, Path]:
    folders = [(ROOT / place, name) for place, names in SOURCES.items() for name in names]
    paths = {
        path: path.relative_to(root) for root, name in folders for path in sorted((root / name).rglob("*.py"))
    }
    return {".".join(at.with_suffix("").parts).removesuffix(".__init__"): path for path, at in paths.items()}


@cache
def texts(module: str) -> dict[Mutant, bytes]:
    """The module's text with each of its mutants."""
    source, found, seen = modules()[module].read_bytes(), {}, Counter[Any]()
    starts = [0]
    for line in (lines := source.splitlines(keepends=True)):
        starts.append(starts[-1] + len(line))
    for function, node in _nodes(ast.parse(source)):
        if changed := _changed(node):
            place = (module, function, lines[node.lineno - 1].decode().strip(), changed[0])
            text = ast.unparse(changed[1]) if isinstance(node, ast.stmt) else f"({ast.unparse(changed[1])})"
            start, end = (
                starts[node.lineno - 1] + node.col_offset,
                starts[node.end_lineno - 1] + node.end_col_offset,
            )
            found[Mutant(*place, seen[place])] = source[:start] + text.encode() + source[end:]
            seen[place] += 1
    return found


def find(mutant: Mutant, names: dict[str, str]) -> Mutant | None:
    """What it is called today; where its line was changed, a line like it."""
    function, line = (re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text) for text in mutant[1:3])
    named = Mutant(names.get(mutant.module, mutant.module), function, line, *mutant[3:])
    own = [named.module] if named.module in modules() else []
    for module in (*own, *modules()):
        if (here := named._replace(module=module)) in texts(module):
            return here
    for module in own or modules():
        alike = {m.line: m for m in texts(module) if (m.function, *m[3:]) == (function, *mutant[3:])}
        if close := difflib.get_close_matches(line, alike, 1, 0.8):
            return alike[close[0]]
    return None


@cache
def _imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_bytes())))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    from_ = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return found | {f"{node.module}{name}" for node in from_ for name in ("", *(f".{a.name}" for a in node.names))}


@cache
def _steps(module: str) -> dict[Path, int]:
    """Every file that imports the module, and over how many others."""
    names = {path: name for name, path in modules().items()}
    names |= {path: path.stem for path in ROOT.glob("tests/**/*.py")}
    found: dict[Path, int] = {}
    near = {module}
    while near:
        new = [path for path in names if path not in found and near & _imported(path)]
        found |= dict.fromkeys(new, max(found.values(), default=-1) + 1)
        near = {names[path] for path in new}
    return found


def tests_of(mutant: Mutant, most: int) -> list[str]:
    """Files of tests, the nearest first: by imports, then by how often they name the function."""
    word = mutant.function.split(".")[-1] or mutant.line
    ranked = []
    for path, steps in _steps(mutant.module).items():
        if path.match("tests/unit/test_*") or path.match("tests/host/test_*"):
            ranked.append((steps, -path.read_text().count(word), path.stat().st_size, path.relative_to(ROOT)))
    return [str(path) for *_, path in sorted(ranked)[:most]]


class Job:
    """A copy of the tree, whose bytecode holds by its source's hash: a mutant may be no newer than its file."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._tree, self._options = folder / "tree", options
        shutil.copytree(ROOT, self._tree, ignore=LEFT_OUT, symlinks=True)
        path = os.pathsep.join(str(self._tree / place) for place in SOURCES)
        self._environment = os.environ | {
            "PYTHONPATH": path,
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        compiled = [
            options.python,
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode",
            "checked-hash",
            str(self._tree),
        ]
        subprocess.run(compiled, stdout=subprocess.DEVNULL, check=False)

    def decide(self, mutant: Mutant) -> dict[str, object]:
        path, broken = modules()[mutant.module], list[str]()
        copied, tests = self._tree / path.relative_to(ROOT), tests_of(mutant, self._options.files)
        while True:
            copied.write_bytes(texts(mutant.module)[mutant])
            status, by = self._test([*tests, *(f"--deselect={test}" for test in broken)])
            copied.write_bytes(path.read_bytes())
            if status != "killed" or by is None or self._test([by])[0] == "survived":
                return {"status": status, "by": by, "broken": broken}
            broken.append(by)

    def _test(self, tests: list[str]) -> tuple[str, str | None]:
        words = ["pytest", "-x", "-p", "no:cacheprovider", "--timeout=120", "-m", "not slow", *tests]
        with tempfile.TemporaryFile("w+") as said:
            command = [self._options.python, "-m", *words]
            child = subprocess.Popen(
                command, cwd=self._tree, env=self._environment, stdout=said, start_new_session=True
            )
            try:
                code = child.wait(self._options.limit)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                return "unfinished", None
            said.seek(0)
            failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said.read(), re.M)
        return "survived" if code in (0, 5) else "killed", failed and failed[1]


def draw(options: argparse.Namespace) -> None:
    chosen = [m for m in modules() if any(f"{m}.".startswith(f"{wanted}.") for wanted in options.modules)]
    every = [mutant for module in chosen for mutant in texts(module)]
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    options.mutants.write_text(json.dumps([mutant._asdict() for mutant in drawn], indent=1))


def run(options: argparse.Namespace) -> None:
    names = json.loads(options.names.read_text()) if options.names else {}
    wanted = [Mutant(**mutant) for mutant in json.loads(options.mutants.read_text())]
    known = map(json.loads, options.found.read_text().splitlines()) if options.found.exists() else ()
    decided = {Mutant(*line["mutant"]): line["status"] for line in known}
    free = SimpleQueue[Job]()

    def decide(mutant: Mutant) -> None:
        today = find(mutant, names)
        found: dict[str, object] = {"status": "lost"}
        if today is not None:
            job = free.get()
            found = {"today": today, **job.decide(today)}
            free.put(job)
        decided[mutant] = str(found["status"])
        with options.found.open("a") as file:
            file.write(json.dumps({"mutant": mutant, **found}) + "\n")

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        places = [Path(folder, str(n)) for n in range(options.jobs)]
        for job in pool.map(lambda place: Job(place, options), places):
            free.put(job)
        list(pool.map(decide, [mutant for mutant in wanted if mutant not in decided]))
    print(json.dumps(Counter(decided[mutant] for mutant in wanted)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("draw", "run"))
    parser.add_argument("mutants", type=Path)
    parser.add_argument("modules", nargs="*", help="draw: a package stands for all of its modules")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--names", type=Path, help="JSON, old name to new")
    parser.add_argument("--found", type=Path, default=Path("found.jsonl"))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests of one mutant")
    parser.add_argument("--files", type=int, default=30, help="of tests for one mutant, at most")
    options = parser.parse_args()
    (draw if options.command == "draw" else run)(options)


if __name__ == "__main__":
    main()
