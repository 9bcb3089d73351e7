"""Stands in for lookup and loading: every region gets a kernel that is the region itself, run with aten.

So the hook (collecting, splicing, lowering, views, layouts) is tested without writing kernels. Test files take
the fixture `every_region` from here; it yields the entry ids of all kernel calls. It keeps no tensor of a call:
one of a CUDA graph's pool that lives on is an error of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import list_mode_options

from cudal1_compile.dispatch import registry
from cudal1_compile.inductor.graph_plan import ChosenKernel, GraphPlanned, PlannedRegion, SeenRegion
from cudal1_compile.kernel.candidate import Candidate, _parse_scratch
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline import planner
from cudal1_fx_passes.program.text import parse_program


@dataclass
class Calls:
    """Entry ids of kernel calls, and the plans of all compiles, in order."""

    ran: list[str] = field(default_factory=list)
    plans: list[GraphPlanned] = field(default_factory=list)
    buffers: list[list[tuple[torch.dtype, torch.Size]]] = field(default_factory=list)  # of each call, its tensors
    scratch: str = ""  # launch-plan lines that every kernel declares

    def __len__(self) -> int:
        return len(self.ran)


@pytest.fixture
def every_region(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    calls = Calls()

    def look_up(self: planner.Planner, seen: SeenRegion) -> PlannedRegion:
        return PlannedRegion(seen, "hit", "", entry_id=f"reference{seen.fingerprint[:40]}")

    def kernels(self: planner.Planner, chosen: dict[str, str], plan: GraphPlanned) -> dict[str, ChosenKernel]:
        texts = {r.fingerprint: r.seen.text for r in plan.regions}
        return {f: ChosenKernel(entry, texts[f], declared()) for f, entry in chosen.items()}

    def declared() -> Candidate:
        return Candidate("", tuple(_parse_scratch(line) for line in calls.scratch.splitlines()), ())

    def load(entry_id: str, device: torch.device, text: str) -> registry.KernelFunction:
        reference = registry.load_reference(parse_program(text), device)

        def run(*args: Any) -> None:
            calls.ran.append(entry_id)
            calls.buffers.append([(a.dtype, a.shape) for a in args if isinstance(a, Tensor)])
            reference(*args)

        return run

    def report(plan: GraphPlanned, kind: str) -> None:
        calls.plans.append(plan)

    monkeypatch.setattr(planner.Planner, "look_up", look_up)
    monkeypatch.setattr(planner.Planner, "kernels", kernels)
    monkeypatch.setattr(registry, "_load_or_reference", load)
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(pipeline, "report", report)
    monkeypatch.setattr(pipeline, "may_try", lambda: False)
    monkeypatch.setattr(
        pipeline, "_untried", lambda plan: "all_kernels" if plan.choice == "deciding" else plan.choice
    )
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield calls
    torch._dynamo.reset()


def mode_options(mode: str | None) -> dict[str, Any]:
    """A mode as Inductor's options: torch.compile takes a mode or options, never both."""
    return list_mode_options(mode) if mode else {}


def compiled(
    fn: Callable[..., Any], target: str = "host", mode: str | None = None, **settings: Any
) -> Callable[..., Any]:
    options = {"target": target} | mode_options(mode)
    return torch.compile(fn, backend="cudal1", options=options, **settings)  # type: ignore[no-any-return]
