"""What is known of heads: the first i points on the first d units in h stages, before any of it is
decided.

    slowest_f, slowest_b [h, i, d]  no division that fits the memory has a less slow slowest stage, forwards and backwards
                          = min over (i', d') of max(slowest[h - 1, i', d'], seconds of [i', i) on d - d')
                      of which the first rises with i' and the second falls: where they cross  -> in: `_slowest`
                      For the first to rise everywhere, stages may be empty here, which can only make it less
    points, units     a good division                             -> in: `automap.pipeline.agent.divisions`
    cheapest[d, e]    the least seconds per byte that any stage before [d, e) sends to it at
    fs, bs            as in `automap.pipeline.solvers.exact`
    line              seconds of the points before each, on the fewest replicas that a stage may have

They are made once for a problem. In the number of points and units: about O(S n U^2).
"""

from typing import NamedTuple

import numpy as np

from automap.numba_jit import Array, compiled, inner
from automap.pipeline.agent.divisions import Bounds, divisions_of
from automap.pipeline.arrays import Arrays
from automap.pipeline.solvers.exact import least_sums
from automap.pipeline.value import stage_bytes


class Heads(NamedTuple):
    """The tables of the module's first lines, for S stages: indices h from 0 to S - 1."""

    stages: int
    fewest: int
    points: Array
    units: Array
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
    slowest_f = np.full((stages + 1, n + 1, units + 1), np.inf)
    slowest_b = np.full((stages + 1, n + 1, units + 1), np.inf)
    slowest_f[0, 0, 0] = slowest_b[0, 0, 0] = 0.0
    most = np.zeros((stages + 1, n + 1, units + 1), np.int32)
    least = np.empty((units + 1, n + 1), np.int32)
    for h in range(1, stages + 1):
        _most_points(arrays, stages - h + 1, most[h])
        _least_points(most[h], least)
        _slowest(arrays.forward, arrays, least, slowest_f, h)
        _slowest(arrays.backward, arrays, least, slowest_b, h)
    cheapest = np.full((units + 1, units + 1), np.inf)
    leaving = np.full((units + 1, units + 1), np.inf)
    for e in range(1, units):
        for f in range(e + 1, units + 1):
            if not arrays.usable[f - e]:
                continue
            for d in range(e):
                if arrays.usable[e - d]:
                    per_byte = arrays.transfer_seconds_per_byte[d, e, f]
                    cheapest[e, f] = min(cheapest[e, f], per_byte)
                    leaving[d, e] = min(leaving[d, e], per_byte)
    fs, bs, wf, wb = least_sums(arrays)
    bounds = Bounds(
        stages,
        most,
        arrays.forward + arrays.backward,
        slowest_f + slowest_b,
        fs + bs,
        slowest_f[stages, n, units],
        slowest_b[stages, n, units],
        wf,
        wb,
        leaving,
    )
    points, parts = divisions_of(arrays, bounds)
    fewest = 1
    while not arrays.usable[fewest]:
        fewest += 1
    line = arrays.forward[fewest] + arrays.backward[fewest]
    return Heads(stages, fewest, points, parts, slowest_f, slowest_b, cheapest, fs, bs, line)


@inner
def _most_points(arrays: Arrays, k: int, most: Array) -> None:
    """most[i, r]: the last point that a stage from i on r replicas, with k - 1 stages after it, has
    memory for.
    """
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    if arrays.memory_limit_bytes == np.inf:
        most[:] = n
        return
    for i in range(n):
        for r in range(1, units + 1):
            low, high = i, n
            while low < high:
                j = (low + high + 1) // 2
                needed = stage_bytes(
                    arrays.state_bytes[i, j],
                    arrays.kept_bytes[i, j],
                    arrays.working_bytes[i, j],
                    arrays.cut_bytes[i],
                    r * arrays.unit_devices,
                    arrays.microbatches,
                    k,
                    arrays.order,
                )
                if needed <= arrays.memory_limit_bytes:
                    low = j
                else:
                    high = j - 1
            most[i, r] = low


@inner
def _least_points(most: Array, least: Array) -> None:
    """least[r, j]: before it, no stage on r replicas that ends at j or later may begin; j if none
    may at all.
    """
    n = len(most) - 1
    for r in range(1, len(least)):
        i = 0
        for j in range(n + 1):
            while i < j and most[i, r] < j:
                i += 1
            least[r, j] = i


@inner
def _slowest(line: Array, arrays: Arrays, least: Array, slowest: Array, h: int) -> None:
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    for d in range(h - 1, units):
        if not arrays.may_part[d] or (h == 1 and d > 0):
            continue
        for e in range(d + 1, units + 1):
            r = e - d
            if not arrays.usable[r]:
                continue
            i = 0
            for j in range(n + 1):
                i = max(i, least[r, j])
                while h > 1 and i < j and line[r, j] - line[r, i] > slowest[h - 1, i, d]:
                    i += 1
                found = max(slowest[h - 1, i, d], line[r, j] - line[r, i])
                if i > least[r, j]:
                    found = min(found, max(slowest[h - 1, i - 1, d], line[r, j] - line[r, i - 1]))
                slowest[h, j, e] = min(slowest[h, j, e], found)
