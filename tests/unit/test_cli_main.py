"""The command line: lookup, lazy loading, `cache` and `doctor`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cudal1_cache import Attempt, Entry, RegionText
from cudal1_cache.bundle import Postponed, Verify
from cudal1_compile import cli
from cudal1_compile.cli import cache, doctor
from cudal1_compile.dispatch.kernel_cache import open_store

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
    with open_store(cudal1_cache_dir) as store:
        store.add_regions(RegionText("f1", "r", "out0 = relu(in0)"))
        store.put_entry(KERNEL)
        store.put_entry(Entry("abd456", "f1", "target2", "unprofitable", reason="8 tried"))
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


def test_a_wrong_debug_level_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL1_DEBUG", "9")
    assert cli.main(["cache", "stats"]) == 2
    assert "CUDAL1_DEBUG='9': expected 0 to 4" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["cache", "--help"], ["cache", "stats"]])
def test_a_closed_pipe_ends_a_command_quietly(arguments: list[str], cudal1_cache_dir: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command(arguments), stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_ctrl_c_ends_the_process_by_sigint(tmp_path: Path) -> None:
    """Also where a thread is still at work, as a generator's is."""
    (tmp_path / "slow.py").write_text(
        "import threading, time\n"
        "def make():\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    print('here', flush=True)\n"
        "    time.sleep(60)\n"
    )
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's `&` ignores it
    python, _, code = command(["explain", "slow:make"])
    child = subprocess.Popen(
        [python, "-c", f"{heard}; {code}"], cwd=tmp_path, stdout=-1, stderr=-1, text=True, start_new_session=True
    )
    late = threading.Timer(60, child.kill)
    late.start()
    assert child.stdout is not None and child.stdout.readline() == "here\n"
    child.send_signal(signal.SIGINT)
    err = child.communicate()[1]
    late.cancel()
    assert (child.returncode, err) == (-signal.SIGINT, "cudal1: interrupted; what was finished before is kept\n")


def command(arguments: list[str]) -> list[str]:
    code = f"import sys; from cudal1_compile import cli; sys.exit(cli.main({arguments}))"
    return [sys.executable, "-c", code]


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


def test_show_finds_an_entry_by_its_region(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(store) as opened:
        opened.put_entry(Entry("fff", "0123", "target1", "unprofitable"))
    assert cli.main(["cache", "show", "012"]) == 0
    assert "entry     fff" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        ("zz", "no entry or region begins with 'zz'"),
        (
            "ab",
            "2 entries begin with 'ab': abc123 kernel of target target1, abd456 unprofitable of target target2",
        ),
        ("f", "2 entries begin with 'f': "),
    ],
)
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
    with open_store(tmp_path / "elsewhere") as other:
        assert other.find_entry("f1", "target1") is None


def test_import_says_what_it_runs_before_it_does(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "kernels.bundle"
    assert cli.main(["cache", "export", str(bundle), "--target", "target1"]) == 0
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(tmp_path / "elsewhere"))
    said: list[str] = []

    def judges() -> AbstractContextManager[Verify]:
        said.append(capsys.readouterr().err)
        return nullcontext(lambda region, entry: Postponed("later"))

    monkeypatch.setattr(cache, "_judges", judges)
    assert cli.main(["cache", "import", str(bundle)]) == 0
    assert said == ["1 kernels will be built from source and run in this machine's sandbox\n"]


@pytest.mark.parametrize("arguments", [["import", "b"], ["verify"]])
def test_nothing_is_imported_into_a_cache_that_keeps_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert cli.main(["cache", *arguments]) == 1
    said = capsys.readouterr().err
    assert "keeps nothing: [Errno 20] Not a directory" in said and "set CUDAL1_CACHE_DIR" in said


def test_an_empty_cache_is_not_exported(
    cudal1_cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cache", "export", str(tmp_path / "b")]) == 1
    assert "nothing to export" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


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


def test_an_altered_row_is_shown_as_unverified(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(store) as opened:
        opened.database.write(lambda db: db.execute("update entries set code = 'other'").rowcount)
    assert cli.main(["cache", "show", "abc"]) == 0
    shown = capsys.readouterr().out
    assert (
        "quarantined: unverified: its row carries neither this user's MAC" in shown and "image     0 byt" in shown
    )


ESCAPES = "\x1b]0;hacked\x07\x9b2J\u202e\r"


def test_no_terminal_escape_of_a_row_reaches_the_terminal(
    cudal1_cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever field of whatever row it stands in, and whatever the subcommand."""
    with open_store(cudal1_cache_dir) as opened:
        opened.add_regions(RegionText("f1", "r", f"text {ESCAPES}"))
        for name in ("ab1", f"ab2{ESCAPES}"):
            opened.put_entry(
                Entry(
                    name,
                    "f1",
                    f"t{ESCAPES}",
                    "kernel",
                    code=f"code {ESCAPES}\n\tmore",
                    image=b"x",
                    image_arch=ESCAPES,
                    proof_json=ESCAPES,
                    numerics=ESCAPES,
                    versions_json=ESCAPES,
                    quarantined=True,
                    reason=f"unverified {ESCAPES}",
                )
            )
        opened.add_attempts(
            [Attempt("f1", f"t{ESCAPES}", ESCAPES, ESCAPES, "m", "p", "", "", "", ESCAPES, ESCAPES)]
        )
    for arguments in (["show", "ab1", "--attempts"], ["show", "ab"], ["stats"], ["replay", "ab2"], ["verify"]):
        cli.main([*(["cache"] if arguments[0] != "replay" else []), *arguments])
        shown = "".join(capsys.readouterr())
        assert not set("\x1b\x07\x9b\u202e\r") & set(shown), arguments
        assert r"\x1b]0;h" in shown, arguments


def test_a_refutation_is_lifted_by_its_command(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "unrefute", "abc"]) == 1
    assert "abc123 is not refuted" in capsys.readouterr().err
    with open_store(store) as opened:
        opened.refute("abc123", "out0[3] is 7")
    assert cli.main(["cache", "unrefute", "abc"]) == 0
    assert "1 kernels of this code wait" in capsys.readouterr().out
    with open_store(store) as opened:
        found = opened.get_entry("abc123")
        assert found is not None and found.is_unverified
        assert opened.why_refuted("f1", "target1", KERNEL.code) is None


def test_signed_by_one_user_and_read_by_another(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two key files; the reader names the writer's public key."""
    assert cli.main(["cache", "sign"]) == 0
    told = capsys.readouterr().out
    assert "3 rows of " in told
    public = told.rpartition("CUDAL1_TRUSTED_KEYS=")[2].strip()
    monkeypatch.setenv("CUDAL1_KEY_FILE", str(tmp_path / "reader" / "key"))
    with open_store(store) as reader:
        assert reader.find_entry("f1", "target1") is None
    monkeypatch.setenv("CUDAL1_TRUSTED_KEYS", f" {'00' * 32} , {public}")
    with open_store(store) as reader:
        assert reader.find_entry("f1", "target1") == KERNEL


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
