"""options={"shadow": 0.001}: that share of a graph's calls runs a graph in which every kernel call is compared.

    call -> due? -> the checked graph: each kernel against its region, the region's results where they differ
                 -> otherwise the plain one, as fast as without the option

The checked graph is compiled beside the plain one, of the same nodes in the same order (so that ranks which check
different calls still meet at every collective), and without CUDA graphs. Which of them runs is settled before a
call and holds for its backward. Of n calls those are checked at which n * share + OFFSET passes a whole number;
OFFSET is drawn once a process, so that many short processes do not all check the same call. While the user
captures a CUDA graph nothing is checked. A checked call draws the random numbers that a plain one draws; what
memory it needs beyond that is said in call_check.py.

After a mismatch the registry runs the region with aten, in every graph. But a CUDA graph replays what it recorded:
so at its next call the graph is compiled again, without kernels. Where that cannot be (symbolic sizes; several
ranks, whose graphs must stay alike) and there are CUDA graphs, the checked graph takes all further calls.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch._dynamo.utils import preserve_rng_state

from cudal1_compile.dispatch import registry
from cudal1_compile.dispatch.call_check import is_capturing
from cudal1_compile.inductor.graph_plan import KERNEL_FREE
from cudal1_compile.pipeline.choice import CompiledGraph, VariantTrial

log = logging.getLogger(__name__)

OFFSET = secrets.randbelow(1 << 32) / (1 << 32)  # not of a generator that the user may have seeded


class Shadow:
    """Callable in place of the compiled graph."""

    def __init__(
        self,
        plain: CompiledGraph,
        checked: CompiledGraph,
        share: float,
        entries: Collection[str],
        device: torch.device,
        without_kernels: Callable[[Sequence[Any]], CompiledGraph] | None,
        has_cuda_graphs: bool,
    ) -> None:
        """entries: of the kernels. without_kernels: compiles the graph anew, for a call's inputs."""
        self.plain, self.checked, self.share = plain, checked, share
        self._entries, self._device = set(entries), device
        self._without_kernels, self._has_cuda_graphs = without_kernels, has_cuda_graphs
        self._numbers = itertools.count()

    def __call__(self, *args: Any) -> Any:
        if is_capturing(self._device):
            return self.plain(*args)
        if registry.are_refuted(self._entries):
            self._fall_back(args)
        return self.checked(*args) if self._is_due() else self.plain(*args)

    def _is_due(self) -> bool:
        n = next(self._numbers)
        return int((n + 1) * self.share + OFFSET) > int(n * self.share + OFFSET) and self._has_kernels()

    def _has_kernels(self) -> bool:
        """A trial may have decided against them."""
        return not isinstance(self.plain, VariantTrial) or not self.plain.variants.keys() <= set(KERNEL_FREE)

    def _fall_back(self, args: Sequence[Any]) -> None:
        self._entries = set()  # what follows is done once
        if self._has_cuda_graphs:
            self.plain = self.checked
        if self._without_kernels is None:
            return
        try:
            with preserve_rng_state():  # a compile may time its choices on random data
                self.plain = self._without_kernels(args)
            self.share = 0.0
        except Exception as error:  # noqa: BLE001  the region runs with aten already
            log.warning("the graph is not compiled again without kernels: %s: %s", type(error).__name__, error)
