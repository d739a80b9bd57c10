"""Collectives behind computation: how long a device waits for them.

Where a backend runs collectives on a stream of their own, they take time only as far as there is
nothing else to do. Nothing is hidden that has no computation beside it: the sum of waits is at
least collectives - computation. Which backends do so says `automap.backends.Backend.collectives`.

The collectives and kernels of a plan are put where it wants them (`automap.cost.schedule.work`),
and the program is walked once, kernel by kernel (`exposed_seconds`). The device runs its kernels in
the order of the schedule (`automap.cost.schedule.order`); time is its time, and one link carries
one collective at a time.

    urgent    of an activation: starts when it is ready and the link is free; its reader waits for
              its end
    backlog   sums of gradients: done while the link is idle, by the end of the step
    prefetch  gathers of parameters: take link time that was idle before, since the step or the loop
              they are in began
    spare     kernels that no other waits for are put off until such waits, as many as there are
              seconds of urgent collectives to come; the others are done at once, so that their sums
              can begin
    late      kernels of the update: in waits after the sums that they read, the rest after all
              others
    brief     late kernels that the scheduler takes to be no time, as they are no longer than a
              launch, and that make nothing that is gathered: it puts all of them beside one
              collective, so that they fill no waits but its own          -> in: `_late_in_waits`
    renewed   gathers of new parameters, and of what else the update makes: each after the late
              kernels that make it: none begins before the backward pass is over
                                                                          -> in: `_last_waits`
    closed    a loop that has collectives is one kernel here, which takes what its kernels do and
              what it waits itself            -> in: `automap.cost.schedule.closed_loops`
              An urgent collective whose reader is behind it begins behind it too
"""

import numpy as np

from automap.cost.schedule.closed_loops import ends_of_loops, loop_seconds, outside_closed
from automap.cost.schedule.order import ENTER, EXIT, KERNEL
from automap.cost.schedule.work import Work
from automap.numba_jit import compiled, inner, inner_making_arrays


@compiled
def exposed_seconds(work: Work) -> float:
    """Seconds in which nothing runs but collectives."""
    kind, backlog = work.kind, work.backlog
    ready, needed, urgent = work.urgent_ready, work.urgent_needed, work.urgent_seconds
    n = len(kind)
    # When the device comes to each boundary.
    time_at = np.zeros(n + 1)
    leaves = ends_of_loops(kind, backlog, work.prefetch, needed)
    # u: the next urgent collective; freed: the boundary up to which the link has done all sums.
    k = u = freed = 0
    # put_off: seconds of spare kernels; to_come: of urgent collectives up to the loop's end; idle:
    # of the link so far.
    time = waited = link_free = put_off = to_come = idle = 0.0
    # pending: seconds of the backlog not yet sent; owed: link seconds that urgent collectives took
    # beyond what there was; used_late: of late kernels that ran in waits; sums: of the backlog
    # outside of closed loops.
    pending = owed = used_late = 0.0
    sums = outside_closed(backlog, leaves)
    queued = np.cumsum(sums)
    late = _late_in_waits(work, sums)
    late_before = np.concatenate((np.zeros(1), np.cumsum(late)))
    while k <= n:
        time_at[k] = before = time
        wait = used = 0.0
        if k == 0 or kind[k - 1] == ENTER or kind[k - 1] == EXIT:
            to_come = _urgent_until_end(kind, k, needed, urgent, u)
        put_off += work.spare[k]
        pending += sums[k]
        # Urgent collectives go over the link one after the other, none before its data is there.
        while u < len(needed) and needed[u] == k:
            link_free = max(link_free, time_at[ready[u]]) + urgent[u]
            wait = max(wait, link_free - time)
            used += urgent[u]
            u += 1
        to_come -= used
        # Gathers of parameters fill link time that was idle before; the rest is waited for here.
        behind = max(work.prefetch[k] - idle, 0.0)
        idle -= work.prefetch[k] - behind
        if behind > 0:
            link_free = max(link_free, time) + behind
            wait = max(wait, link_free - time)
            used += behind
        # Kernels that were put off fill a wait first, then late ones whose sums are done.
        filled = min(wait, put_off)
        while freed <= k and queued[freed] <= queued[k] - pending:
            freed += 1
        by_late = min(wait - filled, late_before[freed] - used_late)
        used_late += by_late
        waited += wait - filled - by_late
        # At the end of a loop or the step no urgent ones are to come: all is done that was put off.
        done = max(put_off - filled - max(to_come, 0.0), 0.0)
        put_off -= filled + done
        time += wait + done + (work.seconds[k] if k < n and kind[k] == KERNEL else 0.0)
        drained, idle, owed = _link_time(time - before - used - owed, pending, idle)
        pending -= drained
        if k < n and leaves[k] >= 0:
            # Nothing of outside runs beside a closed loop: what is read behind it begins there.
            inside, waits = loop_seconds(work, leaves, k)
            time_at[k + 1 : leaves[k] + 1] = time + inside + waits
            time, waited = time + inside + waits, waited + waits
            link_free = max(link_free, time)
            while u < len(needed) and needed[u] <= leaves[k]:
                u += 1
            k = int(leaves[k])
        k += 1
    return waited + _last_waits(late, sums, work, used_late, pending, owed)


@inner_making_arrays
def _late_in_waits(work: Work, sums: np.ndarray) -> np.ndarray:
    """What of the late kernels may fill waits, [boundaries]; the others run with none beside them.

    Where new parameters are gathered, brief ones are beside the last of the gathers and sums of the
    step's end: the one that ends the longest chain of them, as the scheduler believes.
    """
    brief = work.brief.sum()
    if work.renewed.max() == 0 or brief == 0:
        return work.late
    # What the longest chain is believed to take, and what its last one takes.
    longest = last = 0.0
    for k in range(len(sums)):
        before = work.backlog_believed[k] if sums[k] > 0 else 0.0
        if before > longest:
            longest, last = before, sums[k]
        if work.renewed[k] > 0 and before + work.renewed_believed[k] > longest:
            longest, last = before + work.renewed_believed[k], work.renewed_one[k]
    for u in range(len(work.urgent_needed)):
        if work.urgent_needed[u] == len(work.kind) and work.urgent_believed[u] > longest:
            longest, last = work.urgent_believed[u], work.urgent_seconds[u]
    return work.late - work.brief * (1 - min(last / brief, 1.0))


@inner
def _link_time(free: float, pending: float, idle: float) -> tuple[float, float, float]:
    """What the link carries of the backlog in its `free` seconds, and (idle, owed) afterwards.

    Free seconds are negative where urgent collectives took time that was idle before, or that it
    owes the others.
    """
    drained = min(pending, max(free, 0.0))
    idle += free - drained
    return drained, max(idle, 0.0), max(-idle, 0.0)


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
    work: Work,
    used_late: float,
    pending: float,
    owed: float,
) -> float:
    """Waiting after all other kernels, when so much of `backlog` is left and of `late` was done."""
    renewed = work.renewed
    # An urgent one that began long before took the link from sums.
    unsent = min(owed, backlog.sum() - pending)
    pending += unsent
    sums = kernels = making = total = 0.0
    # When the new parameters of each boundary are made.
    made_at = np.zeros(len(late))
    sent = backlog.sum() - pending
    # Sums were sent, and late kernels run, from the first boundary on: the rest of both is last.
    for k in range(len(late)):
        sums += max(backlog[k] - sent, 0.0)
        sent = max(sent - backlog[k], 0.0)
        left = max(late[k] - used_late, 0.0)
        used_late = max(used_late - late[k], 0.0)
        if left > 0:
            kernels = max(kernels, sums) + left
            # Those that make no new parameter run beside the gathers.
            making = max(making, sums) + min(left, work.makers[k])
        total += left
        made_at[k] = making
    # Gathers of new parameters wait for the last sum, and each for the kernels that make it.
    link = sums
    for k in range(len(late)):
        if renewed[k] > 0:
            link = max(link, made_at[k]) + renewed[k]
    return max(kernels, link) - total + owed - unsent
