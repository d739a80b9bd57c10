"""Lower bounds on L from work that is left: of a head, whatever way it is divided.

    fs, bs   sum over points before i of the least forward, backward seconds of any kind of stage
             on at most r units                                            -> in: `sum_least`
    wf, wb   the same of units times seconds: work that d units share, so some stage of a head on
             them takes at least wf / d
    all forward first   L >= max(V + fs, U + fs + bs + (M - 1) max(Q, wb / d))
                             + (M - 1) max(P, wf / d)
    alternating         L >= max(V + fs, P + fs + bs, M (wf + wb) / d)
                                                                       -> in: `least_seconds`

U, V, P and Q are those of a tail, as in `automap.pipeline.value`; all are 0 for no tail, which
bounds every partition.
"""

import numpy as np

from automap.numba_jit import Array, inner, inner_making_arrays
from automap.pipeline.arrays import Arrays
from automap.pipeline.schedules import PassOrder


@inner_making_arrays
def least_sums(arrays: Arrays) -> tuple[Array, Array, Array, Array]:
    """(fs, bs) [U + 1, n + 1] by the most replicas, and (wf, wb) [n + 1]."""
    units = len(arrays.usable) - 1
    # Every size is a kind; one that is not usable is never reached.
    sizes = np.arange(units + 1)
    for size in range(units + 1):
        if not arrays.usable[size]:
            sizes[size] = 0
    return sum_least(sizes, arrays.forward, arrays.backward, units)


@inner_making_arrays
def sum_least(
    sizes: Array, forward: Array, backward: Array, units: int
) -> tuple[Array, Array, Array, Array]:
    """`least_sums` of kinds that have `sizes` units [K], 0 for none; `forward` and `backward` [K, n
    + 1].

    StageKinds are not sorted by their units first: a sort takes numba a second to compile.
    """
    n = forward.shape[1] - 1
    fs, bs = np.zeros((units + 1, n + 1)), np.zeros((units + 1, n + 1))
    wf, wb = np.zeros(n + 1), np.zeros(n + 1)
    for t in range(n):
        work_f = work_b = np.inf
        least_f, least_b = np.full(units + 1, np.inf), np.full(units + 1, np.inf)
        for kind in range(len(sizes)):
            r = sizes[kind]
            if r > 0:
                point_f = forward[kind, t + 1] - forward[kind, t]
                point_b = backward[kind, t + 1] - backward[kind, t]
                least_f[r], least_b[r] = min(least_f[r], point_f), min(least_b[r], point_b)
                # A larger stage takes less time and, with floors of kernels, more device time:
                # which kind has the least work differs from point to point.
                work_f, work_b = min(work_f, r * point_f), min(work_b, r * point_b)
        # Of all kinds with at most r units.
        for r in range(1, units + 1):
            least_f[r] = min(least_f[r], least_f[r - 1])
            least_b[r] = min(least_b[r], least_b[r - 1])
            fs[r, t + 1], bs[r, t + 1] = fs[r, t] + least_f[r], bs[r, t] + least_b[r]
        wf[t + 1], wb[t + 1] = wf[t] + work_f, wb[t] + work_b
    return fs, bs, wf, wb


@inner
def least_seconds(
    u: float,
    v: float,
    p: float,
    q: float,
    fs: float,
    bs: float,
    wf: float,
    wb: float,
    m: int,
    order: PassOrder,
) -> float:
    """The least L of a tail with any head; wf and wb are over the head's units already."""
    if order.alternates:
        return max(v + fs, p + fs + bs, m * (wf + wb))
    return max(v + fs, u + fs + bs + (m - 1) * max(q, wb)) + (m - 1) * max(p, wf)
