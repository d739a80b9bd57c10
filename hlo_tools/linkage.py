"""Linkage groups: the (value, dimension) nodes that one decision forces together.

A *node* is a dimension of size > 1 of a value that varies with the step's inputs.  A rule's factor f links
the nodes of which f is the major factor: splitting one of them into k contiguous parts splits all of them
(a minor factor would be split in an interleaved way, so it links nothing).  Groups are the connected
components; `Group.limit` is the greatest number of equal parts all members allow, the gcd of the sizes
of the linking factors.

    node n of value v, dim d:   node_offset[v] + d              -> `Linkage.nodes_of`
    group of node n:            group_of_node[n], -1 for none
    group of op o, factor f:    factor_groups[o][f], -1 where o cannot keep f split
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
import math

import numpy as np

from hlo_tools.graph import Graph, Op
from hlo_tools.rules import Factor, FactorKind, Notation, Rule, rule_of


_LINKING = (FactorKind.PASSTHROUGH, FactorKind.REDUCTION)


@dataclass(frozen=True)
class Linkage:
    """The groups of a graph. Arrays are indexed as the module docstring says."""

    graph: Graph
    rules: Sequence[Rule]
    node_offset: np.ndarray
    group_of_node: np.ndarray
    limits: np.ndarray
    factor_groups: Sequence[tuple[int, ...]]

    @property
    def n_groups(self) -> int:
        """Number of groups; group ids are 0 .. n_groups - 1."""
        return len(self.limits)

    def groups_of(self, value: int) -> tuple[int, ...]:
        """Group of each dimension of a value, -1 where there is none."""
        start = self.node_offset[value]
        return tuple(self.group_of_node[start : self.node_offset[value + 1]].tolist())


class NodeUnion:
    """Union-find over nodes, with the divisibility limit of each component."""

    def __init__(self, n_nodes: int):
        """All nodes apart."""
        self._parent = list(range(n_nodes))
        self._limit = [0] * n_nodes

    def find(self, node: int) -> int:
        """Representative of the component of `node`."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def join(self, nodes: Sequence[int], size: int) -> None:
        """Put `nodes` in one component whose parts must also divide `size`."""
        first = self.find(nodes[0])
        limit = math.gcd(self._limit[first], size)
        for node in nodes[1:]:
            other = self.find(node)
            if other != first:
                limit = math.gcd(limit, self._limit[other])
                self._parent[other] = first
        self._limit[first] = limit

    def numbered(self, nodes: Iterable[int], n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
        """(component of each node or -1, limit of each component), for the components of `nodes`."""
        component = np.full(n_nodes, -1, np.int64)
        ids: dict[int, int] = {}
        for node in nodes:
            component[node] = ids.setdefault(self.find(node), len(ids))
        return component, np.array([self._limit[root] for root in ids], np.int64)


def _links(factor: Factor) -> bool:
    return factor.kind in _LINKING and factor.halo is None


def rules_of(graph: Graph, user_rules: Mapping[str, Notation]) -> list[Rule]:
    """The rule of every op. Ops of equal shapes and attributes share one object."""
    cache: dict[object, Rule] = {}
    rules: list[Rule] = []
    values = graph.values
    for op in graph.ops:
        operands = [values[v].dims for v in op.inputs]
        results = [values[v].dims for v in op.outputs]
        key = (op.opcode, tuple(operands), tuple(results), _attributes(op))
        rule = cache.get(key)
        if rule is None:
            rule = cache[key] = rule_of(op.instruction, op.opcode, operands, results, user_rules)
        rules.append(rule)
    return rules


def _attributes(op: Op) -> object:
    i = op.instruction
    return (
        i.dimensions, i.dot, i.conv, i.window, i.gather, i.gather_slice_sizes, i.scatter,
        i.feature_group_count, i.batch_group_count, i.ragged, i.padding, i.fft_length,
        i.custom_call_target, i.combiner,
    )  # fmt: skip


def node_offsets(graph: Graph) -> np.ndarray:
    """Index of the first node of each value, and one past the last."""
    ranks = np.fromiter((len(v.dims) for v in graph.values), np.int64, len(graph.values))
    return np.concatenate([[0], np.cumsum(ranks)])


def link(graph: Graph, user_rules: Mapping[str, Notation]) -> Linkage:
    """Groups of all dimensions of all varying values; `user_rules` are of custom calls, by target."""
    rules = rules_of(graph, user_rules)
    offsets = node_offsets(graph)
    offset = offsets.tolist()
    varies = graph.varies
    union = NodeUnion(offset[-1])
    members = [
        offset[v] + d
        for v, value in enumerate(graph.values)
        if varies[v]
        for d, size in enumerate(value.dims)
        if size > 1
    ]
    for node, size in zip(members, _sizes(graph)):
        union.join([node], size)
    op_nodes = [
        _major_nodes(rule, op, offset, varies) for rule, op in zip(rules, graph.ops, strict=True)
    ]
    for rule, nodes in zip(rules, op_nodes, strict=True):
        for factor, linked in zip(rule.factors, nodes):
            if linked and _links(factor):
                union.join(linked, factor.size)
    for a, b in graph.ties:
        if varies[a] and varies[b]:
            for dim, size in enumerate(graph.values[a].dims):
                if size > 1:
                    union.join([offset[a] + dim, offset[b] + dim], size)
    group_of_node, limits = union.numbered(members, offset[-1])
    factor_groups = _factor_groups(rules, op_nodes, group_of_node.tolist(), graph)
    return Linkage(graph, rules, offsets, group_of_node, limits, factor_groups)


def _sizes(graph: Graph) -> Iterable[int]:
    varies = graph.varies
    for v, value in enumerate(graph.values):
        if varies[v]:
            yield from (size for size in value.dims if size > 1)


def _major_nodes(
    rule: Rule, op: Op, offset: Sequence[int], varies: Sequence[bool]
) -> list[list[int]]:
    """For each factor, the nodes of which it is the major one."""
    nodes: list[list[int]] = [[] for _ in rule.factors]
    for value, dims in zip((*op.inputs, *op.outputs), (*rule.operands, *rule.results)):
        if varies[value]:
            start = offset[value]
            for dim, factors in enumerate(dims):
                if factors:
                    nodes[factors[0]].append(start + dim)
    return nodes


def _factor_groups(
    rules: Sequence[Rule],
    op_nodes: Sequence[list[list[int]]],
    group_of_node: list[int],
    graph: Graph,
) -> list[tuple[int, ...]]:
    """The group that may split each factor: -1 if it is blocked, or minor in a varying tensor."""
    varies = graph.varies
    minors: dict[int, frozenset[int]] = {}
    result: list[tuple[int, ...]] = []
    for rule, nodes, op in zip(rules, op_nodes, graph.ops, strict=True):
        minor = minors.get(id(rule))
        if minor is None:
            minor = minors[id(rule)] = frozenset(
                f for t in (*rule.operands, *rule.results) for dim in t for f in dim[1:]
            )
        if minor and not any(varies[v] for v in op.inputs):
            minor = frozenset()
        result.append(
            tuple(
                group_of_node[linked[0]] if linked and _links(factor) and index not in minor else -1
                for index, (factor, linked) in enumerate(zip(rule.factors, nodes))
            )
        )
    return result
