"""What is loaded is what was proven: a kernel under its own id, by its own image, or rebuilt through the gates."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cudal1_cache import Entry
from cudal1_cache.bundle import Verified
from cudal1_cache.schema import FILE_NAME
from cudal1_compile.dispatch import registry
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.judge.judge import Judge
from cudal1_compile.runtime.hostrun import HostRun
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis import proven as module
from cudal1_compile.synthesis.reverify import verify_entry
from cudal1_compile.synthesis.validity import own_id
from tests.host.test_cli_reverify import CODE, KERNEL, REGION

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def proven() -> Entry:
    with Judge(HOST) as judge:
        found = verify_entry(REGION, KERNEL, HOST, judge)
    assert isinstance(found, Verified)
    return found.entry


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_stores", [])
    monkeypatch.setattr(registry, "_kept", [])


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Codes that were built since."""
    codes: list[str] = []
    build = module.build
    monkeypatch.setattr(module, "build", lambda *args: codes.append(args[1].code) or build(*args))
    return codes


def loads(entry: Entry) -> bool:
    return registry.is_loadable(entry, REGION.text, CPU)


def renamed(entry: Entry) -> Entry:
    """Under the id that its content has."""
    return replace(entry, entry_id=own_id(entry, REGION.text, HOST))


def test_a_proven_kernel_is_loaded_by_its_image(proven: Entry, built: list[str]) -> None:
    assert loads(proven) and not built


@pytest.mark.parametrize(
    "change",
    [
        {"code": CODE.replace("+ ld(in1 + i)", "- ld(in1 + i)"), "image": b""},
        {"code": CODE.replace("256), 256", "128), 128"), "image": b""},
        {"numerics": "f32_split"},
        {"entry_id": "0" * 64},
    ],
)
def test_an_id_of_another_source_plan_or_label_is_refused(
    proven: Entry, change: dict[str, object], built: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Even in a row that this user's key sealed."""
    assert not loads(replace(proven, **change))  # type: ignore[arg-type]
    assert "its id should be" in caplog.text and not built


def test_an_id_of_another_region_is_refused(proven: Entry, caplog: pytest.LogCaptureFixture) -> None:
    other = REGION.text.replace("relu", "tanh")
    assert other != REGION.text and not registry.is_loadable(proven, other, CPU)
    assert "its id should be" in caplog.text


def test_an_exchanged_image_is_never_opened(
    proven: Entry, cudal1_cache_dir: Path, built: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(cudal1_cache_dir) as store:
        store.put_entry(proven)
    with sqlite3.connect(cudal1_cache_dir / FILE_NAME) as raw:
        assert raw.execute("update entries set image = ?", [b"\x7fELF of another"]).rowcount == 1
    raw.close()
    run = registry.load(proven.entry_id, "cpu", 0, REGION.text)
    a, b, out = torch.randn(8192), torch.randn(8192), torch.empty(8192)
    run(out, a, b, 0)
    torch.testing.assert_close(out, (a + b).relu())
    assert "its region runs with aten: it is quarantined: unverified: its row carries neither" in caplog.text
    assert not built and not registry._kept


@pytest.mark.parametrize("image", [b"", b"\x7fELF cut"])
def test_a_lost_image_is_built_from_the_text_that_passed_the_gate(
    proven: Entry, image: bytes, built: list[str]
) -> None:
    entry = renamed(replace(proven, code=CODE.replace("int i", "/* seen by nobody */ int i"), image=image))
    assert loads(entry)
    (code,) = built
    assert "seen by nobody" not in code


def test_what_was_judged_is_what_is_built(built: list[str]) -> None:
    """The text that the gate left, though the row keeps what was written."""
    code = CODE.replace("int i", "/* seen by nobody */ int i")
    with Judge(HOST) as judge:
        found = verify_entry(REGION, replace(KERNEL, code=code), HOST, judge)
    assert isinstance(found, Verified) and found.entry.code == code
    assert built and not any("seen by nobody" in text for text in built)


def test_what_the_gate_refuses_is_not_built(
    proven: Entry, built: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    entry = renamed(replace(proven, code=CODE.replace("int i", 'asm(""); int i'), image=b""))
    assert not loads(entry) and not built
    assert "its source does not pass the text gate: " in caplog.text


def test_what_was_proven_with_other_headers_is_not_built(
    proven: Entry, built: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    versions = json.loads(proven.versions_json) | {"header": "of last year"}
    entry = renamed(replace(proven, versions_json=json.dumps(versions)))
    assert loads(entry), "its image is what was proven"
    registry._loaded.clear()
    assert not loads(replace(entry, image=b"")) and not built
    assert "other device headers" in caplog.text


def test_a_rebuilt_object_that_kills_the_sealed_child_is_not_opened(
    proven: Entry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(image: bytes) -> HostRun:
        assert image.startswith(b"\x7fELF")
        return HostRun("crash", kind="signal", message="planted")

    monkeypatch.setattr(registry, "open_isolated", refuse)
    opened: list[object] = []
    monkeypatch.setattr(registry, "load_kernel", lambda *args: opened.append(args))
    assert not loads(replace(proven, image=b"")) and not opened
    assert "cannot be opened (crash, signal): planted" in caplog.text
