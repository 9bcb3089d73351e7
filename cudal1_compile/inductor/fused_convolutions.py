"""A convolution with what is added behind it and its ReLU, as one call of cuDNN's, in channels-last.

    relu((x * w) s + t [+ z])   ->   cudnn_convolution_relu(x, w s, t), cudnn_convolution_add_relu(x, w s, z, 1, t)

Inductor passes over the result once more (H200, float32: 73 us against 36). Of inference alone: nothing here has a
gradient. Numerics are `reassociates`: factors go into the weight, a half type is rounded once. What cuDNN cannot
run, runs without NaN coming through, or takes longer for than for its convolution and one pass, stays as it is
(ResNet-50 of bf16: 2519 us with all of them for 1794).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor import ir, lowering
from torch._subclasses.fake_tensor import unset_fake_temporarily

from cudal1_fx_passes.algebra.nodes import Maker, aten, is_only, prims, sizes, value
from cudal1_fx_passes.algebra.weights import Link, behind_links, folded, scaled, scales

FUSED = aten.cudnn_convolution_relu.default
FUSED_SUM = aten.cudnn_convolution_add_relu.default
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICE = "cuda"
PROBE_SHARE = 0.25  # of the free memory, for a first call on empty tensors

SPOILT = 3  # places in which the next result may come to lie
WARM_UPS, ROUNDS = 2, 5
AHEAD_CYCLES = 200_000  # in which the host has asked for all that is timed

Probe = Callable[[fx.Node, bool], bool]  # a fused call, and whether its weight has been scaled: whether it pays


class Found(NamedTuple):
    convolution: fx.Node
    links: list[Link]  # factors and shifts of its channels
    added: fx.Node | None  # of the result's shape


def may_fuse() -> bool:
    """Whether cuDNN may be called, and choose what it likes: its fused calls know no other way."""
    cudnn = torch.backends.cudnn
    return cudnn.enabled and not (cudnn.deterministic or torch.are_deterministic_algorithms_enabled())


def count_fusible(graph: fx.Graph) -> int:
    return sum(_find(node) is not None for node in graph.nodes)


def fuse_convolutions(graph: fx.Graph, pays: Probe | None = None) -> int:
    """Returns how many. pays: by default measured on the device, once for each shape."""
    _prepare()
    count = 0
    for node in list(graph.nodes):
        if (found := _find(node)) is None:
            continue
        new = _put(node, found)
        if (pays or _pays)(new, scales(found.links)):
            new.meta = {k: v for k, v in node.meta.items() if k != "val"} | {"val": node.meta["val"]}
            node.replace_all_uses_with(new)
            count += 1
    graph.eliminate_dead_code()  # what was replaced, and calls that do not pay
    return count


def _find(node: fx.Node) -> Found | None:
    if node.target is not aten.relu.default or len(sizes(node) or ()) != 4 or value(node).device.type != DEVICE:
        return None
    given: Any = node.args[0]
    if not is_only(given):
        return None
    if (found := _behind(given, None)) is not None or given.target is not aten.add.Tensor or given.kwargs:
        return found
    for y, z in (given.args, given.args[::-1]):
        alike = isinstance(z, fx.Node) and isinstance(y, fx.Node) and sizes(y) == sizes(z) == sizes(node)
        if alike and is_only(y) and value(z).dtype == value(node).dtype and (found := _behind(y, z)) is not None:
            return found
    return None


def _behind(node: fx.Node, added: fx.Node | None) -> Found | None:
    """What a node has of a convolution, where that is all that reads it."""
    source, links = behind_links(node)
    if source.target is not aten.convolution.default or source.kwargs or not is_only(source):
        return None
    if not (links or source is node):
        return None
    x, weight, bias, *_, is_transposed, _, groups = source.args
    assert isinstance(x, fx.Node) and isinstance(weight, fx.Node)
    dtype, channels = value(source).dtype, (sizes(x) or (0, 0))[1]
    if dtype not in DTYPES or {value(x).dtype, value(weight).dtype} != {dtype} or is_transposed:
        return None
    if sizes(weight) is None or channels == groups != 1:  # cuDNN's of each channel alone takes five times as long
        return None
    if scales(links) and dtype == torch.float16:  # might overflow
        return None
    return Found(source, links, added) if bias is None or isinstance(bias, fx.Node) else None


def _put(node: fx.Node, found: Found) -> fx.Node:
    make, source = Maker(node), found.convolution
    x, weight, bias, stride, padding, dilation, _, _, groups = source.args
    assert isinstance(weight, fx.Node) and (bias is None or isinstance(bias, fx.Node))
    if found.links:
        factor, shift = folded(make, bias, found.links, value(source).shape[1])
        if scales(found.links):
            weight = scaled(make, weight, factor, 0)
        bias = shift
    if bias is not None and value(bias).dtype != value(source).dtype:
        bias = make(prims.convert_element_type.default, bias, value(source).dtype)
    rest = bias, stride, padding, dilation, groups
    if found.added is None:
        return make(FUSED, x, weight, *rest)
    return make(FUSED_SUM, x, weight, found.added, 1.0, *rest)


def _pays(node: fx.Node, is_scaled: bool) -> bool:
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in node.args]
    tensors = [*(v for v in values if isinstance(v, Tensor)), *[value(node)] * (SPOILT + 2)]
    free, _ = torch.cuda.mem_get_info(value(node).device)
    if sum(t.nbytes for t in tensors) > PROBE_SHARE * free:
        return False
    return _measured(node.target, tuple(map(_described, values)), is_scaled, torch.backends.cudnn.allow_tf32)


def _described(x: Any) -> Any:
    if isinstance(x, Tensor):
        return tuple(x.shape), x.dtype, x.device
    return tuple(x) if isinstance(x, list | tuple) else x


@cache
def _measured(target: Any, described: Sequence[Any], is_scaled: bool, allow_tf32: bool) -> bool:
    """Whether it runs on the device, and faster than the convolution and a pass. allow_tf32: cuDNN's flag now."""
    with unset_fake_temporarily(), torch.no_grad(), torch.autocast("cuda", enabled=False):
        try:
            given = list(map(_made, described))
            given[0].fill_(torch.nan)
            spoilt = [target(*given)]
            if not spoilt[0].isnan().all():
                return False
            spoilt += [torch.full_like(spoilt[0], torch.nan) for _ in range(SPOILT)]
            del spoilt  # torch gives cuDNN the result's own memory as a summand, times zero
            given[0].zero_()
            if target(*given).isnan().any():
                return False
            return _us(lambda: _together(target, given, is_scaled)) < _us(lambda: _apart(target, given))
        except RuntimeError:  # no engine, or no memory
            return False


def _together(target: Any, given: Sequence[Any], is_scaled: bool) -> None:
    if is_scaled:
        given[1].mul(2.0)
    target(*given)


def _apart(target: Any, given: Sequence[Any]) -> None:
    """As Inductor has it: the convolution without its bias, then one pass."""
    (x, w), (stride, padding, dilation, groups) = given[:2], given[-4:]
    y = aten.convolution.default(x, w, None, stride, padding, dilation, False, (0, 0), groups)
    y.add(given[2]) if target is FUSED_SUM else y.relu()


def _us(run: Callable[[], None]) -> float:
    """The median, of the device's time alone."""
    found: list[float] = []
    for _ in range(WARM_UPS + ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(AHEAD_CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        found.append(1e3 * begin.elapsed_time(end))
    return median(found[WARM_UPS:])


def _made(described: Any) -> Any:
    """Zeros, of what was a tensor."""
    if not (isinstance(described, tuple) and described and isinstance(described[0], tuple)):
        return described
    shape, dtype, device = described
    found = torch.zeros(shape, dtype=dtype, device=device)
    return found.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else found


@cache
def _prepare() -> None:
    """Tells torch of their results' shapes, where it does not know them, and Inductor of the layout."""
    fakes = {
        "aten::cudnn_convolution_relu": lambda x, w, *rest: _fake(x, w, rest),
        "aten::cudnn_convolution_add_relu": lambda x, w, z, alpha, *rest: _fake(x, w, rest),
    }
    for name, fake in fakes.items():
        with suppress(RuntimeError):  # there is one
            torch.library.register_fake(name, fake)
    for target in (FUSED, FUSED_SUM):
        lowering.make_fallback(target, _in_channels_last, warn=False)  # type: ignore[no-untyped-call]


def _fake(x: Tensor, weight: Tensor, rest: Sequence[Any]) -> Tensor:
    """As aten.convolution's; cuDNN's is in channels-last where an operand is."""
    bias, stride, padding, dilation, groups = rest
    found: Tensor = aten.convolution.default(x, weight, bias, stride, padding, dilation, False, [0, 0], groups)
    is_last = any(
        t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (x, weight)
    )
    form = torch.channels_last if is_last else torch.contiguous_format
    return torch.empty_like(found, memory_format=form)


def _in_channels_last(node: fx.Node, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def laid_out(x: Any) -> Any:
        is_image = isinstance(x, ir.TensorBox) and len(x.get_size()) == 4
        return ir.ExternKernel.require_channels_last(x) if is_image else x

    return tuple(laid_out(x) for x in args), kwargs
