"""Delta simulation: Algorithm 2 of FlexFlow (section 5.3) on the implicit task graph.

The timeline is the one solution of

    ready(t) = max end of t's predecessors (`automap.simulate.operators.implicit` of transfers)
    end(t)   = max(ready(t), end(task before t)) + seconds(t)

with the tasks of every device and link in the order of (ready, id). After a change of one
operator's configuration, tasks whose equations may not hold any more wait in a heap by their ready
time; each one taken out is put at its place in its list, and if its end changed, its followers and
the task after it are put in. When the heap is empty all equations hold, so the timeline is that of
a full simulation.

    a task taken out too early (what it waits for ends later, or is itself in the heap) goes back in
    an inserted or removed task changes what is before the task after it, which goes in as well
    new tasks start from ends that ignore waiting on devices, so that none is ready before its time

The tasks of each device and link are a linked list in that order: `r.before`, `r.after` join the
slots, `r.first`, `r.last` are the ends by resource              -> in: `insert`, `remove`

A change early in a step moves most tasks, some several times, and a full simulation is the cheaper
way: after `visits_per_task` times the number of tasks it is given up  -> in: `simulate_changed`
"""

from typing import NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.simulate.heap import pop, push
from automap.simulate.operators.arrays import NONE, Links, Placement, TaskSlots, Wiring
from automap.simulate.operators.full import scratch
from automap.simulate.operators.implicit import followers, handed_on, ready_seconds
from automap.simulate.operators.placing import clear_edge, place_edge, place_operator


_NEVER = np.inf


class Queue(NamedTuple):
    """Tasks to be looked at: a heap of (`keys`, `heap`), `queued_at` [slots] the key by which each
    task is in it (`_NEVER`: it is not), `is_out` [slots] whether a task is in no list.

    `settled` is the task of each device or link that was looked at last. Tasks are looked at in the
    order of time, so the next one's place is near, while its old place may be far.
    """

    keys: Array
    heap: Array
    queued_at: Array
    is_out: Array
    settled: Array


@compiled
def replace_configuration(
    w: Wiring,
    p: Placement,
    r: TaskSlots,
    links: Links,
    o: int,
    degrees: Array,
    devices: Array,
    part_seconds: float,
    part_bytes: float,
    free_slot: int,
) -> tuple[np.ndarray, int]:
    """Swap the tasks of an operator and its edges; (slots of tasks that lost the one before, next
    free slot).

    If the next free slot is beyond the last, the edges' tasks are not written and all must be
    rebuilt.
    """
    n_operators, n_devices = p.device.shape
    some = np.empty(n_devices, np.int64)
    # Tasks leave their lists while the arrays still say where they are; then all is written anew.
    edges = _incident_edges(w, o)
    orphans = np.empty(len(r.resource), np.int32)
    n = 0
    for e in edges:
        first = p.first_slot[e]
        for slot in range(first, first + p.n_parts[w.target[e]] * p.per_part[e]):
            n = _take_out(r, slot, orphans, n)
        clear_edge(w, p, r, e, some)
    for row in (o, n_operators + o):
        for slot in range(row * n_devices, row * n_devices + p.n_parts[o]):
            n = _take_out(r, slot, orphans, n)
    place_operator(w, p, r, links, o, degrees, devices, part_seconds, part_bytes)
    for e in edges:
        free_slot = place_edge(w, p, r, links, e, free_slot, some)
    return orphans[:n].copy(), free_slot


@inner_making_arrays
def _incident_edges(w: Wiring, o: int) -> np.ndarray:
    edges = np.empty(
        w.first_out[o + 1] - w.first_out[o] + w.first_in[o + 1] - w.first_in[o], np.int64
    )
    # An edge from an operator to itself both leaves and comes in: it is listed once.
    n = 0
    for i in range(w.first_in[o], w.first_in[o + 1]):
        if w.source[w.into[i]] != o:
            edges[n] = w.into[i]
            n += 1
    for e in range(w.first_out[o], w.first_out[o + 1]):
        edges[n] = e
        n += 1
    return edges[:n]


@inner
def _take_out(r: TaskSlots, slot: int, orphans: Array, n: int) -> int:
    if r.resource[slot] == NONE:
        return n
    after = remove(r, slot)
    if after != NONE:
        orphans[n] = after
        return n + 1
    return n


@compiled
def simulate_changed(
    w: Wiring, p: Placement, r: TaskSlots, o: int, orphans: Array, visits_per_task: float
) -> bool:
    """Bring the timeline up to date after `replace_configuration`; whether that came to an end.

    If not, the timeline is void, and to be simulated in full.
    """
    n_slots = len(r.resource)
    out, some = scratch(w, p)
    queue = Queue(
        np.empty(2 * n_slots + len(out)),
        np.empty(2 * n_slots + len(out), np.int32),
        np.full(n_slots, _NEVER),
        np.zeros(n_slots, np.bool_),
        np.full(len(r.first), NONE, np.int32),
    )
    size = _enqueue_changed(w, p, r, o, orphans, queue, some)
    visits = visits_per_task * np.count_nonzero(r.resource != NONE) + len(out)
    while size > 0:
        slot, key = queue.heap[0], queue.keys[0]
        size = pop(queue.keys, queue.heap, size, r.ident)
        # A task that was put in again by an earlier key leaves its later entry behind.
        if key != queue.queued_at[slot]:
            continue
        queue.queued_at[slot] = _NEVER
        visits -= 1
        # Entries left behind fill the heap, too, which has room for twice the slots.
        if visits < 0 or size > n_slots:
            return False
        ready = ready_seconds(w, p, r, slot, some, queue.queued_at)
        # Too early: something that it waits for will end later than its key.
        if ready > key:
            size = _enqueue(queue, size, r, slot, ready)
        else:
            size = _settle(w, p, r, queue, size, slot, ready, out, some)
    return True


@inner_making_arrays
def _enqueue_changed(
    w: Wiring, p: Placement, r: TaskSlots, o: int, orphans: Array, queue: Queue, some: Array
) -> int:
    """Put in new tasks, operators that read the new ones, and what lost the task before it."""
    n_devices = p.device.shape[1]
    size = 0
    for slot in _new_slots(w, p, r, o):
        # The earliest that it can be ready, as if devices were free: it is looked at in time.
        queue.is_out[slot] = True
        r.ready[slot] = ready_seconds(w, p, r, slot, some, queue.queued_at)
        r.end[slot] = r.ready[slot] + r.seconds[slot]
        size = _enqueue(queue, size, r, slot, r.ready[slot])
    for e in range(w.first_out[o], w.first_out[o + 1]):
        if w.is_awaited[e]:
            for slot in range(
                w.target[e] * n_devices, w.target[e] * n_devices + p.n_parts[w.target[e]]
            ):
                size = _enqueue(queue, size, r, slot, r.ready[slot])
    # What lost the task before it may start sooner; it may itself have been replaced since.
    for slot in orphans:
        if r.resource[slot] != NONE and not queue.is_out[slot]:
            size = _enqueue(queue, size, r, slot, r.ready[slot])
    return size


@inner_making_arrays
def _new_slots(w: Wiring, p: Placement, r: TaskSlots, o: int) -> np.ndarray:
    """Slots of the tasks that a change of operator o made, predecessors first."""
    n_operators, n_devices = p.device.shape
    edges = _incident_edges(w, o)
    slots = np.empty(len(r.resource), np.int32)
    n = 0
    for e in edges:
        if w.target[e] == o and w.source[e] != o:
            n = _append_tasks(r, slots, n, p.first_slot[e], p.n_parts[o] * p.per_part[e])
    for row in (o, n_operators + o):
        n = _append_tasks(r, slots, n, row * n_devices, p.n_parts[o])
    for e in edges:
        if w.source[e] == o:
            n = _append_tasks(r, slots, n, p.first_slot[e], p.n_parts[w.target[e]] * p.per_part[e])
    return slots[:n]


@inner
def _append_tasks(r: TaskSlots, slots: Array, n: int, first: int, count: int) -> int:
    for slot in range(first, first + count):
        if r.resource[slot] != NONE:
            slots[n] = slot
            n += 1
    return n


@inner
def _settle(
    w: Wiring,
    p: Placement,
    r: TaskSlots,
    queue: Queue,
    size: int,
    slot: int,
    ready: float,
    out: Array,
    some: Array,
) -> int:
    """Make a task's equations hold, and put in those whose equations it is part of."""
    is_new = queue.is_out[slot]
    on = r.resource[slot]
    if is_new:
        insert(r, slot, ready, _nearer(r, ready, queue.settled[on], nearby(p, r, slot, ready)))
    elif ready != r.ready[slot]:
        # Where it was is a place to begin the search from; it must not begin from itself.
        old = r.before[slot] if r.before[slot] != NONE else r.after[slot]
        if queue.settled[on] == slot:
            queue.settled[on] = r.before[slot]
        orphan = remove(r, slot)
        if orphan != NONE:
            size = _enqueue(queue, size, r, orphan, r.ready[orphan])
        insert(r, slot, ready, _nearer(r, ready, queue.settled[on], old))
    queue.settled[on] = slot
    # Whoever comes after a moved task has another task before it, even if no end has changed.
    has_moved = is_new or ready != r.ready[slot]
    queue.is_out[slot] = False
    r.ready[slot] = ready
    before, after = r.before[slot], r.after[slot]
    end = (ready if before == NONE else max(ready, r.end[before])) + r.seconds[slot]
    has_changed = is_new or end != r.end[slot]
    r.end[slot] = end
    if after != NONE and (has_moved or has_changed):
        size = _enqueue(queue, size, r, after, max(r.ready[after], end))
    if has_changed:
        for n in range(followers(w, p, r, slot, out, some)):
            key = handed_on(r, ready, end, slot, out[n])
            size = _enqueue(queue, size, r, out[n], key)
    return size


@inner
def _nearer(r: TaskSlots, ready: float, one: int, other: int) -> int:
    """Which of two tasks of a list (NONE: its beginning) is ready nearer to a time."""
    if one == NONE or other == NONE:
        return max(one, other)
    return one if abs(r.ready[one] - ready) < abs(r.ready[other] - ready) else other


@inner
def _enqueue(queue: Queue, size: int, r: TaskSlots, slot: int, key: float) -> int:
    """Put a task in by `key`, unless it is in by an earlier one."""
    if key >= queue.queued_at[slot]:
        return size
    queue.queued_at[slot] = key
    return push(queue.keys, queue.heap, size, key, slot, r.ident)


@inner
def remove(r: TaskSlots, slot: int) -> int:
    """Take a task out of its list; returns the one that was after it."""
    before, after, on = r.before[slot], r.after[slot], r.resource[slot]
    if before == NONE:
        r.first[on] = after
    else:
        r.after[before] = after
    if after == NONE:
        r.last[on] = before
    else:
        r.before[after] = before
    return after


@inner
def insert(r: TaskSlots, slot: int, ready: float, near: int) -> None:
    """Put a task that is ready at `ready` into its list, looking for its place from `near` on."""
    on = r.resource[slot]
    # Back to the last task that is before it, then on to the first that is not.
    before = near
    while before != NONE and not _is_before(r, before, slot, ready):
        before = r.before[before]
    after = r.first[on] if before == NONE else r.after[before]
    while after != NONE and _is_before(r, after, slot, ready):
        before, after = after, r.after[after]
    r.before[slot], r.after[slot] = before, after
    if before == NONE:
        r.first[on] = slot
    else:
        r.after[before] = slot
    if after == NONE:
        r.last[on] = slot
    else:
        r.before[after] = slot


@inner
def _is_before(r: TaskSlots, other: int, slot: int, ready: float) -> bool:
    return r.ready[other] < ready or (r.ready[other] == ready and r.ident[other] < r.ident[slot])


@inner
def nearby(p: Placement, r: TaskSlots, slot: int, ready: float) -> int:
    """A task of the same list that may be near the place of a new one; NONE: its beginning.

    For a part of an operator that of the operator before it, in the order of the program.
    """
    n_devices = p.device.shape[1]
    if slot < len(p.n_parts) * n_devices:
        device = r.resource[slot]
        # Operators are in topological order: the one before mostly runs just before it.
        for u in range(slot // n_devices - 1, -1, -1):
            if p.part_on[u, device] != NONE:
                return u * n_devices + p.part_on[u, device]
    # On links, the end of the list nearer in time.
    last = r.last[r.resource[slot]]
    return NONE if last == NONE or 2 * ready < r.ready[last] else last
