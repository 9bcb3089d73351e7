"""The command; the package's description says what it does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from . import DIGESTS, VERDICTS, verdicts
from .digests import KINDS, row_of, texts_of
from .record import Table, read, report, write

COMMAND = "python -m tests.golden"


def main() -> int:
    parser = argparse.ArgumentParser(COMMAND)
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind of digests")
    parser.add_argument("--verdicts", action="store_true", help="of kernels, in place of regions and graphs")
    parser.add_argument("--renew", action="store_true", help="write the file anew")
    parser.add_argument("--show", metavar="NAME", help="print the texts of this region or graph")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    if arguments.show:
        return show(arguments.show)
    path = VERDICTS if arguments.verdicts else DIGESTS
    if arguments.verdicts:
        found = verdicts.judged_twice() if arguments.renew else verdicts.judged()
    else:
        found = digested(arguments.only or list(KINDS), arguments.jobs)
    if arguments.renew:
        write(path, read(path) | found)
        return 0
    return compare(found, read(path), f"{COMMAND}{' --verdicts' if arguments.verdicts else ''} --renew")


def compare(found: Mapping[str, Table], known: Mapping[str, Table], renew: str) -> int:
    """0 where nothing differs, else 1."""
    # a row that nothing is found for any more differs in all of its columns
    gone = {kind: dict.fromkeys(known[kind].rows.keys() - table.rows.keys(), "") for kind, table in found.items()}
    reports = [report(kind, known[kind], gone[kind] | dict(table.rows), renew) for kind, table in found.items()]
    print("\n".join(filter(None, reports)) or "no difference")
    return int(any(reports))


def digested(kinds: Sequence[str], jobs: int) -> dict[str, Table]:
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        found = {}
        for kind in kinds:
            subjects = KINDS[kind]
            names = list(subjects.make())
            rows = pool.map(row_of, [kind] * len(names), names, chunksize=4)
            found[kind] = Table(subjects.columns, subjects.further, dict(zip(names, rows, strict=True)))
    return found


def show(name: str) -> int:
    kinds = [kind for kind, subjects in KINDS.items() if name in subjects.make()]
    for kind in kinds:
        for column, text in texts_of(kind, name).items():
            print(f"=== {column}\n{text}")
    if not kinds:
        print(f"{name!r} is neither a region nor a graph: digests.json has their names", file=sys.stderr)
    return 0 if kinds else 2


if __name__ == "__main__":
    sys.exit(main())
