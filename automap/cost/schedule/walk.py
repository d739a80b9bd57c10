"""The walk along a program: how long a device waits for its collectives, kernel by kernel.

The device runs its kernels in the order of the schedule (`automap.cost.schedule.order`); time is its time,
and one link carries one collective at a time.

    urgent      of an activation: starts when it is ready and the link is free; its reader waits for its end
    backlog     sums of gradients: done while the link is idle, by the end of the step, or of the loop they are in
    prefetch    gathers of parameters: take link time that was idle before, since the loop they are in began
    spare       kernels that no other waits for are kept for such waits, as many as there are seconds of urgent
                collectives to come in the loop; the others are done at once, so that their sums can begin
    late        kernels of the update: in waits after the sums that they read, the rest after all others
    renewed     gathers of new parameters: after all other kernels, each after the late ones that make it: XLA:GPU begins
                none before the backward pass is over                         -> in: `_last_waits`
    closed      a loop that has collectives lets none of outside run beside it: XLA's scheduler counts it as a user of
                the link (latency_hiding_scheduler.cc, AsyncTracker::RecursivelyComputeResourceMap)
"""

from typing import NamedTuple

import numpy as np

from automap.cost.schedule.order import ENTER, EXIT, KERNEL
from automap.numba_jit import compiled, inner, inner_making_arrays


class Work(NamedTuple):
    """What a device does: [slots] of kernels, [slots + 1] at boundaries, urgent collectives one by
    one.

    `kind`, `seconds` [slots] as in `Order`; seconds of kernels (`spare`, `late`, where their data
    is there) and of collectives (`backlog` and `renewed` where they are ready, `prefetch` where it
    is needed) at boundaries. The urgent ones are sorted by where they are needed.
    """

    kind: np.ndarray
    seconds: np.ndarray
    spare: np.ndarray
    late: np.ndarray
    backlog: np.ndarray
    renewed: np.ndarray
    prefetch: np.ndarray
    urgent_ready: np.ndarray
    urgent_needed: np.ndarray
    urgent_seconds: np.ndarray


@compiled
def waits(work: Work) -> float:  # noqa: C901 - one loop, compiled
    """Seconds in which nothing runs but collectives."""
    kind, backlog = work.kind, work.backlog
    ready, needed, urgent = work.urgent_ready, work.urgent_needed, work.urgent_seconds
    n = len(kind)
    time_at = np.zeros(n + 1)
    closed = _closed_loops(kind, backlog, work.prefetch, needed)
    outer_idle, outer_pending = np.zeros(n + 1), np.zeros(n + 1)
    depth = u = freed = 0
    time = waited = link_free = kept = to_come = idle = 0.0
    pending = owed = used_late = 0.0
    queued = np.cumsum(backlog)
    late_before = np.concatenate((np.zeros(1), np.cumsum(work.late)))
    for k in range(n + 1):
        time_at[k] = before = time
        wait = used = 0.0
        if k == 0 or kind[k - 1] == ENTER or kind[k - 1] == EXIT:
            to_come = _urgent_until_end(kind, k, needed, urgent, u)
        kept += work.spare[k]
        pending += backlog[k]
        while u < len(needed) and needed[u] == k:
            link_free = max(link_free, time_at[ready[u]]) + urgent[u]
            wait = max(wait, link_free - time)
            used += urgent[u]
            u += 1
        to_come -= used
        behind = max(work.prefetch[k] - idle, 0.0)
        idle -= work.prefetch[k] - behind
        if behind > 0:
            link_free = max(link_free, time) + behind
            wait = max(wait, link_free - time)
            used += behind
        filled = min(wait, kept)
        while depth == 0 and freed <= k and queued[freed] <= queued[k] - pending:
            freed += 1
        by_late = min(wait - filled, late_before[freed] - used_late) if depth == 0 else 0.0
        used_late += by_late
        waited += wait - filled - by_late
        # At the end of a loop or the step no urgent ones are to come: all is done that was kept.
        done = max(kept - filled - max(to_come, 0.0), 0.0)
        kept -= filled + done
        time += wait + done + (work.seconds[k] if k < n and kind[k] == KERNEL else 0.0)
        drained, idle, owed = _link_time(time - before - used - owed, pending, idle)
        pending -= drained
        if closed[k] and kind[k] == ENTER:
            outer_idle[depth], outer_pending[depth] = idle, pending
            depth += 1
            idle = pending = 0.0
        elif closed[k]:
            depth -= 1
            time += pending
            waited += pending
            idle, pending = outer_idle[depth], outer_pending[depth]
    return waited + _last_waits(work.late, backlog, work.renewed, used_late, pending, owed)


@inner
def _link_time(free: float, pending: float, idle: float) -> tuple[float, float, float]:
    """What the link carries of the backlog in its `free` seconds, and (idle, owed) afterwards.

    Free seconds are negative where urgent collectives took time that was idle before, or that it
    owes the others.
    """
    drained = min(pending, max(free, 0.0))
    idle += free - drained
    return drained, max(idle, 0.0), max(-idle, 0.0)


@inner_making_arrays
def _closed_loops(
    kind: np.ndarray, backlog: np.ndarray, prefetch: np.ndarray, needed: np.ndarray
) -> np.ndarray:
    """Whether a slot begins or ends a loop with collectives in it, [slots + 1]."""
    n = len(kind)
    before = np.zeros(n + 2)
    for k in range(n + 1):
        before[k + 1] = (backlog[k] > 0) + (prefetch[k] > 0)
    for k in needed:
        before[k + 1] += 1
    before = np.cumsum(before)
    closed = np.zeros(n + 1, np.bool_)
    around = np.zeros(n + 1, np.int64)
    depth = 0
    for k in range(n):
        if kind[k] == ENTER:
            around[depth] = k
            depth += 1
        elif kind[k] == EXIT:
            depth -= 1
            enter = around[depth]
            closed[enter] = closed[k] = before[k + 1] > before[enter + 1]
    return closed


@inner
def _urgent_until_end(
    kind: np.ndarray, slot: int, needed: np.ndarray, urgent: np.ndarray, first: int
) -> float:
    """Seconds of collectives from number `first` on that are needed before the next beginning or
    end of a loop.
    """
    end = slot
    while end < len(kind) and kind[end] != ENTER and kind[end] != EXIT:
        end += 1
    seconds = 0.0
    while first < len(needed) and needed[first] <= end:
        seconds += urgent[first]
        first += 1
    return seconds


@inner_making_arrays
def _last_waits(
    late: np.ndarray,
    backlog: np.ndarray,
    renewed: np.ndarray,
    used_late: float,
    pending: float,
    owed: float,
) -> float:
    """Waiting after all other kernels, when so much of `backlog` is left and of `late` was done."""
    # An urgent one that began long before took the link from sums.
    unsent = min(owed, backlog.sum() - pending)
    pending += unsent
    sums = kernels = total = 0.0
    made_at = np.zeros(len(late))
    sent = backlog.sum() - pending
    for k in range(len(late)):
        sums += max(backlog[k] - sent, 0.0)
        sent = max(sent - backlog[k], 0.0)
        left = max(late[k] - used_late, 0.0)
        used_late = max(used_late - late[k], 0.0)
        if left > 0:
            kernels = max(kernels, sums) + left
        total += left
        made_at[k] = kernels
    link = sums
    for k in range(len(late)):
        if renewed[k] > 0:
            link = max(link, made_at[k]) + renewed[k]
    return max(kernels, link) - total + owed - unsent
