"""A binary heap of tasks ordered by (seconds, id), in two arrays that the caller owns.

    seconds[0 .. n)   keys; task[0 .. n) what they belong to; rank[t] breaks ties

The entry at i has its children at 2i + 1 and 2i + 2. Ranks of different tasks differ, so the order
in which tasks leave is determined                                              -> in: `push`, `pop`
"""

from typing import Any

from automap.numba_jit import Array, inner


@inner
def _before(key: float, task: int, other_key: float, other: int, rank: Array) -> bool:
    return key < other_key or (key == other_key and rank[task] < rank[other])


@inner
def push(seconds: Array, tasks: Array, n: int, key: Any, task: int, rank: Array) -> int:
    """Put a task in; returns the new number of entries."""
    # The gap begins at the new last place and moves up past larger parents.
    i = n
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(key, task, seconds[parent], tasks[parent], rank):
            break
        seconds[i], tasks[i] = seconds[parent], tasks[parent]
        i = parent
    seconds[i], tasks[i] = key, task
    return n + 1


@inner
def pop(seconds: Array, tasks: Array, n: int, rank: Array) -> int:
    """Drop the first entry; returns the new number of entries."""
    # The last entry fills the gap at the root, which moves down past smaller children. The caller
    # has read the first entry before: seconds[0], tasks[0].
    n -= 1
    key, task = seconds[n], tasks[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        right = child + 1
        if right < n and _before(seconds[right], tasks[right], seconds[child], tasks[child], rank):
            child = right
        if not _before(seconds[child], tasks[child], key, task, rank):
            break
        seconds[i], tasks[i] = seconds[child], tasks[child]
        i = child
    seconds[i], tasks[i] = key, task
    return n
