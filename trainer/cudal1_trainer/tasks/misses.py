"""A user's own tasks: the regions that their cache was asked for and had no kernel for, as JSON lines.

    cudal1 train export-misses misses.jsonl
    python -m cudal1_trainer.rl.contrastive --tasks misses.jsonl ...

Most valuable first: what a call spends in the region times how often it was wanted; then regions for which a
search ended without a win. Only programs are written, no weights and nothing of the user's graph.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from cudal1_cache.rows import RegionText
from cudal1_cache.store import Store

UNPROFITABLE = "unprofitable"


def export_misses(store: Store, target_key: str, path: Path, limit: int) -> int:
    """Writes at most `limit` regions of one target; returns how many. A miss without its program is left out.

    Where there are none, nothing is written: a file that is there stays.
    """
    found = {r.fingerprint: r for r in _wanted(store, target_key)}
    kept = list(found.values())[:limit]
    if kept:
        partial = path.with_name(f"{path.name}.part")
        lines = (json.dumps({"fingerprint": r.fingerprint, "text": r.text}) + "\n" for r in kept)
        partial.write_text("".join(lines))
        os.replace(partial, path)
    return len(kept)


def _wanted(store: Store, target_key: str) -> Iterator[RegionText]:
    fingerprints = [m.fingerprint for m in store.misses(target_key)]
    fingerprints += [e.fingerprint for e in store.entries(target=target_key) if e.status == UNPROFITABLE]
    for fingerprint in fingerprints:
        region = store.get_region(fingerprint)
        if region is not None:
            yield region
