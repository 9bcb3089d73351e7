"""The fork server's own process: imports what workers need, forks one a request. Started by fork_server.py.

    python -m cudal1_compile.judge.bench.fork_server_process SOCKET [FILE]     descriptors; FILE: begun again

It opens no CUDA context and starts no thread, so that a fork is as good as a new process. Where an import has
asked CUDA for something all the same, as Inductor's does in torch 2.11 where NVML cannot tell, no fork could use
the device: it then begins again, and leaves Inductor out.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import random
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

import torch

from cudal1_compile.judge.bench import worker
from cudal1_compile.judge.sandbox.isolation import die_with_parent

Asked = tuple[dict[str, Any], Sequence[int]]  # a request and what descriptors came with it
GENERATOR = "cudal1_compile.pipeline.generator_worker"  # 0.15 s; who cannot wait imports it as a fork
MESSAGE_BYTES = 1 << 18
DESCRIPTORS = 16  # of a message
POLL_S = 2e-3  # between two looks at what is to be reaped


def main() -> None:
    """Serves until the socket closes."""
    die_with_parent()
    descriptor, *before = sys.argv[1:]
    worker.import_all(worker.NEEDED)
    if _has_asked_cuda():
        return  # workers import by themselves
    server = socket.socket(fileno=int(descriptor))
    put_off: list[Asked] = json.loads(_read(int(before[0]))) if before else []
    if not before:
        for name in (GENERATOR, *worker.INDUCTOR):
            _fork_urgent(server, put_off)
            worker.import_all([name])
        if _has_asked_cuda():
            _begin_again(descriptor, put_off)
        worker.hash_sources()
    gc.freeze()  # so that collections in forks do not copy the pages of what was imported
    server.send(b"ready")
    reaped: dict[int, int] = {}  # who is waited for: the number, and the descriptor that says when
    while True:
        if put_off or wait([server], POLL_S if reaped else None):
            request, descriptors = put_off.pop(0) if put_off else _receive(server)
            if not request:
                return
            if "reap" in request:
                reaped[request["reap"]] = descriptors[0]
            else:
                _fork(request, descriptors, (server.fileno(), *reaped.values(), *_came_with(put_off)))
        for pid in [pid for pid in reaped if _is_gone(pid)]:
            os.close(reaped.pop(pid))


def _receive(server: socket.socket) -> Asked:
    """Nothing once it is closed."""
    message, descriptors, _, _ = socket.recv_fds(server, MESSAGE_BYTES, DESCRIPTORS)
    return json.loads(message or b"{}"), descriptors


def _fork_urgent(server: socket.socket, put_off: list[Asked]) -> None:
    """Workers that share a device do without Inductor for a while: nobody waits for the rest of the imports."""
    while wait([server], 0.0):
        request, descriptors = _receive(server)
        if request.get("inherited"):
            _fork(request, descriptors, (server.fileno(), *_came_with(put_off)))
        else:
            put_off.append((request, descriptors))
            if not request:
                return


def _came_with(put_off: Sequence[Asked]) -> list[int]:
    return [d for _, descriptors in put_off for d in descriptors]


def _begin_again(descriptor: str, put_off: Sequence[Asked]) -> None:
    """Without Inductor, and with what has been asked for. Does not return."""
    asked = os.memfd_create("put off")
    os.write(asked, json.dumps(put_off).encode())
    for kept in (asked, *_came_with(put_off)):
        os.set_inheritable(kept, True)
    module = "cudal1_compile.judge.bench.fork_server_process"
    os.execv(sys.executable, [sys.executable, "-m", module, descriptor, str(asked)])


def _read(file: int) -> bytes:
    with os.fdopen(file, "rb") as source:
        source.seek(0)
        return source.read()


def _has_asked_cuda() -> bool:
    """Whether torch would refuse the device to a fork of this process."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


def _fork(request: dict[str, Any], descriptors: Sequence[int], own: Sequence[int]) -> None:
    """own: descriptors that the fork does not get."""
    with contextlib.suppress(OSError):  # no process to be had: whoever asked sees an end without a number
        if os.fork() == 0:
            for descriptor in own:
                os.close(descriptor)
            _become_worker(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _become_worker(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Does not return."""
    status = 1
    try:
        os.setsid()
        os.write(descriptors[3], b"%d\n" % os.getpid())  # now that its group can be killed by that number
        _place(descriptors, request["inherited"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        tempfile.tempdir = None
        random.seed()
        sys.argv = [request["module"], *request["arguments"]]
        importlib.import_module(request["module"]).main()
        status = 0
    except BaseException:  # noqa: BLE001  nothing may come back into the fork server's loop
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _place(descriptors: Sequence[int], inherited: Sequence[int]) -> None:
    """Standard streams and what is `inherited` where they belong; the one that tells of life stays open."""
    free = 1 + max((*descriptors, *inherited))
    requests, replies, errors, _, *others = [fcntl.fcntl(d, fcntl.F_DUPFD_CLOEXEC, free) for d in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for source, target in zip((requests, replies, errors, *others), (0, 1, 2, *inherited), strict=True):
        os.dup2(source, target)
        os.close(source)


def _is_gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


if __name__ == "__main__":
    main()
