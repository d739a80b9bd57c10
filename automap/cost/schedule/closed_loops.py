"""Waits for collectives in a loop that has some, as XLA's scheduler fills them.

XLA's scheduler puts what is in such a loop in order from its end to its beginning, with one
collective at a time (latency_hiding_scheduler.cc): it is done before the first kernel that reads
it, and begins as soon as enough kernels stand in between. So no kernel hides two collectives, and
the last ones find the most                                                 -> in: `_loop_waits`

    order         the sums, which are done at the end of the loop, the last that is ready first;
                  then the others, the last that is needed first
    beside one    kernels that stand between where it is ready and where it is needed, the last
                  first; then spare ones whose data is there, but for those that make what a sum
                  not yet begun adds up                                     -> in: `_hide`
    wait          what these kernels leave of its seconds; a kernel is not split

A loop that has collectives lets none of outside run beside it, as the scheduler counts it as a user
of the link (AsyncTracker::RecursivelyComputeResourceMap)                   -> in: `ends_of_loops`
"""

import numpy as np

from automap.cost.schedule.order import ENTER, EXIT, KERNEL, SPARE
from automap.cost.schedule.work import Work
from automap.numba_jit import inner, inner_making_arrays


@inner_making_arrays
def ends_of_loops(
    kind: np.ndarray, backlog: np.ndarray, prefetch: np.ndarray, needed: np.ndarray
) -> np.ndarray:
    """Where each loop ends that has collectives in it, [slots + 1] by where it begins; -1 of all
    other slots.
    """
    n = len(kind)
    # How many boundaries or urgent ones before each boundary have a collective: a loop has one if
    # the count differs between its ends.
    before = np.zeros(n + 2)
    for k in range(n + 1):
        before[k + 1] = (backlog[k] > 0) + (prefetch[k] > 0)
    for k in needed:
        before[k + 1] += 1
    before = np.cumsum(before)
    leaves = np.full(n + 1, -1)
    # The slots that begin the loops around, a stack of `depth`.
    around = np.zeros(n + 1, np.int64)
    depth = 0
    for k in range(n):
        if kind[k] == ENTER:
            around[depth] = k
            depth += 1
        elif kind[k] == EXIT:
            depth -= 1
            enter = around[depth]
            if before[k + 1] > before[enter + 1]:
                leaves[enter] = k
    return leaves


@inner_making_arrays
def outside_closed(backlog: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    """What of a backlog is in no closed loop, [slots + 1]."""
    outside = backlog.copy()
    for k in range(len(leaves) - 1):
        if leaves[k] >= 0:
            outside[k + 1 : leaves[k] + 1] = 0.0
    return outside


@inner_making_arrays
def loop_seconds(work: Work, leaves: np.ndarray, enter: int) -> tuple[float, float]:
    """Seconds of kernels and of waits in a closed loop, with those inside of it."""
    kernels = waits = 0.0
    for k in range(enter, leaves[enter]):
        kernels += work.seconds[k]
        if leaves[k] >= 0:
            waits += _loop_waits(work, leaves, k)
    return kernels, waits


@inner_making_arrays
def _loop_waits(work: Work, leaves: np.ndarray, enter: int) -> float:
    """Waits for the collectives of a closed loop, without those of closed loops in it."""
    leave = leaves[enter]
    # Seconds of kernels that hide nothing yet; of other loops none can.
    left = work.seconds[enter:leave].copy()
    is_own = np.ones(leave - enter + 1, np.bool_)
    for k in range(enter + 1, leave):
        if leaves[k] >= 0:
            left[k - enter : leaves[k] - enter] = 0.0
            is_own[k + 1 - enter : leaves[k] + 1 - enter] = False
    waits, place, u = 0.0, leave, len(work.urgent_needed) - 1
    for k in range(leave, enter, -1):
        if is_own[k - enter] and work.backlog[k] > 0:
            place, wait = _hide(work, is_own, left, enter, place, k, k + 1, work.backlog[k])
            waits += wait
    # The last that is needed first; of those that are needed at once the last of `Work`.
    for k in range(leave, enter, -1):
        while u >= 0 and work.urgent_needed[u] > k:
            u -= 1
        if not is_own[k - enter]:
            continue
        place = min(place, k)
        while u >= 0 and work.urgent_needed[u] == k:
            place, wait = _hide(
                work, is_own, left, enter, place, work.urgent_ready[u], 0, work.urgent_seconds[u]
            )
            waits += wait
            u -= 1
        if work.prefetch[k] > 0:
            place, wait = _hide(work, is_own, left, enter, place, enter, 0, work.prefetch[k])
            waits += wait
    return waits


@inner
def _hide(
    work: Work,
    is_own: np.ndarray,
    left: np.ndarray,
    enter: int,
    done: int,
    ready: int,
    begun: int,
    seconds: float,
) -> tuple[int, float]:
    """The boundary at which a collective begins that is done at boundary `done`, and how long it is
    waited for; takes what it hides behind from `left` [slots of the loop].

    Sums that are ready at `begun` or later have begun.
    """
    place, rest = done, seconds
    while place > max(ready, enter + 1) and rest > 0:
        slot = place - 1
        # A loop of others lets nothing begin before it.
        if work.kind[slot] == EXIT and not is_own[slot - enter]:
            break
        if work.kind[slot] == KERNEL:
            rest -= left[slot - enter]
            left[slot - enter] = 0.0
        place -= 1
    for at in range(len(left) - 1, 0, -1):
        slot = enter + at
        if (
            rest <= 0
            or left[at] <= 0
            or work.kind[slot] != SPARE
            or work.data_at[slot] > done
            or 0 <= work.sum_at[slot] < begun
        ):
            continue
        rest -= left[at]
        left[at] = 0.0
    return place, max(rest, 0.0)
