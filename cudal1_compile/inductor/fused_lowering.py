"""The one operation `cudal1::fused`, and the Inductor IR node that it becomes.

    %outs = cudal1::fused("<entry> <shapes>", [%x, %y], [])   ->   cudal1_<entry>(buf1, buf2, x, y, s77, stream0)

splice.py puts the operation into the graph; its node's meta carries a FusedCall. Lowering makes one scheduler
node with one Inductor-planned buffer an output, so that memory is planned, reused and captured in CUDA graphs
like any other, and scratch comes from Inductor's workspaces. The call goes past torch's dispatcher.

Lowering may still give a region back: where a buffer's layout is not the one that the kernel was written for,
the region's own nodes are lowered instead (the graph is then what Inductor would have made of it).

Only the entry id is in Inductor's cache key of a graph, so it determines everything that runs; the digest of
shapes beside it tells uses of one region apart whose tensors are viewed otherwise ([16] and [1, 16]). All of this
leans on Inductor's private classes; hook.py tests them and falls back to plain Inductor.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import sympy
import torch
from torch import Tensor, fx
from torch._inductor import ir, lowering
from torch._inductor.codegen.common import WorkspaceArg, WorkspaceZeroMode
from torch._inductor.utils import get_free_symbols
from torch._inductor.virtualized import V

log = logging.getLogger(__name__)

META = "cudal1"  # the key of the FusedCall in a node's meta
ALIGNMENT_BYTES = 16
COPIED_SHARE = 0.25  # of the bytes that a call reads and writes: up to there an operand is copied into its layout


@dataclass(frozen=True, slots=True)
class ScratchSpec:
    dtype: torch.dtype
    count: sympy.Expr  # elements


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class FusedCall:
    """What one use of a kernel in a graph needs beyond its operands. Lives as long as the node that carries it."""

    entry_id: str
    text: str  # the region, printed into the generated module: the kernel's last resort
    scratch: tuple[ScratchSpec, ...]
    symbols: tuple[sympy.Expr, ...]  # sizes of the symbolic axes, in axis order
    inputs: tuple[Tensor, ...]  # fake: with the strides that the kernel was written for
    outputs: tuple[Tensor, ...]  # fake: with the strides that it writes
    subgraph: fx.GraphModule  # the region's own nodes over the same operands; lowered at most once
    is_checked: bool = False  # every call is compared with the region

    @property
    def name(self) -> str:
        """Of all uses with these shapes, in every process."""
        shapes = [(x.shape, x.stride()) for x in (*self.inputs, *self.outputs)]
        given = [type(n.meta.get("val")).__name__ for n in self.subgraph.graph.find_nodes(op="placeholder")]
        return f"{self.entry_id} {hashlib.sha256(str((shapes, given)).encode()).hexdigest()[:16]}"


_SCHEMA = "fused(str name, Tensor[] ins, SymInt[] sizes) -> Tensor[]"
_library = torch.library.Library("cudal1", "DEF")  # type: ignore[no-untyped-call]
_library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
FUSED = torch.ops.cudal1.fused.default
_calls: dict[str, WeakSet[FusedCall]] = {}  # by name; uses with one name compute the same
_calls_lock = threading.Lock()


def remember_shapes(call: FusedCall) -> None:
    """Lets fake tensors run through the operation; only the process that splices needs it."""
    with _calls_lock:
        for name in [name for name, uses in _calls.items() if not uses]:
            del _calls[name]
        _calls.setdefault(call.name, WeakSet()).add(call)


def _living(name: str) -> FusedCall:
    with _calls_lock:
        return next(iter(_calls[name]))


@torch.library.register_fake("cudal1::fused", lib=_library)  # type: ignore[untyped-decorator]
def _fused_fake(name: str, ins: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """The results as the kernel lays them out: Inductor reads their order in memory again after the pass."""
    call = _living(name)
    made = call.subgraph(*ins, *sizes)
    return [_as_written(x, value) for x, value in zip(made, call.outputs, strict=True)]


def _as_written(x: Tensor, value: Tensor) -> Tensor:
    if x.shape != value.shape or not all(isinstance(s, int) for s in (*value.shape, *value.stride())):
        return x
    return torch.empty_strided(value.shape, value.stride(), dtype=x.dtype, device=x.device)


def _fused_eager(name: str, ins: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """Only a graph that is run without being lowered (a repro script, constant folding) comes here."""
    return list(_living(name).subgraph(*ins, *sizes))


_library.impl("fused", _fused_eager, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


class OutputBuffer(ir.InputsKernel):
    """One output of a KernelCall, allocated by Inductor before the call.

    An InputsKernel only so that IRNode.is_realized_node() says yes; it is no operation of the schedule.
    """

    def __init__(self, layout: ir.Layout, operation: KernelCall) -> None:
        super().__init__(name=None, layout=layout, inputs=[])
        self._operation = operation
        self.name = V.graph.register_buffer(self)

    def get_defining_op(self) -> ir.Operation:
        return self._operation

    def should_allocate(self) -> bool:
        return True


class ScratchWorkspace(WorkspaceArg):
    """A workspace that may be the last thing a graph frees: Inductor then asks for its name as a buffer's."""

    @property
    def name(self) -> str:
        return self.get_name()


class KernelCall(ir.ExternKernel):
    """One scheduler node for one kernel call, with several output buffers."""

    def __init__(self, call: FusedCall, inputs: list[Any], device: torch.device) -> None:
        super().__init__(None, ir.NoneLayout(device=device), inputs, call.symbols)
        self.call = call
        self.outputs_: list[OutputBuffer] = []
        self._device = device
        V.graph.register_operation(self)

    def should_allocate(self) -> bool:
        return False

    def get_outputs(self) -> list[Any]:
        return list(self.outputs_)

    def get_device(self) -> torch.device:
        return self._device

    def get_free_symbol_uses(self, unbacked_only: bool = False) -> Any:
        uses = super().get_free_symbol_uses(unbacked_only)
        for size in (*self.call.symbols, *(s.count for s in self.call.scratch)):
            uses = uses | get_free_symbols(size, unbacked_only)
        return uses

    def codegen(self, wrapper: Any) -> None:
        """Writes allocations and the call. May run twice for one node, so it keeps no state."""
        assert not V.graph.cpp_wrapper, "splice.py leaves every region to Inductor under cpp_wrapper"
        for output in self.outputs_:
            self._allocate(wrapper, output)
        scratch = [self._workspace(s) for s in self.call.scratch]
        for workspace in scratch:
            wrapper.generate_workspace_allocation(workspace)
        args = [o.codegen_reference() for o in self.outputs_] + [w.get_name() for w in scratch]
        inputs: Sequence[Any] = self.inputs
        args += [_pointer(i) for i in inputs]
        args += [wrapper.codegen_python_sizevar(s) for s in self.call.symbols]
        args.append(self._stream(wrapper))
        wrapper.writeline(f"{self._loaded_name(wrapper)}({', '.join(args)})")
        for workspace in scratch:
            wrapper.generate_workspace_deallocation(workspace)

    def _allocate(self, wrapper: Any, output: OutputBuffer) -> None:
        if output.get_name() not in V.graph.removed_buffers:
            wrapper.codegen_allocation(output)
            return
        # a later pass made this output dead, so Inductor plans no memory for it; the kernel still writes it
        layout = output.get_layout()
        wrapper.writeline(
            wrapper.make_allocation(output.get_name(), layout.device, layout.dtype, layout.size, layout.stride)
        )

    def _workspace(self, scratch: ScratchSpec) -> ScratchWorkspace:
        return ScratchWorkspace(
            count=scratch.count,
            zero_mode=WorkspaceZeroMode.UNINITIALIZED,  # the launcher zeroes what the plan says
            device=self._device,
            outer_name=WorkspaceArg.unique_name("cudal1_scratch_"),
            dtype=scratch.dtype,
        )

    def _stream(self, wrapper: Any) -> str:
        if self._device.type != "cuda":
            return "0"
        return str(wrapper.write_get_raw_stream(self._device.index, V.graph.name))

    def _loaded_name(self, wrapper: Any) -> str:
        """Loads the kernel at the generated module's import, once, and returns its name there."""
        root = wrapper.get_root_graph() if hasattr(wrapper, "get_root_graph") else wrapper
        index = self._device.index or 0
        name = f"cudal1_{self.call.entry_id[:24]}_{index}"
        where = f"{self._device.type!r}, {index}"
        load = "load_checked" if self.call.is_checked else "load"
        line = f"{name} = cudal1_registry.{load}({self.call.entry_id!r}, {where}, {self.call.text!r})"
        if not root.imports.contains("import cudal1_compile.dispatch.registry as cudal1_registry"):
            root.imports.writeline("import cudal1_compile.dispatch.registry as cudal1_registry")
        if not root.header.contains(line):
            root.header.writeline(line)
        return name


def _pointer(x: Any) -> str:
    """The tensor to pass: only its address counts, so a view that begins where its buffer does is not made."""
    is_same_place = isinstance(x, ir.ReinterpretView) and x.get_layout().offset == 0
    if is_same_place and V.graph.get_dtype(x.get_name()) == x.get_dtype():
        return str(x.get_name())
    return str(x.codegen_reference())


def _lower_fused(name: str, ins: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
    node = V.graph.current_node
    call: FusedCall = node.meta[META]
    nodes: Any = node.args[1]
    # what follows the inputs only the region's own nodes take
    given = [_as_said(*each) for each in zip(nodes, ins, call.inputs, strict=False)]
    for at, (x, value) in enumerate(zip(given, call.inputs, strict=True)):
        if has_other_layout(x, value) and not _is_small(value, call):
            log.info("entry %s: in%d has another layout here, the region is left to Inductor", name[:12], at)
            return list(lowering.process_subgraph_nodes(call.subgraph, [*ins, *sizes]))
    inputs = [_realize(x, value) for x, value in zip(given, call.inputs, strict=True)]
    kernel = KernelCall(call, inputs, call.outputs[0].device)
    for value in call.outputs:
        kernel.outputs_.append(OutputBuffer(ir.FallbackKernel.tensor_to_layout(value), kernel))
    return [ir.TensorBox.create(output) for output in kernel.outputs_]


lowering.register_lowering(FUSED, type_promotion_kind=None)(_lower_fused)


def _as_said(node: fx.Node, x: Any, value: Tensor) -> Any:
    """An input of the graph itself, where Inductor has made a channels-last copy of it for what else reads it."""
    is_copy = node.op == "placeholder" and has_other_layout(x, value)
    return V.graph.graph_inputs[str(node.target)] if is_copy else x


def has_other_layout(x: Any, value: Tensor) -> bool:
    """Whether `x` already lies in memory otherwise than the graph says (channels-last convolutions do)."""
    if not x.is_realized() if hasattr(x, "is_realized") else False:
        return False
    layout = x.maybe_get_layout() if hasattr(x, "maybe_get_layout") else None
    if not isinstance(layout, ir.FixedLayout) or len(layout.stride) != value.dim():
        return False  # Inductor is still free to choose, or copies what a view cannot say: it will choose ours
    if not all(isinstance(s, int) for s in (*value.shape, *value.stride())):
        return False
    pairs = zip(value.shape, value.stride(), layout.stride, strict=True)
    known_equal = V.graph.sizevars.statically_known_equals
    return any(size > 1 and not known_equal(is_, said) for size, said, is_ in pairs)


def _is_small(value: Tensor, call: FusedCall) -> bool:
    """Weights, mostly: under autocast Inductor lays their casts out as its own convolutions like them."""
    tensors = (*call.inputs, *call.outputs)
    if not all(isinstance(size, int) for x in tensors for size in x.shape):
        return False
    return value.nbytes <= COPIED_SHARE * sum(x.nbytes for x in tensors)


def _realize(x: Any, value: Tensor) -> Any:
    strides = [s if isinstance(s, int) else s.node.expr for s in value.stride()]
    x = ir.ExternKernel.require_exact_strides(x, strides)
    # require_exact_strides leaves tensors of one element or none unrealized
    x = ir.ExternKernel.unwrap_storage_for_input(ir.ExternKernel.realize_input(x))
    if not _may_be_unaligned(x):
        return x
    x = ir.ExternKernel.require_exact_strides(ir.ExternKernel.copy_input(x), strides)
    return ir.ExternKernel.unwrap_storage_for_input(ir.ExternKernel.realize_input(x))


def _may_be_unaligned(x: Any) -> bool:
    """Whether the pointer may break the 16-byte alignment that vector loads rely on."""
    if x.get_name() in V.graph.unaligned_buffers:
        return True
    offset = x.get_layout().offset * x.get_dtype().itemsize
    return not V.graph.sizevars.statically_known_multiple_of(offset, ALIGNMENT_BYTES)
