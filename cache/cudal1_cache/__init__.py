"""The kernel cache: SQLite store, keys and bundles. It knows nothing of torch graphs."""

from cudal1_cache.errors import BundleError, CacheBusy, CacheCorrupt, CacheError
from cudal1_cache.keys import KEY_VERSION, EntryKey, UnprofitableKey, digest
from cudal1_cache.rows import ACCEPTED, UNVERIFIED, Attempt, Entry, GraphPlan, Miss, RegionText
from cudal1_cache.store import Stats, Store
from cudal1_cache.trust import Trust, new_trust, user_trust

__all__ = [
    "ACCEPTED",
    "KEY_VERSION",
    "UNVERIFIED",
    "Attempt",
    "BundleError",
    "CacheBusy",
    "CacheCorrupt",
    "CacheError",
    "Entry",
    "EntryKey",
    "GraphPlan",
    "Miss",
    "UnprofitableKey",
    "RegionText",
    "Stats",
    "Store",
    "Trust",
    "digest",
    "new_trust",
    "user_trust",
]
