"""Keeps transformers' own progress bars off the user's terminal while a model loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Leaves the user's own setting as it was."""
    import transformers

    logging: Any = transformers.utils.logging
    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()
