"""What rows of the version before (schema.py: FILE_VERSION - 1) are in this one.

A row keeps its seals as long as it keeps its values. One that changes is sealed anew, with this user's key, where
it bore this user's MAC; else it is left out, since its signature cannot be made again here. Plans stay behind:
their keys hold the digest of the sources that decide regions, so that none of them would be found.
"""

from __future__ import annotations

from cudal1_cache.carry import Columns
from cudal1_cache.codec import TABLES, canonical, seals
from cudal1_cache.errors import CacheCorrupt
from cudal1_cache.rows import Entry, EntryStatus
from cudal1_cache.trust import Trust

STATUS: dict[str, EntryStatus] = {"no_win": "unprofitable"}  # before -> now


def upgrade_row(trust: Trust, table: str, columns: Columns) -> Columns | None:
    """The row's columns as they are now; None: it is left out."""
    if table != TABLES[Entry] or columns["status"] not in STATUS:
        return columns
    try:
        if not trust.is_own(canonical(Entry, columns), seals(Entry, columns)[0]):
            return None
    except CacheCorrupt:
        return None
    changed = columns | {"status": STATUS[columns["status"]], "signature": ""}
    return changed | {"mac": trust.mac(canonical(Entry, changed))}
