"""The machine that a kernel is built for, as data: one GPU model, or the host.

A target's key is part of every cache key, so two GPUs of one model share their kernels and a host kernel
never meets a GPU's. Detection reads torch's device properties; it creates a CUDA context only for `cuda`.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

import torch

KEY_VERSION = 1
TargetKind = Literal["cuda", "host"]
HOST_ARCH = platform.machine() or "unknown"
GPU_ARCHES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100")  # what the tests build for
_ARCH_SPECIFIC = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}


@dataclass(frozen=True)
class Target:
    """kind, the device's name, NVRTC's arch (or the CPU's), and the sizes a schedule depends on."""

    kind: TargetKind
    name: str
    arch: str  # sm_90a, or x86_64
    sm_count: int
    shared_bytes: int  # the most that one block may use, static and dynamic together
    l2_bytes: int

    @cached_property
    def key(self) -> str:
        """sha256, the same in every process."""
        text = json.dumps({"key_version": KEY_VERSION} | asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def facts(self) -> str:
        """The first line of a prompt: what a schedule may rely on."""
        if self.kind == "host":
            return "target host, cost: 128-byte transactions and barriers"
        capability = self.arch.removeprefix("sm_")
        shared, l2 = self.shared_bytes // 1024, self.l2_bytes // (1024 * 1024)
        return f"target sm_{capability}, {self.sm_count} SMs, {shared} KB shared a block, {l2} MB L2"


HOST = Target("host", "host", HOST_ARCH, 1, 227 * 1024, 0)


def detect_target(device: torch.device) -> Target:
    """The target of a torch device; raises ValueError for one that is neither cpu nor cuda."""
    if device.type == "cpu":
        return HOST
    if device.type != "cuda":
        raise ValueError(f"device {device}: cudal1 builds for cuda and, as its host target, for cpu")
    p = torch.cuda.get_device_properties(device)
    arch = _ARCH_SPECIFIC.get((p.major, p.minor), f"sm_{p.major}{p.minor}")
    shared = int(getattr(p, "shared_memory_per_block_optin", p.shared_memory_per_block))
    return Target("cuda", p.name, arch, p.multi_processor_count, shared, int(p.L2_cache_size))


def show_score(value: float, kind: TargetKind) -> str:
    """`1.31x`, or on the host target `cost 0.76 of one operation at a time`."""
    return f"{value:.2f}x" if kind == "cuda" else f"cost {1 / value:.2f} of one operation at a time"


def free_memory(device: torch.device) -> int:
    """Bytes that torch could still allocate, its own cached blocks among them."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
