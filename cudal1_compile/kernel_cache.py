"""The kernel cache as this package opens it: with the user's key, and one digest for all spellings of a code.

Neither this module nor what it imports needs torch.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from cudal1_cache import Store, new_trust, user_trust
from cudal1_compile.config import cache_dir, key_file, trusted_keys

SIGNING_KEY = "signing-key"  # beside the key file: the private key of `cudal1 cache sign`

_PLAN = ("// launch:", "// scratch:")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.S)
_TOKEN = re.compile(r"\w+|[^\w\s]")


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


def normalised_digest(code: str) -> str:
    """sha256 of the tokens, plan lines first: comments, white space and line breaks do not change it."""
    lines = code.replace("\\\n", " ").splitlines()
    plan = [" ".join(_TOKEN.findall(line)) for line in lines if line.startswith(_PLAN)]
    rest = _COMMENT.sub(" ", "\n".join(line for line in lines if not line.startswith(_PLAN)))
    text = "\n".join([*plan, " ".join(_TOKEN.findall(rest))])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
