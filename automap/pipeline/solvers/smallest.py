"""The least memory that any partition in S stages needs on its fullest device: whether anything
fits at all.

B(k, i, d) = min over kinds of stages and j of max(bytes of stage [i, j) on [d, e), B(k - 1, j, e))
"""

import numpy as np

from automap.numba_jit import compiled
from automap.pipeline.arrays import Arrays
from automap.pipeline.solvers.menu import Menu, device_bytes, may_lie, menu_of
from automap.pipeline.value import most_in_flight


def least_bytes(problem: Arrays | Menu, stages: int) -> float:
    """B(S, 0, 0); inf if there is no partition in so many stages."""
    return _least(menu_of(problem) if isinstance(problem, Arrays) else problem, stages)


@compiled
def _least(menu: Menu, stages: int) -> float:
    n, units = len(menu.may_cut) - 1, len(menu.latency_seconds) - 1
    best = np.full((stages + 1, n + 1, units + 1), np.inf)
    best[0, n, units] = 0.0
    for k in range(1, stages + 1):
        rem, flight = stages - k, most_in_flight(menu.order, menu.microbatches, k)
        for i in range(rem, n - k + 1) if rem else range(1):
            for d in range(rem, units - k + 1) if rem else range(1):
                if not menu.may_cut[i]:
                    continue
                least = np.inf
                for kind in range(len(menu.units)):
                    e = d + menu.units[kind]
                    fits = e <= units - k + 1 if k > 1 else e == units
                    if not fits or not may_lie(menu, kind, d):
                        continue
                    for j in range(i + 1, n - k + 2) if k > 1 else range(n, n + 1):
                        needed = device_bytes(menu, kind, i, j, flight)
                        # More points need more.
                        if needed >= least:
                            break
                        least = min(least, max(needed, best[k - 1, j, e]))
                best[k, i, d] = least
    return best[stages, 0, 0]
