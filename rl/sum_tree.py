"""A sum tree: priorities of numbered items, drawn in proportion in O(log n).

Node 1 is the root, node k has the children 2k and 2k + 1, item i is node n + i, n a power of two.

    total of a node = sum of its children, added up anew on every change: nothing drifts
                                                                                       -> in: `_set`
    item of t in [0, total): go left if t is below the left child's total, else take that off t and
                             go right                                                 -> in: `_find`
"""

from typing import Any

import numba
import numpy as np


def _set(tree: Any, n: int, items: Any, values: Any) -> None:
    for k in range(len(items)):
        node = n + items[k]
        tree[node] = values[k]
        node >>= 1
        while node:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node >>= 1


def _find(tree: Any, n: int, targets: Any, items: Any) -> None:
    for k in range(len(targets)):
        target, node = targets[k], 1
        while node < n:
            node *= 2
            # Rounding may leave a target at the very end of the left part: never into an empty
            # right one.
            if target >= tree[node] and tree[node + 1] > 0.0:
                target -= tree[node]
                node += 1
        items[k] = node - n


# Kept on disk by numba they would need a place to write; they compile in less than a second.
_set_compiled: Any = numba.njit(_set)
_find_compiled: Any = numba.njit(_find)


class SumTree:
    """Priorities of items 0 .. capacity - 1, zero at first."""

    def __init__(self, capacity: int):
        """Room for `capacity` items."""
        self._n = 1 << max(capacity - 1, 1).bit_length()
        self._capacity = capacity
        self._tree = np.zeros(2 * self._n)

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._tree[1])

    @property
    def priorities(self) -> np.ndarray:
        """Of every item, float64 [capacity]; a view."""
        return self._tree[self._n : self._n + self._capacity]

    def set(self, items: np.ndarray, priorities: np.ndarray) -> None:
        """New priorities of items [m] int64; of an item that is named twice the last counts."""
        _set_compiled(self._tree, self._n, items, np.asarray(priorities, np.float64))

    def find(self, targets: np.ndarray) -> np.ndarray:
        """The items, int64 [m], at the targets [m] in [0, total): those of priority zero are never
        found.
        """
        items = np.empty(len(targets), np.int64)
        _find_compiled(self._tree, self._n, np.asarray(targets, np.float64), items)
        return items
