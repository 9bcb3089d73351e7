"""The physical floor of a program on one GPU: what its bytes and its multiplications alone would take.

    floor = measure_floor(device); floor.us(program)

Bytes: outputs and the parts of inputs that are read, at the measured bandwidth of a large copy. Multiplications:
those of sums of products whose operands are in bounds, at the GPU's published dense peak in the widest form that
the error budget allows: f32 in three TF32 products. Other arithmetic counts as free, so the floor is a lower
bound; algorithms with fewer multiplications (Winograd's) could pass it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from cudal1_compile.judge.timing.clock import Clock
from cudal1_compile.judge.timing.floor import flops
from cudal1_compile.judge.timing.least_bytes import least_bytes
from cudal1_compile.runtime.target import detect_target
from cudal1_fx_passes.program.ir import Op, Program
from cudal1_fx_passes.program.ops import OPS, Kind

# dense TFLOP/s of the SXM forms, from NVIDIA's data sheets; f32 is a third of TF32, which beats the plain units
HOPPER = {"f64": 67.0, "f32": 165.0, "tf32": 494.7, "f16": 989.4, "bf16": 989.4}
AMPERE = {"f64": 19.5, "f32": 52.0, "tf32": 156.0, "f16": 312.0, "bf16": 312.0}
PEAKS = {"H100": HOPPER, "H200": HOPPER, "A100": AMPERE}


@dataclass(frozen=True, slots=True)
class Floor:
    """Of one GPU."""

    bytes_per_us: float
    teraflops: Mapping[str, float]

    def us(self, program: Program) -> float:
        peaks = [(flops(program, op), self.teraflops[_precision(op)]) for op in _products(program)]
        return max(least_bytes(program) / self.bytes_per_us, sum(n / (rate * 1e6) for n, rate in peaks))


def measure_floor(device: torch.device) -> Floor | None:
    """None on the CPU and for a GPU whose peak is not in the table."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peaks = next((rates for model, rates in PEAKS.items() if model in name), None)
    if peaks is None:
        return None
    found = Clock(device, detect_target(device).l2_bytes).bytes_per_us
    torch.cuda.empty_cache()
    return Floor(found, peaks)


def _products(program: Program) -> list[Op]:
    return [op for op in program.ops if OPS[op.fn].kind is Kind.DOT]


def _precision(op: Op) -> str:
    return "tf32" if op.fn == "dot_tf32" else op.dtype
