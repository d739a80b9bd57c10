"""Full simulation: Algorithm 1 of FlexFlow (section 5.2) on the implicit task graph.

Tasks leave a heap by (ready, id); each starts when it is ready and the task before it on its device
or link has ended, and is put at the end of that one's list             -> in: `simulate_all`
`place_all` is the construction of the task graph: every task of every operator and edge.
"""

import numpy as np

from automap.numba_jit import Array, compiled
from automap.simulate.heap import pop, push
from automap.simulate.operators.arrays import NONE, Links, Placement, TaskSlots, Wiring
from automap.simulate.operators.implicit import followers
from automap.simulate.operators.placing import place_edge, place_operator


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
    for o in range(n_operators):
        place_operator(w, p, r, links, o, degrees[o], devices[o], part_seconds[o], part_bytes[o])
    some = np.empty(n_devices, np.int64)
    # Transfers come after the fixed slots of parts and of all-reduces.
    slot = 2 * n_operators * n_devices
    for e in range(len(w.source)):
        slot = place_edge(w, p, r, links, e, slot, some)
    return slot


@compiled
def simulate_all(w: Wiring, p: Placement, r: TaskSlots) -> int:
    """The timeline of all tasks; returns their number."""
    n_operators, n_devices = p.device.shape
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
        r.before[slot], r.after[slot] = previous, NONE
        r.last[on] = slot
        r.end[slot] = start + r.seconds[slot]
        for n in range(followers(w, p, r, slot, out, some)):
            after = out[n]
            r.ready[after] = max(r.ready[after], r.end[slot])
            # A transfer waits for one part alone and is ready at once; others count down.
            if r.edge[after] == NONE:
                waiting[after] -= 1
            if r.edge[after] != NONE or waiting[after] == 0:
                size = push(keys, heap, size, r.ready[after], after, r.ident)
    return done


@compiled
def scratch(w: Wiring, p: Placement) -> tuple[np.ndarray, np.ndarray]:
    """Room for the followers of one task, and for the parts of one edge."""
    n_devices = p.device.shape[1]
    # The most edges that leave one operator, with up to P readers each, or the P of an all-reduce.
    most = 1
    for o in range(len(p.n_parts)):
        most = max(most, w.first_out[o + 1] - w.first_out[o])
    return np.empty(most * n_devices + n_devices, np.int64), np.empty(n_devices, np.int64)
