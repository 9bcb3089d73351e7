"""`cudal1 cache`: what the kernel cache holds, and kernels to and from a file.

What rows hold may be a stranger's: it reaches the terminal by way of `say` and `printable`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cudal1_cache import CacheError, Entry, RegionText, Store
from cudal1_cache.bundle import (
    EntryVerification,
    Postponed,
    Refused,
    Verified,
    Verify,
    export_bundle,
    import_bundle,
    read_bundle,
    unverified,
    verify_entries,
)
from cudal1_cache.trust import load_key, signer
from cudal1_compile.cli.printable import printable, say
from cudal1_compile.config import cache_dir, key_file
from cudal1_compile.dispatch import fallback
from cudal1_compile.dispatch.kernel_cache import SIGNING_KEY, open_store

SHORT_ID = 12  # digits of an id that are shown
MOST_NAMED = 8  # entries in a sentence
ENTRY = "the first digits of an entry's id, or of a region's as `cudal1 explain` prints it"

app = typer.Typer(
    help="Look into the kernel cache; export and import kernels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


@app.command()
def stats() -> None:
    """What the cache holds, a line for each target."""
    with open_store() as store:
        whole = store.stats()
        names = ("target", "kernels", "unprofitable", "floor", "untried", "barred", "tried", "plans", "misses")
        caption = "floor, untried: without a candidate; barred: quarantined or unverified; tried: right ones/all"
        table = Table(*names, caption=caption, pad_edge=False, collapse_padding=True)
        for target in store.targets():
            s = store.stats(target)
            tried = f"{s.accepted}/{s.attempts}"
            counts = (s.kernels, s.unprofitable, s.at_floor, s.untried, s.quarantined, tried, s.plans, s.misses)
            table.add_row(escape(printable(target[:SHORT_ID])), *(str(count) for count in counts))
        where = escape(str(store.path or f"memory ({store.database.fault})"))
        Console(soft_wrap=True).print(f"{where}: {whole.regions} regions, {whole.size_bytes / 1e6:.1f} MB")
        Console().print(table)


@app.command()
def show(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help=ENTRY)],
    attempts: Annotated[bool, typer.Option("--attempts", help="also list every attempt for its region")] = False,
) -> None:
    """One entry: its region, its verdict and proof, its source."""
    with open_store() as store:
        found = find_entry(store, entry)
        region = store.get_region(found.fingerprint, proven=False)
        say(describe(found, region))
        if attempts:
            say("\n".join(["", "attempts:", *_attempt_lines(store, found)]))


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the bundle to write")],
    target: Annotated[str | None, typer.Option(help="only this target, see `cudal1 cache stats`")] = None,
) -> None:
    """Writes every usable kernel's region, source and proof to one file."""
    with open_store() as store:
        only = _target(store, target)
        if store.stats(only).kernels == 0:
            raise CacheError(f"no usable kernel in {cache_dir()}: nothing to export; `cudal1 warm` makes kernels")
        bundle = export_bundle(store, file, only)
    print(f"{file}: {len(bundle.entries)} kernels of {len(bundle.regions)} regions")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a bundle that `cudal1 cache export` wrote")],
    verify: Annotated[bool, typer.Option(help="build, verify and time each kernel now")] = True,
) -> None:
    """Reads a bundle. No kernel of it is used before this machine's judge has accepted it."""
    with open_store() as store:
        must_keep(store)
        bundle = read_bundle(file)
        _announce(len(bundle.entries) if verify else 0)
        with _judges() if verify else nullcontext(_later) as judge:
            outcomes = import_bundle(store, bundle, file.name, judge)
    _report(outcomes)


@app.command("verify")
def verify_() -> None:
    """Judges the imported kernels that still wait for it."""
    with open_store() as store:
        must_keep(store)
        waiting = unverified(store)
        _announce(len(waiting))
        with _judges() if waiting else nullcontext(_later) as judge:
            outcomes = verify_entries(store, waiting, judge)
    _report(outcomes)


@app.command()
def unrefute(entry: Annotated[str, typer.Argument(metavar="ENTRY", help=ENTRY)]) -> None:
    """Lifts the bar from the code of a kernel that gave a wrong result; the judge has to accept it anew."""
    with open_store() as store:
        must_keep(store)
        found = find_entry(store, entry)
        if store.why_refuted(found.fingerprint, found.target, found.code) is None:
            raise CacheError(f"{found.entry_id[:SHORT_ID]} is not refuted; `cudal1 cache show` prints its state")
        count = store.unrefute(found.entry_id)
    print(f"{count} kernels of this code wait for `cudal1 cache verify`")


@app.command()
def sign() -> None:
    """Signs what the cache holds, so that other users can read their kernels from it."""
    private = load_key(key_file().with_name(SIGNING_KEY))
    with open_store() as store:
        must_keep(store)
        make, public = signer(private)
        count = store.sign(make)
    print(f"{count} rows of {store.path} signed. Let others read the file and its directory, and write neither;")
    print(f"they set CUDAL1_CACHE_DIR={cache_dir()} and CUDAL1_TRUSTED_KEYS={public.hex()}")


def must_keep(store: Store) -> None:
    """Raises CacheError where the store would lose what is written to it."""
    if store.path is None:
        why = store.database.fault
        raise CacheError(f"{cache_dir()} keeps nothing: {why}; set CUDAL1_CACHE_DIR to a directory of yours")


def describe(entry: Entry, region: RegionText | None) -> str:
    """All that the cache knows of an entry, as plain text."""
    state = f"quarantined: {entry.reason}" if entry.quarantined else entry.reason
    lines = [
        f"entry     {entry.entry_id}",
        f"region    {entry.fingerprint}",
        f"target    {entry.target}",
        f"status    {entry.status.replace('_', ' ')}{f' ({state})' if state else ''}",
        f"numerics  {entry.numerics or '-'}",
        f"made      {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(entry.created))}",
        *([f"verdicts  {entry.verdicts}"] if entry.status == "unprofitable" else []),
        *([f"runs on   {fallback.describe(entry)}"] if entry.status != "kernel" else []),
        f"versions  {_compact(entry.versions_json)}",
        f"image     {len(entry.image)} bytes {entry.image_arch}".rstrip(),
        f"proof     {_compact(entry.proof_json)}",
        "",
        region.text.rstrip() if region else "the region's text is not in the cache",
    ]
    if entry.code:
        lines += ["", entry.code.rstrip()]
    return "\n".join(lines)


def _attempt_lines(store: Store, entry: Entry) -> list[str]:
    lines = []
    for a in store.attempts(entry.fingerprint, entry.target):
        result = f"{a.stage} {a.speedup:.3f}" if a.speedup is not None else a.stage
        lines.append(f"  {a.code_digest[:SHORT_ID]}  {a.generator}  {result}  {a.reason}".rstrip())
    return lines


def find_entry(store: Store, prefix: str) -> Entry:
    """The entry whose id, or else whose region, begins so. Raises CacheError for none or more than one."""
    found = store.match_entries(prefix) or [e for e in store.entries() if e.fingerprint.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CacheError(f"no entry or region begins with {prefix!r}; `cudal1 explain` and `plan` print regions")
    named = [
        f"{e.entry_id[:SHORT_ID]} {e.status.replace('_', ' ')} of target {e.target[:SHORT_ID]}" for e in found
    ]
    more = f", and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    raise CacheError(f"{len(found)} entries begin with {prefix!r}: {', '.join(named[:MOST_NAMED])}{more}")


def _target(store: Store, prefix: str | None) -> str | None:
    if prefix is None:
        return None
    found = [t for t in store.targets() if t.startswith(prefix)]
    if len(found) != 1:
        raise CacheError(f"{len(found)} targets begin with {prefix!r}; `cudal1 cache stats` lists them")
    return found[0]


def _judges() -> AbstractContextManager[Verify]:
    from cudal1_compile.synthesis.reverify import judges  # loads torch

    return judges()


def _announce(count: int) -> None:
    """Before it happens: a kernel is somebody's program."""
    if count:
        print(f"{count} kernels will be built from source and run in this machine's sandbox", file=sys.stderr)


def _later(region: RegionText, entry: Entry) -> Postponed:
    return Postponed("not asked for; `cudal1 cache verify` does it")


def _report(outcomes: Sequence[EntryVerification]) -> None:
    names: dict[type[Any], str] = {Verified: "verified", Refused: "refused", Postponed: "still unverified"}
    for outcome in outcomes:
        match outcome.verification:
            case Refused(reason) | Postponed(reason):
                say(f"{outcome.entry_id[:SHORT_ID]}  {names[type(outcome.verification)]}: {reason}")
    counts = Counter(names[type(o.verification)] for o in outcomes)
    print(", ".join(f"{name} {counts[name]}" for name in names.values()))


def _compact(text: str) -> str:
    """JSON in one line; what is no JSON as it is."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text
