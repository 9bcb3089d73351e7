"""Who else could have changed what lies at a path. What is kept there is loaded as native code.

Nothing that others may write, and nothing of another user, is used: one rule for the cache's directory, its
database, the folders of native code and the key file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

SHARING = "kernels are shared as bundles (`cudal1 cache export`, `import`) or by a signed read-only cache"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_writable(path: Path) -> str | None:
    """Why others may write to a path, as a sentence; None where they may not. Raises OSError where nothing is."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & OTHERS_MAY_WRITE:
        return None
    return f"others may write to {path} (mode {mode:o}): chmod go-w it; {SHARING}"


def why_foreign(path: Path) -> str | None:
    """Whose it is, as a sentence, where it is another user's. Raises OSError where nothing is."""
    owner, user = path.stat().st_uid, os.geteuid()
    if owner == user:
        return None
    return f"{path} belongs to user {owner}, this is user {user}: set CUDAL1_CACHE_DIR to one of yours; {SHARING}"


def check_own(*paths: Path) -> None:
    """Raises PermissionError for the first path that others may write or that another user owns."""
    for path in paths:
        if (why := why_writable(path) or why_foreign(path)) is not None:
            raise PermissionError(why)
