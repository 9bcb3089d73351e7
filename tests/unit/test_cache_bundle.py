"""Bundles: what is exported comes back unverified, and damage is found."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudal1_cache import BundleError, Entry, RegionText, Store
from cudal1_cache.bundle import (
    EntryVerification,
    Postponed,
    Refused,
    Verification,
    Verified,
    Verify,
    export_bundle,
    import_bundle,
    read_bundle,
    unverified,
    verify_entries,
)

REGION = RegionText("f", "r", "dims d0=8\nout0 = relu(in0)")
KERNEL = Entry("e1", "f", "t", "kernel", code="code", image=b"\x7fELF", image_arch="sm_90a", speedup=1.3)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.bundle"
    with Store.memory() as store:
        store.add_regions(REGION)
        store.put_entry(KERNEL)
        store.put_entry(replace(KERNEL, entry_id="e2", target="other"))
        store.put_entry(replace(KERNEL, entry_id="bad", quarantined=True, reason="wrong"))
        store.put_entry(Entry("none", "f", "t", "unprofitable"))
        export_bundle(store, path)
    return path


def take(store: Store, path: Path, verify: Verify) -> list[EntryVerification]:
    return import_bundle(store, read_bundle(path), path.name, verify)


def accept(region: RegionText, entry: Entry) -> Verification:
    return Verified(replace(entry, image=b"built here", image_arch="sm_90a", speedup=1.1))


def postpone(region: RegionText, entry: Entry) -> Verification:
    return Postponed("no GPU here")


def test_a_bundle_holds_usable_kernels_without_their_binaries(bundle: Path) -> None:
    found = read_bundle(bundle)
    assert {e.entry_id for e in found.entries} == {"e1", "e2"}
    assert found.regions == (REGION,)
    assert all(e.image == b"" for e in found.entries)
    assert b"\x7fELF" not in bundle.read_bytes()


def test_a_lost_region_bars_no_other_kernel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "kernels.bundle"
    with Store.memory() as store:
        store.put_entry(replace(KERNEL, entry_id="lost", fingerprint="gone"))
        with pytest.raises(BundleError, match="no region of the 1 kernels"):
            export_bundle(store, path)
        assert not path.exists()
        store.add_regions(REGION)
        store.put_entry(KERNEL)
        found = export_bundle(store, path)
    assert [e.entry_id for e in found.entries] == ["e1"] and found.regions == (REGION,)
    assert "the region gone are not exported" in caplog.text


def test_export_of_one_target(tmp_path: Path) -> None:
    with Store.memory() as store:
        store.add_regions(REGION)
        store.put_entry(KERNEL)
        store.put_entry(replace(KERNEL, entry_id="e2", target="other"))
        assert [e.entry_id for e in export_bundle(store, tmp_path / "b", "other").entries] == ["e2"]
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["b"]


def test_nothing_is_used_before_the_judge_accepts(bundle: Path) -> None:
    with Store.memory() as store:
        assert len(take(store, bundle, postpone)) == 2
        assert store.find_entry("f", "t") is None
        assert {e.entry_id for e in unverified(store)} == {"e1", "e2"}
        verify_entries(store, unverified(store, "t"), accept)
        found = store.find_entry("f", "t")
        assert found is not None
        assert (found.entry_id, found.image, found.speedup) == ("e1", b"built here", 1.1)
        assert [e.entry_id for e in unverified(store)] == ["e2"]


def test_a_refused_kernel_is_never_asked_about_again(bundle: Path) -> None:
    with Store.memory() as store:
        take(store, bundle, lambda region, entry: Refused("wrong at [3]"))
        assert store.find_entry("f", "t") is None
        assert unverified(store) == []
        assert take(store, bundle, accept) == []
        kept = store.get_entry("e1")
        assert kept is not None
        assert kept.reason == "refused: wrong at [3]"


def test_refuted_code_stays_out_in_a_second_bundle_with_other_blanks(bundle: Path) -> None:
    with Store.memory(lambda code: "".join(code.split())) as store:
        take(store, bundle, accept)
        store.refute("e1", "out0[3] is 7")
        content = json.loads(bundle.read_bytes().partition(b"\n")[2])
        twins = [item | {"code": " co de ", "entry_id": f"{item['entry_id']}b"} for item in content["entries"]]
        _forge(bundle, content | {"entries": twins})
        asked: list[str] = []

        def verify(region: RegionText, entry: Entry) -> Verification:
            asked.append(entry.entry_id)
            return accept(region, entry)

        (refused,) = [o for o in take(store, bundle, verify) if isinstance(o.verification, Refused)]
        assert (
            "out0[3] is 7" in refused.verification.reason
            and "cudal1 cache unrefute" in refused.verification.reason
        )
        assert asked == ["e2b"] and store.find_entry("f", "t") is None and unverified(store) == []
        store.unrefute("e1b")
        take(store, bundle, verify)
        found = store.find_entry("f", "t")
        assert asked == ["e2b", "e1b"] and found is not None and found.entry_id == "e1b"


def test_what_a_stranger_had_under_an_id_does_not_bar_the_real_one(bundle: Path) -> None:
    def honest(region: RegionText, entry: Entry) -> Verification:
        return accept(region, entry) if (region, entry.code) == (REGION, "code") else Refused("wrong")

    content = json.loads(bundle.read_bytes().partition(b"\n")[2])
    for field, value in (("entries", "other code"), ("regions", "junk")):
        kept = bundle.read_bytes()
        key = "code" if field == "entries" else "text"
        _forge(bundle, content | {field: [item | {key: value} for item in content[field]]})
        with Store.memory() as store:
            assert {type(o.verification) for o in take(store, bundle, honest)} == {Refused}
            bundle.write_bytes(kept)
            assert {type(o.verification) for o in take(store, bundle, honest)} == {Verified}
            assert store.get_region("f") == REGION
        with Store.memory() as store:
            _forge(bundle, content | {field: [item | {key: value} for item in content[field]]})
            take(store, bundle, postpone)
            bundle.write_bytes(kept)
            assert {type(o.verification) for o in take(store, bundle, honest)} == {Verified}
            assert store.get_region("f") == REGION


def test_an_import_changes_nothing_that_is_here(bundle: Path) -> None:
    with Store.memory() as store:
        own = replace(KERNEL, speedup=2.0)
        store.put_entry(own)
        store.add_regions(replace(REGION, text="our own text"))
        take(store, bundle, postpone)
        assert store.get_entry("e1") == own
        assert store.get_region("f") == replace(REGION, text="our own text")


def test_a_kernel_built_under_another_key_replaces_the_imported_one(bundle: Path) -> None:
    with Store.memory() as store:
        take(store, bundle, lambda region, entry: Verified(replace(entry, entry_id=f"new {entry.entry_id}")))
        found = store.find_entry("f", "t")
        assert found is not None
        assert found.entry_id == "new e1"
        assert unverified(store) == []


def test_an_import_that_was_stopped_goes_on(bundle: Path) -> None:
    asked: list[str] = []

    def stop_at_second(region: RegionText, entry: Entry) -> Verification:
        asked.append(entry.entry_id)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return accept(region, entry)

    with Store.memory() as store:
        with pytest.raises(KeyboardInterrupt):
            take(store, bundle, stop_at_second)
        again = take(store, bundle, accept)
        assert [o.entry_id for o in again] == [asked[1]]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"1.3", b"9.3", "sha256"),
        (b"relu", b"silu", "sha256"),
        (b'"version": 1', b'"version": 2', "version 2"),
        (b"cudal1-bundle", b"another thing", "no bundle"),
        (b"{", b"[", "no JSON"),
    ],
)
def test_altered_bundles_are_refused(bundle: Path, old: bytes, new: bytes, says: str) -> None:
    whole = bundle.read_bytes()
    assert old in whole
    bundle.write_bytes(whole.replace(old, new))
    with pytest.raises(BundleError, match=says), Store.memory() as store:
        take(store, bundle, accept)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("speedup", "fast", "not valid"),
        ("fingerprint", "unknown", "no kernel of a region"),
        ("status", "unprofitable", "no kernel of a region"),
        ("image", "aGk=", "exactly the fields"),
        ("entry_id", "e1", "occurs twice"),
        ("entry_id", "\x1b]0;hacked\x07", "plain names"),
        ("created", 1e300, "expected a time"),
        ("created", 10**400, "not valid"),
    ],
)
def test_forged_rows_are_refused(bundle: Path, field: str, value: object, says: str) -> None:
    """With a sha256 that fits, as a stranger can make it."""
    content = json.loads(bundle.read_bytes().partition(b"\n")[2])
    content["entries"] = [item | {field: value} for item in content["entries"]]
    _forge(bundle, content)
    with pytest.raises(BundleError, match=says):
        read_bundle(bundle)


@pytest.mark.parametrize("content", [[], {}, {"regions": [], "entries": {}}, {"regions": [3], "entries": []}])
def test_other_content_is_refused(bundle: Path, content: object) -> None:
    _forge(bundle, content)
    with pytest.raises(BundleError):
        read_bundle(bundle)


def _forge(bundle: Path, content: object) -> None:
    body = json.dumps(content).encode()
    head = {"format": "cudal1-bundle", "version": 1, "sha256": hashlib.sha256(body).hexdigest()}
    bundle.write_bytes(json.dumps(head).encode() + b"\n" + body)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 0.999))
def test_a_cut_file_is_a_bundle_error(bundle: Path, cut: float) -> None:
    data = bundle.read_bytes()
    broken = bundle.with_name("broken")
    broken.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(BundleError):
        read_bundle(broken)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(data=st.data())
def test_a_flipped_byte_never_passes_as_other_content(bundle: Path, data: st.DataObject) -> None:
    whole = bundle.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    broken = bundle.with_name("broken")
    broken.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    try:
        found = read_bundle(broken)
    except BundleError:
        return
    assert found == read_bundle(bundle)
