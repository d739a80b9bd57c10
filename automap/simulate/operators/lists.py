"""The tasks of each device and link as a linked list in the order of (ready, id).

`r.before`, `r.after` join the slots, `r.first`, `r.last` are the ends by resource.
"""

from automap.numba_jit import inner
from automap.simulate.operators.arrays import NONE, Placed, Run


@inner
def remove(r: Run, slot: int) -> int:
    """Take a task out of its list; returns the one that was after it."""
    before, after, on = r.before[slot], r.after[slot], r.resource[slot]
    if before == NONE:
        r.first[on] = after
    else:
        r.after[before] = after
    if after == NONE:
        r.last[on] = before
    else:
        r.before[after] = before
    return after


@inner
def insert(r: Run, slot: int, ready: float, near: int) -> None:
    """Put a task that is ready at `ready` into its list, looking for its place from `near` on."""
    on = r.resource[slot]
    before = near
    while before != NONE and not _is_before(r, before, slot, ready):
        before = r.before[before]
    after = r.first[on] if before == NONE else r.after[before]
    while after != NONE and _is_before(r, after, slot, ready):
        before, after = after, r.after[after]
    r.before[slot], r.after[slot] = before, after
    if before == NONE:
        r.first[on] = slot
    else:
        r.after[before] = slot
    if after == NONE:
        r.last[on] = slot
    else:
        r.before[after] = slot


@inner
def _is_before(r: Run, other: int, slot: int, ready: float) -> bool:
    return r.ready[other] < ready or (r.ready[other] == ready and r.ident[other] < r.ident[slot])


@inner
def nearby(p: Placed, r: Run, slot: int, ready: float) -> int:
    """A task of the same list that may be near the place of a new one; NONE: its beginning.

    For a part of an operator that of the operator before it, in the order of the program.
    """
    n_devices = p.device.shape[1]
    if slot < len(p.n_parts) * n_devices:
        device = r.resource[slot]
        for u in range(slot // n_devices - 1, -1, -1):
            if p.part_on[u, device] != NONE:
                return u * n_devices + p.part_on[u, device]
    last = r.last[r.resource[slot]]
    return NONE if last == NONE or 2 * ready < r.ready[last] else last
