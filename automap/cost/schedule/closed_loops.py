"""Waits for collectives in a loop that has some, as XLA's scheduler fills them.

XLA's scheduler puts what is in such a loop in order from its end to its beginning, with one
collective at a time (latency_hiding_scheduler.cc): it is done before the first kernel that reads
it, and begins as soon as enough kernels stand in between. So no kernel hides two collectives, and
the last ones find the most                                                 -> in: `_loop_waits`

    next          of the collectives whose readers are behind it, sums among them as only the end
                  of the loop reads them, each message by itself (`LoopSums`), the one that ends the
                  longest chain of collectives (AsyncDepth)       -> in: `_collectives`, `_next`
    at the end    a message of one sum is done before one whose last slice is still to be read
                                                                            -> in: `_first_done`
    beside it     kernels in their order, the last first, each behind the spare ones that read what
                  it makes, but none that makes data for one that has not begun, as a slice of a
                  stack of parameters does; then spare ones; then slices of what the loop is handed
                  that are read later                             -> in: `_hide`, `_reader`
    spare ones    whose data is there, first the one whose seconds are nearest to what is left to
                  hide; those that make what a sum adds up run before it begins, those that read a
                  sum after it is done                                      -> in: `_nearest_spare`
    slices        that copy sums out of the array of their message run beside what begins after
                  that is done                                            -> in: `_behind_slices`
    enough        a kernel is its work alone to the scheduler, so that one that takes no longer than
                  a launch hides nothing in its eyes                        -> in: `Work.expected`
    wait          what these kernels leave of its seconds; a kernel is not split

A loop that has collectives lets none of outside run beside it, as the scheduler counts it as a user
of the link (AsyncTracker::RecursivelyComputeResourceMap)                   -> in: `ends_of_loops`
"""

import numpy as np

from automap.cost.schedule.order import ENTER, EXIT, KERNEL, SPARE
from automap.cost.schedule.work import Work
from automap.numba_jit import inner, inner_making_arrays


# Columns of `_collectives`.
NEEDED, SECONDS, DEPTH, MADE_FROM, SUM, THEN, BELIEVED = range(7)


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
    rows = _collectives(work, is_own, enter, leave)
    needed = rows[:, NEEDED]
    # Which sums have still to begin.
    is_to_come = np.zeros(len(work.sums.ready), np.bool_)
    for message in rows[:, SUM]:
        if message >= 0:
            is_to_come[int(message)] = True
    is_handed = _slices(work, enter, leave)
    slices = work.sums.slices.copy()
    is_left = np.ones(len(rows), np.bool_)
    waits, place = 0.0, leave
    for number in range(len(rows)):
        place = min(place, int(needed[is_left].max()))
        chosen = _next(rows, is_left, is_to_come, place)
        if number == 0 and place == leave:
            chosen = _first_done(work, rows, is_left, is_to_come, place, chosen)
        first = int(rows[is_left, MADE_FROM].max())
        place, wait = _hide(
            work, is_own, left, is_to_come, is_handed, enter, place, first, rows[chosen]
        )
        waits += _behind_slices(slices, is_to_come, rows[chosen, SUM], wait)
        is_left[chosen] = False
        if rows[chosen, SUM] >= 0:
            is_to_come[int(rows[chosen, SUM])] = False
    return waits


@inner
def _next(
    rows: np.ndarray, is_left: np.ndarray, is_to_come: np.ndarray, place: int, but: int = -1
) -> int:
    """Of the collectives that all that reads them is behind, the one that is scheduled next, -1 for
    none; `but` is none of them.
    """
    chosen = -1
    for c in range(len(rows)):
        # Rows are sorted by where they are needed or ready: of equal ones the last is next.
        is_free = is_left[c] and c != but and rows[c, NEEDED] >= place
        is_free = is_free and not _is_to_come(is_to_come, rows[c, THEN])
        if is_free and (chosen < 0 or rows[c, DEPTH] >= rows[chosen, DEPTH]):
            chosen = c
    return chosen


@inner
def _first_done(
    work: Work,
    rows: np.ndarray,
    is_left: np.ndarray,
    is_to_come: np.ndarray,
    leave: int,
    deepest: int,
) -> int:
    """The collective that is scheduled first at the end of a loop, where `deepest` is next.

    The scheduler takes one operation a step, those that read the deepest collective first, and what
    such a reader reads is free only a step after it. So when the last reader of a sum that is
    sliced stands, its slice is not free yet; the reader of another sum is taken, and if that has
    only this one, it is done before.
    """
    sums, message = work.sums, int(rows[deepest, SUM])
    if message < 0 or not sums.is_sliced[message]:
        return deepest
    other = _next(rows, is_left, is_to_come, leave, deepest)
    is_alone = other >= 0 and rows[other, SUM] >= 0 and sums.parts[int(rows[other, SUM])] == 1
    return other if is_alone else deepest


@inner_making_arrays
def _collectives(work: Work, is_own: np.ndarray, enter: int, leave: int) -> np.ndarray:
    """The collectives of a loop, [collectives, columns]: the boundary that it is needed at, its
    seconds, those of the longest chain of collectives that ends with it, the boundary from which on
    no kernel makes its data; for a sum its number and that of the one that it is done before, else
    -1 each.
    """
    sums = work.sums
    rows = np.zeros((leave - enter + len(work.urgent_needed) + len(sums.ready), 7))
    # m: the next sum.
    n = u = m = 0
    # Seconds of the longest chain of those that each sum waits for.
    waited_for = np.zeros(len(sums.ready))
    # Seconds of the longest chain that ends before each boundary.
    chain = np.zeros(leave - enter + 1)
    while u < len(work.urgent_needed) and work.urgent_needed[u] <= enter:
        u += 1
    while m < len(sums.ready) and sums.ready[m] <= enter:
        m += 1
    for k in range(enter + 1, leave + 1):
        before = longest = chain[k - 1 - enter]
        while u < len(work.urgent_needed) and work.urgent_needed[u] == k:
            if is_own[k - enter]:
                ready, seconds = max(work.urgent_ready[u], enter), work.urgent_seconds[u]
                believed = work.urgent_believed[u]
                depth = believed + (before if ready == k else chain[ready - enter])
                rows[n] = np.array([k, seconds, depth, ready, -1.0, -1.0, believed])
                longest = max(longest, depth)
                n += 1
            u += 1
        if is_own[k - enter] and work.prefetch[k] > 0:
            seconds, believed = work.prefetch[k], work.prefetch_believed[k]
            made_from = enter
            for slot in range(enter + 1, k):
                if work.gathered_at[slot] == k and work.kind[slot] == KERNEL:
                    made_from = slot + 1
            rows[n] = np.array([k, seconds, believed, made_from, -1.0, -1.0, believed])
            longest = max(longest, believed)
            n += 1
        while m < len(sums.ready) and sums.ready[m] == k:
            if is_own[k - enter]:
                then, believed = sums.then[m], sums.believed[m]
                depth = believed + max(before, waited_for[m])
                made_from = sums.made_from[m]
                rows[n] = np.array([leave, sums.seconds[m], depth, made_from, m, then, believed])
                if then >= 0:
                    waited_for[then] = max(waited_for[then], depth)
                n += 1
            m += 1
        chain[k - enter] = longest
    return rows[:n]


@inner_making_arrays
def _slices(work: Work, enter: int, leave: int) -> np.ndarray:
    """Which kernels of a loop are made of nothing but what the loop is handed, and are no data of a
    collective, [slots of the loop].
    """
    is_slice = (work.kind[enter:leave] == KERNEL) & (work.data_at[enter:leave] <= enter + 1)
    is_slice &= work.gathered_at[enter:leave] < 0
    for ready in work.urgent_ready:
        if enter < ready <= leave:
            is_slice[ready - 1 - enter] = False
    for slot in range(enter, leave):
        if work.backlog[slot + 1] > 0:
            is_slice[slot - enter] = False
    return is_slice


@inner
def _hide(
    work: Work,
    is_own: np.ndarray,
    left: np.ndarray,
    is_to_come: np.ndarray,
    is_handed: np.ndarray,
    enter: int,
    done: int,
    first: int,
    collective: np.ndarray,
) -> tuple[int, float]:
    """The boundary at which a collective begins that is done at boundary `done`, and how long it is
    waited for; takes what it hides behind from `left` [slots of the loop], of the kernels in their
    order none before boundary `first`.
    """
    # What the scheduler thinks is left to hide, and what is hidden.
    place, rest, hidden = done, collective[BELIEVED], 0.0
    while place > max(first, enter + 1) and rest > 0:
        slot = place - 1
        # A loop of others lets nothing begin before it.
        if work.kind[slot] == EXIT and not is_own[slot - enter]:
            break
        at = slot - enter
        if work.kind[slot] == KERNEL and left[at] > 0:
            # Spare ones that read what it makes come behind it.
            at = max(at, _reader(work, left, is_to_come, enter, slot, collective[SUM]))
            rest -= work.expected[enter + at]
            hidden += left[at]
            left[at] = 0.0
        if at == slot - enter:
            place -= 1
    while rest > 0:
        at = _nearest_spare(work, left, is_to_come, enter, done, collective[SUM], rest)
        if at < 0:
            break
        rest -= work.expected[enter + at]
        hidden += left[at]
        left[at] = 0.0
    for at in range(len(left) - 1, 0, -1):
        slot = enter + at
        if rest > 0 and left[at] > 0 and is_handed[at] and slot < place <= work.read_at[slot]:
            rest -= work.expected[slot]
            hidden += left[at]
            left[at] = 0.0
    return place, max(collective[SECONDS] - hidden, 0.0)


@inner
def _nearest_spare(
    work: Work,
    left: np.ndarray,
    is_to_come: np.ndarray,
    enter: int,
    done: int,
    own_sum: float,
    rest: float,
) -> int:
    """The spare kernel, by its place in `left`, that may run before boundary `done` and takes the
    time that is nearest to `rest`, of equal ones the last; -1 if there is none.
    """
    best = -1
    for at in range(len(left) - 1, 0, -1):
        slot = enter + at
        if left[at] <= 0 or work.kind[slot] != SPARE or work.data_at[slot] > done:
            continue
        if not _is_free(work, is_to_come, slot, own_sum):
            continue
        off = abs(rest - work.expected[slot])
        if best < 0 or off < abs(rest - work.expected[enter + best]):
            best = at
    return best


@inner
def _reader(
    work: Work, left: np.ndarray, is_to_come: np.ndarray, enter: int, slot: int, own_sum: float
) -> int:
    """The last spare kernel, by its place in `left`, that reads what the kernel of a slot makes and
    may run beside a collective; -1 if there is none.
    """
    for at in range(len(left) - 1, slot - enter, -1):
        other = enter + at
        is_reader = work.kind[other] == SPARE and work.data_at[other] == slot + 1
        if left[at] > 0 and is_reader and _is_free(work, is_to_come, other, own_sum):
            return at
    return -1


@inner
def _behind_slices(
    slices: np.ndarray, is_to_come: np.ndarray, own_sum: float, wait: float
) -> float:
    """What is left of a wait behind the `slices` [messages] of sums that are done before it begins,
    which are taken.
    """
    for message in range(len(slices)):
        if wait > 0 and is_to_come[message] and message != own_sum:
            wait = max(wait - slices[message], 0.0)
            slices[message] = 0.0
    return wait


@inner
def _is_free(work: Work, is_to_come: np.ndarray, slot: int, own_sum: float) -> bool:
    """Whether a spare kernel may run beside a collective: it makes none of a sum that is to come
    before, and reads none that is done behind.
    """
    reads = work.sums.reads[slot]
    is_after = reads >= 0 and (reads == own_sum or not _is_to_come(is_to_come, reads))
    return not (_is_to_come(is_to_come, work.sums.makes[slot]) or is_after)


@inner
def _is_to_come(is_to_come: np.ndarray, message: float) -> bool:
    return message >= 0 and is_to_come[int(message)]
