"""The protocol between the judge and a worker: one JSON object a line, tensors never cross.

    start {device, limits, lock_descriptors}          -> ready {versions, ...}
    room {}                                           -> free_bytes of the device
    quick {program, entrants, seed, long}             -> verdicts [one]: timed before anything is proven
    judge {program, code, binary, seed, timed, suite} -> verdicts [one]; suite: a file that may hold the cases
    finalists {program, entrants, seed}               -> verdicts [one an entrant]
    baselines {program, seed, inductor}               -> verdicts [one: aten, against Inductor and the floor]
    compile {program, device}                         -> {} | {why_not}; needs no start and no CUDA context
    suite {program, seed, distributions, path}        -> {suite: path} | {why_not}; likewise

A reply with `fatal` is the worker's last one: its device context is spoilt. Before a reply may come {waits: true}
and {waits: false}: between them the worker waits for others to leave the device. This module turns binaries and
verdicts into JSON and back; it opens no pipes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Verdict, from_json, to_json
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime.build import Binary, Resources
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

Message = dict[str, Any]


def start_request(device_index: int, limits: Limits, lock_descriptors: Sequence[int] = ()) -> Message:
    """lock_descriptors: of device_lock.py, which the worker inherited; none where it has the device to itself."""
    return {"op": "start", "device": device_index, "limits": asdict(limits), "lock_descriptors": lock_descriptors}


def waiting_message(waits: bool) -> Message:
    return {"waits": waits}


def room_request() -> Message:
    return {"op": "room"}


def clear_request() -> Message:
    return {"op": "clear"}


def judge_request(
    program: Program,
    candidate: Candidate,
    binary: Binary,
    seed: int,
    timed: bool,
    suite: str = "",
    repeats: int = 1,
) -> Message:
    """repeats: further runs of one case."""
    return {
        "op": "judge",
        "program": print_program(program),
        "entrants": [entrant_message(candidate, binary)],
        "seed": seed,
        "timed": timed,
        "suite": suite,
        "repeats": repeats,
    }


def quick_request(
    program: Program, candidate: Candidate, binary: Binary, seed: int, long: bool = False
) -> Message:
    return {
        "op": "quick",
        "program": print_program(program),
        "entrants": [entrant_message(candidate, binary)],
        "seed": seed,
        "long": long,
    }


def finalists_request(
    program: Program, entrants: Sequence[tuple[Candidate, Binary]], seed: int, is_right_smaller: bool = False
) -> Message:
    """is_right_smaller: of a large region, all entrants passed at smaller sizes."""
    return {
        "op": "finalists",
        "program": print_program(program),
        "entrants": [entrant_message(c, b) for c, b in entrants],
        "seed": seed,
        "is_right_smaller": is_right_smaller,
    }


def baselines_request(program: Program, seed: int, inductor: bool) -> Message:
    return {"op": "baselines", "program": print_program(program), "seed": seed, "inductor": inductor}


def compile_request(
    program: Program,
    device: str,
    properties: Mapping[str, int | str] | None = None,
    products_in_tf32: bool = False,
) -> Message:
    """properties: of a GPU, as torch names them."""
    message = {"op": "compile", "program": print_program(program), "device": device}
    return message | {"properties": dict(properties or {}), "products_in_tf32": products_in_tf32}


def suite_request(program: Program, seed: int, limits: Limits, path: Path) -> Message:
    message = {"op": "suite", "program": print_program(program), "seed": seed, "path": str(path)}
    return message | {"distributions": limits.distributions}


def entrant_message(candidate: Candidate, binary: Binary) -> Message:
    kernels = {name: asdict(found) for name, found in binary.kernels.items()}
    return {
        "code": candidate.code,
        "arch": binary.arch,
        "image": base64.b64encode(binary.image).decode(),
        "kernels": kernels,
    }


def read_entrant(message: Message, program: Program) -> tuple[Candidate, Binary]:
    kernels = {name: Resources(**found) for name, found in message["kernels"].items()}
    binary = Binary("cuda", message["arch"], base64.b64decode(message["image"]), kernels)
    return parse_candidate(message["code"], program), binary


def read_program(message: Message) -> Program:
    return _parsed(message["program"])


@lru_cache(maxsize=128)
def _parsed(text: str) -> Program:
    """Candidates of one program come one after the other."""
    return parse_program(text)


def read_limits(message: Message) -> Limits:
    found = dict(message["limits"])
    return Limits(**{**found, "distributions": tuple(found["distributions"])})


def verdicts_reply(verdicts: Sequence[Verdict], fatal: bool = False) -> Message:
    return {"verdicts": [to_json(v) for v in verdicts], "fatal": fatal}


def read_verdicts(message: Message) -> list[Verdict]:
    return [from_json(text) for text in message["verdicts"]]


def encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"a message of the worker protocol is an object, got {line[:60]!r}")
    return found
