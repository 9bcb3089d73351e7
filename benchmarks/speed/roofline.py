"""The roofline of a task: what its bytes and its products alone would take on this GPU.

    work_of(module) -> bytes and products of one call         floor_us(work, peaks(device, work), allow_tf32)

Bytes: inputs, parameters, buffers and outputs, each once, at the measured bandwidth of a large copy. Products (of
matrices, convolutions, attention, recurrent layers) as torch's flop counter has them, at the rate that a library's
large square product is measured at in the same dtype: float32 in the better of float32 and three of TF32, and
convolutions and recurrent layers in TF32 where the flag allows that. The floor is the longer of the two.

A model, simple and not always a bound: causal attention counts its masked half, a table of which few rows are
read counts whole, a convolution may be done with fewer products (Winograd), and what is kept between operations is
free. The call is counted on the meta device, so that nothing runs; a model that asks for values has no roofline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.speed.errors import tensors
from benchmarks.speed.loader import build

SIDE = 8192  # of the square products
REPEATS = 5
SPLIT = 3  # TF32 products in the place of one of float32
BY_CUDNN = "cudnn "  # before the dtype of products that cudnn.allow_tf32 is for
FORMS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call. flops: by the operands' dtype."""

    bytes: int
    flops: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Peaks:
    bytes_per_us: float
    flops_per_us: Mapping[str, float]  # by dtype, and tf32


class _Products(TorchDispatchMode):
    def __init__(self, rnn: bool) -> None:
        super().__init__()
        self.rnn = rnn
        self.flops: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            dtype = str(tensors((args, kwargs))[0].dtype).removeprefix("torch.")
            by_cudnn = "convolution" in str(func) or self.rnn
            flops = count(*args, **(kwargs or {}), out_val=out)
            self.flops[f"{BY_CUDNN}{dtype}" if by_cudnn else dtype] += flops
        return out


def work_of(module: ModuleType) -> Work:
    """Raises what the model raises on the meta device."""
    model, inputs = build(module, torch.device("meta"))
    # on the meta device a recurrent layer is products like others: all of its model count as cuDNN's
    mode = _Products(any(isinstance(m, nn.RNNBase) for m in model.modules()))
    with torch.no_grad(), mode:
        outputs = model(*inputs)
    read = {id(x): x for x in (*tensors(inputs), *model.parameters(), *model.buffers())}
    written = {id(x): x for x in tensors(outputs) if id(x) not in read}
    return Work(_bytes(read.values()) + _bytes(written.values()), dict(mode.flops))


def _bytes(found: Iterable[Tensor]) -> int:
    return sum(min(x.numel() * x.element_size(), x.untyped_storage().nbytes()) for x in found)


def rate_of(form: str, peaks: Peaks, allow_tf32: bool) -> float:
    dtype = form.removeprefix(BY_CUDNN)
    if dtype != "float32":
        return peaks.flops_per_us[dtype]
    if form != dtype and allow_tf32:
        return peaks.flops_per_us["tf32"]
    return max(peaks.flops_per_us[dtype], peaks.flops_per_us["tf32"] / SPLIT)


def products_us(work: Work, peaks: Peaks, allow_tf32: bool) -> float:
    return sum(n / rate_of(form, peaks, allow_tf32) for form, n in work.flops.items())


def floor_us(work: Work, peaks: Peaks, allow_tf32: bool) -> float:
    return max(work.bytes / peaks.bytes_per_us, products_us(work, peaks, allow_tf32))


def measure_peaks(device: torch.device, work: Work) -> Peaks:
    """Of a GPU, for what the work is made of; leaves the flags as they were."""
    rates: dict[str, float] = {}
    for dtype in {form.removeprefix(BY_CUDNN) for form in work.flops}:
        rates[dtype] = _product_rate(device, FORMS[dtype])
        if dtype == "float32":
            matmul = torch.backends.cuda.matmul
            before, matmul.allow_tf32 = matmul.allow_tf32, True
            try:
                rates["tf32"] = _product_rate(device, torch.float32)
            finally:
                matmul.allow_tf32 = before
    source = torch.zeros(256 << 20, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    found = Peaks(2 * source.numel() / _least_us(lambda: target.copy_(source)), rates)
    torch.cuda.empty_cache()
    return found


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    side = SIDE if dtype != torch.float64 else SIDE // 2
    a, b, out = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(3))
    return 2.0 * side**3 / _least_us(lambda: torch.mm(a, b, out=out))


def _least_us(call: Any) -> float:
    call()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]  # type: ignore[no-untyped-call]
    for begin, end in pairs:
        begin.record()  # type: ignore[no-untyped-call]
        call()
        end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return min(float(begin.elapsed_time(end)) * 1e3 for begin, end in pairs)  # type: ignore[no-untyped-call]
