"""The tests' own compiler builds what differs, and copies what was built before; failures are told each time."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "built_once.sh"
# writes its arguments and the source where -o says, counts its calls, is slow or refuses where a source says so
COMPILER = """#!/bin/sh
echo "$@" >> {calls}
while [ "$1" != -o ]; do case $1 in -*) ;; *) source=$1 ;; esac; shift; done
grep -q slow "$source" && sleep 0.2
grep -q wrong "$source" && {{ echo "error in $source" >&2; exit 3; }}
cp "$source" "$2"
"""


class Once:
    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        (folder / "built").mkdir()
        compiler = folder / "compiler"
        compiler.write_text(COMPILER.format(calls=self.calls))
        compiler.chmod(0o755)
        self.command = [str(SCRIPT), str(compiler), str(folder / "built")]

    def build(self, text: str, *flags: str, place: str = "a", name: str = "k.cu") -> str | None:
        """What the compiler gave for the text in a folder called `place`; None where it failed."""
        source = self.folder / place / name
        source.parent.mkdir(exist_ok=True)
        source.write_text(text)
        made = self.folder / place / "k.o"
        done = subprocess.run(
            [*self.command, *flags, str(source), "-o", str(made)], capture_output=True, text=True
        )
        assert (done.returncode, "error in" in done.stderr) in ((0, False), (3, True))
        return made.read_text() if done.returncode == 0 else None

    @property
    def called(self) -> int:
        return len(self.calls.read_text().splitlines())


@pytest.fixture
def once(tmp_path: Path) -> Once:
    return Once(tmp_path)


def test_the_same_source_is_built_once_wherever_it_lies(once: Once) -> None:
    assert [once.build("one", place=p) for p in ("a", "b", "a")] == ["one"] * 3
    assert once.called == 1


def test_what_is_compiled_ahead_is_built_by_one_and_the_others_wait(once: Once) -> None:
    header = ("-x", "c++-header")
    with ThreadPoolExecutor(3) as pool:
        built = list(pool.map(lambda place: once.build("slow", *header, place=place), "abc"))
    assert built == ["slow"] * 3 and once.called == 1


def test_another_source_flag_or_name_is_built(once: Once) -> None:
    assert [once.build("one"), once.build("two"), once.build("one", "-O2"), once.build("one", name="l.cu")] == [
        *("one", "two", "one", "one")
    ]
    assert once.called == 4


def test_another_compiled_header_is_another_build(once: Once) -> None:
    for place, header in (("a", "plain"), ("b", "check"), ("c", "plain")):
        path = once.folder / place / header / "host.h"
        path.parent.mkdir(parents=True)
        path.touch()
        assert once.build("one", "-include", str(path), place=place) == "one"
    assert once.called == 2


def test_a_failure_is_told_again(once: Once) -> None:
    assert [once.build("wrong"), once.build("wrong"), once.build("right")] == [None, None, "right"]
    assert once.called == 3
