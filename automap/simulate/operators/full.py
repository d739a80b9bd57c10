"""Full simulation: Algorithm 1 of FlexFlow (section 5.2) on the implicit task graph.

Tasks leave a heap by (ready, id); each starts when it is ready and the task before it on its device
or link has ended, and is put at the end of that one's list             -> in: `simulate_all`
`place_all` is the construction of the task graph: every task of every operator and edge;
`replace_all` that of what some operators' new configurations change.

A search wants to know of most of its proposals only that they are too long. With d(o) the least
seconds of a part of operator o and a(o) those of its all-reduce, 0 without one,

    head(o) = max over its awaited sources u of  head(u) + d(u) + a(u)
    tail(o) = a(o) + max over its awaited targets v of  d(v) + tail(v)         -> in: `_heads_tails`

every part of o starts at head(o) or later, and tail(o) passes after it; targets count where each
part is sure to be read, that is without copies. On a device or medium with tasks T of W seconds

    makespan >= min head(T) + W + min tail(T)       before the simulation    -> in: `_is_over`
    makespan >= s + what is left of W               when a task starts at s, as others come later
    makespan >= s + seconds + tail(o)               when a part of o starts at s

so a simulation with a limit ends as soon as one of them is over.
"""

import numpy as np

from automap.numba_jit import Array, compiled, inner, inner_making_arrays
from automap.simulate.heap import pop, push
from automap.simulate.operators.arrays import NONE, Links, Placement, TaskSlots, Wiring
from automap.simulate.operators.implicit import followers, handed_on
from automap.simulate.operators.placing import clear_edge, place_edge, place_operator


# A bound is over the limit only if it is by more than what rounding does to sums of seconds: so no
# simulation ends early whose makespan is not over it.
ROUNDING = 1.0 + 1e-9


@compiled
def place_all(
    w: Wiring,
    p: Placement,
    r: TaskSlots,
    links: Links,
    degrees: Array,
    devices: Array,
    part_seconds: Array,
    part_bytes: np.ndarray,
) -> int:
    """Write all tasks of configurations degrees [O, F], devices [O, P]; returns the first free
    slot.

    Where slots run out, nothing but their number is right.
    """
    n_operators, n_devices = p.device.shape
    r.resource[:] = NONE
    p.n_waiting[:] = 0
    p.room[:] = 0
    for o in range(n_operators):
        place_operator(w, p, r, links, o, degrees[o], devices[o], part_seconds[o], part_bytes[o])
    some = np.empty(n_devices, np.int64)
    # Transfers come after the fixed slots of parts and of all-reduces.
    slot = 2 * n_operators * n_devices
    for e in range(len(w.source)):
        slot = place_edge(w, p, r, links, e, slot, some)
    return slot


@compiled
def replace_all(
    w: Wiring,
    p: Placement,
    r: TaskSlots,
    links: Links,
    changed: Array,
    n_factors: Array,
    degrees: Array,
    devices: Array,
    part_seconds: Array,
    part_bytes: Array,
    free_slot: int,
) -> int:
    """Write the tasks of the `changed` operators and their edges anew; returns the next free slot.

    The timeline is void then. If the slot is beyond the last, all must be rebuilt.
    """
    some = np.empty(p.device.shape[1], np.int64)
    is_touched = np.zeros(len(w.source), np.bool_)
    for o in changed:
        is_touched[w.first_out[o] : w.first_out[o + 1]] = True
        for n in range(w.first_in[o], w.first_in[o + 1]):
            is_touched[w.into[n]] = True
    edges: Array = np.flatnonzero(is_touched)
    for e in edges:
        clear_edge(w, p, r, e, some)
    for o in changed:
        place_operator(
            w,
            p,
            r,
            links,
            o,
            degrees[o, : n_factors[o]],
            devices[o],
            part_seconds[o],
            part_bytes[o],
        )
    for e in edges:
        free_slot = place_edge(w, p, r, links, e, free_slot, some)
    return free_slot


@compiled
def simulate_all(w: Wiring, p: Placement, r: TaskSlots, limit_seconds: float) -> int:
    """The timeline of all tasks; returns how many were looked at, NONE if the makespan is over the
    limit: then the timeline is void.
    """
    n_operators, n_devices = p.device.shape
    limit = limit_seconds * ROUNDING
    left, tail = np.zeros(len(r.first)), np.zeros(n_operators)
    if limit < np.inf and _is_over(w, p, r, limit, left, tail):
        return NONE
    r.first[:] = NONE
    r.last[:] = NONE
    r.ready[:] = 0.0
    waiting = p.n_waiting.copy()
    n_slots = len(r.resource)
    keys, heap, size = np.empty(n_slots), np.empty(n_slots, np.int32), 0
    out, some = scratch(w, p)
    # Only parts of operators may wait for nothing: transfers and sums have a part before them.
    for slot in range(n_operators * n_devices):
        if r.resource[slot] != NONE and waiting[slot] == 0:
            size = push(keys, heap, size, 0.0, slot, r.ident)
    done = 0
    while size > 0:
        slot = heap[0]
        size = pop(keys, heap, size, r.ident)
        done += 1
        on = r.resource[slot]
        previous = r.last[on]
        start = r.ready[slot]
        if previous == NONE:
            r.first[on] = slot
        else:
            start = max(start, r.end[previous])
            r.after[previous] = slot
        if start + left[on] > limit:
            return NONE
        left[on] -= r.seconds[slot]
        if slot < n_operators * n_devices:
            if start + r.seconds[slot] + tail[slot // n_devices] > limit:
                return NONE
        r.before[slot], r.after[slot] = previous, NONE
        r.last[on] = slot
        r.end[slot] = start + r.seconds[slot]
        for n in range(followers(w, p, r, slot, out, some)):
            after = out[n]
            handed = handed_on(r, r.ready[slot], r.end[slot], slot, after)
            r.ready[after] = max(r.ready[after], handed)
            # A transfer waits for one task alone and is ready at once; others count down.
            if r.edge[after] == NONE:
                waiting[after] -= 1
            if r.edge[after] != NONE or waiting[after] == 0:
                size = push(keys, heap, size, r.ready[after], after, r.ident)
    return done


@inner_making_arrays
def _is_over(w: Wiring, p: Placement, r: TaskSlots, limit: float, left: Array, tail: Array) -> bool:
    """Whether the makespan is over the limit for sure. Fills `left`, seconds of each device and
    medium, and `tail` of each operator.
    """
    n_operators, n_devices = p.device.shape
    head, done = np.zeros(n_operators), np.zeros(n_operators)
    _heads_tails(w, p, r, head, done, tail)
    first, last = np.full(len(left), np.inf), np.full(len(left), np.inf)
    for slot in range(len(r.resource)):
        on = r.resource[slot]
        if on == NONE:
            continue
        left[on] += r.seconds[slot]
        row = slot // n_devices
        if row < n_operators:
            first[on] = min(first[on], head[row])
            last[on] = min(last[on], tail[row])
        else:
            # Sums and transfers, that of an edge after its source is done.
            o = row - n_operators if row < 2 * n_operators else w.source[r.edge[slot]]
            after = head[o] if row < 2 * n_operators else done[o]
            if row < 2 * n_operators:
                after += _least_seconds(p, r, o, o)
            first[on] = min(first[on], after)
            last[on] = 0.0
    for on in range(len(left)):
        if left[on] > 0.0 and first[on] + left[on] + last[on] > limit:
            return True
    return False


@inner
def _heads_tails(
    w: Wiring, p: Placement, r: TaskSlots, head: Array, done: Array, tail: Array
) -> None:
    """Fill `head`, `tail`, and `done`, before which no part of an operator has its result."""
    n_operators = p.device.shape[0]
    # Operators are in topological order.
    for o in range(n_operators):
        for n in range(w.first_in[o], w.first_in[o + 1]):
            if w.is_awaited[w.into[n]]:
                head[o] = max(head[o], done[w.source[w.into[n]]])
        done[o] = head[o] + _least_seconds(p, r, o, o)
        if p.n_adding[o] > 1:
            done[o] += _least_seconds(p, r, o, n_operators + o)
    for o in range(n_operators - 1, -1, -1):
        for e in range(w.first_out[o], w.first_out[o + 1]):
            v = w.target[e]
            if w.is_awaited[e] and _is_read(w, p, e):
                tail[o] = max(tail[o], done[v] - head[v] - _sum_seconds(p, r, v) + tail[v])
        tail[o] += _sum_seconds(p, r, o)


@inner
def _is_read(w: Wiring, p: Placement, e: int) -> bool:
    """Whether each part of an edge's source, or of a ring of sums one, is read by the target."""
    u = w.source[e]
    for f in range(w.loose_from.shape[1]):
        if w.loose_from[e, f] and p.degree[u, f] > 1 and not w.adds[u, f]:
            return False
    return True


@inner
def _sum_seconds(p: Placement, r: TaskSlots, o: int) -> float:
    return _least_seconds(p, r, o, p.device.shape[0] + o) if p.n_adding[o] > 1 else 0.0


@inner
def _least_seconds(p: Placement, r: TaskSlots, o: int, row: int) -> float:
    """The least of the tasks in a row of slots, those of operator o's parts or of their sums."""
    first = row * p.device.shape[1]
    least = r.seconds[first]
    for slot in range(first + 1, first + p.n_parts[o]):
        least = min(least, r.seconds[slot])
    return least


@compiled
def scratch(w: Wiring, p: Placement) -> tuple[np.ndarray, np.ndarray]:
    """Room for the followers of one task, and for the parts of one edge."""
    n_devices = p.device.shape[1]
    # The most edges that leave one operator, with up to P readers each, or the P of an all-reduce.
    most = 1
    for o in range(len(p.n_parts)):
        most = max(most, w.first_out[o + 1] - w.first_out[o])
    return np.empty(most * n_devices + n_devices, np.int64), np.empty(n_devices, np.int64)
