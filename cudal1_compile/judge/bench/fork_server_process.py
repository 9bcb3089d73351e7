"""The fork server's own process: imports what workers need, forks one a request. Started by fork_server.py.

    python -m cudal1_compile.judge.bench.fork_server_process DESCRIPTOR OF A SOCKET [NEEDED]

It opens no CUDA context and starts no thread, so that a fork is as good as a new process. Where an import has
asked CUDA for something all the same, as Inductor's does in torch 2.11, no fork could use the device: it then
begins again, and leaves Inductor out.
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

NEEDED = "needed"
GENERATOR = "cudal1_compile.pipeline.generator_worker"  # 0.15 s; who cannot wait imports it as a fork
MESSAGE_BYTES = 1 << 18
DESCRIPTORS = 16  # of a message
POLL_S = 2e-3  # between two looks at what is to be reaped
FIRST_S, NEXT_S = 2.0, 0.5  # for a judge that is being made


def main() -> None:
    """Serves until the socket closes."""
    die_with_parent()
    descriptor, few = sys.argv[1], sys.argv[2:] == [NEEDED]
    worker.import_all(worker.NEEDED)
    if _has_asked_cuda():
        return  # workers import by themselves
    server = socket.socket(fileno=int(descriptor))
    if not few:
        _fork_urgent(server, FIRST_S)
        for name in (GENERATOR, *worker.INDUCTOR):
            worker.import_all([name])
            _fork_urgent(server)
        if _has_asked_cuda():
            os.execv(
                sys.executable,
                [sys.executable, "-m", "cudal1_compile.judge.bench.fork_server_process", descriptor, NEEDED],
            )
        worker.hash_sources()
    gc.freeze()  # so that collections in forks do not copy the pages of what was imported
    server.send(b"ready")
    reaped: dict[int, int] = {}  # who is waited for: the number, and the descriptor that says when
    while True:
        if wait([server], POLL_S if reaped else None):
            message, descriptors, _, _ = socket.recv_fds(server, MESSAGE_BYTES, DESCRIPTORS)
            if not message:
                return
            request = json.loads(message)
            if "reap" in request:
                reaped[request["reap"]] = descriptors[0]
            else:
                _fork(request, descriptors, (server.fileno(), *reaped.values()))
        for pid in [pid for pid in reaped if _is_gone(pid)]:
            os.close(reaped.pop(pid))


def _fork_urgent(server: socket.socket, first_s: float = 0.0) -> None:
    """Workers that share a device do without Inductor for a while: nobody waits for the rest of the imports.

    first_s: seconds for the first one. What is not urgent stays where it is, and all that comes behind it.
    """
    limit_s = first_s
    while wait([server], limit_s):
        request = json.loads(server.recv(MESSAGE_BYTES, socket.MSG_PEEK) or b"{}")
        if not request.get("inherited"):
            return
        _, descriptors, _, _ = socket.recv_fds(server, MESSAGE_BYTES, DESCRIPTORS)
        _fork(request, descriptors, (server.fileno(),))
        limit_s = min(first_s, NEXT_S)


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
