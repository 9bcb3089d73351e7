"""The files of digests: read, written, and held against what is found now."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SHOWN = 40  # differences, in a report
UNSTABLE = "-"  # a row that two runs of one tree did not agree on


@dataclass(frozen=True)
class Table:
    """Rows of words in the order of the columns; a row may have further ones, all called `further`."""

    columns: tuple[str, ...]
    further: str
    rows: Mapping[str, str]

    def differences(self, found: Mapping[str, str]) -> dict[str, list[str]]:
        """Of each row that is not as it was, the columns. Rows that are only here were not looked for."""
        pairs = {name: (self.rows.get(name, ""), row) for name, row in found.items()}
        compared = {name: pair for name, pair in pairs.items() if UNSTABLE not in pair}
        return {
            name: self._changed(old.split(), new.split()) for name, (old, new) in compared.items() if old != new
        }

    def _changed(self, old: Sequence[str], new: Sequence[str]) -> list[str]:
        """Names of columns; one that only one of both has differs too."""
        longest = range(max(len(old), len(new)))
        return [self._column(i) for i in longest if old[i : i + 1] != new[i : i + 1]]

    def _column(self, at: int) -> str:
        return self.columns[at] if at < len(self.columns) else f"{self.further} {at - len(self.columns)}"


def read(path: Path) -> dict[str, Table]:
    return {
        kind: Table(tuple(body["columns"]), body["further"], body["rows"])
        for kind, body in json.loads(path.read_text()).items()
    }


def write(path: Path, tables: Mapping[str, Table]) -> None:
    """One line a row."""
    body = {kind: asdict(table) for kind, table in tables.items()}
    path.write_text(json.dumps(body, indent=0) + "\n")


def report(kind: str, table: Table, found: Mapping[str, str], renew: str) -> str:
    """What differs, for a person; empty where nothing does."""
    different = table.differences(found)
    if not different:
        return ""
    lines = [f"  {name}: {', '.join(columns)}" for name, columns in different.items()]
    counts = Counter(column for columns in different.values() for column in columns)
    columns = ", ".join(f"{column} {n}" for column, n in counts.most_common())
    more = [f"  ... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    head = f"{len(lines)} of {len(found)} {kind} are not as they were; by column: {columns}"
    return "\n".join(
        [head, *lines[:SHOWN], *more, f"If the change is meant: `{renew}`, with its reason in the commit"]
    )
