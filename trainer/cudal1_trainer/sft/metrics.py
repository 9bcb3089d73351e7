"""A run's figures: metrics.jsonl and TensorBoard (where it is installed) while it runs, report.json at its end."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from cudal1_compile.errors import damage_named
from cudal1_trainer.scores.scorebook import drop_torn_line

log = logging.getLogger(__name__)


class Metrics:
    """One line a look. A full disk costs lines, not the run. Silent where not `active`."""

    def __init__(self, directory: Path, active: bool) -> None:
        self._path = directory / "metrics.jsonl" if active else None
        self._board: Any = _tensorboard(directory / "tensorboard") if active else None

    def write(self, step: int, values: dict[str, float]) -> None:
        if self._path is None:
            return
        try:
            append(self._path, json.dumps({"step": step} | {k: round(v, 6) for k, v in values.items()}) + "\n")
            if self._board is not None:
                for name, value in values.items():
                    self._board.add_scalar(name, value, step)
        except OSError as error:
            log.warning("metrics of step %d are not written: %s", step, error)

    def close(self) -> None:
        try:
            if self._board is not None:
                self._board.close()
        except OSError as error:
            log.warning("TensorBoard's last figures are not written: %s", error)


def append(path: Path, text: str) -> None:
    """The whole text or nothing: raises OSError where there is no room."""
    with path.open("ab", buffering=0) as stream:
        size, body = stream.tell(), text.encode()
        try:
            if (written := stream.write(body)) != len(body):
                raise OSError(f"no room: {written} of {len(body)} bytes were written")
        except OSError:
            stream.truncate(size)
            raise


def forget_after(path: Path, step: int) -> None:
    """Drops the lines that a killed run wrote behind its last checkpoint: they come again."""
    if not path.is_file():
        return
    drop_torn_line(path)
    with damage_named(path):
        lines = [x for x in path.read_text().splitlines(keepends=True) if json.loads(x)["step"] <= step]
    path.write_text("".join(lines))


def write_report(directory: Path, report: dict[str, Any]) -> None:
    """A kill leaves none or a whole one."""
    path = directory / "report.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(temporary, path)


def _tensorboard(directory: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("tensorboard is not installed: metrics.jsonl only")
        return None
    return SummaryWriter(str(directory))
