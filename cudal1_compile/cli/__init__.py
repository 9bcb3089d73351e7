"""The command `cudal1`: looks a subcommand up in the entry-point group `cudal1.commands`, and loads only that one.

An entry point is a typer app or a plain function with typer's annotations. `cudal1 --help` loads none of them.
Exit status: 0 done; 1 not done, one sentence says why; 2 a wrong option or command. Ctrl-C ends the process by
SIGINT, as shells expect of it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points, version

import typer

from cudal1_cache import BundleError, CacheError
from cudal1_compile.cli.errors import CommandFailed, WorkloadFailed
from cudal1_compile.cli.printable import printable
from cudal1_compile.config import debug_level
from cudal1_compile.errors import OptionError

GROUP = "cudal1.commands"

# one line a command, here so that the list needs no import; a command of another package is listed without one
SUMMARIES = {
    "demo": "compile small models on this machine and compare each with eager mode",
    "warm": "write kernels for a workload ahead of time",
    "plan": "list the regions of a workload, the most valuable first",
    "explain": "print each region, its decision and why, and what stays outside",
    "cache": "look into the kernel cache; export and import kernels",
    "doctor": "say what is found on this machine and what to do about what is not",
    "replay": "repeat the proof of one stored kernel",
    "repro": "write one Python file that rebuilds, checks and times a stored kernel",
    "audit": "measure the judge: attacks accepted, right kernels refused, mutants that survive",
    "train": "rebuild the bundled model",
}
FAILED, USAGE_ERROR = 1, 2
NEEDS_CHECKOUT = "; it runs from a checkout of the repository, which has benchmarks/ (`make setup` there)"
INTERRUPTED = 130  # typer's answer to Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = answer(given)
        if sys.stdout is not None:  # closed
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return FAILED
    except OSError as error:  # of print itself: a full disk behind stdout
        print(f"cudal1: {error}", file=sys.stderr)
        _drop_output()
        return FAILED
    except KeyboardInterrupt:
        _end_interrupted()
        return INTERRUPTED
    return status


def answer(given: Sequence[str]) -> int:
    """The exit status of one command line."""
    commands = find_commands()
    if not given or given[0] in ("-h", "--help"):
        print(usage(commands))
        return 0
    if given[0] == "--version":
        print(f"cudal1 {version('cudal1')}")
        return 0
    if given[0] not in commands:
        print(f"cudal1: no command {given[0]!r}; there are: {', '.join(commands)}", file=sys.stderr)
        return USAGE_ERROR
    return run(commands[given[0]], given[1:])


def find_commands() -> dict[str, EntryPoint]:
    """Installed commands by name, the known ones first, in the order in which they are used."""
    found = {e.name: e for e in entry_points(group=GROUP)}
    known = [name for name in SUMMARIES if name in found]
    return {name: found[name] for name in [*known, *sorted(found.keys() - set(known))]}


def usage(commands: dict[str, EntryPoint]) -> str:
    width = max(map(len, commands), default=0)
    lines = [f"  {name:<{width}}  {SUMMARIES.get(name, '')}".rstrip() for name in commands]
    return "\n".join(["usage: cudal1 COMMAND [OPTIONS]    (cudal1 COMMAND --help says more)", "", *lines])


def run(command: EntryPoint, arguments: Sequence[str]) -> int:
    """Loads a command and calls it. A user's mistake ends in one sentence, a bug in its traceback."""
    try:
        debug_level()
    except ValueError as error:
        print(f"cudal1: {error}", file=sys.stderr)
        return USAGE_ERROR
    try:
        loaded = command.load()
    except ImportError as error:
        needs = NEEDS_CHECKOUT if (error.name or "").split(".")[0] == "benchmarks" else ""
        print(f"cudal1 {command.name} cannot be loaded: {error}{needs}", file=sys.stderr)
        return FAILED
    try:
        _app(loaded)(list(arguments), prog_name=f"cudal1 {command.name}")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            raise KeyboardInterrupt from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except WorkloadFailed as error:
        from cudal1_compile.cli.workload import theirs  # loads torch, as the command has done

        assert error.__cause__ is not None
        print(f"{theirs(error.__cause__)}\ncudal1 {command.name}: {error}", file=sys.stderr)
        return FAILED
    except (BundleError, CacheError, CommandFailed, OptionError, OSError) as error:
        print(f"cudal1 {command.name}: {printable(str(error))}", file=sys.stderr)
        return FAILED
    return 0


def _drop_output() -> None:
    """Nobody reads on; what is left in the buffer would be written once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_interrupted() -> None:
    """Ends the process at once: a generator's thread may still be inside torch, which aborts at a normal end."""
    print("cudal1: interrupted; what was finished before is kept", file=sys.stderr)
    sys.stderr.flush()
    for child in multiprocessing.active_children():  # producers and pools, which a normal end would stop
        child.terminate()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def _app(loaded: typer.Typer | Callable[..., object]) -> typer.Typer:
    if isinstance(loaded, typer.Typer):
        return loaded
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(loaded)
    return app
