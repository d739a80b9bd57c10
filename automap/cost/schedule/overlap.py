"""Collectives behind computation: how long a device waits for them.

Where a backend runs collectives on a stream of their own, they take time only as far as there is
nothing else to do: what that is for each kind of collective, and what comes when, is said in
`automap.cost.schedule.walk`. Here the collectives and kernels of a plan are put where it wants them.

Nothing is hidden that has no computation beside it: the sum of waits is at least collectives -
computation. Which backends do so says
`automap.backends.Backend.collectives`.
"""

import numpy as np

from automap.cost.schedule.order import LATE, SPARE, Order, Places
from automap.cost.schedule.walk import Work, waits
from automap.cost.traffic import Collectives
from hlo_tools.analyses.phases import Phase


def waiting_seconds(
    order: Order, of_kernel: np.ndarray, found: Collectives, of_collective: np.ndarray
) -> float:
    """Seconds of a step in which the device has nothing to do but wait for collectives.

    `of_kernel` [kernel rows] and `of_collective` [entries of `found`] are the seconds of one run.
    """
    seconds = np.where(order.row >= 0, of_kernel[order.row], 0.0) * order.trips
    return waits(_work(order, seconds, found, of_collective * found.count))


def _work(order: Order, of_slot: np.ndarray, found: Collectives, seconds: np.ndarray) -> Work:
    """What is to be done where: `of_slot` [slots] and `seconds` [entries of `found`] are of a whole
    step.
    """
    n = len(order.kind) + 1
    spare, late = (
        np.bincount(order.data_at[chosen], of_slot[chosen], n)
        for chosen in (order.kind == SPARE, order.kind == LATE)
    )
    backlog, renewed, prefetch = np.zeros((3, n))
    urgent: list[tuple[np.ndarray, ...]] = []
    is_late = found.phase == Phase.UPDATE
    for on_operand, places in ((True, order.operands), (False, order.results)):
        is_here = (found.on_operand == on_operand) & (seconds > 0)
        chosen = is_here & ~found.combinable
        at, each = _spread(places, found.edge[chosen], seconds[chosen])
        urgent.append((places.ready[at], places.needed[at], each))
        for into, boundary, wanted in (
            ((prefetch, places.needed, True),)
            if on_operand
            else ((backlog, places.ready, ~is_late), (renewed, places.ready, is_late))
        ):
            chosen = is_here & found.combinable & wanted
            at, each = _spread(places, found.edge[chosen], seconds[chosen])
            np.add.at(into, boundary[at], each)
    ready, needed, each = (np.concatenate(column) for column in zip(*urgent))
    by_need = np.argsort(needed, kind="stable")
    return Work(
        kind=order.kind,
        seconds=of_slot,
        spare=spare,
        late=late,
        backlog=backlog,
        renewed=renewed,
        prefetch=prefetch,
        urgent_ready=ready[by_need],
        urgent_needed=needed[by_need],
        urgent_seconds=each[by_need],
    )


def _spread(places: Places, edge: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The incidences of `edge` rows, and the seconds of each."""
    first, count = places.first[edge], places.first[edge + 1] - places.first[edge]
    start = np.repeat(first - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
    at = start + np.arange(count.sum())
    return at, np.repeat(seconds, count) * places.share[at]
