"""Judges imported kernels on this machine: built from source, verified and timed as a fresh candidate is.

    with judges() as verify:
        import_bundle(store, bundle, origin, verify)

One judge for each target of this machine that is asked for. A kernel for another target is postponed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from cudal1_cache import Entry, Region
from cudal1_cache.bundle import Postponed, Verification, Verify
from cudal1_compile.errors import BuildError
from cudal1_compile.judge.judge import Judge
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_compile.synthesis.reverify import verify_entry


@contextmanager
def judges() -> Iterator[Verify]:
    """Yields a `verify` for bundles; its judges' worker processes end with the block."""
    targets = {t.key: t for t in local_targets()}
    open_judges: dict[str, Judge] = {}
    with ExitStack() as stack:

        def verify(region: Region, entry: Entry) -> Verification:
            target = targets.get(entry.target)
            if target is None:
                return Postponed("it was made for another GPU; import it on a machine that has one")
            if target.key not in open_judges:
                try:
                    open_judges[target.key] = stack.enter_context(Judge(target))
                except (BuildError, OSError) as error:
                    return Postponed(f"nothing can be built here: {error}")
            return verify_entry(region, entry, target, open_judges[target.key])

        yield verify


def local_targets() -> list[Target]:
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    return [detect_target(torch.device(d)) for d in devices]
