"""Errors of the cache. Each sentence says what was found, what was expected and what to do."""

from __future__ import annotations


class CacheError(RuntimeError):
    """The cache could not do what was asked; the caller falls back."""


class CacheCorrupt(CacheError):
    """A stored row does not pass its own checksum or types. An error, never a miss: the row is named."""


class CacheBusy(CacheError):
    """Another process kept the database locked longer than the busy timeout."""


class BundleError(ValueError):
    """A bundle file is damaged, of another version, or no bundle at all."""
