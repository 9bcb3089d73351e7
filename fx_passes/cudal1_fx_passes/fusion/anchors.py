"""Cuts a graph around its products in up to three ways: each fused with its prologue and epilogue, with its
epilogue alone, or with nothing.

    relu -> conv -> add -> norm      fed: {relu, conv, add, norm}      whole: {relu} {conv, add, norm}
                                     apart: {relu} {conv} {add, norm}

A prologue is pointwise regions that nothing else reads. Apart, everything but the products is cut as if
they were the library's, so that nothing is lost where no kernel of a product wins. Which of them is taken is not
decided here: an Anchor holds all, `cut` puts one in place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import networkx
from torch import fx

from cudal1_fx_passes.errors import ImportRefused
from cudal1_fx_passes.fusion.partition import (
    Anchor,
    Cuts,
    Partition,
    PartitionConfig,
    Region,
    in_order,
    make_region,
    partition,
)
from cudal1_fx_passes.importer.boundary import constant_nodes, is_product, is_view
from cudal1_fx_passes.importer.from_fx import import_region
from cudal1_fx_passes.program.ops import OPS, Kind


def partition_with_products(graph: fx.Graph, config: PartitionConfig | None = None) -> Partition:
    """The whole cut, with the anchors at which there is another."""
    config = config or PartitionConfig()
    whole = partition(graph, replace(config, products=True))
    fed = fed_regions(graph, whole.regions, config.max_ops)
    apart = partition(graph, replace(config, products=False)).regions
    alone = [r for region in whole.regions if (r := _product_of(region, config.max_ops)) is not None]
    return replace(whole, anchors=tuple(_anchors(graph, (fed, whole.regions, (*alone, *apart)))))


def fed_regions(graph: fx.Graph, regions: Sequence[Region], max_ops: int) -> list[Region]:
    """The regions, but those with a product joined with the pointwise ones that they alone read."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    owner = {node: region for region in regions for node in region.nodes}
    joined: dict[int, Region] = {}
    taken: set[int] = set()
    for region in regions:
        products = {n for n in region.nodes if is_product(n)}
        if not products:
            continue
        feeders = {id(a): a for node in region.inputs if (a := owner.get(_looked_at(node, owner))) is not None}
        feeding = {at: n for at, a in feeders.items() if (n := _feeds(a, region, products, owner)) is not None}
        if not feeding:
            continue
        nodes = sorted({n for found in (region.nodes, *feeding.values()) for n in found}, key=order.__getitem__)
        with suppress(ImportRefused):
            joined[id(region)] = make_region(nodes, import_region(nodes, max_ops))
            taken |= feeding.keys()
    return [joined.get(id(r), r) for r in regions if id(r) not in taken]


def _looked_at(node: fx.Node, owner: dict[fx.Node, Region]) -> fx.Node:
    """Behind views that no region has."""
    while node not in owner and is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _feeds(
    feeder: Region, region: Region, products: set[fx.Node], owner: dict[fx.Node, Region]
) -> list[fx.Node] | None:
    """The feeder's nodes, and the views between, where it is pointwise and feeds the region's products alone."""
    if any(OPS[o.fn].kind not in (Kind.POINTWISE, Kind.IOTA) for o in feeder.program.ops):
        return None
    found, left = list(feeder.nodes), list(feeder.outputs)
    reached: set[fx.Node] = set()
    while left:
        for user in left.pop().users:
            at = owner.get(user)
            if at is region:
                reached.add(user)
            elif at is None and is_view(user) and user not in found:
                found.append(user)
                left.append(user)
            elif at is not feeder and user not in found:
                return None
    return found if reached and all(_reaches(user, products, region) for user in reached) else None


def _reaches(node: fx.Node, products: set[fx.Node], region: Region) -> bool:
    """Whether a node of the region is one of its products, or a view for such alone."""
    if node in products:
        return True
    return is_view(node) and all(u in region.nodes and _reaches(u, products, region) for u in node.users)


def cut(found: Partition, chosen: Collection[str]) -> list[Region]:
    """The regions whose fingerprints are chosen, in an executable order.

    An anchor is cut in the widest way of which something that no narrower one has is chosen. Regions of several
    anchors that together could not be put in any order are all taken apart, which is one partition.
    """
    taken = [taken_cut(a.fingerprints, chosen) for a in found.anchors]
    cuts = [a.cuts[-1 if at is None else at] for a, at in zip(found.anchors, taken, strict=True)]
    try:
        return _chosen(found, cuts, chosen)
    except networkx.NetworkXUnfeasible:
        return _chosen(found, [a.cuts[-1] for a in found.anchors], chosen)


def taken_cut(cuts: Cuts, chosen: Collection[str]) -> int | None:
    """The widest of an anchor's cuts of which something is chosen that no narrower one has."""
    return next((at for at in range(len(cuts)) if not only_in(cuts, at).isdisjoint(chosen)), None)


def only_in(cuts: Cuts, at: int) -> set[str]:
    """Fingerprints of one cut that no narrower one has."""
    return set(cuts[at]).difference(*cuts[at + 1 :])


def free_regions(found: Partition) -> list[Region]:
    """Those that are cut in one way only."""
    bound = {r.nodes for a in found.anchors for c in a.cuts for r in c}
    return [r for r in found.regions if r.nodes not in bound]


def _chosen(found: Partition, cuts: Iterable[Iterable[Region]], chosen: Collection[str]) -> list[Region]:
    regions = [*free_regions(found), *(r for c in cuts for r in c)]
    return list(in_order(found.graph, [r for r in regions if r.fingerprint in chosen]))


def _product_of(region: Region, max_ops: int) -> Region | None:
    """The region's product by itself; None where it has none, or where no program can say it."""
    inside = set(region.nodes)
    products = [n for n in region.nodes if is_product(n)]
    taken = {*products, *(u for n in products for u in n.users if isinstance(n.meta["val"], tuple | list))}
    nodes = [n for n in region.nodes if n in taken & inside]
    if not nodes or len(nodes) == len(inside):
        return region if nodes else None
    try:
        return make_region(nodes, import_region(nodes, max_ops))
    except ImportRefused:
        return None


def _anchors(graph: fx.Graph, cuts: Sequence[Sequence[Region]]) -> list[Anchor]:
    """Regions of all cuts that share nodes belong together, and those that are the same need no choice."""
    shared = constant_nodes(list(graph.nodes))  # in every region that reads them
    drawn: networkx.Graph[tuple[int, int]] = networkx.Graph()
    owner: dict[fx.Node, tuple[int, int]] = {}
    for at, regions in enumerate(cuts):
        for i, region in enumerate(regions):
            drawn.add_node((at, i))
            drawn.add_edges_from((owner.setdefault(n, (at, i)), (at, i)) for n in region.nodes if n not in shared)
    found = []
    for members in networkx.connected_components(drawn):
        sides = [tuple(cuts[at][i] for at, i in sorted(members) if at == side) for side in range(len(cuts))]
        nodes = [{r.nodes for r in side} for side in sides]
        kept = tuple(side for at, side in enumerate(sides) if nodes[at] not in nodes[at + 1 :])
        if len(kept) > 1:
            found.append(Anchor(kept))
    return found
