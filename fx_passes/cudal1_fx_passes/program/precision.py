"""torch's TF32 flags, read and set in the form that never fails.

A user may set them by `fp32_precision` too, and once that was done reading `allow_tf32` can be a RuntimeError.
They are read at every call of a kernel that uses TF32, hence by the function behind torch's properties: 0.3 us
instead of 4.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CUDNN: Any = torch.backends.cudnn  # its types know no `conv`
_C: Any = torch._C
_lock = threading.Lock()
_found: list[str] = []  # by each who is inside


def convolutions_may_use_tf32() -> bool:
    return bool(_C._get_fp32_precision_getter("cuda", "conv") == "tf32")


def products_may_use_tf32() -> bool:
    return bool(_C._get_fp32_precision_getter("cuda", "matmul") == "tf32")


@contextmanager
def convolutions_in_f32() -> Iterator[None]:
    """For the whole process: the last of several threads to leave gives back what the first one found."""
    with _lock:
        _found.append(_found[0] if _found else _CUDNN.conv.fp32_precision)
        _CUDNN.conv.fp32_precision = "ieee"
    try:
        yield
    finally:
        with _lock:
            before = _found.pop()
            if not _found:
                _CUDNN.conv.fp32_precision = before


@contextmanager
def products_in_tf32() -> Iterator[None]:
    """For a process where no other thread multiplies.

    By the older setting, as users do: Inductor reads that one, which raises where only the newer one was set.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
