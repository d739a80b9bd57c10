"""Pareto sets of tails: rows of numbers of which less is better, for the exact solver.

A tail is a row of `automap.pipeline.value.joined`; its links are (end of its first stage in points,
that stage's kind, the tail after it, the kind's interface): tails are compared if what sends to
them finds the same interface.
"""

import numpy as np

from automap.numba_jit import Array, inner, inner_making_arrays


@inner_making_arrays
def grown(pool: Array, links: Array, needed: int) -> tuple[Array, Array]:
    """Both with room for at least `needed` rows, the old ones kept."""
    if needed <= len(pool):
        return pool, links
    size = max(needed, 2 * len(pool))
    more = np.empty((size, pool.shape[1]))
    more_links = np.empty((size, links.shape[1]), np.int32)
    copy_rows(more, 0, pool, len(pool))
    copy_rows(more_links, 0, links, len(links))
    return more, more_links


@inner
def is_no_worse(tails: Array, z: int, than: Array, row: int, width: int) -> bool:
    """Whether no number of row z is more than that of `than[row]`, of the first `width`."""
    for c in range(width):
        if tails[z, c] > than[row, c]:
            return False
    return True


@inner
def copy_rows(target: Array, first: int, source: Array, count: int) -> None:
    """The first `count` rows of the source, from row `first` on; slices would take numba seconds to
    compile.
    """
    for row in range(count):
        copy_row(target, first + row, source, row)


@inner
def copy_row(target: Array, row: int, source: Array, of: int) -> None:
    """target[row] becomes source[of]."""
    for c in range(target.shape[1]):
        target[row, c] = source[of, c]


@inner
def kept(tails: Array, links: Array, count: int, new: Array, face: int, width: int) -> int:
    """Tails left when those are dropped that new[0] is no worse than; -1 if one is no worse than
    it.
    """
    for z in range(count):
        if links[z, 3] == face and is_no_worse(tails, z, new, 0, width):
            return -1
    left = 0
    for z in range(count):
        if not (links[z, 3] == face and is_no_worse(new, 0, tails, z, width)):
            if left != z:
                copy_row(tails, left, tails, z)
                copy_row(links, left, links, z)
            left += 1
    return left
