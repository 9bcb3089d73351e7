"""The worker process of one device: reads requests, runs candidates, answers. Started by process.py only.

    python -m cudal1_compile.judge.bench.worker [WRITABLE FOLDER ...]

It may be killed at any time. A candidate that hangs or faults is its last: it answers, says that the answer is
fatal, and ends without cleaning up, since its CUDA context no longer works.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from cudal1_compile.judge.sandbox.device_lock import DeviceLock
from cudal1_compile.judge.sandbox.isolation import give_up_privileges, shared_folder, take_over_pipes

NEEDED = ("cudal1_compile.judge.checks.case_suite_file", "cudal1_compile.judge.bench.session")
INDUCTOR = (
    *("sympy", "torch.fx.experimental.symbolic_shapes", "torch._numpy"),  # of Dynamo: in steps, none of a second
    *("torch.distributed.fsdp", "torch._decomp.decompositions_for_rng"),
    *("torch._dynamo", "torch._functorch.aot_autograd"),
    *("torch._inductor.decomposition", "torch._inductor.kernel.flex", "torch._inductor.lowering"),
    "torch._inductor.compile_fx",
    "cudal1_compile.judge.timing.ahead",
    *("torch._inductor.select_algorithm", "torch._inductor.codegen.cuda_combined_scheduling"),
    *("torch._inductor.runtime.triton_heuristics", "torch._inductor.fx_passes.post_grad"),
    *("functorch.compile", "networkx", "jinja2", "triton", "triton.backends"),  # with Inductor's first compile
)
BACKGROUND = 10  # nice value of a process that compiles ahead
IDLE_S = 0.02  # without a request, after which what is not imported yet is
_OVER = object()


def main() -> None:
    """Serves until the pipe closes."""
    requests, replies = take_over_pipes()
    given_up = give_up_privileges(sys.argv[1:] or None)
    with os.fdopen(replies, "wb") as target:

        def say(message: bytes) -> None:
            target.write(message)
            target.flush()

        serve = _Server(given_up, say)  # imports torch, unless this process is a fork of one that has
        say(serve.hello())
        import_all(NEEDED)
        gc.freeze()  # what is imported stays: to look through it all took a tenth of a candidate's time
        for line in lines(requests, later(serve.ahead)):
            reply, fatal = serve.answer(line)
            say(reply)
            if fatal:
                os._exit(3)


def later(ahead: Callable[[], Iterable[None]]) -> Iterator[None]:
    """What the first requests would wait for, then the imports that not each of them needs, a module at a time."""
    for name in INDUCTOR:
        yield from ahead()
        import_all([name])
        yield
    hash_sources()
    gc.freeze()


def lines(descriptor: int, idle: Iterator[object]) -> Iterator[bytes]:
    """Of a pipe, until it is closed; `idle` goes on by one step wherever none comes for a while."""
    pending, goes_on = b"", True
    while True:
        while b"\n" not in pending:
            if goes_on and not wait([descriptor], IDLE_S):
                goes_on = next(idle, _OVER) is not _OVER
                continue
            said = os.read(descriptor, 1 << 20)
            if not said:
                return
            pending += said
        line, _, pending = pending.partition(b"\n")
        yield line


def import_all(modules: Iterable[str]) -> None:
    """As far as this torch has them."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def hash_sources() -> None:
    """Digests of torch's and Triton's files, held by keys of Inductor's cache: once a process, most of a second.

    Without Triton nothing is compiled for a device.
    """
    with contextlib.suppress(ImportError):
        from torch._inductor.codecache import torch_key
        from torch._inductor.runtime.triton_compat import HAS_TRITON, triton_key

        if HAS_TRITON:
            torch_key()
            triton_key()


class _Server:
    """Holds the device session once a start request has made it."""

    def __init__(self, given_up: dict[str, bool], say: Callable[[bytes], None]) -> None:
        """say: what is no answer."""
        import torch

        from cudal1_compile.judge import verdict
        from cudal1_compile.judge.bench import lean_session, session
        from cudal1_compile.judge.checks import trial
        from cudal1_compile.judge.sandbox import wire
        from cudal1_compile.judge.timing import baseline

        self._torch = torch
        self._baseline = baseline
        self._session_module, self._entrant = session, lean_session.Entrant
        self._stopped = trial.TrialStopped
        self._rejected = verdict.Rejected
        self._wire = wire
        self._given_up, self._say = given_up, say
        self._session: session.DeviceSession | None = None
        self._is_ahead = False  # it has measured what it needs

    def ahead(self) -> Iterator[None]:
        """Nothing where there is no session yet."""
        if self._session is not None and not self._is_ahead:
            self._is_ahead = True
            yield from self._session.ahead()

    def hello(self) -> bytes:
        return self._wire.encode({"hello": self._torch.__version__, "given_up": self._given_up})

    def answer(self, line: bytes) -> tuple[bytes, bool]:
        """The reply, and whether it is the last one."""
        begin = time.monotonic()
        request = self._wire.decode(line)
        count = len(request.get("entrants", (None,)))  # verdicts of a reply
        try:
            reply = self._dispatch(request)
        except self._stopped as stopped:
            reply = self._wire.verdicts_reply([self._rejected("verify", str(stopped))] * count, fatal=True)
        except RuntimeError as error:
            text = str(error)
            if "CUDA" not in text or "captur" in text:
                reply = self._failure()
            else:  # a sticky error that surfaced outside of a wait: still the candidate's doing
                reason = f"the kernel faulted: {text.splitlines()[0]}"
                reply = self._wire.verdicts_reply([self._rejected("verify", reason)] * count, fatal=True)
        except Exception:  # noqa: BLE001  a fault of ours must not be blamed on a candidate: say it, then end
            reply = self._failure()
        reply["seconds"] = time.monotonic() - begin
        return self._wire.encode(reply), bool(reply.get("fatal"))

    def _failure(self) -> dict[str, Any]:
        return {"failure": traceback.format_exc(), "fatal": True}

    def _dispatch(self, request: dict[str, Any]) -> dict[str, Any]:
        wire = self._wire
        if request["op"] == "start":
            return self._start(request)
        if request["op"] == "compile":
            return self._compile(request)
        if request["op"] == "suite":
            return self._prepare(request)
        if self._session is None:
            raise ValueError("a request before start")
        if request["op"] == "room":
            return {"free_bytes": self._session.clock.free_bytes()}
        if request["op"] == "clear":
            self._session.clear()
            return {}
        program, seed = wire.read_program(request), request["seed"]
        entrants = [self._entrant(*wire.read_entrant(e, program)) for e in request.get("entrants", ())]
        if request["op"] == "baselines":
            found = [self._session.baselines(program, seed, request["inductor"])]
        elif request["op"] == "quick":
            found = [self._session.quick(program, entrants[0], seed, request["long"])]
        elif request["op"] == "judge":
            how = request["timed"], request["suite"], request["repeats"]
            found = [self._session.judge(program, entrants[0], seed, *how)]
        else:
            found = self._session.finalists(program, entrants, seed, request["is_right_smaller"])
        reply: dict[str, Any] = wire.verdicts_reply(found)
        reply["spent_s"] = dict(self._session.spent_s)
        reply["short_of_room"] = self._session.short_of_room
        return reply

    def _compile(self, request: dict[str, Any]) -> dict[str, Any]:
        from cudal1_compile.judge.timing.ahead import compile_ahead

        if request["products_in_tf32"]:
            self._baseline.allow_products_in_tf32()
        os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND)
        try:
            device = self._torch.device(request["device"])
            compile_ahead(self._wire.read_program(request), device, request["properties"])
        except Exception as error:  # noqa: BLE001  a compiler's failure of any kind; the next region may compile
            return {"why_not": str(error)}
        return {}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        from cudal1_compile.judge.checks.case_suite_file import make_ahead

        program, path = self._wire.read_program(request), request["path"]
        try:
            made = make_ahead(program, request["seed"], request["distributions"], Path(path))
        except RuntimeError as error:  # of torch, for what a CPU does not do
            return {"why_not": str(error)}
        return {"suite": path} if made else {"why_not": "there is no room"}

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        limits = self._wire.read_limits(request)
        if limits.products_in_tf32:
            self._baseline.allow_products_in_tf32()
        device_lock = DeviceLock(request["lock_descriptors"]) if request["lock_descriptors"] else None
        if device_lock is not None:
            device_lock.tell = lambda waits: self._say(self._wire.encode(self._wire.waiting_message(waits)))
        shared = shared_folder()
        self._session = self._session_module.open_session(request["device"], limits, device_lock, shared)
        clock = self._session.clock
        return {"ready": True, "bytes_per_us": clock.bytes_per_us, "versions": dict(self._session.versions)}


if __name__ == "__main__":
    main()
    sys.exit(0)
