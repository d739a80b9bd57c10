"""Collectives behind computation: how long a device waits for them.

Where a backend runs collectives on a stream of their own, they take time only as far as there is nothing else to
do.  The device runs its kernels in the order of the schedule (`automap.cost.order`); t is its time, and one link
carries one collective at a time.

    urgent      of an activation: starts when it is ready and the link is free; its reader waits for its end
    backlog     sums of gradients, gathers of new parameters: done while the link is idle, by the end of the step, or
                of the loop they are in
    prefetch    gathers of parameters: take link time that was idle before, since the loop they are in began
    spare       products that make gradients are kept for such waits, and done at the latest at the loop's or step's end

Nothing is hidden that has no computation beside it: the sum of waits is at least collectives - computation.
The walk is `_walk`, compiled; which backends do so says `automap.cost.backends`.  XLA's GPU pipeline makes all collectives
asynchronous and moves their ends behind independent kernels (seen in its programs, jax 0.10.2, 2026-11); its TPU
pipeline does so only for rings (`automap.cost.rings`), CPU runs one thing after the other.
"""

from dataclasses import dataclass

from numba import njit
import numpy as np

from automap.cost.order import ENTER, EXIT, SPARE, Order, Places
from automap.cost.traffic import Collectives


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds of collectives at boundaries, [slots + 1]; `urgent_*` one by one, sorted by where they are needed."""

    backlog: np.ndarray
    prefetch: np.ndarray
    urgent_ready: np.ndarray
    urgent_needed: np.ndarray
    urgent_seconds: np.ndarray


def waiting_seconds(
    order: Order, of_kernel: np.ndarray, found: Collectives, of_collective: np.ndarray
) -> float:
    """Seconds of a step in which the device has nothing to do but wait for collectives.

    `of_kernel` [kernel rows] and `of_collective` [entries of `found`] are the seconds of one run.
    """
    seconds = np.where(order.row >= 0, of_kernel[order.row], 0.0) * order.trips
    work = _work(order, found, of_collective * found.count)
    return _walk(
        order.kind, seconds, work.backlog, work.prefetch,
        work.urgent_ready, work.urgent_needed, work.urgent_seconds,
    )  # fmt: skip


def _work(order: Order, found: Collectives, seconds: np.ndarray) -> _Work:
    n = len(order.kind) + 1
    backlog, prefetch = np.zeros((2, n))
    urgent: list[tuple[np.ndarray, ...]] = []
    for on_operand, places in ((True, order.operands), (False, order.results)):
        for is_combinable in (True, False):
            chosen = (found.on_operand == on_operand) & (found.combinable == is_combinable)
            chosen &= seconds > 0
            at, each = _spread(places, found.edge[chosen], seconds[chosen])
            if not is_combinable:
                urgent.append((places.ready[at], places.needed[at], each))
            elif on_operand:
                np.add.at(prefetch, places.needed[at], each)
            else:
                np.add.at(backlog, places.ready[at], each)
    ready, needed, each = (np.concatenate(column) for column in zip(*urgent))
    by_need = np.argsort(needed, kind="stable")
    return _Work(backlog, prefetch, ready[by_need], needed[by_need], each[by_need])


def _spread(places: Places, edge: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The incidences of `edge` rows, and the seconds of each."""
    first, count = places.first[edge], places.first[edge + 1] - places.first[edge]
    start = np.repeat(first - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
    at = start + np.arange(count.sum())
    return at, np.repeat(seconds, count) * places.share[at]


@njit(cache=True)
def _walk(  # noqa: C901 - one loop, compiled
    kind: np.ndarray,
    seconds: np.ndarray,
    backlog: np.ndarray,
    prefetch: np.ndarray,
    ready: np.ndarray,
    needed: np.ndarray,
    urgent: np.ndarray,
) -> float:
    n = len(kind)
    time_at = np.zeros(n + 1)
    outer_idle, outer_pending = np.zeros(n + 1), np.zeros(n + 1)
    depth = 0
    time = waited = link_free = spare = idle = pending = owed = 0.0
    u = 0
    for k in range(n + 1):
        time_at[k] = time
        before = time
        wait = used = 0.0
        pending += backlog[k]
        while u < len(needed) and needed[u] == k:
            link_free = max(link_free, time_at[ready[u]]) + urgent[u]
            wait = max(wait, link_free - time)
            used += urgent[u]
            u += 1
        if prefetch[k] > 0:
            ahead = min(prefetch[k], idle)
            idle -= ahead
            wait += prefetch[k] - ahead
            used += prefetch[k] - ahead
        if wait > 0:
            filled = min(wait, spare)
            spare -= filled
            waited += wait - filled
            time += wait
        ends = k == n or kind[k] == ENTER or kind[k] == EXIT
        if k < n and kind[k] == SPARE:
            spare += seconds[k]
        elif k < n:
            time += seconds[k]
        if ends:
            time += spare
            spare = 0.0
        # What the link did not carry in this time is left for the backlog, then for gathers to come.
        free = time - before - used - owed
        owed = max(-free, 0.0)
        free = max(free, 0.0)
        drained = min(pending, free)
        pending -= drained
        idle += free - drained
        if k < n and kind[k] == ENTER:
            outer_idle[depth], outer_pending[depth] = idle, pending
            depth += 1
            idle = 0.0
        elif k < n and kind[k] == EXIT:
            depth -= 1
            inside = max(pending - outer_pending[depth], 0.0)
            time += inside
            waited += inside
            pending -= inside
            idle += outer_idle[depth]
    return waited + pending
