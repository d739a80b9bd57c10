"""A plan's step on one representative device and its links as a task graph, and its timeline.

lane 0   the kernels of the device
lane 1   its collectives, whatever axes they run over: XLA:GPU issues them to one stream, and what
         they run over is said with each. Where the backend does one thing after the other they are
         on lane 0 too.

Each lane does one thing at a time, in the order of issue, which a backend's scheduler decides when
it compiles. A backend that runs collectives beside kernels (`automap.backends`) is taken to make a
list schedule, walking forward in time                                    -> in: `list_schedule`

    link      of the collectives whose data is there, the one needed first
    compute   of the kernels whose data is there, the first in the program; a spare one where there
              is no other, or where more spare seconds are at hand than urgent collectives are left
              to hide behind them; one whose sum takes longer than itself is not kept back
    loop      takes the compute lane for all its trips, and the link too if there are collectives in
              it: the scheduler lets no collective run beside a loop that has its own

A backend that does one thing after the other issues the nodes as they stand -> in: `program_order`

So a task waits for the one before it on its lane, and for what makes its data. A trip of a loop
begins when the one before has ended on both lanes. Loops are unrolled. Where that would be more
than MOST_TASKS tasks, a loop of T trips is shown as S < T of them, each of which takes T / S times
as long: nothing of a trip is done in another, so the loop takes as long as it would
                                                                          -> in: `_most_trips`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import heapq
from typing import Final

import numpy as np

from automap.backends import backend_for
from automap.simulate.region import Node, NodeKind, Region
from automap.simulate.tasks import Tasks, Timeline, simulate
from automap.topology.model import Platform


COMPUTE, LINK = 0, 1
# More tasks could be simulated, but nobody reads a trace of them.
MOST_TASKS: Final = 20_000


@dataclass(frozen=True, slots=True)
class IssueOrder:
    """Nodes of a region in the order in which they start, the seconds of one run, and the same of
    its loops.
    """

    order: tuple[int, ...]
    seconds: float
    bodies: Mapping[int, "IssueOrder"]


@dataclass
class _ListScheduler:
    """The state of a walk through time: `kernels`, `spares` and `messages` are heaps of (slot,
    node) that may start, `ends` one of (seconds, node) under way, `n_missing` of each node the
    predecessors that have not ended.
    """

    region: Region
    n_missing: list[int]
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
        # A sum that takes longer than its kernel is late if the kernel fills a gap later on: the
        # sooner it is on the link the better, so such a kernel is no spare one.
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
        # Spare kernels are kept to run beside urgent collectives; those for which no collective
        # is left would only lengthen the end of the step.
        exceed_urgent = self.spares and self.spare_seconds > self.urgent_left_seconds
        if self.spares and (exceed_urgent or not self.kernels):
            node = heapq.heappop(self.spares)[1]
            self.spare_seconds -= self.region.nodes[node].seconds
            return node
        return heapq.heappop(self.kernels)[1] if self.kernels else None

    def end_next(self) -> float:
        """Go to the next time at which something ends; what waited for it may be ready then."""
        now = self.ends[0][0]
        # All that ends at one time ends before anything starts, so that ties do not depend on the
        # order in which nodes were started.
        while self.ends and self.ends[0][0] <= now:
            ended = heapq.heappop(self.ends)[1]
            it = self.region.nodes[ended]
            if it.is_urgent:
                self.urgent_left_seconds -= it.seconds
            for follower in self.followers[ended]:
                self.n_missing[follower] -= 1
                if not self.n_missing[follower]:
                    self.make_ready(follower)
        return now


def list_schedule(region: Region) -> IssueOrder:
    """The issue order of a region, and of the loops in it, where collectives run beside kernels."""
    # Loops from the inside out: a loop is one node of the region around it, and takes trips times
    # the seconds of one run of its body.
    bodies = {n: list_schedule(it.body) for n, it in enumerate(region.nodes) if it.body is not None}
    scheduler = _scheduler_at_start(region)
    order: list[int] = []
    now = compute_free = link_free = 0.0
    while True:
        # The link first: a loop with collectives of its own would keep what is ready from it.
        if scheduler.messages and link_free <= now:
            node = heapq.heappop(scheduler.messages)[1]
            link_free = now + region.nodes[node].seconds
            order.append(node)
            heapq.heappush(scheduler.ends, (link_free, node))
        elif compute_free <= now and (chosen := scheduler.next_kernel()) is not None:
            takes_link = region.nodes[chosen].communicates
            begin = max(now, link_free) if takes_link else now
            compute_free = begin + _node_seconds(region, chosen, bodies)
            link_free = compute_free if takes_link else link_free
            order.append(chosen)
            heapq.heappush(scheduler.ends, (compute_free, chosen))
        elif scheduler.ends:
            now = scheduler.end_next()
        else:
            return IssueOrder(tuple(order), now, bodies)


def program_order(region: Region) -> IssueOrder:
    """One node after the other, as they stand in the program."""
    bodies = {n: program_order(it.body) for n, it in enumerate(region.nodes) if it.body is not None}
    order = tuple(range(len(region.nodes)))
    return IssueOrder(order, sum(_node_seconds(region, n, bodies) for n in order), bodies)


def _node_seconds(region: Region, node: int, bodies: Mapping[int, IssueOrder]) -> float:
    it = region.nodes[node]
    return it.trips * bodies[node].seconds if node in bodies else it.seconds


def _scheduler_at_start(region: Region) -> _ListScheduler:
    nodes = region.nodes
    followers: list[list[int]] = [[] for _ in nodes]
    for index, it in enumerate(nodes):
        for before in it.after:
            followers[before].append(index)
    urgent = sum(it.seconds for it in nodes if it.is_urgent)
    scheduler = _ListScheduler(region, [len(it.after) for it in nodes], followers, urgent)
    for index, it in enumerate(nodes):
        if not it.after:
            scheduler.make_ready(index)
    return scheduler


@dataclass(frozen=True, slots=True)
class Run:
    """What a task is: a node, in which trip of each loop around it (from 0), standing for `trips`
    of its runs.
    """

    node: Node
    trip: tuple[int, ...]
    trips: float


@dataclass(frozen=True)
class SpmdTimeline:
    """The tasks of one step, what each is, and when it runs."""

    tasks: Tasks
    runs: tuple[Run, ...]
    timeline: Timeline


@dataclass
class _Emitter:
    """Collects tasks; `last` is the latest task of each lane, `barrier` has the tasks that the next
    one of each lane waits for besides.
    """

    most_trips: int
    link: int
    seconds: list[float] = field(default_factory=list)
    resource: list[int] = field(default_factory=list)
    predecessors: list[list[int]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    barrier: dict[int, set[int]] = field(default_factory=dict)

    def region(
        self, region: Region, issue: IssueOrder, trip: tuple[int, ...], trips: float
    ) -> None:
        """Add one run of a region that stands for `trips` of them."""
        ends: dict[int, tuple[int, ...]] = {}  # of each node the tasks that end it
        for index in issue.order:
            node = region.nodes[index]
            before = {task for earlier in node.after for task in ends[earlier]}
            if node.body is None:
                ends[index] = (self._task(node, before, trip, trips),)
            else:
                ends[index] = self._loop(node, node.body, issue.bodies[index], before, trip, trips)

    def _loop(
        self,
        node: Node,
        body: Region,
        issue: IssueOrder,
        before: set[int],
        trip: tuple[int, ...],
        trips: float,
    ) -> tuple[int, ...]:
        """Add the trips of a loop that begins after the tasks `before`; the tasks that end it."""
        lanes = (COMPUTE, self.link) if node.communicates else (COMPUTE,)
        shown = min(node.trips, self.most_trips)
        for number in range(shown):
            self._join(lanes, before)
            self.region(body, issue, (*trip, number), trips * node.trips / shown)
        self._join(lanes, before)
        # A loop of no trips, or with an empty body, ends with what it waited for.
        return tuple({self.last[lane] for lane in lanes if lane in self.last} | before)

    def _join(self, lanes: Sequence[int], before: set[int]) -> None:
        """What comes next on the lanes begins when all of them are done."""
        done = {self.last[lane] for lane in lanes if lane in self.last} | before
        for lane in lanes:
            self.barrier[lane] = self.barrier.get(lane, set()) | done

    def _task(self, node: Node, before: set[int], trip: tuple[int, ...], trips: float) -> int:
        lane, task = self.link if node.communicates else COMPUTE, len(self.runs)
        before |= self.barrier.pop(lane, set())
        # The order of issue holds even where the next task's data was there sooner.
        if lane in self.last:
            before.add(self.last[lane])
        self.seconds.append(node.seconds * trips)
        self.resource.append(lane)
        self.predecessors.append(sorted(before))
        self.runs.append(Run(node, trip, trips))
        self.last[lane] = task
        return task


def simulate_spmd(
    program: Region, platform: Platform, most_tasks: int = MOST_TASKS
) -> SpmdTimeline:
    """One step of a program on one device of a platform, with at most about `most_tasks` tasks."""
    is_beside = backend_for(platform).collectives == "beside kernels"
    issue = list_schedule(program) if is_beside else program_order(program)
    emitter = _Emitter(_most_trips(program, most_tasks), LINK if is_beside else COMPUTE)
    emitter.region(program, issue, (), 1.0)
    counts = [len(before) for before in emitter.predecessors]
    tasks = Tasks(
        seconds=np.array(emitter.seconds, np.float64),
        resource=np.array(emitter.resource, np.int32),
        first_predecessor=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        predecessors=np.array([t for before in emitter.predecessors for t in before], np.int32),
    )
    return SpmdTimeline(tasks, tuple(emitter.runs), simulate(tasks))


def _most_trips(program: Region, most_tasks: int) -> int:
    """How many trips of each loop can be shown: all, or half of that as often as needed, down to
    one.
    """
    most = _longest(program)
    while most > 1 and _count(program, most) > most_tasks:
        most = (most + 1) // 2
    return max(most, 1)


def _longest(region: Region) -> int:
    """The most trips of any loop."""
    return max(
        (max(n.trips, _longest(n.body)) for n in region.nodes if n.body is not None), default=1
    )


def _count(region: Region, most_trips: int) -> int:
    """Tasks of one run with at most `most_trips` trips of each loop."""
    return sum(
        1 if n.body is None else min(n.trips, most_trips) * _count(n.body, most_trips)
        for n in region.nodes
    )
