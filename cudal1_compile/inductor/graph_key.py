"""Names a Dynamo graph across processes, and copies it.

The key only finds a stored plan again: a plan's decisions are by region fingerprint, so that a wrong match could
cost speed, never rightness. Inductor's own caches keep their own, stricter keys.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from cudal1_fx_passes.program.precision import convolutions_may_use_tf32, products_may_use_tf32

KEY_VERSION = 7  # 3: regions by aten; 4: products; 5: some is without them; 6: gradients apart; 7: algebra
# what decides a region, or what stands in its place; files and whole folders of each package
_SOURCES = {
    "cudal1_fx_passes": (".",),
    "cudal1_compile": (
        "dispatch/registry.py",
        "inductor/collect.py",
        "inductor/fused_convolutions.py",
        "inductor/index_bounds.py",
        "inductor/layouts.py",
        "inductor/library.py",
        "inductor/fused_lowering.py",
        "inductor/scratch_sizes.py",
        "inductor/splice.py",
        "pipeline/survey.py",
    ),
}


def graph_key(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    inductor: Mapping[str, Any],
    products: bool = False,
    labels: Collection[str] = (),
) -> str:
    """sha256 over the graph's code, its constants' shapes, its inputs, and the settings that change it.

    inductor: the user's Inductor options (callables by their qualified names). products: whether they may begin
    regions, whose texts then say what torch's flags allow. labels: of the algebra that is done.
    """
    document = {
        "version": KEY_VERSION,
        "torch": torch.__version__,
        "passes": code_version(),
        "code": {name: m.code for name, m in gm.named_modules() if isinstance(m, fx.GraphModule)},
        "constants": [[name, _describe(t)] for name, t in _tensors(gm)],
        "inputs": [_describe(x) for x in example_inputs],
        "grad": torch.is_grad_enabled(),
        "autocast": [torch.is_autocast_enabled(d) for d in ("cpu", "cuda")],
        "products": [convolutions_may_use_tf32(), products_may_use_tf32()] if products else None,
        "labels": sorted(labels),
        "inductor": sorted((k, getattr(v, "__qualname__", None) or repr(v)) for k, v in inductor.items()),
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@cache
def code_version() -> str:
    """Digest of the sources that decide what a region is and what stands in its place.

    An edited partition under the same uuid would hand out artifacts of the old one.
    """
    found = hashlib.sha256()
    for path in deciding_files():
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def deciding_files() -> list[Path]:
    """Every source file that `code_version` digests, in a fixed order."""
    files: list[Path] = []
    for package, places in _SOURCES.items():
        folder = Path(importlib.import_module(package).__path__[0])
        for place in (folder / name for name in places):
            files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return files


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy whose graphs may be mutated freely; parameters, buffers and constants are shared.

    It keeps what Dynamo says of the inputs beside the nodes' metadata, which a deep copy loses. Without it
    AOTAutograd guards no duplicates, and takes parameters for inputs that a CUDA graph must copy at every call.
    """
    memo: dict[int, Any] = {id(t): t for _, t in _tensors(gm)}
    copied: Any = copy.deepcopy(gm, memo)
    if hasattr(gm, "_param_name_to_source"):
        copied._param_name_to_source = gm._param_name_to_source
    for old, new in zip(gm.graph.nodes, copied.graph.nodes, strict=True):
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    return cast(fx.GraphModule, copied)


def _tensors(gm: nn.Module) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    for prefix, module in gm.named_modules():
        held = {**module.__dict__, **module._parameters, **module._buffers}
        found += [(f"{prefix}.{name}", t) for name, t in held.items() if isinstance(t, Tensor)]
    return found


def _describe(x: Any) -> list[Any]:
    if isinstance(x, Tensor):
        strided = x.layout is torch.strided
        strides = [_size(s) for s in x.stride()] if strided else []
        shape = [_size(s) for s in x.shape]
        return [str(x.dtype), shape, strides, str(x.device), str(x.layout), x.requires_grad]
    if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        return [type(x).__name__]
    return [type(x).__name__, repr(x)]


def _size(s: int | torch.SymInt) -> int | str:
    """Symbolic sizes by their expression: Dynamo names the symbols in a fixed order.

    A nested tensor's ragged size has none, only a number that counts such tensors in this process.
    """
    return s if isinstance(s, int) else str(getattr(s.node, "expr", "ragged"))
