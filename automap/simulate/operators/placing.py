"""Tasks of operators and edges put into their slots: what a change of one configuration adds and
removes.

    part k of o              seconds / speed of its device
    all-reduce of n parts    a ring (Patarasuk and Yuan 2009): 2 (n - 1) steps, each as long as its
                             slowest link takes for 1 / n of a part's bytes; or, where that is
                             shorter, up and down a tree: 2 log n steps of all bytes (n rounded up
                             to a power of 2). The ring goes by the numbers of devices, the task of
                             part k is on the way out of the one before it  -> in: `_place_ring`
    transfer of an edge      latency + share * bytes / bandwidth on the way out of one device, and
                             share * bytes / bandwidth on the way into another

`place_operator`, `place_edge` write tasks, `clear_edge` removes an edge's; none of them touches the
timeline.
"""

import numpy as np

from automap.numba_jit import Array, inner, inner_making_arrays
from automap.simulate.operators.arrays import NONE, Links, Placement, TaskSlots, Wiring
from automap.simulate.operators.implicit import (
    ring_part,
    ring_start,
    slots_per_part,
    source_parts,
    transfer_share,
)
from automap.simulate.operators.network import NO_MEDIUM


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
        ring = np.empty(n_adding, np.int64)
        for k in range(n_parts):
            if ring_start(w, p, o, k) == k:
                _place_ring(w, p, r, links, o, k, part_bytes, ring)


@inner
def _place_ring(
    w: Wiring,
    p: Placement,
    r: TaskSlots,
    links: Links,
    o: int,
    start: int,
    part_bytes: float,
    ring: Array,
) -> None:
    """Write the all-reduce of the parts whose partial sums are added to that of part `start`."""
    n_operators, n_devices = p.device.shape
    n = len(ring)
    for number in range(n):
        part, place = ring_part(w, p, o, start, number), number
        # By their devices, so that a ring enters and leaves each host once.
        while place > 0 and p.device[o, ring[place - 1]] > p.device[o, part]:
            ring[place] = ring[place - 1]
            place -= 1
        ring[place] = part
    ring_step_seconds = tree_step_seconds = 0.0
    for number in range(n):
        a, b = p.device[o, ring[number - 1]], p.device[o, ring[number]]
        latency, seconds = links.latency_seconds[a, b], part_bytes / links.bytes_per_s[a, b]
        ring_step_seconds = max(ring_step_seconds, latency + seconds / n)
        tree_step_seconds = max(tree_step_seconds, latency + seconds)
    levels = 0
    while 1 << levels < n:
        levels += 1
    all_seconds = 2 * min((n - 1) * ring_step_seconds, levels * tree_step_seconds)
    for number in range(n):
        a, b = p.device[o, ring[number - 1]], p.device[o, ring[number]]
        slot = (n_operators + o) * n_devices + ring[number]
        r.seconds[slot] = all_seconds
        r.resource[slot] = n_devices + links.media[a, b, 0]
        r.ident[slot] = w.part_id[o] + n_devices + ring[number]
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
    per_part = 2 * slots_per_part(w, p, e)
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
                _place_transfer(w, p, r, links, e, a, b, base + m, n_bytes)
    p.is_local[e] = is_local
    return free_slot


@inner
def _place_transfer(
    w: Wiring,
    p: Placement,
    r: TaskSlots,
    links: Links,
    e: int,
    a: int,
    b: int,
    slot: int,
    n_bytes: float,
) -> None:
    """Write what sends, and what receives, part a of an edge's source for part b of its target."""
    n_devices = p.device.shape[1]
    here, there = p.device[w.source[e], a], p.device[w.target[e], b]
    seconds = n_bytes / links.bytes_per_s[here, there]
    r.seconds[slot] = links.latency_seconds[here, there] + seconds
    r.resource[slot] = n_devices + links.media[here, there, 0]
    r.ident[slot] = w.edge_id[e] + a * n_devices + b
    r.edge[slot] = e
    if links.media[here, there, 1] != NO_MEDIUM:
        received = slot + p.per_part[e] // 2
        r.seconds[received] = seconds
        r.resource[received] = n_devices + links.media[here, there, 1]
        r.ident[received] = r.ident[slot] + n_devices * n_devices
        r.edge[received] = e


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
