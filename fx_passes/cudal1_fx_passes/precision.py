"""torch's TF32 flags, read and set in the form that never fails.

A user may set them by `fp32_precision` too, and once that was done reading `allow_tf32` can be a RuntimeError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CUDNN: Any = torch.backends.cudnn  # its types know no `conv`


def convolutions_may_use_tf32() -> bool:
    return bool(_CUDNN.conv.fp32_precision == "tf32")


def products_may_use_tf32() -> bool:
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


@contextmanager
def convolutions_in_f32() -> Iterator[None]:
    flags = _CUDNN.conv
    before = flags.fp32_precision
    flags.fp32_precision = "ieee"
    try:
        yield
    finally:
        flags.fp32_precision = before
