"""The compiled simulator of `automap.simulate.tasks`: FlexFlow's Algorithm 1 on explicit arrays.

Ready tasks are taken in the order of (ready, id). Those that wait for nothing are in that order as
they are numbered; the others go through a heap, and the two are merged.
"""

import numpy as np

from automap.numba_jit import Array, compiled
from automap.simulate.heap import pop, push


@compiled
def first_in_first_out(
    seconds: Array,
    resource: np.ndarray,
    first_predecessor: np.ndarray,
    predecessors: np.ndarray,
    n_resources: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ready, start, end) of every task, seconds."""
    n = len(seconds)
    first_follower = np.zeros(n + 1, np.int64)
    for edge in range(len(predecessors)):
        first_follower[predecessors[edge] + 1] += 1
    for task in range(n):
        first_follower[task + 1] += first_follower[task]
    followers = np.empty(len(predecessors), np.int32)
    place = first_follower[:n].copy()
    waiting = np.empty(n, np.int32)
    for task in range(n):
        waiting[task] = first_predecessor[task + 1] - first_predecessor[task]
        for edge in range(first_predecessor[task], first_predecessor[task + 1]):
            before = predecessors[edge]
            followers[place[before]] = task
            place[before] += 1

    ready, start, end = np.zeros(n), np.zeros(n), np.zeros(n)
    free = np.zeros(n_resources)
    rank = np.arange(n).astype(np.int32)
    keys, heap, size = np.empty(n), np.empty(n, np.int32), 0
    source = 0
    for _ in range(n):
        while source < n and first_predecessor[source] != first_predecessor[source + 1]:
            source += 1
        if size == 0 or (source < n and (keys[0] > 0.0 or heap[0] > source)):
            task = source
            source += 1
        else:
            task = heap[0]
            size = pop(keys, heap, size, rank)
        on = resource[task]
        start[task] = max(ready[task], free[on])
        end[task] = start[task] + seconds[task]
        free[on] = end[task]
        for edge in range(first_follower[task], first_follower[task + 1]):
            after = followers[edge]
            ready[after] = max(ready[after], end[task])
            waiting[after] -= 1
            if waiting[after] == 0:
                size = push(keys, heap, size, ready[after], after, rank)
    return ready, start, end
