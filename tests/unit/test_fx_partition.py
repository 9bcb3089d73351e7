"""Where the partitioner cuts, and that what it cuts is convex, whole and replaceable, on random graphs too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import networkx
import pytest
import torch
from fx_check import check_convex, check_region, check_spliced, node_values
from fx_trace import tensor, trace
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.fusion.partition import Partition, PartitionConfig, partition, region_graph
from cudal1_fx_passes.importer.boundary import rematerialised_nodes
from cudal1_fx_passes.importer.capture import CapturedGraph
from cudal1_fx_passes.program.canonical import fingerprint


def cut(run: Callable[..., Any], *inputs: Tensor, config: PartitionConfig | None = None) -> Partition:
    gm = trace(run, *inputs)
    gm.graph.eliminate_dead_code()
    found = partition(gm.graph, config)
    check_convex(gm.graph, found)
    return found


def functions(found: Partition) -> list[list[str]]:
    return [[op.fn for op in r.program.ops] for r in found.regions]


X, W = tensor(32, 64), tensor(64, 64, seed=1)


# what belongs together


def test_softmax_and_its_scale_and_mask_are_one_region() -> None:
    found = cut(lambda x, m: (x * 0.125).masked_fill(m, -9.0).softmax(-1), X, X > 1)
    assert functions(found)[0].count("amax") == 1 and len(found.regions) == 1


def test_residual_norm_and_activation_are_one_region() -> None:
    found = cut(lambda x, y, w: F.silu(F.layer_norm(x + y, (64,), w)) * y, X, X + 1, W[0])
    assert len(found.regions) == 1


def test_training_statistics_of_a_batch_norm_and_their_use_are_one_region() -> None:
    def norm(x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        return F.max_pool2d(F.relu((x - mean) * torch.rsqrt(var + 1e-5)), 2)

    assert len(cut(norm, tensor(4, 8, 6, 6)).regions) == 1


def test_a_norm_that_would_make_a_region_too_wide_is_cut_before_its_statistics() -> None:
    """And not between them and their use."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        return F.group_norm(F.conv3d(x, w, groups=2), 4) * 2

    gm = trace(run, tensor(2, 4, 6, 6, 6), tensor(8, 2, 3, 3, 3))
    found = partition(gm.graph, PartitionConfig(products=True))
    check_convex(gm.graph, found)
    first, norm = functions(found)
    assert first == ["dot"] and {"var", "mean", "rsqrt"} <= set(norm)


def test_a_loss_reduces_rows_and_then_the_batch() -> None:
    found = cut(lambda x, t: F.nll_loss(x.log_softmax(1), t), X, torch.arange(32))
    kinds = [fn for fns in functions(found) for fn in fns]
    assert "amax" in kinds


def test_row_and_column_sums_of_one_tensor_share_a_region() -> None:
    """As the two halves of a norm's backward do."""
    found = cut(lambda x, y: ((x * y).sum(1), (x * y * 2).sum(0), x.sum(0)), X, X + 1)
    assert len(found.regions) == 1


# what does not


def test_a_function_of_single_elements_is_inductors() -> None:
    """As FlexAttention's are, which it writes into its own loop, a table that they read or not."""

    def score(s: Tensor, i: Tensor, j: Tensor, table: Tensor) -> Tensor:
        return (s + torch.ops.aten.index.Tensor(table, [i, j]) * 0.5).tanh() * 3

    found = cut(score, torch.tensor(1.0), torch.tensor(2), torch.tensor(3), torch.randn(16, 16))
    assert not found.regions and "single elements" in " ".join(found.refused.values())


def test_a_library_call_separates() -> None:
    found = cut(lambda x, w: (torch.relu(x) * 2) @ w + x.sin() * 3, X, W)
    assert len(found.regions) == 2
    assert "left to the library" in found.refused["mm"]


def test_a_column_sum_of_what_rows_gave_is_a_region_of_its_own() -> None:
    found = cut(lambda x: (x.softmax(1) * 2).sum(0) * 3, tensor(256, 64))
    assert [r.program.ops[-1].fn for r in found.regions] == ["mul", "mul"]
    assert len(found.regions) == 2


def test_a_path_through_a_library_call_separates() -> None:
    """b needs a twice: directly, and through the product."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        a = x.sin() * 2
        return (a @ w) * 2 + a.cos() * a

    assert functions(cut(run, X, W)) == [["sin", "mul", "cos", "mul"], ["mul", "add"]]


def test_x_plus_its_transpose_is_cut_between_them() -> None:
    found = cut(lambda x: (x.exp() * 2) + (x.exp() * 2).t().sin() * 3, tensor(16, 16))
    assert found.regions and all(len({*i.axes}) == len(i.axes) for r in found.regions for i in r.program.inputs)


def test_single_pointwise_operations_and_tiny_work_stay_outside() -> None:
    assert "single pointwise" in cut(lambda x: x.sin(), X).refused["sin"]
    assert "too small" in cut(lambda x: x.sin() * 2, tensor(8)).refused["sin"]


def test_regions_stay_within_the_limit() -> None:
    def chain(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x.sin() * 2
        return x

    found = cut(chain, X, config=PartitionConfig(max_ops=16))
    assert len(found.regions) >= 5 and max(len(r.program.ops) for r in found.regions) <= 16


# the boundary


def test_views_at_the_boundary_stay_outside() -> None:
    found = cut(lambda x: (x.view(8, 4, 64).sin() * 2).view(32, 64), X)
    assert len(found.regions[0].nodes) == 2
    assert found.refused["view"] == found.refused["view_1"] == "a view at the boundary of a region"


def test_a_view_of_a_tensor_that_is_read_too_stays_inside() -> None:
    """Then the region reads one tensor and not two."""
    found = cut(lambda x: x.sin() + x.view(32, 64, 1).cos().view(32, 64), X)
    assert len(found.regions[0].inputs) == 1


def test_a_view_with_users_outside_is_rematerialised() -> None:
    def run(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = (x.sin() * 2).view(64, 32)
        return y.sum(1) * 3, y.t() @ w[:64]

    found = cut(run, X, W)
    (region,) = found.regions
    assert [n.name for n in rematerialised_nodes(region.nodes)] == ["view"]
    assert {n.name for n in region.outputs} >= {"mul"}


def test_constants_are_made_by_every_reader() -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        mask = torch.arange(64) < 50
        return (x * mask).sin() @ w * mask + 1

    found = cut(run, X, W)
    assert len(found.regions) == 2 and all("iota" in fns for fns in functions(found))
    assert "constant" in found.refused.get("arange", "constant")


def test_every_node_outside_has_a_reason() -> None:
    gm = trace(lambda x, w: ((x @ w).sort(1)[0] * 2 + 1).softmax(-1), X, W)
    found = partition(gm.graph)
    taken = {n for r in found.regions for n in r.nodes}
    outside = {n.name for n in gm.graph.nodes if n.op == "call_function" and n not in taken}
    assert outside == set(found.refused) and all(found.refused.values())


def test_regions_are_canonical_and_valued() -> None:
    found = cut(lambda x, w: (x.sin() * 2) @ w + (x.relu() + x).softmax(1), X, W)
    for region in found.regions:
        assert region.fingerprint == fingerprint(region.program)
        assert len(region.inputs) == len(region.program.inputs)
        assert len(region.outputs) == len(region.program.outputs)
    assert found.regions[0].bytes_moved == 2 * 32 * 64 * 4


def test_zeros_of_either_sign_are_two_programs() -> None:
    def filled_with(zero: float) -> Partition:
        return cut(lambda x: x.sin().masked_fill(x > 1, zero), X)

    assert filled_with(0.0).regions[0].fingerprint != filled_with(-0.0).regions[0].fingerprint


def test_the_same_layer_twice_has_one_fingerprint() -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = F.gelu(x @ w)
        return x

    found = cut(run, X, W)
    assert len(found.regions) == 3 or len(found.refused) >= 3
    gm = trace(lambda x, w: torch.tanh((torch.tanh(x @ w * 2) @ w) * 2), X, W)
    assert len({r.fingerprint for r in partition(gm.graph).regions}) == 1


def test_the_drawing_holds_regions_and_library_calls() -> None:
    found = cut(lambda x, w: ((x.sin() * 2) @ w).softmax(1), X, W)
    drawn = region_graph(found)
    assert list(networkx.topological_sort(drawn)) == ["region 0", "mm", "region 1"]
    assert drawn.nodes["region 1"]["kind"] == "region" and drawn.nodes["mm"]["kind"] == "library"


# random graphs


class _Maker:
    """A random function over two matrices and a row; the same seed gives the same function."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, x: Tensor, w: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        rng = random.Random(self.seed)
        pool = [x, x * row]
        for _ in range(rng.randint(4, 24)):
            pool.append(self._step(rng, pool, w, row))
        return tuple(pool[i] for i in sorted({len(pool) - 1, rng.randrange(2, len(pool))}))

    def _step(self, rng: random.Random, pool: list[Tensor], w: Tensor, row: Tensor) -> Tensor:
        a, b = rng.choice(pool[-6:]), rng.choice(pool)
        kind = rng.randrange(13)
        if kind < 4:
            return (torch.sin, torch.tanh, torch.relu, torch.sigmoid)[kind](a)
        steps: list[Callable[[], Tensor]] = [
            lambda: a + b,
            lambda: a * b,
            lambda: a * row,
            lambda: a.softmax(rng.randrange(2)),
            lambda: a - a.mean(rng.randrange(2), keepdim=True),
            lambda: (a @ w).tanh(),
            lambda: torch.cat([-a[:, 8:], a[:, :8]], 1),
            lambda: a.view(4, 4, 16).transpose(0, 1).reshape(16, 16),
            lambda: a.t().contiguous() if rng.random() < 0.3 else a.abs().sqrt(),
        ]
        return steps[kind - 4]()


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_random_graphs(seed: int) -> None:
    inputs = [tensor(16, 16), tensor(16, 16, seed=1) * 0.2, tensor(16, seed=2)]
    gm = trace(_Maker(seed), *inputs)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    graph = CapturedGraph("inference", gm, list(inputs))
    found = partition(gm.graph)
    check_convex(gm.graph, found)
    values = node_values(graph)
    for region in found.regions:
        check_region(region, values)
    check_spliced(graph)


@pytest.mark.parametrize("count", [100, 400])
def test_long_graphs_are_cut_into_the_same_few_regions(count: int) -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(count // 10):
            x = x + (F.silu(x * 0.5) @ w).softmax(-1) * 0.25
        return x

    found = cut(run, X, W)
    assert len({r.fingerprint for r in found.regions}) <= 3
