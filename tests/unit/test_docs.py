"""README and docs hold what they say: code compiles, commands and options exist, links and files are there."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import io
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from cudal1_compile import backend, cli, config
from cudal1_compile.judge.sandbox.isolation import _PASSED_ON
from cudal1_compile.options import OWN_NAMES, Options, parse_options

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")))
README_BYTES = 8192
SOURCES = {
    f.relative_to(base).as_posix()
    for base in (ROOT, ROOT / "fx_passes", ROOT / "cache", ROOT / "trainer")
    for folder in ("cudal1_compile", "cudal1_fx_passes", "cudal1_cache", "cudal1_trainer", "benchmarks", "trainer")
    for f in (base / folder).rglob("*.py")
}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ABSOLUTE = re.compile(r"(?<![\w.:/~<-])/(?:home|root|work|tmp|usr|opt|mnt|data|Users|srv|var)/")


@dataclass(frozen=True)
class Command:
    """A command line of a page, without its comment."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def fences(page: Path) -> list[tuple[str, str]]:
    return _FENCE.findall(page.read_text())


def commands() -> Iterator[Command]:
    for page in PAGES:
        text = page.read_text()
        lines = [line for kind, body in _FENCE.findall(text) if kind in ("", "sh") for line in body.splitlines()]
        for line in [*lines, *_INLINE.findall(_FENCE.sub("", text))]:
            try:
                words = tuple(shlex.split(line, comments=True))
            except ValueError:  # an apostrophe in what is no command
                continue
            if len(words) > 1 and (words[0] in ("cudal1", "make") or "-m" in words[1:]):
                yield Command(page.name, words)


COMMANDS = tuple(dict.fromkeys(commands()))
OF_CUDAL1 = [c for c in COMMANDS if c.words[0] == "cudal1"]
OF_MODULES = [c for c in COMMANDS if "-m" in c.words and c.words[0] in ("python", "accelerate")]
OF_MAKE = [c for c in COMMANDS if c.words[0] == "make"]


def options_in(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_compile_and_links_and_paths_are_there(page: Path) -> None:
    for kind, body in fences(page):
        if kind == "python":
            ast.parse(body)
    text = page.read_text()
    targets = [t.partition("#")[0] for t in _LINK.findall(text) if "://" not in t]
    assert [t for t in targets if t and not (page.parent / t).is_file()] == []
    assert _ABSOLUTE.findall(text) == []


def test_readme_is_short_and_shows_an_example_first() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES
    assert fences(ROOT / "README.md")[0][0] == "python"


def test_the_pages_have_commands_of_every_kind() -> None:
    assert min(len(OF_CUDAL1), len(OF_MODULES), len(OF_MAKE)) >= 5


def test_the_readmes_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where the backend hands the graph to Inductor; here Dynamo's own graph stands in for that."""
    handed = []

    def plain(gm: torch.fx.GraphModule, *_: object) -> Any:
        handed.append(gm)
        return gm.forward

    monkeypatch.setattr(backend, "compile_plain", plain)
    scope: dict[str, Any] = {}
    exec(compile(fences(ROOT / "README.md")[0][1], "README.md", "exec"), scope)  # noqa: S102
    assert len(handed) == 1
    assert scope["y"].shape == (32, 1024) and scope["y"].isfinite().all()


@pytest.mark.parametrize("command", OF_CUDAL1, ids=str)
def test_commands_of_cudal1_exist(command: Command) -> None:
    name, *rest = command.words[1:]
    if name.startswith("--"):
        assert name in ("--help", "--version")
        return
    found = command_of(name)
    while getattr(found, "commands", None) and rest and not rest[0].startswith("-"):
        assert rest[0] in found.commands, f"{command}: there are {sorted(found.commands)}"
        found, rest = found.commands[rest[0]], rest[1:]
    known = {option for p in found.params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    assert options_in(rest) <= known


@functools.cache
def command_of(name: str) -> Any:
    return typer.main.get_command(cli._app(cli.find_commands()[name].load()))


@pytest.mark.parametrize("command", OF_MODULES, ids=str)
def test_modules_have_the_options_that_pages_give_them(command: Command) -> None:
    at = command.words.index("-m") + 1
    assert options_in(command.words[at:]) <= options_of(command.words[at])


@functools.cache
def options_of(module: str) -> set[str]:
    """What its --help lists."""
    found = importlib.import_module(module)
    if hasattr(found, "__path__"):  # a package runs by its __main__
        found = importlib.import_module(f"{module}.__main__")
    assert hasattr(found, "main"), f"python -m {module}: it has no main()"
    text, before = io.StringIO(), sys.argv
    sys.argv = [module, "--help"]
    try:
        with contextlib.redirect_stdout(text), pytest.raises(SystemExit) as end:
            found.main()
    finally:
        sys.argv = before
    assert end.value.code == 0
    return set(re.findall(r"--[a-z][\w-]*", text.getvalue()))


def test_targets_of_make_exist() -> None:
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {c.words[1] for c in OF_MAKE} <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_and_results_that_pages_name_exist(page: Path) -> None:
    text = page.read_text()
    assert [n for n in files_in(text) if not (ROOT / n).exists() and n not in SOURCES and not made(n)] == []
    assert [n for n in re.findall(r"`(\w+\.py)`", text) if n not in {Path(f).name for f in SOURCES}] == []
    results = re.findall(r"`([\w.-]+\.(?:h100|h200|host)\w*)`", text)
    assert [r for r in results if not (ROOT / "benchmarks" / "results" / f"{r}.json").is_file()] == []


def files_in(text: str) -> Iterator[str]:
    """Paths in backquotes, and those in the nodes of a diagram, where one folder may have several files."""
    yield from re.findall(r"`([\w./-]+/[\w./-]+)`", text)
    for label in re.findall(r'\["([^"<]+/[^"<]+\.py)', text):
        first, *others = label.split(", ")
        yield from (first, *(str(Path(first).parent / name) for name in others))


def made(path: str) -> bool:
    """Whether a run makes it, it lies with the user, or a word in capitals stands for a name."""
    return path.startswith(("build/", "runs/", "native/", "cudal1/key")) or "/NAME." in path


def table(page: Path, head: str) -> dict[str, list[str]]:
    """Rows of the table with this first column: name -> its other cells. A cell may name several."""
    _, _, rest = page.read_text().partition(f"| {head} |")
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    cells = [[c.strip() for c in row.strip("|").split(" | ")] for row in rows]
    return {name: row[1:] for row in cells for name in re.findall(r"`(\w+)`", row[0])}


def test_the_options_page_names_every_option_with_its_default() -> None:
    rows = table(ROOT / "docs" / "options.md", "option")
    defaults = {f.name: f.default for f in fields(Options) if f.default is not MISSING}
    assert set(rows) == set(OWN_NAMES)
    assert {name: ast.literal_eval(row[0].strip("`")) for name, row in rows.items()} == defaults
    for name, row in rows.items():
        for value in re.findall(r"`([^`]+)`", row[1]):
            parse_options(None, {name: ast.literal_eval(value)})  # raises for what is no value


def test_the_options_page_names_every_environment_variable() -> None:
    page = ROOT / "docs" / "options.md"
    tree = ast.parse(Path(config.__file__).read_text())
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    own = {s for s in strings if re.fullmatch(r"CUDAL1_\w+", s)}
    text = page.read_text()
    _, _, system = text.partition("Variables of the system")
    assert set(re.findall(r"^\| `(CUDAL1_\w+)`", text, re.M)) == own
    assert set(re.findall(r"`([A-Z_]+)`", system)) == set(_PASSED_ON)
    read = {name for file in (ROOT / "cudal1_compile").rglob("*.py") for name in read_in(file)}
    assert read <= set(_PASSED_ON)


def read_in(file: Path) -> list[str]:
    return re.findall(r'environment_path\("(\w+)"\)', file.read_text())
