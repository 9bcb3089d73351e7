"""The command line: lookup, lazy loading, `cache` and `doctor`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cudal1_cache import Attempt, Entry, Region, Store
from cudal1_compile import cli
from cudal1_compile.cli import doctor

KERNEL = Entry(
    "abc123",
    "f1",
    "target1",
    "kernel",
    code="__global__ void k() {}",
    image=b"\x7fELF",
    proof_json='{"lower_bound": 1.2}',
    speedup=1.3,
    numerics="exact",
)


@pytest.fixture
def store(cudal1_cache_dir: Path) -> Path:
    with Store.open(cudal1_cache_dir) as store:
        store.add_region(Region("f1", "r", "out0 = relu(in0)"))
        store.put_entry(KERNEL)
        store.put_entry(Entry("abd456", "f1", "target2", "no_win", reason="8 tried"))
        store.add_attempts(
            [Attempt("f1", "target1", "d1", "bundled", "m", "p", "", "", "code", "verify", "differs at [3, 1]")]
        )
    return cudal1_cache_dir


def test_the_list_names_every_installed_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in cli.find_commands():
        assert f"\n  {name}" in shown
    assert {"cache", "doctor"} <= cli.find_commands().keys()


def test_every_installed_command_can_be_loaded() -> None:
    for name, command in cli.find_commands().items():
        assert callable(command.load()), name


def test_the_list_and_the_cache_load_no_torch(cudal1_cache_dir: Path) -> None:
    """So that they answer at once."""
    for arguments in (["--help"], ["cache", "stats"]):
        code = (
            f"import sys; from cudal1_compile import cli; cli.main({arguments}); sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0, arguments


def test_an_unknown_command_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cahce"]) == 2
    assert "'cahce'; there are: " in capsys.readouterr().err


def test_a_command_that_cannot_be_loaded_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(EntryPoint("gone", "no_such_module:app", cli.GROUP), []) == 1
    assert "no_such_module" in capsys.readouterr().err


def test_wrong_options_end_in_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--nonsense"]) == 2


def test_stats_has_a_line_for_each_target(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "stats"]) == 0
    shown = capsys.readouterr().out
    assert "target1" in shown
    assert "target2" in shown


def test_show_prints_all_that_is_known(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "show", "abc", "--attempts"]) == 0
    shown = capsys.readouterr().out
    for part in ("out0 = relu(in0)", "__global__ void k() {}", '"lower_bound": 1.2', "differs at [3, 1]"):
        assert part in shown


@pytest.mark.parametrize(("prefix", "says"), [("zz", "no entry begins with 'zz'"), ("ab", "2 entries begin")])
def test_show_needs_one_entry(store: Path, capsys: pytest.CaptureFixture[str], prefix: str, says: str) -> None:
    assert cli.main(["cache", "show", prefix]) == 1
    assert says in capsys.readouterr().err


def test_export_and_import_without_a_judge(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "kernels.bundle"
    assert cli.main(["cache", "export", str(bundle), "--target", "target1"]) == 0
    assert "1 kernels of 1 regions" in capsys.readouterr().out
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert cli.main(["cache", "import", str(bundle), "--no-verify"]) == 0
    assert "verified 0, refused 0, still unverified 1" in capsys.readouterr().out
    with Store.open(tmp_path / "elsewhere") as other:
        assert other.find_entry("f1", "target1") is None


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_file_that_cannot_be_opened_is_one_sentence(
    command: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cache", command, str(tmp_path / "nowhere" / "b")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_import_of_something_else_is_one_sentence(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    assert cli.main(["cache", "import", str(tmp_path / "photo.jpg")]) == 1
    assert "no bundle" in capsys.readouterr().err


def test_a_corrupt_row_is_one_sentence(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(store) as opened:
        opened.database.write(lambda db: db.execute("update entries set code = 'other'").rowcount)
    assert cli.main(["cache", "show", "abc"]) == 1
    assert "does not match its checksum" in capsys.readouterr().err


def test_doctor_looks_at_everything(capsys: pytest.CaptureFixture[str], cudal1_cache_dir: Path) -> None:
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert str(cudal1_cache_dir) in shown
    for finding in doctor.examine():
        assert finding.name in shown
        assert finding.state == "ok" or finding.advice


def test_doctor_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.check_compiler()
    assert (found.state, found.detail) == ("absent", "no g++ on PATH")
    assert "install g++" in found.advice


def test_doctor_with_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "g++").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = doctor.check_compiler()
    assert found.state == "absent"
    assert "broken" in found.detail


def test_doctor_where_the_cache_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(tmp_path / "file" / "cache"))
    found = doctor.check_cache()
    assert found.state == "absent"
    assert "CUDAL1_CACHE_DIR" in found.advice
