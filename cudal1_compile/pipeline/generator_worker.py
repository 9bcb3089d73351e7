"""The process that generator_process.py starts: one generator on one device, until its pipe closes.

    start {config, lock_descriptors}        -> {}
    warm_up {}                              -> {}       at once; the sampler gets warm beside what follows
    propose {prompts, n, seed, deadline}    -> {replies}

One JSON object a line (judge/sandbox/wire.py). A reply with `error` is the last one: nothing is known of the
device then, and what the process held of it is free once it is gone. While it works on the device it holds that
one's lock, as the judge's workers do for trials, and every KEEPS_S lets those go first who take times. It runs
no code that a model wrote. Some of a GPU's memory is left to the user's model, which may want it meanwhile.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cudal1_compile.errors import describe
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.daemons import start_daemon
from cudal1_compile.generate.errors import GeneratorError, no_room, wants_memory
from cudal1_compile.judge.bench.worker_pool import PRESSED_BYTES
from cudal1_compile.judge.sandbox.device_lock import DeviceLock
from cudal1_compile.judge.sandbox.isolation import give_up_privileges, take_over_pipes
from cudal1_compile.judge.sandbox.wire import Message, decode, encode

KEEPS_S = 0.1  # of the device at a time: a call is a hundred steps of some 5 ms, and who takes times takes 50


def start_request(config: BundledConfig, lock_descriptors: Sequence[int]) -> Message:
    dtype = None if config.dtype is None else str(config.dtype).removeprefix("torch.")
    plain = asdict(config) | {"directory": str(config.directory), "dtype": dtype}
    return {"op": "start", "config": plain, "lock_descriptors": lock_descriptors}


def main() -> None:
    """Serves until the pipe closes, or something fails."""
    requests, replies = take_over_pipes()
    given_up = give_up_privileges()
    with os.fdopen(requests, "rb") as source, os.fdopen(replies, "wb") as target:
        target.write(encode({"given_up": given_up}))
        target.flush()
        for reply in _replies(source):
            target.write(encode(reply))
            target.flush()


def _replies(lines: Iterable[bytes]) -> Iterator[Message]:
    served: _Served | None = None
    for line in lines:
        request = decode(line)
        try:
            served = served or _Served(request)
            yield served.answer(request)
        except Exception as error:  # noqa: BLE001  whoever asked raises it
            traceback.print_exc()  # into what is logged of the process once it has ended
            yield {"error": _words(error)}
            return


def _words(error: Exception) -> str:
    if wants_memory(error):
        return str(no_room(error))
    return str(error) if isinstance(error, GeneratorError) else describe(error)


class _Served:
    def __init__(self, start: Message) -> None:
        config = _read_config(start["config"])
        device = torch.device(config.device)
        self._gpu = (device.index or 0) if device.type == "cuda" else None
        self._lock = DeviceLock(start["lock_descriptors"])
        self._lock.keeps_s = KEEPS_S
        if self._gpu is not None:
            self._lock.synchronize = partial(torch.cuda.synchronize, self._gpu)
        self._generator = BundledGenerator(config, self._lock, self._leave_room)

    def answer(self, request: Message) -> Message:
        if request["op"] == "start":
            return {}
        if request["op"] == "warm_up":  # what needs no sampling is not to wait for it
            start_daemon(self._warm_up, "cudal1-warm-up")
            return {}
        asked = (request[name] for name in ("prompts", "n", "seed", "deadline"))
        return {"replies": self._generator.propose_until(*asked)}

    def _warm_up(self) -> None:
        """What it says of the device, the next call will say again."""
        try:
            self._generator.warm_up()
        except Exception:  # noqa: BLE001
            traceback.print_exc()

    def _leave_room(self) -> None:
        if self._gpu is None:
            return
        with self._lock.inside():
            torch.cuda.set_device(self._gpu)
            free, total = torch.cuda.mem_get_info()
            share = (free + torch.cuda.memory_reserved() - PRESSED_BYTES) / total
            torch.cuda.set_per_process_memory_fraction(max(0.0, share))


def _read_config(found: dict[str, Any]) -> BundledConfig:
    dtype = None if found["dtype"] is None else getattr(torch, found["dtype"])
    return BundledConfig(**{**found, "directory": Path(found["directory"]), "dtype": dtype})


if __name__ == "__main__":
    main()
