"""`cudal1 repro`: one file that rebuilds, checks and costs a stored kernel, without the cache it came from."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli_replay import CODE, REGION

from cudal1_cache import Entry
from cudal1_compile import cli
from cudal1_compile.cli.repro import literal
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.runtime.target import HOST

pytestmark = pytest.mark.host

KERNEL = Entry("abc123" + "0" * 58, REGION.fingerprint, HOST.key, "kernel", code=CODE)
WRONG = replace(KERNEL, code=CODE.replace("+ ld(in1 + i)", "- ld(in1 + i)"), quarantined=True, reason="refuted: -")


def written(place: Path, entry: Entry, file: Path) -> Path:
    with open_store(place) as store:
        store.add_regions(REGION)
        store.put_entry(entry)
    assert cli.main(["repro", "abc1", "--out", str(file)]) == 0
    return file


def run(file: Path, empty: Path, *device: str) -> subprocess.CompletedProcess[str]:
    """In another folder, with an empty cache."""
    places = {"CUDAL1_CACHE_DIR": str(empty), "CUDAL1_KEY_FILE": str(empty / "key"), "HOME": str(empty)}
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"} | places
    command = [sys.executable, str(file), *device]
    return subprocess.run(command, capture_output=True, text=True, cwd=empty, env=environment, timeout=300)


@pytest.mark.parametrize(
    ("entry", "status", "says"), [(KERNEL, 0, "declared cost "), (WRONG, 1, "refused at verify: ")]
)
def test_the_file_judges_the_kernel_by_itself(
    entry: Entry, status: int, says: str, cudal1_cache_dir: Path, tmp_path: Path
) -> None:
    """Of a quarantined kernel too."""
    file = written(cudal1_cache_dir, entry, tmp_path / "kernel.py")
    (tmp_path / "empty").mkdir(mode=0o700)
    done = run(file, tmp_path / "empty")
    assert done.returncode == status and says in done.stdout, done.stdout + done.stderr
    if status == 0:
        without_a_gpu = run(file, tmp_path / "empty", "cuda:7")
        assert without_a_gpu.returncode == 2 and "no GPU here" in without_a_gpu.stdout


def test_without_a_file_it_goes_to_stdout_and_says_its_device(
    cudal1_cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(cudal1_cache_dir, replace(KERNEL, target="a GPU's"), tmp_path / "kernel.py")
    capsys.readouterr()
    assert cli.main(["repro", "abc1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == file.read_text() and shown.err == ""
    names = {n.targets[0].id: n.value for n in ast.parse(shown.out).body if isinstance(n, ast.Assign)}  # type: ignore[attr-defined]
    assert ast.literal_eval(names["REGION"]) == REGION.text and ast.literal_eval(names["CODE"]) == CODE
    assert 'def main(device: str = "cuda")' in shown.out and "needs cudal1 (pip install cudal1)" in shown.out


def test_what_is_no_kernel_is_named(cudal1_cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(cudal1_cache_dir) as store:
        store.put_entry(Entry("nothing", REGION.fingerprint, HOST.key, "unprofitable"))
    assert cli.main(["repro", "nothing"]) == 1
    assert "there is nothing to reproduce" in capsys.readouterr().err


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from('"\\\n\r\t\x1b\x00{}a')))
def test_a_strangers_text_stays_a_string(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text
    assert literal(text).isascii()
