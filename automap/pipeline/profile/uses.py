"""What a stage holds once, however many of its items use it: tensors counted by distinct use.

A *use* is (tensor, item, bytes). The stage of items [i, j) holds a tensor if one of its uses is in
there:

    G(i, j) = sum of bytes over the tensors used in [i, j)

Of a tensor used at p_1 < p_2 < ..., use p_k is the first in [i, j) for p_{k-1} < i <= p_k, so G is a sum of
rectangles: all pairs in O(uses + n^2)                                           -> in: `segment_bytes`
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass
class UseList:
    """Uses while they are found; tensors are known by any hashable name."""

    _tensors: dict[Hashable, int] = field(default_factory=dict)
    _rows: dict[tuple[int, int], float] = field(default_factory=dict)

    def add(self, tensor: Hashable, item: int, n_bytes: float) -> None:
        """A tensor of `n_bytes` is used by an item; said twice, it counts once."""
        number = self._tensors.setdefault(tensor, len(self._tensors))
        self._rows[number, item] = n_bytes

    def done(self) -> "Uses":
        """The uses as arrays."""
        pairs = np.array(list(self._rows), np.int64).reshape(-1, 2)
        n_bytes = np.array(list(self._rows.values()), float)
        return Uses(tuple(self._tensors), pairs[:, 0], pairs[:, 1], n_bytes)


@dataclass(frozen=True)
class Uses:
    """`tensor` (a place in `names`), `item` int64 and `n_bytes` float64, [uses]."""

    names: tuple[Hashable, ...]
    tensor: np.ndarray
    item: np.ndarray
    n_bytes: np.ndarray

    def moved(self, place: np.ndarray) -> "Uses":
        """The uses with item t called place[t]."""
        return replace(self, item=place[self.item])

    @property
    def total_bytes(self) -> float:
        """Each tensor once."""
        _, first = np.unique(self.tensor, return_index=True)
        return float(self.n_bytes[first].sum())


def segment_bytes(uses: Uses, n_items: int) -> np.ndarray:
    """G, float64 [n + 1, n + 1]: bytes that items i .. j - 1 use; 0 for j <= i."""
    order = np.lexsort((uses.item, uses.tensor))
    tensor, item, n_bytes = uses.tensor[order], uses.item[order], uses.n_bytes[order]
    is_first = np.diff(tensor, prepend=-1) != 0
    since = np.where(is_first, 0, np.roll(item, 1) + 1)
    # Uses of one tensor that coarsening put in one place.
    keep = is_first | (since <= item)
    since, item, n_bytes = since[keep], item[keep], n_bytes[keep]
    first_used = np.zeros((n_items + 1, n_items + 1))
    np.add.at(first_used, (since, item), n_bytes)
    np.add.at(first_used, (item + 1, item), -n_bytes)
    result = np.zeros((n_items + 1, n_items + 1))
    # Sums of differences leave rounding behind where the answer is 0.
    result[:, 1:] = np.maximum(first_used.cumsum(axis=0), 0.0)[:, :-1].cumsum(axis=1)
    return np.where(np.arange(n_items + 1)[:, None] < np.arange(n_items + 1), result, 0.0)


def segment_maximum(values: np.ndarray) -> np.ndarray:
    """The greatest of values i .. j - 1, float64 [n + 1, n + 1]; 0 for j <= i."""
    n = len(values)
    result = np.zeros((n + 1, n + 1))
    for i in range(n):
        result[i, i + 1 :] = np.maximum.accumulate(values[i:])
    return result
