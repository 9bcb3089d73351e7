"""Typed edits of a lowered kernel: what changes what the GPU does, beyond what a design's lists hold.

    edit.py     the edits, printed and parsed, one a line
    layout.py   those of a stage: fields of its schedule off the lists
    text.py     those of a kernel: rules that find their place in its text
    apply.py    (program, schedule, edits) -> the code, or the sentence why not; which are legal, and draws

An edited kernel is a candidate as any other: what is legal here is right by construction, and the judge proves it.
"""

from cudal1_compile.codegen.edits.apply import MOST_DRAWN, apply, draw_edits, draw_replies, legal_edits
from cudal1_compile.codegen.edits.edit import (
    Edit,
    IllegalEdit,
    KernelEdit,
    StageEdit,
    parse_edits,
    print_edits,
)

__all__ = [
    "MOST_DRAWN",
    "Edit",
    "IllegalEdit",
    "KernelEdit",
    "StageEdit",
    "apply",
    "draw_edits",
    "draw_replies",
    "legal_edits",
    "parse_edits",
    "print_edits",
]
