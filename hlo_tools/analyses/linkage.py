"""Linkage groups: the (value, dimension) nodes that one decision forces together.

A *node* is a dimension of size > 1 of a value that varies with the step's inputs, and is not a
device's own part already (`shard_map`). A rule's factor f links the nodes of which f is the major
factor: splitting one of them into k contiguous parts splits all of them (a minor factor would be
split in an interleaved way, so it links nothing). A window links only nodes of one size: images of
two resolutions are two decisions, and an op between them splits f as its smaller image is. Groups
are the connected components; `Linkage.limits` are the greatest numbers of equal parts that all
members allow, the gcd of the sizes of the linking factors.

    node n of value v, dim d:   node_offset[v] + d
    group of node n:            group_of_node[n], -1 for none
    group of op o, factor f:    factor_groups[o, f], -1 where o cannot keep f split, or has none

Components are found in numpy: labels are hooked onto smaller labels and paths shortened until
nothing moves                                                            -> in: `components`
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math

import numpy as np

from hlo_tools.analyses.batches import Batch, batches
from hlo_tools.graph import Graph, Op
from hlo_tools.module import NO_ATTRIBUTES
from hlo_tools.rules import CallRules, Factor, FactorKind, Rule, make_rule


Places = list[tuple[int, int]]

_LINKING = (FactorKind.PASSTHROUGH, FactorKind.REDUCTION)


@dataclass(frozen=True)
class Linkage:
    """The groups of a graph. Arrays are indexed as the module docstring says."""

    graph: Graph
    rules: Sequence[Rule]
    batches: Sequence[Batch]
    node_offset: np.ndarray
    group_of_node: np.ndarray
    limits: np.ndarray
    factor_groups: np.ndarray

    @property
    def n_groups(self) -> int:
        """Number of groups; group ids are 0 .. n_groups - 1."""
        return len(self.limits)

    def groups(self, value: int) -> tuple[int, ...]:
        """Group of each dimension of a value, -1 where there is none."""
        start = self.node_offset[value]
        return tuple(self.group_of_node[start : self.node_offset[value + 1]].tolist())


def _links(factor: Factor) -> bool:
    return factor.kind in _LINKING or factor.halo is not None


def op_rules(graph: Graph, user_rules: CallRules) -> list[Rule]:
    """The rule of every op. Ops of equal shapes and attributes share one object."""
    cache: dict[object, Rule] = {}
    rules: list[Rule] = []
    values = graph.values
    for op in graph.ops:
        operands = [values[v].dims for v in op.inputs]
        results = [values[v].dims for v in op.outputs]
        # Layers repeat: far fewer rules than ops have to be made.
        key = (op.opcode, tuple(operands), tuple(results), _attributes(op))
        rule = cache.get(key)
        if rule is None:
            rule = cache[key] = make_rule(op.instruction, op.opcode, operands, results, user_rules)
        rules.append(rule)
    return rules


def _attributes(op: Op) -> object:
    attributes = op.instruction.attributes
    return op.instruction.dimensions, None if attributes is NO_ATTRIBUTES else attributes


def node_offsets(graph: Graph) -> np.ndarray:
    """Index of the first node of each value, and one past the last."""
    ranks = np.fromiter((len(v.dims) for v in graph.values), np.int64, len(graph.values))
    return np.concatenate([[0], np.cumsum(ranks)])


def link(graph: Graph, rules: Sequence[Rule]) -> Linkage:
    """Groups of all dimensions of all varying values, by the rules of all ops."""
    offset = node_offsets(graph)
    # Constants link nothing: any device can make the part that it needs. Nor does what `shard_map`
    # has split: its shapes are those of one device.
    varies = np.array(graph.varies, bool) & ~np.array(graph.is_local, bool)
    by_rule = batches(graph, rules)
    parts = [part for b in by_rule for part in b.split(varies[b.values])]
    edges = Edges(offset)
    for batch, held in parts:
        for factor, places in zip(batch.rule.factors, batch.places(held)):
            if factor.halo is not None:
                _link_images(edges, batch, places, graph)
            elif _links(factor):
                edges.link(batch, places, factor.size)
    edges.tie([(a, b) for a, b in graph.ties if varies[a] and varies[b]], graph)
    members, sizes = node_sizes(graph, offset, varies)
    group_of_node, limits = edges.groups(members, sizes)
    factor_groups = np.full((len(rules), _width(rules)), -1, np.int64)
    for batch, held in parts:
        # Where a factor is minor, as in a reshape that merges, a device would have pieces of it:
        # the op cannot keep it split. An op on constants alone can make any pieces.
        minor = _minor_factors(batch.rule) if any(held[: len(batch.rule.operands)]) else ()
        for index, places in enumerate(batch.places(held)):
            if places and _links(batch.rule.factors[index]) and index not in minor:
                has_halo = batch.rule.factors[index].halo is not None
                smallest = min(_by_size(batch, places, graph).items())[1] if has_halo else places
                factor_groups[batch.ops, index] = group_of_node[edges.nodes(batch, smallest[0])]
    return Linkage(graph, rules, by_rule, offset, group_of_node, limits, factor_groups)


def _by_size(batch: Batch, places: Places, graph: Graph) -> dict[int, Places]:
    """The places of each size, which is that of all ops of the batch."""
    by_size: dict[int, Places] = {}
    for tensor, dim in places:
        size = graph.values[batch.values[0, tensor]].dims[dim]
        by_size.setdefault(size, []).append((tensor, dim))
    return by_size


def _link_images(edges: "Edges", batch: Batch, places: Places, graph: Graph) -> None:
    """Link places of equal size; parts of the smallest must be parts of all."""
    by_size = _by_size(batch, places, graph)
    for size, same in by_size.items():
        edges.link(batch, same, math.gcd(*by_size) if size == min(by_size) else size)


def _width(rules: Sequence[Rule]) -> int:
    return max((len(rule.factors) for rule in rules), default=0) or 1


def _minor_factors(rule: Rule) -> frozenset[int]:
    return frozenset(f for t in (*rule.operands, *rule.results) for dim in t for f in dim[1:])


def node_sizes(graph: Graph, offset: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(nodes of size over one of the values that `held` marks, their sizes)."""
    sizes = np.fromiter((n for v in graph.values for n in v.dims), np.int64, offset[-1])
    members = np.flatnonzero((sizes > 1) & np.repeat(held, np.diff(offset)))
    return members, sizes[members]


class Edges:
    """Links between nodes as they are collected, and the sizes that parts of a node must divide."""

    def __init__(self, offset: np.ndarray):
        """No links yet between the nodes that `offset` numbers."""
        self._offset = offset
        self._pairs: list[np.ndarray] = []
        self._limits: list[tuple[np.ndarray, int]] = []

    def nodes(self, batch: Batch, place: tuple[int, int]) -> np.ndarray:
        """The node of each op's tensor and dimension."""
        tensor, dim = place
        return self._offset[batch.values[:, tensor]] + dim

    def link(self, batch: Batch, places: Places, size: int) -> None:
        """For each op, put the nodes at `places` in one group whose parts divide `size`."""
        if places:
            first = self.nodes(batch, places[0])
            self._limits.append((first, size))
            self._pairs += [np.stack([first, self.nodes(batch, p)]) for p in places[1:]]

    def tie(self, ties: Sequence[tuple[int, int]], graph: Graph) -> None:
        """Values that are one tensor: each dimension of the one is that of the other."""
        offset = self._offset.tolist()
        pairs = [
            (offset[a] + dim, offset[b] + dim)
            for a, b in ties
            for dim, size in enumerate(graph.values[a].dims)
            if size > 1
        ]
        self._pairs.append(np.array(pairs, np.int64).reshape(-1, 2).T)

    def labels(self) -> np.ndarray:
        """The smallest node of each node's group."""
        first, second = np.concatenate([np.empty((2, 0), np.int64), *self._pairs], axis=1)
        return components(int(self._offset[-1]), first, second)

    def groups(self, members: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(group of each node or -1, limit of each group) of the nodes `members` of these sizes."""
        label = self.labels()
        group_of_node, count = number_components(label, members)
        nodes = np.concatenate([members, *(nodes for nodes, _ in self._limits)])
        limits = [np.full(len(nodes), size, np.int64) for nodes, size in self._limits]
        group = group_of_node[nodes]
        held = group >= 0
        return group_of_node, common_divisors(
            group[held], np.concatenate([sizes, *limits])[held], count
        )


def components(n_nodes: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A label per node, equal for nodes that the edges (first[i], second[i]) connect: their
    smallest node.
    """
    label = np.arange(n_nodes)
    while True:
        a, b = label[first], label[second]
        apart = a != b
        if not apart.any():
            return label
        a, b = a[apart], b[apart]
        # Hook the larger label onto the smaller; of several edges at one label the smallest counts.
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        label = _flat(label)


def _flat(label: np.ndarray) -> np.ndarray:
    while True:
        further = label[label]
        if (further == label).all():
            return label
        label = further


def number_components(label: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, int]:
    """(number of each node's component, -1 for one that is no member; how many there are).

    `members` are node indices; components are numbered in order of their first member.
    """
    number = np.full(len(label), -1, np.int64)
    roots, position = np.unique(label[members], return_index=True)
    order = np.empty(len(roots), np.int64)
    order[np.argsort(position, kind="stable")] = np.arange(len(roots))
    number[members] = order[np.searchsorted(roots, label[members])]
    return number, len(roots)


def common_divisors(component: np.ndarray, size: np.ndarray, count: int) -> np.ndarray:
    """Greatest common divisor of the sizes noted for each of `count` components; 0 where there is
    none.
    """
    limits = [0] * count
    # One number per (component, size) sorts much faster than two.
    base = int(size.max(initial=0)) + 1
    for index, n in zip(
        *(part.tolist() for part in np.divmod(np.unique(component * base + size), base))
    ):
        limits[index] = math.gcd(limits[index], n)
    return np.array(limits, np.int64)
