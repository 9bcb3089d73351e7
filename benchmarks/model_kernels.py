"""Which kernels ran, for how long, and which operations of the graph each one of Inductor's stands for.

    profile(segments)            -> microseconds by kernel name, for each segment (a forward, a backward)
    read_origins(code, regions)  -> kernel name -> operations by region, from the comments in Inductor's code

Segments are told apart by a marker kernel between them, so one profile serves a whole model. A kernel that
Inductor uses for several layers is described once, at its first use; its share of each region is taken from
there. Nothing here decides what counts as covered; model_summary.py does.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from cudal1_fx_passes.fusion.partition import Partition

Kind = Literal["triton", "aten", "copy", "library"]
Operations = dict[str, int]  # fingerprint -> operations of that region; OUTSIDE for those of no region
Origins = tuple[dict[str, Operations], Operations]  # of one graph: by kernel of Inductor's, and of all nodes

OUTSIDE = ""
MARKER = "spin_kernel"  # of torch.cuda._sleep
MARKER_CYCLES = 2000
ONLINE_SOFTMAX = "prepare_softmax_online"
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")

_FRAGMENT_LINE = re.compile(r"#\s+%(\w+)\s*:.* = call_function\[target=([\w.]+)\]")
_NAME = re.compile(r"%(\w+)")
_DEFINITION = re.compile(r"(\w+) = async_compile\.\w+\(")
_FREE = {  # they compute nothing by themselves
    *("view", "reshape", "_unsafe_view", "expand", "permute", "unsqueeze", "squeeze", "transpose", "t", "alias"),
    *("slice", "select", "as_strided", "detach", "split", "split_with_sizes", "unbind", "getitem"),
    *("full", "full_like", "scalar_tensor", "iota", "empty", "empty_like", "broadcast_in_dim"),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One piece of work on the device."""

    name: str
    start_us: float
    took_us: float


class ProfileError(RuntimeError):
    """The profiler's record does not fit what was run."""


def profile(segments: Sequence[Callable[[], None]], path: Path) -> list[dict[str, float]]:
    """Microseconds by kernel name of each segment, as `record` runs them. Raises ProfileError."""
    return [_times_by_name(segment) for segment in record(segments, path)]


def record(segments: Sequence[Callable[[], None]], path: Path) -> list[list[Launch]]:
    """Runs every segment once under the profiler; its trace is written to `path`. Raises ProfileError."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for segment in segments:
            torch.cuda._sleep(MARKER_CYCLES)  # type: ignore[no-untyped-call]
            segment()
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return split_launches(read_trace(path.read_text(errors="replace")), len(segments))


def read_trace(text: str) -> list[Launch]:
    """The device's work in a Chrome trace, in order of time."""
    events = json.loads(text).get("traceEvents", [])
    found = [
        Launch(e["name"], float(e["ts"]), float(e.get("dur", 0.0)))
        for e in events
        if e.get("cat") in DEVICE_CATEGORIES
    ]
    return sorted(found, key=lambda launch: launch.start_us)


def split_launches(launches: Sequence[Launch], count: int) -> list[list[Launch]]:
    """What lies between one marker and the next; raises ProfileError if they are not `count`."""
    segments: list[list[Launch]] = []
    for launch in launches:
        if MARKER in launch.name:
            segments.append([])
        elif segments:
            segments[-1].append(launch)
    if len(segments) != count:
        raise ProfileError(f"the profiler recorded {len(segments)} of {count} segments")
    return segments


def _times_by_name(launches: Sequence[Launch]) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for launch in launches:
        found[launch.name] += launch.took_us
    return dict(found)


def mean_times(calls: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Microseconds by name, over several calls of one segment."""
    names = dict.fromkeys(name for call in calls for name in call)
    return {name: sum(call.get(name, 0.0) for call in calls) / len(calls) for name in names}


def kind_of(name: str) -> Kind:
    """Whose work a kernel is. Inductor's own are `triton`; what nobody else claims is a library's."""
    if name.startswith("triton_"):
        return "triton"
    if name.startswith(("Memcpy", "Memset")):
        return "copy"
    return "aten" if "at::native" in name or "at_cuda_detail" in name or "at::cuda" in name else "library"


def base_name(name: str) -> str:
    """`void apply<4>(float*, int)` -> `apply`"""
    plain = re.split(r"[<(]", name.removeprefix("void ").strip(), maxsplit=1)[0]
    return plain.rpartition("::")[2].strip()


def own_us(times: Mapping[str, float], kernels: Collection[str]) -> float:
    """Time in kernels of these names (a model's, written for a region)."""
    return sum(us for name, us in times.items() if kind_of(name) == "library" and base_name(name) in kernels)


def regions_by_node(found: Partition) -> dict[str, str]:
    """Node name -> fingerprint of the region that takes it, OUTSIDE for the graph's other nodes."""
    names = {node.name: OUTSIDE for node in found.graph.nodes}
    return names | {node.name: region.fingerprint for region in found.regions for node in region.nodes}


def read_origins(code: str, regions: Mapping[str, str]) -> dict[str, Operations]:
    """From a module that Inductor generated: the operations of each kernel by region, views not counted.

    Online softmax, which a later pass of Inductor's puts in the place of a maximum, a difference, an exponential
    and a sum, counts for the region of what reads its results.
    """
    regions = _with_rewritten(code, regions)
    found: dict[str, Operations] = {}
    fragment: Counter[str] = Counter()
    for line in code.splitlines():
        if line.startswith("# Graph fragment:"):
            fragment = Counter()
        elif (origin := _FRAGMENT_LINE.match(line)) is not None:
            if computes(origin[2]):
                fragment[regions.get(origin[1], OUTSIDE)] += 1
        elif (definition := _DEFINITION.match(line)) is not None:
            found[definition[1]] = dict(fragment)
            fragment = Counter()
    return found


def _with_rewritten(code: str, regions: Mapping[str, str]) -> dict[str, str]:
    """`regions`, and those of the nodes of online softmax, found by what reads them."""
    lines = [(o, line[o.end() :]) for line in code.splitlines() if (o := _FRAGMENT_LINE.match(line))]
    operands = {origin[1]: _NAME.findall(rest) for origin, rest in lines}
    new = {origin[1] for origin, _ in lines if ONLINE_SOFTMAX in origin[2] and origin[1] not in regions}
    for name, read in operands.items():  # what is read stands before its readers
        if name not in regions and new & set(read):
            new.add(name)
    found = dict(regions)
    for name, read in reversed(operands.items()):
        for n in new & set(read):
            found[n] = found.get(n) or found.get(name, OUTSIDE)
    return found


def count_operations(found: Partition) -> Operations:
    """All operations of a graph by region. Stands in for kernels where Inductor's code does not name origins."""
    regions = regions_by_node(found)
    names = [n for n in found.graph.nodes if n.op == "call_function" and computes(str(n.target))]
    return dict(Counter(regions.get(n.name, OUTSIDE) for n in names))


def computes(target: str) -> bool:
    """Whether a node with this target does work of its own: no view, no constant."""
    return _operation(target) not in _FREE


def _operation(target: str) -> str:
    """`torch.ops.aten.add.Tensor` and `aten.add.Tensor` -> `add`; `operator.getitem` -> `getitem`"""
    parts = target.removeprefix("torch.ops.").split(".")
    return "getitem" if "getitem" in target else parts[1] if len(parts) > 1 else parts[0]
