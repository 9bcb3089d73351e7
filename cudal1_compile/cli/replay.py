"""`cudal1 replay ENTRY`: repeats the proof of one kernel of the cache.

    the entry's source -> built anew -> the judge with fresh secret seeds -> old and new figures, side by side

A proof that does not hold any more takes the entry out of use, as a refused import is: the next compile of its
region falls back. A proof that holds changes nothing in the cache. Exit status 1: it does not hold; 2: no verdict.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cudal1_cache import CacheError, Entry
from cudal1_cache.bundle import Postponed, Refused, Verified
from cudal1_compile.cli.cache import ENTRY, SHORT_ID, find_entry
from cudal1_compile.cli.printable import printable, say
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.synthesis.reverify import judges

NO_VERDICT = 2


def replay(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help=ENTRY)],
) -> None:
    """Builds and verifies a cached kernel again; exit status 1: its proof no longer holds, 2: no verdict."""
    with open_store() as store:
        old = find_entry(store, entry)
        region = store.get_region(old.fingerprint, proven=False)
        if old.status != "kernel" or region is None:
            raise CacheError(f"{old.entry_id[:SHORT_ID]} is no kernel with a region: there is no proof to repeat")
        if old.quarantined:
            raise CacheError(f"{old.entry_id[:SHORT_ID]} is not in use ({old.reason}): no proof of it holds")
        with judges() as verify:
            found = verify(region, old)
        if isinstance(found, Refused):
            store.quarantine(old.entry_id, f"refused: {found.reason}")
        is_kept = store.path is not None
    match found:
        case Verified(new):
            Console().print(side_by_side(old, new))
            say(f"{old.entry_id[:SHORT_ID]}: the proof holds")
        case Refused(reason):
            state = "is out of use now" if is_kept else "stays in use, since the cache cannot be written"
            say(f"{old.entry_id[:SHORT_ID]}: the proof no longer holds, the kernel {state}: {reason}")
            raise typer.Exit(1)
        case Postponed(reason):
            say(f"{old.entry_id[:SHORT_ID]}: no verdict now, nothing is changed: {reason}")
            raise typer.Exit(NO_VERDICT)


def side_by_side(old: Entry, new: Entry) -> Table:
    before, after = figures(old.proof_json), figures(new.proof_json)
    table = Table("figure", "stored", "now")
    for name in dict.fromkeys([*before, *after]):
        table.add_row(*(escape(printable(text)) for text in (name, before.get(name, "-"), after.get(name, "-"))))
    return table


def figures(proof_json: str) -> dict[str, str]:
    """A proof's figures by name. `error NAME`: the worst share of the error budget over a distribution."""
    found: dict[str, str] = {}
    for name, value in json.loads(proof_json or "{}").items():
        if isinstance(value, dict):
            found |= {f"{name} {part}": _show(x) for part, x in value.items()}
        elif isinstance(value, list):
            found |= {f"{name.removesuffix('s')} {part}": _show(x) for part, x in value}
        elif value is not None:
            found[name] = _show(value)
    return found


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
