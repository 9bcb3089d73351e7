"""Writes the README's file tree from the first sentence of each module, so that it says what is there.

    python dev/file_tree.py    rewrites the part between the markers; ./lint.sh fix calls it

Folders stand in the order in which data flows (FOLDERS), files within one by name. Only what git tracks counts.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- file tree: dev/file_tree.py -->\n", "<!-- end of file tree -->\n"
WIDTH = 150
FOLDERS = (
    "cudal1_compile",
    "fx_passes/cudal1_fx_passes",
    "cache/cudal1_cache",
    "cudal1_compile/synthesis",
    "cudal1_compile/generate",
    "cudal1_compile/judge",
    "cudal1_compile/judge/audit",
    "cudal1_compile/runtime",
    "cudal1_compile/cli",
    "trainer/cudal1_trainer",
    "trainer/cudal1_trainer/tasks",
    "trainer/cudal1_trainer/teachers",
    "benchmarks",
)


def main() -> None:
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}```\n{tree()}```\n{END}{after}")


def tree() -> str:
    modules = tracked_modules()
    known = [f for f in FOLDERS if f in modules]
    lines: list[str] = []
    for folder in [*known, *sorted(modules.keys() - set(known))]:
        lines += [_head(folder), *(_line(ROOT / folder / name) for name in modules[folder])]
    return "\n".join(lines) + "\n"


def tracked_modules() -> dict[str, list[str]]:
    """Folder -> names of the modules in it, tests and empty ones left out."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, text=True, capture_output=True, check=True)
    found: dict[str, list[str]] = {}
    for path in sorted(Path(line) for line in listed.stdout.splitlines()):
        if path.parts[0] not in ("tests", "dev") and path.name != "__init__.py" and (ROOT / path).is_file():
            found.setdefault(str(path.parent), []).append(path.name)
    return found


def _line(path: Path) -> str:
    line = f"    {path.name:<22} {_first_sentence(path)}"
    return line if len(line) <= WIDTH else line[:WIDTH].rpartition(" ")[0].rstrip(",;:") + " ..."


def _head(folder: str) -> str:
    package = ROOT / folder / "__init__.py"
    sentence = _first_sentence(package) if package.is_file() else ""
    return f"{folder + '/':<26} {sentence}".rstrip()


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")


if __name__ == "__main__":
    main()
