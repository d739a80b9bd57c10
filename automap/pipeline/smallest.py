"""The least memory that any partition in S stages needs on its fullest device: whether anything fits at all.

B(k, i, d) = min over (j, e) of max(bytes of stage [i, j) on [d, e), B(k - 1, j, e))
"""

import numpy as np

from automap.pipeline.arrays import Arrays
from automap.pipeline.value import stage_bytes
from automap.simulate.jit import compiled


@compiled
def least_bytes(arrays: Arrays, stages: int) -> float:
    """B(S, 0, 0); inf if there is no partition in so many stages."""
    n, units = len(arrays.cut_bytes) - 1, len(arrays.latency_seconds) - 1
    best = np.full((stages + 1, n + 1, units + 1), np.inf)
    best[0, n, units] = 0.0
    for k in range(1, stages + 1):
        rem = stages - k
        for i in range(rem, n - k + 1) if rem else range(1):
            for d in range(rem, units - k + 1) if rem else range(1):
                if not (arrays.may_cut[i] and arrays.may_part[d]):
                    continue
                least = np.inf
                for e in range(d + 1, units - k + 2) if k > 1 else range(units, units + 1):
                    r = e - d
                    if not arrays.usable[r]:
                        continue
                    for j in range(i + 1, n - k + 2) if k > 1 else range(n, n + 1):
                        needed = stage_bytes(
                            arrays.state_bytes[i, j], arrays.kept_bytes[i, j],
                            arrays.working_bytes[i, j], arrays.cut_bytes[i],
                            r * arrays.unit_devices, arrays.microbatches, k, arrays.schedule,
                        )  # fmt: skip
                        # More points need more.
                        if needed >= least:
                            break
                        least = min(least, max(needed, best[k - 1, j, e]))
                best[k, i, d] = least
    return best[stages, 0, 0]
