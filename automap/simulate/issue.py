"""In which order a device issues the nodes of a region: what a backend's scheduler decides when it
compiles.

A backend that runs collectives beside kernels (`automap.cost.backends`) has two lanes, each doing
one thing at a time in the order of issue; XLA:GPU puts all collectives on one stream. The order is
that of a list schedule, made by walking forward in time:

    link      of the collectives whose data is there, the one needed first
    compute   of the kernels whose data is there, the first in the program; a spare one where there is no other, or
              where more spare seconds are at hand than urgent collectives are left to hide behind them; one
              whose sum takes longer than itself is not kept back
    loop      takes the compute lane for all its trips, and the link too if there are collectives in it: the
              scheduler lets no collective run beside a loop that has its own (`automap.cost.schedule.walk`)

A backend that does one thing after the other issues the nodes as they stand        -> in: `in_line`
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
import heapq

from automap.simulate.region import NodeKind, Region


@dataclass(frozen=True, slots=True)
class Issue:
    """Nodes of a region in the order in which they start, the seconds of one run, and the same of
    its loops.
    """

    order: tuple[int, ...]
    seconds: float
    bodies: Mapping[int, "Issue"]


@dataclass
class _Lanes:
    """The walk: nodes that are ready, by slot; `ends` (seconds, node) of those under way; the rest
    waits.
    """

    region: Region
    waiting: list[int]
    followers: list[list[int]]
    urgent_left_seconds: float
    kernels: list[tuple[int, int]] = field(default_factory=list)
    spares: list[tuple[int, int]] = field(default_factory=list)
    messages: list[tuple[int, int]] = field(default_factory=list)
    ends: list[tuple[float, int]] = field(default_factory=list)
    spare_seconds: float = 0.0

    def make_ready(self, node: int) -> None:
        """Put a node among those that may start."""
        it = self.region.nodes[node]
        if it.kind is NodeKind.SPARE and self._sum_seconds(node) <= it.seconds:
            heapq.heappush(self.spares, (it.slot, node))
            self.spare_seconds += it.seconds
        else:
            queue = self.messages if it.kind is NodeKind.COLLECTIVE else self.kernels
            heapq.heappush(queue, (it.slot, node))

    def _sum_seconds(self, node: int) -> float:
        """Seconds of the collectives that wait for a node."""
        after = (self.region.nodes[follower] for follower in self.followers[node])
        return sum(it.seconds for it in after if it.kind is NodeKind.COLLECTIVE)

    def next_kernel(self) -> int | None:
        """The node that the compute lane starts now, taken from its queue."""
        keeps_too_many = self.spares and self.spare_seconds > self.urgent_left_seconds
        if self.spares and (keeps_too_many or not self.kernels):
            node = heapq.heappop(self.spares)[1]
            self.spare_seconds -= self.region.nodes[node].seconds
            return node
        return heapq.heappop(self.kernels)[1] if self.kernels else None

    def end_next(self) -> float:
        """Go to the next time at which something ends; what waited for it may be ready then."""
        now = self.ends[0][0]
        while self.ends and self.ends[0][0] <= now:
            ended = heapq.heappop(self.ends)[1]
            it = self.region.nodes[ended]
            if it.is_urgent:
                self.urgent_left_seconds -= it.seconds
            for follower in self.followers[ended]:
                self.waiting[follower] -= 1
                if not self.waiting[follower]:
                    self.make_ready(follower)
        return now


def on_two_lanes(region: Region) -> Issue:
    """The list schedule of a region, and of the loops in it."""
    bodies = {n: on_two_lanes(it.body) for n, it in enumerate(region.nodes) if it.body is not None}
    lanes = _started(region)
    order: list[int] = []
    now = compute_free = link_free = 0.0
    while True:
        if lanes.messages and link_free <= now:
            node = heapq.heappop(lanes.messages)[1]
            link_free = now + region.nodes[node].seconds
            order.append(node)
            heapq.heappush(lanes.ends, (link_free, node))
        elif compute_free <= now and (chosen := lanes.next_kernel()) is not None:
            takes_link = region.nodes[chosen].communicates
            begin = max(now, link_free) if takes_link else now
            compute_free = begin + _node_seconds(region, chosen, bodies)
            link_free = compute_free if takes_link else link_free
            order.append(chosen)
            heapq.heappush(lanes.ends, (compute_free, chosen))
        elif lanes.ends:
            now = lanes.end_next()
        else:
            return Issue(tuple(order), now, bodies)


def in_line(region: Region) -> Issue:
    """One node after the other, in program order."""
    bodies = {n: in_line(it.body) for n, it in enumerate(region.nodes) if it.body is not None}
    order = tuple(range(len(region.nodes)))
    return Issue(order, sum(_node_seconds(region, n, bodies) for n in order), bodies)


def _node_seconds(region: Region, node: int, bodies: Mapping[int, Issue]) -> float:
    it = region.nodes[node]
    return it.trips * bodies[node].seconds if node in bodies else it.seconds


def _started(region: Region) -> _Lanes:
    nodes = region.nodes
    followers: list[list[int]] = [[] for _ in nodes]
    for index, it in enumerate(nodes):
        for before in it.after:
            followers[before].append(index)
    urgent = sum(it.seconds for it in nodes if it.is_urgent)
    lanes = _Lanes(region, [len(it.after) for it in nodes], followers, urgent)
    for index, it in enumerate(nodes):
        if not it.after:
            lanes.make_ready(index)
    return lanes
