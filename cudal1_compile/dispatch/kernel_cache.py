"""The kernel cache as this package opens it: with the user's key, and one digest for all spellings of a code.

Neither this module nor what it imports needs torch.
"""

from __future__ import annotations

from pathlib import Path

from cudal1_cache import Store, new_trust, user_trust
from cudal1_cache.schema import FILE_NAME, OLDER_NAME
from cudal1_compile.config import cache_dir, key_file, trusted_keys
from cudal1_compile.kernel.text import normalised_digest

SIGNING_KEY = "signing-key"  # beside the key file: the private key of `cudal1 cache sign`


def has_store(directory: Path | None = None) -> bool:
    """Whether a process has opened the kernel cache there before."""
    place = directory or cache_dir()
    return any((place / name).exists() for name in (FILE_NAME, OLDER_NAME))


def open_store(directory: Path | None = None) -> Store:
    """The kernel cache in a directory, by default the user's."""
    place, key = directory or cache_dir(), key_file()
    if key.is_relative_to(place.absolute()):
        trust = new_trust(
            f"its key {key} lies within it: set CUDAL1_KEY_FILE to a place that is not shared with it"
        )
    else:
        trust = user_trust(key, trusted_keys())
    return Store.open(place, trust, normalised_digest)
