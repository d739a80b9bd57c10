"""Connected components in numpy: labels are hooked onto smaller labels and paths shortened until
nothing moves.
"""

import math

import numpy as np


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
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        label = _flat(label)


def _flat(label: np.ndarray) -> np.ndarray:
    while True:
        further = label[label]
        if (further == label).all():
            return label
        label = further


def numbered(label: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, int]:
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
