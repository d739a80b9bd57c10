"""Grouped dimensions: a dimension of two factors, both of which axes may split.

The query heads of attention with fewer key heads are (key head, query of it). An axis splits the
key heads K of queries, keys and values; of the queries of a key head another axis can split
G where each device has one key head. Its part of the query heads is then still a piece of them,

    device (i, j) of K x G has query heads   i H / K + j H / (K G)   and those that follow,

and keys and values are whole along that axis. So a group that holds query heads has a region of
its own: the dimensions from which no key is reached but through such an operation, each of which
divides into K G parts. It is split as any regional class is, into H / K parts at most, and its
part of the operation is the inner factor                               -> in: `with_grouped`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import math

import numpy as np

from hlo_tools.analyses.batches import Batch
from hlo_tools.analyses.linkage import Edges, Linkage, node_sizes
from hlo_tools.analyses.regions import Grouped, Regions
from hlo_tools.graph import Op
from hlo_tools.rules import FactorKind, Rule


Places = list[tuple[int, int]]

_LINKING = (FactorKind.PASSTHROUGH, FactorKind.REDUCTION)


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Operations of one rule with an inner factor, and where the two factors stand together."""

    batch: Batch
    outer: int
    inner: int
    place: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Link:
    """Operations of one rule that keep a factor split, and one of its places."""

    batch: Batch
    factor: int
    place: tuple[int, int]


def inner_factor(rule: Rule) -> tuple[int, int] | None:
    """The (outer, inner) factors of a rule, of which the second stands only right behind the
    first; None if there are none, or several.
    """
    dims = [dim for tensor in (*rule.operands, *rule.results) for dim in tensor]
    passing = {n for n, f in enumerate(rule.factors) if f.kind is FactorKind.PASSTHROUGH}
    pairs = {dim[:2] for dim in dims if len(dim) > 1 and passing.issuperset(dim[:2])}
    # Where it stands alone it is a decision of its own.
    pairs = {
        (outer, inner)
        for outer, inner in pairs
        if all(inner not in dim or dim[:2] == (outer, inner) for dim in dims)
    }
    return next(iter(pairs)) if len(pairs) == 1 else None


def with_grouped(
    regions: Regions,
    linkage: Linkage,
    class_of_group: np.ndarray,
    runs_per_device: Callable[[Op], bool],
) -> Regions:
    """The regions with those of grouped dimensions; `runs_per_device` says of which operations each
    device runs its own part, however it is cut out of the whole.
    """
    graph, edges = linkage.graph, Edges(linkage.node_offset)
    pairs = [
        inner_factor(batch.rule) if runs_per_device(graph.ops[int(batch.ops[0])]) else None
        for batch in linkage.batches
    ]
    # In most steps there are none.
    if not any(pairs):
        return regions
    varies = np.array(graph.varies, bool) & ~np.array(graph.is_local, bool)
    crossings, links = _link_all(edges, linkage, pairs, varies)
    if not crossings:
        return regions
    component, limits = edges.groups(*node_sizes(graph, linkage.node_offset, varies))
    class_of_node = np.append(class_of_group, -1)[linkage.group_of_node]
    starts = [(crossing, edges.nodes(crossing.batch, crossing.place)) for crossing in crossings]
    grouped = {
        own: region
        for own, region in _grouped(starts, class_of_node, limits[component]).items()
        # A class has one region: around its experts, or here.
        if own >= 0 and own not in regions.classes
    }
    started = np.unique(np.concatenate([component[nodes] for _, nodes in starts]))
    is_inside = np.isin(component, started) & np.isin(class_of_node, list(grouped))
    factor_classes, inner_of_op = regions.class_of_factor.copy(), dict[int, int]()
    for link in links:
        inside = is_inside[nodes := edges.nodes(link.batch, link.place)]
        inside &= linkage.factor_groups[link.batch.ops, link.factor] >= 0
        factor_classes[link.batch.ops[inside], link.factor] = class_of_node[nodes[inside]]
    for crossing, nodes in starts:
        inside = is_inside[nodes]
        ops = crossing.batch.ops[inside]
        factor_classes[ops, crossing.inner] = class_of_node[nodes[inside]]
        inner_of_op |= dict.fromkeys(ops.tolist(), crossing.inner)
    return replace(
        regions,
        class_of_node=np.where(is_inside, class_of_node, regions.class_of_node),
        class_of_factor=factor_classes,
        grouped=grouped,
        inner_of_op=inner_of_op,
    )


def _link_all(
    edges: Edges, linkage: Linkage, pairs: Sequence[tuple[int, int] | None], varies: np.ndarray
) -> tuple[list[_Crossing], list[_Link]]:
    """Link all that factors link, but for outer ones where they stand alone; `pairs` are the
    (outer, inner) factors of each batch of `linkage`.
    """
    crossings, links = list[_Crossing](), list[_Link]()
    for batch, pair in zip(linkage.batches, pairs, strict=True):
        rule = batch.rule
        for part, held in batch.split(varies[batch.values]):
            for factor, places in enumerate(part.places(held)):
                what = rule.factors[factor]
                if not places or what.kind not in _LINKING or what.halo is not None:
                    continue
                size = what.size
                if pair is not None and factor == pair[0]:
                    places = [place for place in places if _dim(rule, place)[:2] == pair]
                    size *= rule.factors[pair[1]].size
                    crossings += [_Crossing(part, *pair, places[0])] if places else []
                else:
                    links.append(_Link(part, factor, places[0]))
                edges.link(part, places, size)
    ties = [(a, b) for a, b in linkage.graph.ties if varies[a] and varies[b]]
    edges.tie(ties, linkage.graph)
    return crossings, links


def _dim(rule: Rule, place: tuple[int, int]) -> tuple[int, ...]:
    tensor, dim = place
    return (*rule.operands, *rule.results)[tensor][dim]


def _grouped(
    starts: Sequence[tuple[_Crossing, np.ndarray]], class_of_node: np.ndarray, limits: np.ndarray
) -> dict[int, Grouped]:
    """By class, what its components have in common; nothing where queries are no groups of keys'
    heads everywhere, or their heads do not divide. `limits` are those of the nodes' components.
    """
    outer: dict[int, set[int]] = {}
    common: dict[int, int] = {}
    for crossing, nodes in starts:
        size = crossing.batch.rule.factors[crossing.outer].size
        for own, limit in zip(class_of_node[nodes].tolist(), limits[nodes].tolist(), strict=True):
            outer.setdefault(own, set()).add(size)
            common[own] = math.gcd(common.get(own, 0), limit)
    return {
        own: Grouped(size, common[own] // size)
        for own, sizes in outer.items()
        for size in sizes
        if len(sizes) == 1 and common[own] % size == 0 and common[own] > size
    }
