"""The one file that reads the environment."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from cudal1_compile import config


def test_cache_dir_is_made_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert config.cache_dir() == tmp_path / "a" / "b"
    assert config.cache_dir().is_dir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDAL1_CACHE_DIR", "~/c")  # no shell has read this: a job's file, an IDE
    assert config.cache_dir() == tmp_path / "c"
    monkeypatch.delenv("CUDAL1_CACHE_DIR")
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    assert config.cache_dir() == tmp_path / "cudal1"


def test_locks_lie_where_a_process_without_a_session_looks_too(
    tmp_path: Path, cudal1_cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    usual = Path(f"/run/user/{os.getuid()}/cudal1")
    assert config.lock_folders() == (usual, cudal1_cache_dir / "locks")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert config.lock_folders() == (tmp_path / "cudal1", cudal1_cache_dir / "locks")


def test_debug_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDAL1_DEBUG", raising=False)
    assert config.debug_level() == 0
    for text, level in (("", 0), ("0", 0), ("4", 4)):
        monkeypatch.setenv("CUDAL1_DEBUG", text)
        assert config.debug_level() == level
    for text in ("5", "-1", "yes"):
        monkeypatch.setenv("CUDAL1_DEBUG", text)
        with pytest.raises(ValueError, match="CUDAL1_DEBUG"):
            config.debug_level()


def test_nobody_else_reads_the_environment() -> None:
    package = Path(config.__file__).parent
    readers = [p.name for p in (package / "runtime").rglob("*.py") if "os.environ" in p.read_text()]
    assert readers == []
