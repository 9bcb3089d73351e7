"""The store that a user's settings open."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudal1_compile import config
from cudal1_compile.dispatch.kernel_cache import open_store


def test_the_key_lies_in_the_users_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDAL1_KEY_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with open_store(tmp_path / "cache") as store:
        assert store.path is not None
    assert config.key_file() == tmp_path / "config" / "cudal1" / "key" and config.key_file().is_file()
    assert [p for p in (tmp_path / "cache").iterdir() if "key" in p.name] == []


def test_a_key_within_the_cache_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDAL1_KEY_FILE", str(tmp_path / "cache" / "keys" / "key"))
    with open_store(tmp_path / "cache") as store:
        assert store.path is None and "lies within it" in store.database.fault
    assert not config.key_file().exists()
