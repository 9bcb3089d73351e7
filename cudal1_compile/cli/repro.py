"""`cudal1 repro ENTRY`: one kernel of the cache as a Python file that stands by itself.

    the region's text, the kernel's code -> a file -> python FILE: built anew, checked and timed by the judge

The file needs an installed cudal1 and nothing else of this machine, neither its cache nor its key. What it holds
of a stranger's is data: strings that are parsed and judged in the sandbox when it is run. Kernels that are out of
use are written too, since those are the ones to look into.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from cudal1_cache import CacheError
from cudal1_compile.cli.cache import ENTRY, SHORT_ID, find_entry
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.pipeline.trace import printable
from cudal1_compile.runtime.target import HOST

TEMPLATE = '''"""Kernel {entry} of region {region}, written by `cudal1 repro` ({version}).

    python FILE [DEVICE]    builds it, checks it on fresh inputs and times it; DEVICE: {device} by default

It needs cudal1 (pip install cudal1), and an NVIDIA GPU for DEVICE cuda; cpu is the host target, whose cost is
declared and no time. Exit status: 0 right and faster than the baselines, 1 not, 2 the machine could not tell.
"""

import sys

import torch

from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected
from cudal1_compile.runtime.target import detect_target
from cudal1_compile.synthesis.records import is_win
from cudal1_fx_passes.program.text import parse_program

REGION = {text}

CODE = {code}


def main(device: str = "{device}") -> int:
    if device != "cpu" and not torch.cuda.is_available():
        print(f"{{device}}: torch finds no GPU here; the argument cpu runs the same code on the host target")
        return 2
    with Judge(detect_target(torch.device(device))) as judge:
        (verdict,) = judge.finalists(parse_program(REGION), [CODE])
    match verdict:
        case Rejected(stage, reason):
            print(f"refused at {{stage}}: {{reason}}")
            return 1
        case Deferred(reason):
            print(f"no verdict now: {{reason}}")
            return 2
        case Accepted(proof):
            for name, share in proof.errors:
                print(f"error {{name}}: {{share:.3g}} of what is allowed")
            if (t := proof.timing) is not None:
                inductor = f", inductor {{t.inductor_us:.2f}} us" if t.inductor_us is not None else ""
                print(f"{{t.candidate_us:.2f}} us a call; aten {{t.aten_us:.2f}} us{{inductor}}")
                print(f"{{t.speedup:.3f}}x over the faster one, at least {{t.lower_bound:.3f}}x")
            if (c := proof.host_cost) is not None:
                print(f"declared cost {{c.candidate:.0f}}; one operation at a time {{c.baseline:.0f}}")
            return 0 if is_win(proof) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
'''


def repro(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help=ENTRY)],
    out: Annotated[Path | None, typer.Option(help="the file to write; stdout where none is given")] = None,
) -> None:
    """Writes one Python file that rebuilds, checks and times a stored kernel; it needs cudal1 to run."""
    with open_store() as store:
        found = find_entry(store, entry)
        region = store.get_region(found.fingerprint, proven=False)
    if not found.code or region is None:
        raise CacheError(f"{found.entry_id[:SHORT_ID]} is no kernel with a region: there is nothing to reproduce")
    text = TEMPLATE.format(
        entry=found.entry_id[:SHORT_ID],
        region=found.fingerprint[:SHORT_ID],
        version=f"cudal1 {version('cudal1')}",
        device="cpu" if found.target == HOST.key else "cuda",
        text=literal(region.text),
        code=literal(found.code),
    )
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
        print(f"{out}: python {out} builds, checks and times the kernel", file=sys.stderr)


def literal(text: str) -> str:
    """A Python string that is this text: in lines where that is safe to read and to write."""
    is_plain = text == printable(text) and not any(c in text for c in ("\\", '"""')) and not text.endswith('"')
    return f'"""\\\n{text}"""' if is_plain and text.isascii() else ascii(text)
