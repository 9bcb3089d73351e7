"""Repairs machine code of GPUs: one wait that ptxas leaves too short.

A zero of 64 bits is written by CS2R, and it is there some 6 cycles later. Where a predicated instruction writes
the same registers in between (a pointer that is null or not), ptxas of CUDA 13.0 lets the next instruction read
them 5 cycles after CS2R. Where the predicate is false that instruction finds what the register held before, unless
other warps came in between: a null pointer passed for an address, in some runs and not in others (H100; 14 of
5,694 kernels ended so). ptxas 13.5 keeps 7 cycles. A longer wait is right anywhere.

Instructions are of 16 bytes (sm_70 to sm_120). Of their bits, lowest first: 0-11 the operation, 12-14 the
predicate (15: its negation), 16-23 the register that is written, 24-31, 32-39 and 64-71 those that are read,
105-108 the cycles until the next instruction may start.
"""

from __future__ import annotations

from collections.abc import Iterator

from cudal1_compile.runtime.cubin import code_sections

CS2R = 0x805
ALWAYS = 7  # the predicate that is true
SOURCES = (24, 32, 64)
WAIT = 8  # cycles from CS2R to the first that may read its registers
INSTRUCTION = 16  # bytes


def repair_waits(cubin: bytes) -> bytes:
    """The same code with longer waits after some CS2R."""
    repaired = bytearray(cubin)
    for at, lacking in short_waits(cubin):
        word = int.from_bytes(repaired[at : at + INSTRUCTION], "little")
        repaired[at : at + INSTRUCTION] = (word + (lacking << 105)).to_bytes(INSTRUCTION, "little")
    return bytes(repaired)


def short_waits(cubin: bytes) -> Iterator[tuple[int, int]]:
    """Offsets of the CS2R whose registers are read too early, and the cycles that are lacking."""
    for start, size in code_sections(cubin):
        code = [
            int.from_bytes(cubin[at : at + INSTRUCTION], "little")
            for at in range(start, start + size, INSTRUCTION)
        ]
        for i, word in enumerate(code):
            if word & 0x7FFF == ALWAYS << 12 | CS2R and (lacking := _lacking(code, i)):
                yield start + i * INSTRUCTION, lacking


def _lacking(code: list[int], i: int) -> int:
    """Cycles lacking until what instruction i zeroed, and a predicated one perhaps wrote over, is read."""
    zeroed = (_target(code[i]), _target(code[i]) + 1)
    passed, written = _wait(code[i]), False
    for word in code[i + 1 :]:
        if passed >= WAIT:
            break
        if written and any(word >> at & 0xFF in zeroed for at in SOURCES):  # or a constant that looks so
            return WAIT - passed
        written |= word >> 12 & 7 != ALWAYS and _target(word) in zeroed
        passed += _wait(word)
    return 0


def _target(word: int) -> int:
    return word >> 16 & 0xFF


def _wait(word: int) -> int:
    return word >> 105 & 0xF
