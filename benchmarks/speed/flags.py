"""torch's flags that decide which arithmetic an arm may use: what they are, and what they should be."""

from __future__ import annotations

import torch

Flags = dict[str, bool | str]

DEFAULTS: Flags = {
    "matmul.allow_tf32": False,
    "cudnn.allow_tf32": True,
    "float32_matmul_precision": "highest",
    "deterministic_algorithms": False,
    "cudnn.deterministic": False,
    "cudnn.benchmark": False,
    "bf16_reduced_precision_reduction": True,
    "fp16_reduced_precision_reduction": True,
}


def expected(strict: bool) -> Flags:
    """strict: TF32 is forbidden to convolutions and recurrent layers too."""
    return DEFAULTS | {"cudnn.allow_tf32": not strict}


def read() -> Flags:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "matmul.allow_tf32": matmul.allow_tf32,
        "cudnn.allow_tf32": cudnn.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.deterministic": cudnn.deterministic,
        "cudnn.benchmark": cudnn.benchmark,
        "bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
    }


def unexpected(found: Flags, strict: bool) -> str:
    """What differs, in words; empty for nothing."""
    right = expected(strict)
    return ", ".join(f"{n} is {v}, expected {right[n]}" for n, v in found.items() if v != right[n])
