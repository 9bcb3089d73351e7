"""A run's figures while it runs: metrics.jsonl, and TensorBoard where it is installed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, TextIO

log = logging.getLogger(__name__)


class Metrics:
    """One line a look. A full disk costs lines, not the run. Silent where not `active`."""

    def __init__(self, directory: Path, active: bool) -> None:
        self._file: TextIO | None = (directory / "metrics.jsonl").open("a") if active else None
        self._board: Any = _tensorboard(directory / "tensorboard") if active else None

    def write(self, step: int, values: dict[str, float]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({"step": step} | {k: round(v, 6) for k, v in values.items()}) + "\n")
            self._file.flush()
            if self._board is not None:
                for name, value in values.items():
                    self._board.add_scalar(name, value, step)
        except OSError as error:
            log.warning("metrics of step %d are not written: %s", step, error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def _tensorboard(directory: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("tensorboard is not installed: metrics.jsonl only")
        return None
    return SummaryWriter(str(directory))
