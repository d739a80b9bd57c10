"""A task graph as arrays, and its timeline.

Task t takes `seconds[t]` on resource `resource[t]` (a device, a link) once all its predecessors
have ended. A resource does one task at a time, in the order of (ready, t):

    ready[t] = max over predecessors p of end[p], 0 without any
    start[t] = max(ready[t], end of the task before t on its resource)
    end[t]   = start[t] + seconds[t]

This is FlexFlow's first-in first-out assumption (section 5.1) with a tie-break that makes the
timeline unique: tasks are numbered so that predecessors come first, so (ready, t) is an order of
time even if tasks take no time at all.

    `simulate`   the compiled simulator: FlexFlow's Algorithm 1 on explicit arrays
"""

from dataclasses import dataclass

import numpy as np

from automap.errors import InputError
from automap.numba_jit import Array, compiled
from automap.simulate.heap import pop, push


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """Tasks 0 .. n-1 and what each waits for.

    `seconds` float64 [n]; `resource` int32 [n], from 0; the predecessors of task t are
    `predecessors[first_predecessor[t]:first_predecessor[t + 1]]`, each smaller than t and named
    once (int32 [edges], int64 [n + 1]). Raises `InputError` for arrays that are none of this.
    """

    seconds: np.ndarray
    resource: np.ndarray
    first_predecessor: np.ndarray
    predecessors: np.ndarray

    def __post_init__(self) -> None:
        """Check the arrays against each other."""
        n, first = len(self.seconds), self.first_predecessor
        if self.resource.shape != (n,) or first.shape != (n + 1,):
            raise _refuse(
                f"{len(self.resource)} resources and {len(first)} offsets for {n} tasks",
                "a resource for each task, and one offset more than tasks",
            )
        if not (np.isfinite(self.seconds).all() and (self.seconds >= 0).all()):
            raise _refuse("negative or infinite seconds", "finite seconds from 0")
        if not (self.resource >= 0).all():
            raise _refuse("negative resources", "numbers from 0")
        # Compressed rows: descending offsets would make a count negative.
        counts = np.diff(first)
        if first[0] != 0 or first[-1] != len(self.predecessors) or not (counts >= 0).all():
            raise _refuse("offsets that do not divide the predecessors", "ascending ones from 0")
        waiting = np.repeat(np.arange(n), counts)
        if not ((self.predecessors >= 0) & (self.predecessors < waiting)).all():
            raise _refuse(
                "a predecessor that does not come before its task",
                "smaller numbers; number the tasks in topological order",
            )

    @property
    def n_resources(self) -> int:
        """One more than the largest resource."""
        return int(self.resource.max(initial=-1)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When each task becomes ready, starts and ends: seconds, float64 [n]."""

    ready_seconds: np.ndarray
    start_seconds: np.ndarray
    end_seconds: np.ndarray

    @property
    def makespan_seconds(self) -> float:
        """When the last task ends."""
        return float(self.end_seconds.max(initial=0.0))


def simulate(tasks: Tasks) -> Timeline:
    """The timeline of a task graph."""
    ready, start, end = _first_in_first_out(
        np.ascontiguousarray(tasks.seconds, np.float64),
        np.ascontiguousarray(tasks.resource, np.int32),
        np.ascontiguousarray(tasks.first_predecessor, np.int64),
        np.ascontiguousarray(tasks.predecessors, np.int32),
        tasks.n_resources,
    )
    return Timeline(ready_seconds=ready, start_seconds=start, end_seconds=end)


@compiled
def _first_in_first_out(
    seconds: Array,
    resource: np.ndarray,
    first_predecessor: np.ndarray,
    predecessors: np.ndarray,
    n_resources: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ready, start, end) of every task, seconds.

    Ready tasks are taken in the order of (ready, id). Those that wait for nothing are in that order
    as they are numbered; the others go through a heap, and the two are merged.
    """
    # Turn the lists of predecessors around: count the followers of each task, sum up to offsets,
    # then write each edge to the next free place of its predecessor.
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
    free = np.zeros(n_resources)  # when the last task so far of each resource ends
    rank = np.arange(n).astype(np.int32)
    keys, heap, size = np.empty(n), np.empty(n, np.int32), 0
    source = 0  # the next task without predecessors: it is ready at 0
    for _ in range(n):
        while source < n and first_predecessor[source] != first_predecessor[source + 1]:
            source += 1
        # A source goes first unless the heap has one that is ready at 0 with a smaller number.
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


def _refuse(got: str, allowed: str) -> InputError:
    return InputError(f"task graph: got {got}; allowed: {allowed}")
