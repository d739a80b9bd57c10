"""Tasks of operators and edges put into their slots: what a change of one configuration adds and
removes.

    part k of o              seconds / speed of its device
    all-reduce of n parts    a ring (Patarasuk and Yuan 2009): 2 (n - 1) steps, each as long as its
                             slowest link takes for 1 / n of a part's bytes; or, where that is
                             shorter, up and down a tree: 2 log n steps of all bytes (n rounded up
                             to a power of 2). The task of part k is on the link into its device
    transfer of an edge      latency + share * bytes / bandwidth, on the link between two devices

`place_operator`, `place_edge` write tasks, `clear_edge` removes an edge's; none of them touches the
timeline.
"""

from automap.numba_jit import Array, inner, inner_making_arrays
from automap.simulate.operators.arrays import NONE, Links, Placement, TaskSlots, Wiring
from automap.simulate.operators.implicit import (
    ring_part,
    ring_start,
    slots_per_part,
    source_parts,
    transfer_share,
)


@inner_making_arrays
def place_operator(
    w: Wiring,
    p: Placement,
    r: TaskSlots,
    links: Links,
    o: int,
    degrees: Array,
    devices: Array,
    part_seconds: float,
    part_bytes: float,
) -> None:
    """Give an operator a configuration, and its slots their tasks."""
    n_operators, n_devices = p.device.shape
    p.part_on[o, :] = NONE
    # The first factor varies fastest: its stride is 1.
    n_parts, n_adding = 1, 1
    for f in range(len(degrees)):
        p.degree[o, f] = degrees[f]
        p.stride[o, f] = n_parts
        n_parts *= degrees[f]
        if w.adds[o, f]:
            n_adding *= degrees[f]
    p.n_parts[o], p.n_adding[o] = n_parts, n_adding
    for k in range(n_devices):
        part, sum_ = o * n_devices + k, (n_operators + o) * n_devices + k
        # Slots of the parts that the last configuration had and this one has not are emptied too.
        r.resource[part] = r.resource[sum_] = NONE
        if k < n_parts:
            for f in range(len(degrees)):
                p.digit[o, k, f] = k // p.stride[o, f] % degrees[f]
            p.device[o, k] = devices[k]
            p.part_on[o, devices[k]] = k
            r.resource[part] = devices[k]
            r.seconds[part] = part_seconds / links.speed[devices[k]]
            r.ident[part] = w.part_id[o] + k
    if n_adding > 1:
        for k in range(n_parts):
            _place_sum(w, p, r, links, o, k, part_bytes)


@inner
def _place_sum(
    w: Wiring, p: Placement, r: TaskSlots, links: Links, o: int, k: int, part_bytes: float
) -> None:
    n_operators, n_devices = p.device.shape
    n = p.n_adding[o]
    start = ring_start(w, p, o, k)
    ring_step_seconds = tree_step_seconds = 0.0
    source = NONE
    for number in range(n):
        part = ring_part(w, p, o, start, number)
        a, b = p.device[o, part], p.device[o, ring_part(w, p, o, start, (number + 1) % n)]
        latency, seconds = links.latency_seconds[a, b], part_bytes / links.bytes_per_s[a, b]
        ring_step_seconds = max(ring_step_seconds, latency + seconds / n)
        tree_step_seconds = max(tree_step_seconds, latency + seconds)
        # The link into part k's own device is what its task takes up.
        if b == p.device[o, k]:
            source = a
    slot = (n_operators + o) * n_devices + k
    levels = 0
    while 1 << levels < n:
        levels += 1
    r.seconds[slot] = 2 * min((n - 1) * ring_step_seconds, levels * tree_step_seconds)
    r.resource[slot] = n_devices + source * n_devices + p.device[o, k]
    r.ident[slot] = w.part_id[o] + n_devices + k
    p.n_waiting[slot] = n  # for the partial sums of all parts of the ring


@inner
def place_edge(
    w: Wiring, p: Placement, r: TaskSlots, links: Links, e: int, free_slot: int, some: Array
) -> int:
    """Give an edge its tasks, in the slots that it has if they are enough, else from `free_slot`
    on; returns the next free slot.

    If that is beyond the last slot, none has been written.
    """
    u, v = w.source[e], w.target[e]
    n_devices = p.device.shape[1]
    # Asked for by `source_parts` itself, so it must be false until every part has been seen.
    p.is_local[e] = False
    if _is_aligned(w, p, e):
        p.is_local[e], p.per_part[e] = True, 0
        if w.is_awaited[e]:
            for b in range(p.n_parts[v]):
                p.n_waiting[v * n_devices + b] += 1
        return free_slot
    per_part = slots_per_part(w, p, e)
    wanted = p.n_parts[v] * per_part
    if wanted > p.room[e]:
        if free_slot + wanted > len(r.resource):
            return free_slot + wanted
        p.first_slot[e], p.room[e] = free_slot, wanted
        free_slot += wanted
    p.per_part[e] = per_part
    is_local = p.n_parts[u] == p.n_parts[v]
    for b in range(p.n_parts[v]):
        base = p.first_slot[e] + b * per_part
        r.resource[base : base + per_part] = NONE
        n = source_parts(w, p, e, b, some)
        if w.is_awaited[e]:
            p.n_waiting[v * n_devices + b] += n
        there = p.device[v, b]
        for m in range(n):
            a = some[m]
            here = p.device[u, a]
            is_local = is_local and n == 1 and a == b and here == there
            if here != there:
                n_bytes = w.n_bytes[e] * transfer_share(w, p, e, a, b)
                slot = base + m
                r.seconds[slot] = (
                    links.latency_seconds[here, there] + n_bytes / links.bytes_per_s[here, there]
                )
                r.resource[slot] = n_devices + here * n_devices + there
                r.ident[slot] = w.edge_id[e] + a * n_devices + b
                r.edge[slot] = e
    p.is_local[e] = is_local
    return free_slot


@inner
def _is_aligned(w: Wiring, p: Placement, e: int) -> bool:
    """Whether both ends are split alike along the edge's dimensions, part by part on equal devices:
    then the edge is local, which this sees without a look at each part.
    """
    u, v = w.source[e], w.target[e]
    if p.n_parts[u] != p.n_parts[v]:
        return False
    for d in range(w.n_dims[e]):
        f, g = w.dim_factors[e, d, 0], w.dim_factors[e, d, 1]
        degree = p.degree[u, f]
        if degree != p.degree[v, g] or (degree > 1 and p.stride[u, f] != p.stride[v, g]):
            return False
    for k in range(p.n_parts[u]):
        if p.device[u, k] != p.device[v, k]:
            return False
    return True


@inner
def clear_edge(w: Wiring, p: Placement, r: TaskSlots, e: int, some: Array) -> None:
    """Take an edge's tasks out of their slots, before either of its ends changes."""
    v, n_devices = w.target[e], p.device.shape[1]
    for b in range(p.n_parts[v]):
        if w.is_awaited[e]:
            p.n_waiting[v * n_devices + b] -= source_parts(w, p, e, b, some)
        base = p.first_slot[e] + b * p.per_part[e]
        r.resource[base : base + p.per_part[e]] = NONE
