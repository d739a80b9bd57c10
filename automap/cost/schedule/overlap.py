"""Collectives behind computation: how long a device waits for them.

Where a backend runs collectives on a stream of their own, they take time only as far as there is
nothing else to do. Nothing is hidden that has no computation beside it: the sum of waits is at
least collectives - computation. Which backends do so says `automap.backends.Backend.collectives`.

The collectives and kernels of a plan are put where it wants them (`_work`), and the program is
walked once, kernel by kernel (`exposed_seconds`). The device runs its kernels in the order of the
schedule (`automap.cost.schedule.order`); time is its time, and one link carries one collective at a
time.

    urgent    of an activation: starts when it is ready and the link is free; its reader waits for
              its end
    backlog   sums of gradients: done while the link is idle, by the end of the step, or of the loop
              they are in
    prefetch  gathers of parameters: take link time that was idle before, since the loop they are in
              began
    spare     kernels that no other waits for are put off until such waits, as many as there are
              seconds of urgent collectives to come in the loop; the others are done at once, so
              that their sums can begin
    late      kernels of the update: in waits after the sums that they read, the rest after all
              others
    renewed   gathers of new parameters: after all other kernels, each after the late ones that make
              it: none begins before the backward pass is over            -> in: `_last_waits`
    together  where one trip's sums, or gathers, are one message up to `message_bytes`, it can begin
              when the last of them is ready, and is waited for by the first that reads one of them
                                                                        -> in: `together`
    closed    a loop that has collectives lets none of outside run beside it, as XLA's scheduler
              counts it as a user of the link (latency_hiding_scheduler.cc,
              AsyncTracker::RecursivelyComputeResourceMap)                -> in: `_closed_loops`
"""

from typing import NamedTuple

import numpy as np

from automap.cost.schedule.order import ENTER, EXIT, KERNEL, LATE, SPARE, Order, Places
from automap.cost.traffic import Collectives
from automap.numba_jit import compiled, inner, inner_making_arrays
from hlo_tools.analyses.phases import Phase


def waiting_seconds(
    order: Order,
    kernel_seconds: np.ndarray,
    collectives: Collectives,
    collective_seconds: np.ndarray,
    message_bytes: int | None = None,
) -> float:
    """Seconds of a step in which the device has nothing to do but wait for collectives.

    `kernel_seconds` [kernel rows] and `collective_seconds` [entries of `collectives`] are those of
    one run. In one trip of a loop sums, and gathers, are one message up to `message_bytes`; if None
    each goes by itself.
    """
    # Slots of loops have no kernel (row -1): whatever that index reads is thrown away.
    seconds = np.where(order.row >= 0, kernel_seconds[order.row], 0.0) * order.trips
    return exposed_seconds(
        _work(order, seconds, collectives, collective_seconds * collectives.count, message_bytes)
    )


class Work(NamedTuple):
    """What a device does in a step: [slots] of kernels, [slots + 1] at boundaries, urgent
    collectives one by one.

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


def _work(
    order: Order,
    slot_seconds: np.ndarray,
    collectives: Collectives,
    seconds: np.ndarray,
    message_bytes: int | None = None,
) -> Work:
    """What is to be done where: `slot_seconds` [slots] and `seconds` [entries of `collectives`] are
    of a whole step.
    """
    # Boundary k lies before slot k, and one more behind the last.
    n = len(order.kind) + 1
    spare, late = (
        np.bincount(order.data_at[chosen], slot_seconds[chosen], n)
        for chosen in (order.kind == SPARE, order.kind == LATE)
    )
    backlog, renewed, prefetch = np.zeros((3, n))
    urgent: list[tuple[np.ndarray, ...]] = []
    is_late = collectives.phase == Phase.UPDATE
    for on_operand, places in ((True, order.operands), (False, order.results)):
        is_here = (collectives.on_operand == on_operand) & (seconds > 0)
        # What is combinable is of a parameter or a gradient; all else is of activations.
        chosen = is_here & ~collectives.combinable
        at, each = _spread(places, collectives.edge[chosen], seconds[chosen])
        urgent.append((places.ready[at], places.needed[at], each))
        for into, boundary, wanted in (
            ((prefetch, places.needed, True),)
            if on_operand
            else ((backlog, places.ready, ~is_late), (renewed, places.ready, is_late))
        ):
            chosen = is_here & collectives.combinable & wanted
            at, each = _spread(places, collectives.edge[chosen], seconds[chosen])
            if message_bytes is not None and len(at):
                n_bytes = _repeat(places, collectives.edge[chosen], collectives.n_bytes[chosen])
                place = boundary[at]
                boundary = boundary.copy()
                boundary[at] = together(
                    order.loop[place], place, n_bytes / message_bytes, is_first=on_operand
                )
            # Several collectives may stand at one boundary: `.at` adds all of them.
            np.add.at(into, boundary[at], each)
    ready, needed, each = (np.concatenate(column) for column in zip(*urgent))
    # Stable, so that the order of equal ones, and with it each sum of floats, is reproducible.
    by_need = np.argsort(needed, kind="stable")
    return Work(
        kind=order.kind,
        seconds=slot_seconds,
        spare=spare,
        late=late,
        backlog=backlog,
        renewed=renewed,
        prefetch=prefetch,
        urgent_ready=ready[by_need],
        urgent_needed=needed[by_need],
        urgent_seconds=each[by_need],
    )


def together(
    loop: np.ndarray, place: np.ndarray, messages: np.ndarray, *, is_first: bool
) -> np.ndarray:
    """Where the messages are that collectives go in, [collectives]: at the first or the last place
    of those that are one.

    `loop` and `place` are the loop around each, -1 for none, and its boundary; `messages` the part
    of a full message that it is.
    """
    order = np.lexsort((place, loop))
    loops, sent = loop[order], np.cumsum(messages[order])
    begins = np.flatnonzero(np.diff(loops, prepend=-2))
    # How much of its loop has been sent before each, in full messages.
    before = sent - messages[order]
    number = before - np.repeat(before[begins], np.diff(begins, append=len(loops)))
    starts = np.flatnonzero(
        (np.diff(loops, prepend=-2) != 0) | (np.diff(number // 1, prepend=0) > 0)
    )
    sizes = np.diff(starts, append=len(loops))
    first = place[order][starts]
    last = place[order][starts + sizes - 1]
    moved = place.copy()
    moved[order] = np.repeat(first if is_first else last, sizes)
    return np.where(loop >= 0, moved, place)


def _repeat(places: Places, edge: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Numbers of `edge` rows for each incidence of theirs, as `_spread` lists them."""
    return np.repeat(numbers, places.first[edge + 1] - places.first[edge])


def _spread(places: Places, edge: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The incidences of `edge` rows, and the seconds of each."""
    first, count = places.first[edge], places.first[edge + 1] - places.first[edge]
    # The ranges first[i] .. first[i] + count[i] one after the other, without a loop.
    start = np.repeat(first - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
    at = start + np.arange(count.sum())
    return at, np.repeat(seconds, count) * places.share[at]


@compiled
def exposed_seconds(work: Work) -> float:  # noqa: C901 - one loop, compiled
    """Seconds in which nothing runs but collectives."""
    kind, backlog = work.kind, work.backlog
    ready, needed, urgent = work.urgent_ready, work.urgent_needed, work.urgent_seconds
    n = len(kind)
    # When the device comes to each boundary.
    time_at = np.zeros(n + 1)
    closed = _closed_loops(kind, backlog, work.prefetch, needed)
    # The link's state outside of each closed loop that the walk is in, a stack of `depth`.
    outer_idle, outer_pending = np.zeros(n + 1), np.zeros(n + 1)
    # u: the next urgent collective; freed: the boundary up to which the link has done all sums.
    depth = u = freed = 0
    # put_off: seconds of spare kernels; to_come: of urgent collectives up to the loop's end; idle:
    # of the link so far.
    time = waited = link_free = put_off = to_come = idle = 0.0
    # pending: seconds of the backlog not yet sent; owed: link seconds that urgent collectives took
    # beyond what there was; used_late: of late kernels that ran in waits.
    pending = owed = used_late = 0.0
    queued = np.cumsum(backlog)
    late_before = np.concatenate((np.zeros(1), np.cumsum(work.late)))
    for k in range(n + 1):
        time_at[k] = before = time
        wait = used = 0.0
        if k == 0 or kind[k - 1] == ENTER or kind[k - 1] == EXIT:
            to_come = _urgent_until_end(kind, k, needed, urgent, u)
        put_off += work.spare[k]
        pending += backlog[k]
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
        # A wait is filled first by kernels that were put off, then by late ones whose sums are
        # done: only outside of loops, as the update is in none.
        filled = min(wait, put_off)
        while depth == 0 and freed <= k and queued[freed] <= queued[k] - pending:
            freed += 1
        by_late = min(wait - filled, late_before[freed] - used_late) if depth == 0 else 0.0
        used_late += by_late
        waited += wait - filled - by_late
        # At the end of a loop or the step no urgent ones are to come: all is done that was put off.
        done = max(put_off - filled - max(to_come, 0.0), 0.0)
        put_off -= filled + done
        time += wait + done + (work.seconds[k] if k < n and kind[k] == KERNEL else 0.0)
        drained, idle, owed = _link_time(time - before - used - owed, pending, idle)
        pending -= drained
        if closed[k] and kind[k] == ENTER:
            # Nothing of outside runs beside this loop: it begins with a link of its own.
            outer_idle[depth], outer_pending[depth] = idle, pending
            depth += 1
            idle = pending = 0.0
        elif closed[k]:
            # The loop's own sums end with it.
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
    # How many boundaries or urgent ones before each boundary have a collective: a loop has one if
    # the count differs between its ends.
    before = np.zeros(n + 2)
    for k in range(n + 1):
        before[k + 1] = (backlog[k] > 0) + (prefetch[k] > 0)
    for k in needed:
        before[k + 1] += 1
    before = np.cumsum(before)
    closed = np.zeros(n + 1, np.bool_)
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
    # When the late kernels at each boundary, and with them the new parameters, are done.
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
        total += left
        made_at[k] = kernels
    # Gathers of new parameters wait for the last sum, and each for the kernels that make it.
    link = sums
    for k in range(len(late)):
        if renewed[k] > 0:
            link = max(link, made_at[k]) + renewed[k]
    return max(kernels, link) - total + owed - unsent
