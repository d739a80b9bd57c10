"""What is known of heads: the first i points on the first d units in h stages, before any of it is decided.

    fits[h, i, d]     whether some division of them fits the memory and is allowed           -> in: `_mark`
    slowest_f, slowest_b [h, i, d]  no division has a less slow slowest stage, forwards and backwards
                          = min over (i', d') of max(slowest[h - 1, i', d'], seconds of [i', i) on d - d')
                      of which the first rises with i' and the second falls: where they cross  -> in: `_slowest`
    cheapest[d, e]    the least seconds per byte that any stage before [d, e) sends to it at
    fs, bs            as in `automap.pipeline.exact`
    line              seconds of the points before each, on the fewest replicas that a stage may have

They are made once for a problem. In the number of points and units: O(S n U^2).
"""

from typing import NamedTuple

import numpy as np

from automap.pipeline.arrays import Arrays
from automap.pipeline.exact import least_sums
from automap.pipeline.value import stage_bytes
from automap.simulate.arrays import Array
from automap.simulate.jit import compiled, inner


class Heads(NamedTuple):
    """The tables of the module's first lines, for S stages: indices h from 0 to S - 1."""

    stages: int
    fewest: int
    fits: Array
    slowest_f: Array
    slowest_b: Array
    cheapest: Array
    fs: Array
    bs: Array
    line: Array


@compiled
def heads_of(arrays: Arrays, stages: int) -> Heads:
    """The tables of a problem."""
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    fits = np.zeros((stages, n + 1, units + 1), np.bool_)
    slowest_f = np.full((stages, n + 1, units + 1), np.inf)
    slowest_b = np.full((stages, n + 1, units + 1), np.inf)
    fits[0, 0, 0] = True
    slowest_f[0, 0, 0] = slowest_b[0, 0, 0] = 0.0
    most = np.empty((n + 1, units + 1), np.int64)
    for h in range(1, stages):
        _most_points(arrays, stages - h + 1, most)
        _mark(arrays, most, fits, h)
        _slowest(arrays.forward, arrays, slowest_f, h)
        _slowest(arrays.backward, arrays, slowest_b, h)
    cheapest = np.full((units + 1, units + 1), np.inf)
    for d in range(1, units):
        for e in range(d + 1, units + 1):
            for before in range(d):
                if arrays.usable[d - before]:
                    per_byte = arrays.transfer_seconds_per_byte[before, d, e]
                    cheapest[d, e] = min(cheapest[d, e], per_byte)
    fs, bs, _, _ = least_sums(arrays)
    fewest = 1
    while not arrays.usable[fewest]:
        fewest += 1
    line = arrays.forward[fewest] + arrays.backward[fewest]
    return Heads(stages, fewest, fits, slowest_f, slowest_b, cheapest, fs, bs, line)


@inner
def _most_points(arrays: Arrays, k: int, most: Array) -> None:
    """most[i, r]: the last point that a stage from i on r replicas, with k - 1 stages after it, has memory for."""
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    for i in range(n):
        for r in range(1, units + 1):
            low, high = i, n
            while low < high:
                j = (low + high + 1) // 2
                needed = stage_bytes(
                    arrays.state_bytes[i, j], arrays.kept_bytes[i, j], arrays.working_bytes[i, j],
                    arrays.cut_bytes[i], r * arrays.unit_devices, arrays.microbatches, k,
                    arrays.schedule,
                )  # fmt: skip
                if needed <= arrays.memory_limit_bytes:
                    low = j
                else:
                    high = j - 1
            most[i, r] = low


@inner
def _mark(arrays: Arrays, most: Array, fits: Array, h: int) -> None:
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    for d in range(units):
        if not arrays.may_part[d]:
            continue
        for e in range(d + 1, units + 1):
            r = e - d
            if not arrays.usable[r]:
                continue
            marked = 0
            for i in range(n):
                if fits[h - 1, i, d] and arrays.may_cut[i]:
                    for j in range(max(i, marked) + 1, most[i, r] + 1):
                        fits[h, j, e] = True
                    marked = max(marked, most[i, r])


@inner
def _slowest(line: Array, arrays: Arrays, slowest: Array, h: int) -> None:
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    for d in range(h - 1, units):
        if not arrays.may_part[d] or (h == 1 and d > 0):
            continue
        for e in range(d + 1, units + 1):
            r = e - d
            if not arrays.usable[r]:
                continue
            i = h - 1
            for j in range(h, n + 1):
                while h > 1 and i + 1 < j and line[r, j] - line[r, i] > slowest[h - 1, i, d]:
                    i += 1
                least = max(slowest[h - 1, i, d], line[r, j] - line[r, i])
                if i > h - 1:
                    least = min(least, max(slowest[h - 1, i - 1, d], line[r, j] - line[r, i - 1]))
                slowest[h, j, e] = min(slowest[h, j, e], least)
