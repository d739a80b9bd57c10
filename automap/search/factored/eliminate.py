"""Elimination: the minimum of a sum of tables over all choices, one variable after the other.

    minimum over x of  sum over tables t of  t(x[scope of t])

A variable v is eliminated by adding up the tables that have it and keeping, for each choice of the
others, the least over v: m(s) = min over v of sum of t(v, s) is a table in place of those. The
order takes what makes the smallest tables next. A sum of more than `LARGEST` entries is split into
several, each minimised by itself: the result then is a lower bound, else it is the minimum
(mini-buckets, Dechter and Rish 2003)                                     -> in: `Elimination`

The marginal of (v, i) is a lower bound of the sum where v has choice i, from messages back along
the same tree                                                             -> in: `marginals`
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np


@dataclass(frozen=True)
class Table:
    """Numbers over the choices of a scope's variables; the scope is sorted."""

    scope: tuple[int, ...]
    values: np.ndarray


# Entries of a sum, 32 MiB of float64.
LARGEST = 1 << 22


@dataclass
class _Node:
    """Tables added up to eliminate `variable`; `message` is what is left of them, `parent` the node
    that took it.
    """

    variable: int
    scope: tuple[int, ...]
    values: np.ndarray
    message: np.ndarray
    children: list[int] = field(default_factory=list)
    parent: int = -1

    @property
    def kept(self) -> tuple[int, ...]:
        """The scope of the message."""
        return tuple(v for v in self.scope if v != self.variable)


@dataclass(frozen=True)
class _Item:
    """A table in play: given, or the message of a node."""

    scope: tuple[int, ...]
    values: np.ndarray
    node: int = -1


def elimination_order(scopes: Iterable[tuple[int, ...]], sizes: Sequence[int]) -> tuple[int, ...]:
    """The order in which variables are eliminated: always the one with the smallest table next."""
    pool = {frozenset(scope) for scope in scopes if scope}
    # On scopes alone, with no numbers, so that an order is made once for all weights of a mesh.
    left, order = set().union(*pool), list[int]()

    def joined(variable: int) -> frozenset[int]:
        return frozenset().union(*(s for s in pool if variable in s))

    union = {v: joined(v) for v in left}
    while left:
        # The table that eliminating v makes is over all that stands in some scope with it. Ties by
        # number.
        best = min(left, key=lambda v: (prod(sizes[u] for u in union[v]), v))
        order.append(best)
        left.discard(best)
        met = union[best] - {best}
        pool = {s for s in pool if best not in s} | {met}
        # Only the neighbours of what was eliminated have other tables now.
        union.update({v: joined(v) for v in met})
    return tuple(order)


class Elimination:
    """One minimisation. `bound` is at most the minimum, and is it if `is_exact`.

    `check_time` is called before each variable, and may raise.
    """

    def __init__(
        self,
        tables: Iterable[Table],
        sizes: Sequence[int],
        order: Sequence[int],
        check_time: Callable[[], None] = lambda: None,
    ) -> None:
        self.sizes, self.nodes, self.bound, self.is_exact = sizes, list[_Node](), 0.0, True
        pool = list[_Item]()
        for table in merged(tables):
            if table.scope:
                pool.append(_Item(table.scope, table.values))
            else:
                self.bound += float(table.values)
        for variable in order:
            check_time()
            bucket = [item for item in pool if variable in item.scope]
            pool = [item for item in pool if variable not in item.scope]
            buckets = self._split(bucket)
            # Each bucket takes its own minimum over the variable: their sum is at most the true
            # one.
            self.is_exact &= len(buckets) <= 1
            for items in buckets:
                self._eliminate(variable, items, pool)

    @property
    def n_entries(self) -> int:
        """Entries of all tables that were added up."""
        return sum(node.values.size for node in self.nodes)

    def _split(self, bucket: list[_Item]) -> list[list[_Item]]:
        """Tables that are added up together: each goes, the largest first, where there is room."""
        buckets: list[tuple[set[int], list[_Item]]] = []
        for item in sorted(bucket, key=lambda i: -i.values.size):
            # First fit: larger tables have their place before smaller ones fill the room.
            for scope, items in buckets:
                if prod(self.sizes[v] for v in scope.union(item.scope)) <= LARGEST:
                    scope.update(item.scope)
                    items.append(item)
                    break
            else:
                buckets.append((set(item.scope), [item]))
        return [items for _, items in buckets]

    def _eliminate(self, variable: int, items: list[_Item], pool: list[_Item]) -> None:
        scope = tuple(sorted({v for item in items for v in item.scope}))
        values = np.zeros([self.sizes[v] for v in scope])
        for item in items:
            values += spread(item.values, item.scope, scope)
        # The sum is kept beside the minimum: assignments and marginals are read from it on the way
        # back.
        node = _Node(variable, scope, values, values.min(axis=scope.index(variable)))
        number = len(self.nodes)
        for item in items:
            if item.node >= 0:
                node.children.append(item.node)
                self.nodes[item.node].parent = number
        self.nodes.append(node)
        if node.kept:
            pool.append(_Item(node.kept, node.message, number))
        else:
            self.bound += float(node.message)

    def assignment(self) -> list[int]:
        """A choice for each variable: a minimum if `is_exact`; 0 for variables of no table."""
        chosen, by_variable = [0] * len(self.sizes), dict[int, list[_Node]]()
        for node in self.nodes:
            by_variable.setdefault(node.variable, []).append(node)
        # Backwards: when a variable is chosen all others of its tables have been.
        for variable, nodes in reversed(by_variable.items()):
            costs = np.zeros(self.sizes[variable])
            for node in nodes:
                costs += node.values[
                    tuple(slice(None) if v == variable else chosen[v] for v in node.scope)
                ]
            chosen[variable] = int(costs.argmin())
        return chosen

    def marginals(self) -> list[np.ndarray]:
        """For each variable a lower bound of the whole sum by its choice."""
        bounds = [np.full(size, self.bound) for size in self.sizes]
        if np.isinf(self.bound):
            return bounds
        # For each node what the rest of the tree adds to its message, by the choices of its scope.
        down: list[np.ndarray] = [np.zeros(()) for _ in self.nodes]
        for number in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[number]
            if node.parent < 0:
                # A root: the rest are the other trees of the forest, and the constant.
                down[number] = np.array(self.bound - float(node.message))
            belief = node.values + np.expand_dims(down[number], node.scope.index(node.variable))
            for axis, v in enumerate(node.scope):
                others = tuple(a for a in range(len(node.scope)) if a != axis)
                bounds[v] = np.maximum(bounds[v], belief.min(axis=others))
            for child in node.children:
                kept = self.nodes[child].kept
                gone = tuple(a for a, v in enumerate(node.scope) if v not in kept)
                # Infinite less infinite is no number: the choice is forbidden either way.
                with np.errstate(invalid="ignore"):
                    rest = belief.min(axis=gone) - self.nodes[child].message
                down[child] = np.where(np.isnan(rest), np.inf, rest)
        return bounds


def spread(values: np.ndarray, scope: tuple[int, ...], over: tuple[int, ...]) -> np.ndarray:
    """A table with dimensions of size 1 for the variables of `over` that it does not have; both
    sorted.
    """
    sizes = iter(values.shape)
    return values.reshape([next(sizes) if v in scope else 1 for v in over])


def merged(tables: Iterable[Table]) -> list[Table]:
    """Tables added to the smallest whose scope has theirs, so that none is within another."""
    kept: list[Table] = []
    # Large scopes first, so that each table finds the one that has it.
    for table in sorted(tables, key=lambda t: -len(t.scope)):
        fitting = [t for t in kept if set(table.scope) <= set(t.scope)]
        if fitting:
            target = min(fitting, key=lambda t: t.values.size)
            target.values[...] += spread(table.values, table.scope, target.scope)
        else:
            kept.append(Table(table.scope, table.values.astype(float)))
    return kept
