"""Weights in parts, one a process, for bases too large for one device: PyTorch's FSDP2 by accelerate.

    accelerate launch --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP ...

    settle(accelerator)       says how parts are computed with; refuses what cannot be done in parts
    whole(value)              a weight in one piece; all processes ask together
    gather(lm, copy)          the weights of a model in parts into a plain copy, one after the other
    in_one_piece(lm)          such a copy to save; `lm` itself where nothing is in parts
    optimizer_state(...), load_optimizer(...)

Weights, their gradients and the optimiser's state are in parts. A model that samples is not: each process writes
replies of its own length, and parts would have to be asked for together at every token. Everything here does
nothing special where nothing is in parts. Not done: adapters in parts (they are small), Muon on parts.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, disable_fsdp_ram_efficient_loading
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

State = dict[str, Any]


def in_parts(accelerator: Accelerator) -> bool:
    return bool(accelerator.distributed_type == DistributedType.FSDP)


def settle(accelerator: Accelerator, adapters: bool, muon: bool = False) -> None:
    """Before a checkpoint is loaded. Raises ValueError for what cannot be trained in parts."""
    if not in_parts(accelerator):
        return
    if not accelerator.is_fsdp2:
        raise ValueError("training in parts needs `accelerate launch --use_fsdp --fsdp_version 2`, got version 1")
    if adapters:
        raise ValueError("model.lora trains few weights, which need no parts: launch without --use_fsdp")
    if muon:
        raise ValueError("train.muon needs whole matrices: set it to false, or launch without --use_fsdp")
    disable_fsdp_ram_efficient_loading()  # every process keeps a whole copy to sample from
    plugin = accelerator.state.fsdp_plugin
    plugin.cpu_ram_efficient_loading = False
    if accelerator.mixed_precision == "bf16":  # accelerate's own would round log-probabilities and gradients' sums
        plugin.mixed_precision_policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def place(value: Tensor, like: Tensor) -> Tensor:
    """A whole weight in the parts of another."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


@torch.no_grad()
def gather(lm: nn.Module, copy: nn.Module) -> None:
    for value, target in zip(lm.state_dict().values(), copy.state_dict().values(), strict=True):
        target.copy_(whole(value))


def in_one_piece(lm: Any) -> Any:
    """All processes ask together."""
    if not _is_in_parts(lm):
        return lm
    copy = type(lm)(lm.config)
    copy.generation_config = lm.generation_config
    gather(lm, copy)
    return copy


def optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Whole on rank 0; empty before the first step, which PyTorch's own function would take to fill it."""
    if not _is_in_parts(module):
        return optimizer.state_dict()
    if not optimizer.state:
        return {}
    return get_optimizer_state_dict(
        module, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def load_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """`state` on every rank."""
    if not _is_in_parts(module):
        optimizer.load_state_dict(state)
    elif state:
        set_optimizer_state_dict(module, optimizer, state, options=StateDictOptions(full_state_dict=True))


def _is_in_parts(module: nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in module.parameters())
