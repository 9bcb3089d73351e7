"""A weight matrix that is multiplied many times with few rows.

On a CPU oneDNN's own layout is about twice as fast as a plain product at the 1 to 64 rows of decoding,
because the plain one rearranges the weight anew at every call. The operators are those that Inductor
freezes weights with; where they are missing or refuse, the plain product is used and nothing else changes.
"""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor

log = logging.getLogger(__name__)

PACK_ROWS = 32  # the row count that the layout is chosen for; others work as well


class Linear:
    """x -> x @ weight.T, without a bias."""

    def __init__(self, weight_ND: Tensor) -> None:
        self.packed = pack(weight_ND)
        self.weight_ND = None if self.packed is not None else weight_ND.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")
            return y
        assert self.weight_ND is not None
        return F.linear(x, self.weight_ND)


def pack(weight_ND: Tensor) -> Tensor | None:
    """oneDNN's layout of a CPU weight, or None where it cannot be had."""
    if weight_ND.device.type != "cpu" or not torch._C._has_mkldnn:
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_ND.contiguous(), PACK_ROWS)
        probe = torch.ones(1, weight_ND.shape[1], dtype=weight_ND.dtype)
        torch.ops.mkldnn._linear_pointwise(probe, packed, None, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        log.debug("no packed weights on this CPU: %s", error)
        return None
    return packed


def fast_cpu_dtype() -> torch.dtype:
    """bfloat16 where the CPU multiplies it natively, otherwise float32."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return torch.bfloat16 if supported is not None and supported() else torch.float32
