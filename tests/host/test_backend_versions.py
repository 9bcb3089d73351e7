"""After an update: a kernel that was proven under other versions goes to the judge again before it is used."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_backend_compile import fresh  # noqa: F401  a fixture for every test here
from test_cli_reverify import KERNEL, REGION, WRONG

from cudal1_cache import Entry
from cudal1_cache.bundle import Verified
from cudal1_cache.keys import UnprofitableKey
from cudal1_cache.rows import EntryStatus
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.inductor.graph_plan import PlannedRegion, SeenRegion
from cudal1_compile.judge import versions
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.verdict import Rejected
from cudal1_compile.options import parse_options
from cudal1_compile.pipeline import process_state
from cudal1_compile.pipeline.place import TargetDevice
from cudal1_compile.pipeline.planner import Planner
from cudal1_compile.runtime.target import HOST, Target
from cudal1_compile.synthesis import validity
from cudal1_compile.synthesis.reverify import verify_entry

pytestmark = pytest.mark.host

SEEN = SeenRegion(REGION.fingerprint, REGION.text, 2, 1, "inference", False, True, 1.0)


class Silent:
    """A generator that must not be asked."""

    name = "test:silent"
    budget_tokens = 1

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        raise AssertionError("there is a kernel")


@pytest.fixture(scope="module")
def proven() -> Entry:
    with Judge(HOST) as judge:
        found = verify_entry(REGION, KERNEL, HOST, judge, "maker:one")
    assert isinstance(found, Verified)
    return found.entry


def stored(directory: Path, entry: Entry, **changed: str) -> str:
    """Puts it into the cache with other versions; returns its id."""
    known = json.loads(entry.versions_json) | changed
    with open_store(directory) as store:
        store.put_entry(replace(entry, versions_json=json.dumps(known)))
    return entry.entry_id


def planner() -> Planner:
    options = parse_options(None, {"target": "host", "generator": Silent(), "process_budget_s": 1e6})
    return Planner(process_state.SESSION, options, TargetDevice(torch.device("cpu"), HOST))


def after_synthesis(seconds: float = 60.0) -> PlannedRegion:
    made = planner()
    made.options = replace(made.options, budget_s=seconds)
    (found,) = made.synthesize([made.look_up(SEEN)])
    return found


def test_a_proof_of_these_versions_holds(proven: Entry, cudal1_cache_dir: Path) -> None:
    stored(cudal1_cache_dir, proven)
    assert planner().look_up(SEEN).outcome == "hit"
    assert dict(json.loads(proven.proof_json)["versions"]).items() >= versions.versions(HOST).items()


@pytest.mark.parametrize("name", ["torch", "verifier"])
def test_another_version_is_a_miss_until_the_judge_has_spoken(
    name: str, proven: Entry, cudal1_cache_dir: Path
) -> None:
    entry_id = stored(cudal1_cache_dir, proven, **{name: "0.1"})
    waiting = planner().look_up(SEEN)
    assert waiting.outcome == "untuned" and f"proven under {name} 0.1, here is " in waiting.reason
    assert after_synthesis(1e-9).reason == "no time to verify its kernel again"
    with open_store(cudal1_cache_dir) as store:
        (entry,) = store.entries()
        assert not entry.quarantined and entry.status == "kernel", "never unprofitable for want of time"
    found = after_synthesis()
    assert (found.outcome, found.entry_id) == ("hit", entry_id)
    with open_store(cudal1_cache_dir) as store:
        (entry,) = store.entries()
    known = json.loads(entry.versions_json)
    assert known.items() >= versions.versions(HOST).items() and (known["generator"], known["model"]) == (
        "maker",
        "one",
    )
    assert planner().look_up(SEEN).outcome == "hit"


def test_a_kernel_without_versions_is_verified(proven: Entry, cudal1_cache_dir: Path) -> None:
    """As one of an older release."""
    with open_store(cudal1_cache_dir) as store:
        store.put_entry(replace(proven, versions_json='{"generator": "maker", "model": "one"}'))
    assert after_synthesis().outcome == "hit"


def test_a_wrong_one_is_refused_and_not_asked_again(proven: Entry, cudal1_cache_dir: Path) -> None:
    stored(cudal1_cache_dir, replace(proven, code=WRONG), torch="0.1")
    found = after_synthesis()
    assert found.outcome == "untuned" and found.reason.startswith("verify: ")
    with open_store(cudal1_cache_dir) as store:
        (entry,) = store.entries()
    assert entry.quarantined and entry.reason.startswith("refused: verify")
    assert planner().look_up(SEEN).reason == "no kernel yet"


def test_a_judge_that_fails_changes_nothing(
    proven: Entry, cudal1_cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Judge, "finalists", fail)
    stored(cudal1_cache_dir, proven, torch="0.1")
    assert "not verified again: planted" in after_synthesis().reason
    with open_store(cudal1_cache_dir) as store:
        assert not store.entries()[0].quarantined


def test_a_kernel_is_not_barred_by_a_machine_that_cannot_judge(
    proven: Entry, cudal1_cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry_id = stored(cudal1_cache_dir, proven, torch="0.1")
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "finalists", lambda judge, program, codes: [Rejected("build", "what is this?")])
        patch.setattr(Judge, "trouble", lambda judge: "no compiler works here")
        found = after_synthesis()
    assert (found.outcome, found.reason) == ("untuned", "no compiler works here")
    assert after_synthesis().entry_id == entry_id


@pytest.mark.parametrize("status", ["unprofitable", "untried"])
def test_what_was_decided_without_a_kernel_is_asked_again_after_a_month(
    status: EntryStatus, cudal1_cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = json.dumps({"generator": Silent.name, "header": validity.header_digest(HOST)} | versions.versions(HOST))
    key = UnprofitableKey(SEEN.fingerprint, HOST.key).id
    without = Entry(key, SEEN.fingerprint, HOST.key, status, versions_json=kept, reason="slow", verdicts=3)

    def after(days: float) -> PlannedRegion:
        with open_store(cudal1_cache_dir) as store:
            store.put_entry(replace(without, created=time.time() - days * validity.DAY_S))
        return planner().look_up(SEEN)

    held = after(29.0)
    assert (held.outcome, held.reason) == (status.replace("_", " "), "slow")
    late = after(31.0)
    assert late.outcome == "untuned" and late.reason.endswith("it is asked again: that was 31 days ago")
    monkeypatch.setattr(versions, "VERIFIER_VERSION", versions.VERIFIER_VERSION + 1)
    assert "asked again: verifier" in after(0.0).reason


def test_a_valid_proof_comes_before_a_faster_kernel(proven: Entry, cudal1_cache_dir: Path) -> None:
    stored(cudal1_cache_dir, replace(proven, entry_id="faster", speedup=1e6), torch="0.1")
    stored(cudal1_cache_dir, proven)
    found = planner().look_up(SEEN)
    assert (found.outcome, found.entry_id) == ("hit", proven.entry_id)


def test_what_a_gpus_proof_names() -> None:
    gpu = Target("cuda", "NVIDIA H100", "sm_90a", 132, 227 * 1024, 50 << 20)
    assert {"verifier", "torch", "cuda"} <= set(versions.versions(gpu)) <= {
        "verifier", "torch", "cuda", "driver", "nvrtc"
    }  # fmt: skip


def test_what_another_process_has_proven_since_the_lookup_is_found(proven: Entry, cudal1_cache_dir: Path) -> None:
    made = planner()
    waiting = made.look_up(SEEN)
    assert waiting.outcome == "untuned"
    entry_id = stored(cudal1_cache_dir, proven)
    (found,) = made.synthesize([waiting])
    assert (found.outcome, found.entry_id) == ("new", entry_id)
    assert not list((cudal1_cache_dir / "leases").iterdir())
