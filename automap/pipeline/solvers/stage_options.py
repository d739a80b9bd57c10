"""Stages of several kinds as arrays: what the exact solver takes.

A *kind* of stage says on how many units it runs and how they share its work: r replicas, or a
sharding of the stage on its own mesh (`automap.pipeline.hybrid`). A stage has points [i, j), units
[d, e) with e = d + units[k], and kind k; all seconds and bytes may depend on the kind. Of kind k
before a stage of kind k', at unit boundary e:

    R   rate[k, d] gradient_bytes[i, j] + reduce[k, j] - reduce[k, i]
        sums of gradients, and the update                                -> in: `reduce_seconds`
    X   latency[e] + transfer[a, a', e] max(crossing[k, j], crossing[k', j])
        a, a' the kinds' layouts                                       -> in: `transfer_seconds`
    bytes of a device   state + (K saved + D kept + working + 2 entering[i]) / share, by the kind's
                        table
                                                                           -> in: `device_bytes`

`automap.pipeline.value` has all else. Kinds of one *interface* cost whoever sends to them the same.

    `replicated_options`  the replicas of `Arrays`: kind k has the k-th usable number of them
    `price_stages`        V of a partition with a kind for each stage
    `least_bytes`         the least memory that any partition in S stages needs on its fullest
                          device: whether anything fits at all. B(k, i, d) = min over kinds of
                          stages and j of max(bytes of stage [i, j) on [d, e), B(k - 1, j, e))
    `smallest_stages`     a partition that needs no more than that
"""

from typing import NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner
from automap.pipeline.arrays import Arrays
from automap.pipeline.schedules import PassOrder
from automap.pipeline.value import most_in_flight, most_late, prepend_stage, tail_seconds


class StageOptions(NamedTuple):
    """K kinds on n points and U units, L layouts, T tables of bytes.

    units [K] int64; forward, backward, weights [K, n + 1] seconds of one microbatch, sums of the
        points before
    reduce [K, n + 1] seconds, sums of the points before; rate [K, U + 1] seconds per byte of
        gradients of a stage that begins at unit d, inf where none may
    crossing [K, n + 1] bytes of one microbatch that boundary i sends, one way; interface, layout
        [K] int64
    transfer [L, L, U + 1] seconds per byte at unit boundary e
    state, saved, kept, working [T, n + 1, n + 1], entering [T, n + 1] bytes of table[k]: the state
        on a device, and of one microbatch what share[k] devices have together
    the others as in `automap.pipeline.arrays.Arrays`
    """

    units: Array
    forward: Array
    backward: Array
    weights: Array
    reduce: Array
    rate: Array
    crossing: Array
    interface: Array
    layout: Array
    transfer: Array
    gradient_bytes: Array
    state: Array
    saved: Array
    kept: Array
    working: Array
    entering: Array
    table: Array
    share: Array
    may_cut: Array
    may_cut_devices: Array
    latency_seconds: Array
    memory_limit_bytes: float
    microbatches: int
    order: PassOrder

    @property
    def n_points(self) -> int:
        """n."""
        return len(self.may_cut) - 1

    @property
    def n_units(self) -> int:
        """U."""
        return len(self.latency_seconds) - 1


def replicated_options(arrays: Arrays) -> StageOptions:
    """Replicated stages."""
    sizes, units = np.flatnonzero(arrays.usable[1:]) + 1, arrays.n_units
    begins = np.arange(units + 1)
    ends = sizes[:, None] + begins
    rate = np.where(
        ends <= units, arrays.reduce_seconds_per_byte[begins, np.minimum(ends, units)], np.inf
    )
    # Where the sender's or the receiver's units would be outside of the machine the index is cut
    # off; no partition has such a stage, so that the entry is never read.
    before = np.maximum(begins - sizes[:, None, None], 0)
    after = np.minimum(begins + sizes[None, :, None], units)
    kinds = np.arange(len(sizes))
    return StageOptions(
        units=sizes,
        forward=arrays.forward[sizes],
        backward=arrays.backward[sizes],
        weights=arrays.weights[sizes],
        reduce=np.zeros((len(sizes), arrays.n_points + 1)),
        rate=rate,
        crossing=np.tile(arrays.cut_bytes, (len(sizes), 1)),
        # Where transfers depend on the boundary alone all kinds look alike to what sends to them:
        # tails of different kinds are then compared, and far fewer stay.
        interface=kinds if arrays.transfers_differ else np.zeros_like(kinds),
        layout=kinds,
        transfer=np.ascontiguousarray(arrays.transfer_seconds_per_byte[before, begins, after]),
        gradient_bytes=arrays.gradient_bytes,
        state=arrays.state_bytes[None],
        saved=arrays.saved_bytes[None],
        kept=arrays.kept_bytes[None],
        working=arrays.working_bytes[None],
        entering=arrays.cut_bytes[None],
        table=np.zeros_like(kinds),
        share=sizes * float(arrays.unit_devices),
        may_cut=arrays.may_cut,
        may_cut_devices=arrays.may_cut_devices,
        latency_seconds=arrays.latency_seconds,
        memory_limit_bytes=arrays.memory_limit_bytes,
        microbatches=arrays.microbatches,
        order=arrays.order,
    )


@inner
def reduce_seconds(options: StageOptions, kind: int, i: int, j: int, d: int) -> float:
    """R of a stage."""
    sums = options.reduce[kind, j] - options.reduce[kind, i]
    return options.rate[kind, d] * options.gradient_bytes[i, j] + sums


@inner
def transfer_seconds(options: StageOptions, kind: int, after: int, j: int, e: int) -> float:
    """X of a stage of `kind` that ends at point j and unit e, before one of kind `after`."""
    per_byte = options.transfer[options.layout[kind], options.layout[after], e]
    sent = max(options.crossing[kind, j], options.crossing[after, j])
    return options.latency_seconds[e] + per_byte * sent


@inner
def device_bytes(options: StageOptions, kind: int, i: int, j: int, flight: int, late: int) -> float:
    """Bytes on each device of a stage with K = `flight` microbatches in flight, and D = `late`."""
    t = options.table[kind]
    held = flight * options.saved[t, i, j] + late * options.kept[t, i, j]
    moving = held + options.working[t, i, j] + 2.0 * options.entering[t, i]
    return options.state[t, i, j] + moving / options.share[kind]


@inner
def may_start(options: StageOptions, kind: int, d: int) -> bool:
    """Whether a stage of a kind may begin at unit d."""
    return options.may_cut_devices[d] and options.rate[kind, d] < np.inf


@compiled
def price_stages(
    options: StageOptions, cuts: Array, device_cuts: Array, kinds: Array
) -> tuple[float, float]:
    """(bytes over a device's memory in the worst stage, L in seconds); both inf if a stage is not
    allowed.
    """
    stages, m = len(kinds), options.microbatches
    # As `automap.pipeline.value.price`, with a kind for each stage.
    tails, over, now = np.zeros((2, stages + 4)), 0.0, 0
    for s in range(stages - 1, -1, -1):
        i, j, d, e, kind = cuts[s], cuts[s + 1], device_cuts[s], device_cuts[s + 1], kinds[s]
        is_allowed = i < j and options.may_cut[i] and options.units[kind] == e - d
        if not (is_allowed and may_start(options, kind, d)):
            return np.inf, np.inf
        x = transfer_seconds(options, kind, kinds[s + 1], j, e) if s + 1 < stages else 0.0
        prepend_stage(
            tails,
            now,
            tails[1 - now],
            options.forward[kind, j] - options.forward[kind, i],
            options.backward[kind, j] - options.backward[kind, i],
            options.weights[kind, j] - options.weights[kind, i],
            x,
            reduce_seconds(options, kind, i, j, d),
            m,
            stages - s,
            s,
            options.order,
        )
        now = 1 - now
        flight = most_in_flight(options.order, m, stages - s)
        late = most_late(options.order, m, stages - s, s)
        needed = device_bytes(options, kind, i, j, flight, late)
        over = max(over, needed - options.memory_limit_bytes)
    return over, tail_seconds(tails[now, 1], tails[now, 2], m, options.order)


def least_bytes(problem: Arrays | StageOptions, stages: int) -> float:
    """B(S, 0, 0); inf if there is no partition in so many stages."""
    options = replicated_options(problem) if isinstance(problem, Arrays) else problem
    return float(_least(options, stages)[stages, 0, 0])


def smallest_stages(options: StageOptions, stages: int) -> tuple[Array, Array, Array] | None:
    """(cuts, device cuts, kinds) of a partition that needs B(S, 0, 0); None if there is none in so
    many stages.
    """
    least = _least(options, stages)
    return _smallest(options, stages, least) if least[stages, 0, 0] < np.inf else None


@compiled
def _least(options: StageOptions, stages: int) -> Array:
    """B, [stages + 1, points + 1, units + 1]."""
    n, units = len(options.may_cut) - 1, len(options.latency_seconds) - 1
    best = np.full((stages + 1, n + 1, units + 1), np.inf)
    best[0, n, units] = 0.0
    for k in range(1, stages + 1):
        # So many stages, points and units at least come before a tail of k stages.
        rem, flight = stages - k, most_in_flight(options.order, options.microbatches, k)
        late = most_late(options.order, options.microbatches, k, rem)
        for i in range(rem, n - k + 1) if rem else range(1):
            for d in range(rem, units - k + 1) if rem else range(1):
                if not options.may_cut[i]:
                    continue
                least = np.inf
                for kind in range(len(options.units)):
                    e = d + options.units[kind]
                    fits = e <= units - k + 1 if k > 1 else e == units
                    if not fits or not may_start(options, kind, d):
                        continue
                    for j in range(i + 1, n - k + 2) if k > 1 else range(n, n + 1):
                        needed = device_bytes(options, kind, i, j, flight, late)
                        # More points need more.
                        if needed >= least:
                            break
                        least = min(least, max(needed, best[k - 1, j, e]))
                best[k, i, d] = least
    return best


@compiled
def _smallest(options: StageOptions, stages: int, least: Array) -> tuple[Array, Array, Array]:
    """The stages that B(S, 0, 0) of the table `least` is made of, the first that are."""
    n, units = len(options.may_cut) - 1, len(options.latency_seconds) - 1
    cuts, device_cuts = np.zeros(stages + 1, np.int64), np.zeros(stages + 1, np.int64)
    kinds = np.zeros(stages, np.int64)
    for s in range(stages):
        k, i, d = stages - s, cuts[s], device_cuts[s]
        flight = most_in_flight(options.order, options.microbatches, k)
        late = most_late(options.order, options.microbatches, k, s)
        cuts[s + 1] = -1
        for kind in range(len(options.units)):
            e = d + options.units[kind]
            if e > units or not may_start(options, kind, d) or cuts[s + 1] >= 0:
                continue
            for j in range(i + 1, n + 1):
                here = device_bytes(options, kind, i, j, flight, late)
                needed = max(here, least[k - 1, j, e])
                if needed <= least[k, i, d]:
                    cuts[s + 1], device_cuts[s + 1], kinds[s] = j, e, kind
                    break
    return cuts, device_cuts, kinds
