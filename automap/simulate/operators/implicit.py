"""The task graph that configurations imply, without building it: who reads from whom, by index
ranges.

A dimension that the source of an edge splits into d_u parts and the target into d_v is cut at
i / d_u and at j / d_v: part i of the source overlaps part j of the target for

    i d_v < (j + 1) d_u  and  j d_u < (i + 1) d_v,  that is
    floor(j d_u / d_v) <= i < ceil((j + 1) d_u / d_v)

so the parts that part b reads are a product of ranges over dimensions
                                                        -> in: `source_parts`, `target_parts`
Parts along *loose* factors of the source (copies, and sums once they are added up) hold the same: b
reads the one on its own device, else number b of them                  -> in: `_holder`
The n-th part that b reads is sent by slot first_slot + b per_part + n, unless it is on b's device,
and received by the slot per_part / 2 behind, if there is a second medium. It is received as it
comes, so that nothing is held up that goes other ways: ready for that when

    ready(received) = start(sent) + latency = end(sent) - seconds(received)       -> in: `handed_on`

The share of an edge's bytes that moves is the product of the overlaps, but of those of partial
sums, each of which is as large as the tensor                           -> in: `transfer_share`

Arguments of all functions: wiring w, configurations p, tasks r; edge e from operator u to v; part a
of the source, part b of the target. `some` and `out` are room that the caller owns, as compiled
code that runs for every task must not allocate.
"""

import numpy as np

from automap.numba_jit import Array, inner
from automap.simulate.operators.arrays import NONE, Placement, TaskSlots, Wiring


@inner
def _range(i: int, degree: int, other: int) -> tuple[int, int]:
    """Parts of `other` that overlap part i of `degree`."""
    if degree == other:
        return i, i + 1
    return i * other // degree, ((i + 1) * other + degree - 1) // degree


@inner
def _extend(out: Array, n: int, low: int, high: int, stride: int) -> int:
    """Every one of the n parts in `out`, at each of the places low .. high - 1 along one more
    factor; their number.
    """
    # The first place last: it overwrites the n parts that the others are copied from.
    for i in range(low + 1, high):
        for m in range(n):
            out[(i - low) * n + m] = out[m] + i * stride
    for m in range(n):
        out[m] += low * stride
    return n * (high - low)


@inner
def _holder(w: Wiring, p: Placement, e: int, region: int, b: int) -> int:
    """Of the source's parts that hold `region` (all loose places 0), the one that part b reads."""
    u, v = w.source[e], w.target[e]
    # Of what is on b's own device nothing moves, if it is of the region.
    near = p.part_on[u, p.device[v, b]]
    if near != NONE:
        near_region = 0
        for d in range(w.n_dims[e]):
            f = w.dim_factors[e, d, 0]
            near_region += p.digit[u, near, f] * p.stride[u, f]
        if near_region == region:
            return near
    # Else readers take turns: b, written in the degrees of the loose factors, names a copy.
    a, number = region, b
    for f in range(w.loose_from.shape[1]):
        degree = p.degree[u, f]
        if degree > 1 and w.loose_from[e, f]:
            a += number % degree * p.stride[u, f]
            number //= degree
    return a


@inner
def source_parts(w: Wiring, p: Placement, e: int, b: int, out: Array) -> int:
    """Parts of the source that part b of the target reads, in the order of their slots; their
    number.
    """
    if p.is_local[e]:
        out[0] = b
        return 1
    u, v = w.source[e], w.target[e]
    out[0] = 0
    n = 1
    for d in range(w.n_dims[e]):
        f, g = w.dim_factors[e, d, 0], w.dim_factors[e, d, 1]
        if p.degree[u, f] > 1:
            low, high = _range(p.digit[v, b, g], p.degree[v, g], p.degree[u, f])
            n = _extend(out, n, low, high, p.stride[u, f])
    for m in range(n):
        out[m] = _holder(w, p, e, out[m], b)
    return n


@inner
def target_parts(w: Wiring, p: Placement, e: int, a: int, out: Array) -> int:
    """Parts of the target that read from part a of the source; their number."""
    if p.is_local[e]:
        out[0] = a
        return 1
    u, v = w.source[e], w.target[e]
    out[0] = 0
    n = 1
    n_regions = 1
    region = 0
    for d in range(w.n_dims[e]):
        f, g = w.dim_factors[e, d, 0], w.dim_factors[e, d, 1]
        n_regions *= p.degree[u, f]
        region += p.digit[u, a, f] * p.stride[u, f]
        if p.degree[v, g] > 1:
            low, high = _range(p.digit[u, a, f], p.degree[u, f], p.degree[v, g])
            n = _extend(out, n, low, high, p.stride[v, g])
    for g in range(w.loose_to.shape[1]):
        if p.degree[v, g] > 1 and w.loose_to[e, g]:
            n = _extend(out, n, 0, p.degree[v, g], p.stride[v, g])
    # Every part has a region of its own: there are no copies to choose from.
    if n_regions == p.n_parts[u]:
        return n
    # Of those that overlap, the parts that read this copy.
    n_readers = 0
    for m in range(n):
        if _holder(w, p, e, region, out[m]) == a:
            out[n_readers] = out[m]
            n_readers += 1
    return n_readers


@inner
def slots_per_part(w: Wiring, p: Placement, e: int) -> int:
    """The most parts of the source that any part of the target reads."""
    u, v = w.source[e], w.target[e]
    most = 1
    for d in range(w.n_dims[e]):
        degree_u, degree_v = (
            p.degree[u, w.dim_factors[e, d, 0]],
            p.degree[v, w.dim_factors[e, d, 1]],
        )
        # Between degrees that do not divide each other a part may begin and end inside of others.
        if degree_u % degree_v == 0:
            most *= degree_u // degree_v
        elif degree_v % degree_u != 0:
            most *= min(degree_u // degree_v + 2, degree_u)
    return most


@inner
def transfer_slot(w: Wiring, p: Placement, e: int, a: int, b: int) -> int:
    """The slot that sends what part b of the target reads from part a of the source."""
    u, v = w.source[e], w.target[e]
    # The place of a among the parts that `source_parts` lists: mixed radix over the ranges.
    n, size = 0, 1
    for d in range(w.n_dims[e]):
        f, g = w.dim_factors[e, d, 0], w.dim_factors[e, d, 1]
        if p.degree[u, f] > 1:
            low, high = _range(p.digit[v, b, g], p.degree[v, g], p.degree[u, f])
            n += (p.digit[u, a, f] - low) * size
            size *= high - low
    return p.first_slot[e] + b * p.per_part[e] + n


@inner
def transfer_share(w: Wiring, p: Placement, e: int, a: int, b: int) -> float:
    """The share of the edge's bytes that part b reads from part a."""
    u, v = w.source[e], w.target[e]
    share = 1.0
    for d in range(w.n_shared[e]):
        f, g = w.dim_factors[e, d, 0], w.dim_factors[e, d, 1]
        degree_u, degree_v = p.degree[u, f], p.degree[v, g]
        i, j = p.digit[u, a, f], p.digit[v, b, g]
        # Both intervals times degree_u degree_v, so that their overlap is a whole number.
        overlap = min((i + 1) * degree_v, (j + 1) * degree_u) - max(i * degree_v, j * degree_u)
        share *= overlap / (degree_u * degree_v)
    return share


@inner
def ring_start(w: Wiring, p: Placement, o: int, k: int) -> int:
    """The first of the parts whose partial sums are added to part k's."""
    for f in range(w.adds.shape[1]):
        if w.adds[o, f]:
            k -= p.digit[o, k, f] * p.stride[o, f]
    return k


@inner
def ring_part(w: Wiring, p: Placement, o: int, start: int, number: int) -> int:
    """Part `number` of the ring that begins with part `start`."""
    for f in range(w.adds.shape[1]):
        if w.adds[o, f]:
            start += number % p.degree[o, f] * p.stride[o, f]
            number //= p.degree[o, f]
    return start


@inner
def done_slot(p: Placement, o: int, k: int) -> int:
    """The slot whose end is when part k of an operator has its result."""
    n_operators, n_devices = p.device.shape
    # Of a partial sum the all-reduce has the result.
    row = o if p.n_adding[o] == 1 else n_operators + o
    return row * n_devices + k


@inner
def followers(w: Wiring, p: Placement, r: TaskSlots, slot: int, out: Array, some: Array) -> int:
    """Slots of the tasks that wait for a task (twice if they wait for it twice); their number."""
    n_operators, n_devices = p.device.shape
    # A transfer has its parts in its id: edge_id + a P + b, P P more for what receives it.
    e = r.edge[slot]
    if e != NONE:
        pair = r.ident[slot] - w.edge_id[e]
        last = _last_slot(p, r, e, slot) if pair < n_devices * n_devices else slot
        out[0] = w.target[e] * n_devices + pair % n_devices if last == slot else last
        return 1 if last != slot or w.is_awaited[e] else 0
    row, k = slot // n_devices, slot % n_devices
    u = row % n_operators
    n = 0
    if row < n_operators and p.n_adding[u] > 1:
        # The all-reduce of every part of the ring waits for every part's partial sum.
        start = ring_start(w, p, u, k)
        for number in range(p.n_adding[u]):
            out[n] = (n_operators + u) * n_devices + ring_part(w, p, u, start, number)
            n += 1
        return n
    for e in range(w.first_out[u], w.first_out[u + 1]):
        v = w.target[e]
        for m in range(target_parts(w, p, e, k, some)):
            if p.device[v, some[m]] != p.device[u, k]:
                out[n] = transfer_slot(w, p, e, k, some[m])
                n += 1
            elif w.is_awaited[e]:
                out[n] = v * n_devices + some[m]
                n += 1
    return n


@inner
def _last_slot(p: Placement, r: TaskSlots, e: int, sent: int) -> int:
    """The slot of what receives what slot `sent` sends, which is `sent` itself with one medium."""
    received = sent + p.per_part[e] // 2
    return sent if r.resource[received] == NONE else received


@inner
def handed_on(r: TaskSlots, ready: float, end: float, slot: int, after: int) -> float:
    """When a task that is ready and ends then lets a task after it begin: at its end, but what is
    received begins as it comes.
    """
    if r.edge[slot] == NONE or r.edge[after] == NONE:
        return end
    # Rounding must not bring it before what sends it.
    return max(ready, end - r.seconds[after])


@inner
def _end(r: TaskSlots, queued_at: Array, slot: int) -> float:
    return queued_at[slot] + r.seconds[slot] if queued_at[slot] < np.inf else r.end[slot]


@inner
def ready_seconds(
    w: Wiring, p: Placement, r: TaskSlots, slot: int, some: Array, queued_at: Array
) -> float:
    """When all predecessors of a task have ended, by the timeline as it is.

    `queued_at` [slots] is the time before which a task that is yet to be looked at cannot start,
    infinite for the others: such a predecessor will not have ended before that and its seconds.
    """
    n_operators, n_devices = p.device.shape
    e = r.edge[slot]
    if e != NONE:
        pair = r.ident[slot] - w.edge_id[e]
        if pair < n_devices * n_devices:
            return _end(r, queued_at, done_slot(p, w.source[e], pair // n_devices))
        sent = slot - p.per_part[e] // 2
        begin = queued_at[sent] if queued_at[sent] < np.inf else r.ready[sent]
        return handed_on(r, begin, _end(r, queued_at, sent), sent, slot)
    row, k = slot // n_devices, slot % n_devices
    v = row % n_operators
    ready = 0.0
    if row >= n_operators:
        start = ring_start(w, p, v, k)
        for number in range(p.n_adding[v]):
            ready = max(
                ready, _end(r, queued_at, v * n_devices + ring_part(w, p, v, start, number))
            )
        return ready
    for n in range(w.first_in[v], w.first_in[v + 1]):
        e = w.into[n]
        if w.is_awaited[e]:
            u = w.source[e]
            base = p.first_slot[e] + k * p.per_part[e]
            for m in range(source_parts(w, p, e, k, some)):
                if p.device[u, some[m]] == p.device[v, k]:
                    last = done_slot(p, u, some[m])
                else:
                    last = _last_slot(p, r, e, base + m)
                ready = max(ready, _end(r, queued_at, last))
    return ready
