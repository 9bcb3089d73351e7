"""Cuts a graph around its products in two ways: each with what follows it, or by itself.

    conv -> add -> norm -> relu      whole: {conv, add, norm, relu}      apart: {conv} {add, norm, relu}

Apart, everything but the products is cut as if they were the library's, so that nothing is lost where no kernel
of a product wins. Which of the two is taken is not decided here: an Anchor holds both, `cut` puts one in place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import networkx
from torch import fx

from cudal1_fx_passes.border import constant_nodes, lowering_of
from cudal1_fx_passes.errors import ImportRefused
from cudal1_fx_passes.from_fx import import_region
from cudal1_fx_passes.partition import Anchor, Partition, PartitionConfig, Region, in_order, make_region, partition


def partition_with_products(graph: fx.Graph, config: PartitionConfig | None = None) -> Partition:
    """The whole cut, with the anchors at which there is another."""
    config = config or PartitionConfig()
    whole = partition(graph, replace(config, products=True))
    apart = partition(graph, replace(config, products=False)).regions
    alone = [r for region in whole.regions if (r := _product_of(region, config.max_ops)) is not None]
    return replace(whole, anchors=tuple(_anchors(graph, whole.regions, (*alone, *apart))))


def cut(found: Partition, chosen: Collection[str]) -> list[Region]:
    """The regions whose fingerprints are chosen, in an executable order.

    An anchor is whole where something that it has only then is chosen. Regions of several anchors that together
    could not be put in any order are all taken apart, which is one partition.
    """
    sides = [a.whole if only_whole(a) & set(chosen) else a.apart for a in found.anchors]
    try:
        return _chosen(found, sides, chosen)
    except networkx.NetworkXUnfeasible:
        return _chosen(found, [a.apart for a in found.anchors], chosen)


def only_whole(anchor: Anchor) -> set[str]:
    return {r.fingerprint for r in anchor.whole} - {r.fingerprint for r in anchor.apart}


def free_regions(found: Partition) -> list[Region]:
    """Those that are cut in one way only."""
    bound = {id(r) for a in found.anchors for r in a.whole}
    return [r for r in found.regions if id(r) not in bound]


def _chosen(found: Partition, sides: Iterable[Iterable[Region]], chosen: Collection[str]) -> list[Region]:
    regions = [*free_regions(found), *(r for side in sides for r in side)]
    return list(in_order(found.graph, [r for r in regions if r.fingerprint in chosen]))


def _product_of(region: Region, max_ops: int) -> Region | None:
    """The region's product by itself; None where it has none, or where no program can say it."""
    inside = set(region.nodes)
    products = [n for n in region.nodes if (found := lowering_of(n)) is not None and found.role == "product"]
    taken = {*products, *(u for n in products for u in n.users if isinstance(n.meta["val"], tuple | list))}
    nodes = [n for n in region.nodes if n in taken & inside]
    if not nodes or len(nodes) == len(inside):
        return region if nodes else None
    try:
        return make_region(nodes, import_region(nodes, max_ops))
    except ImportRefused:
        return None


def _anchors(graph: fx.Graph, whole: Collection[Region], apart: Collection[Region]) -> list[Anchor]:
    """Regions of both cuts that share nodes belong together, and those that are the same need no choice."""
    shared = constant_nodes(list(graph.nodes))  # in every region that reads them
    drawn: networkx.Graph[int] = networkx.Graph()
    regions = [*whole, *apart]
    owner: dict[fx.Node, int] = {}
    for at, region in enumerate(regions):
        drawn.add_node(at)
        drawn.add_edges_from((owner.setdefault(n, at), at) for n in region.nodes if n not in shared)
    found = []
    for members in networkx.connected_components(drawn):
        one = tuple(regions[at] for at in sorted(members) if at < len(whole))
        other = tuple(regions[at] for at in sorted(members) if at >= len(whole))
        if {r.nodes for r in one} != {r.nodes for r in other}:
            found.append(Anchor(one, other))
    return found
