"""A plan's step on one representative device and its links as a task graph, and its timeline.

resource 0   the kernels of the device
resource 1   its collectives, whatever axes they run over: XLA:GPU issues them to one stream, and what they run over
             is said with each. Where the backend does one thing after the other they are on resource 0 too.

Each lane does its tasks in the order of issue (`automap.simulate.issue`), so each task waits for
the one before it on its lane, and for what makes its data. A trip of a loop begins when the one
before has ended on both lanes.

Loops are unrolled. Where that would be more than MOST_TASKS tasks, a loop of T trips is shown as S
    < T of them, each of which
takes T / S times as long: nothing of a trip is done in another, so the loop takes as long as it
    would. -> in: `_most_trips`
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from automap.backends import backend_for
from automap.simulate.issue import Issue, in_line, on_two_lanes
from automap.simulate.region import Node, Region
from automap.simulate.tasks import Tasks, Timeline, simulate
from automap.topology.model import Platform


COMPUTE, LINK = 0, 1
MOST_TASKS: Final = 20_000


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
    """Collects tasks; `last` of each lane, and what the next one of each lane waits for besides."""

    most_trips: int
    link: int
    seconds: list[float] = field(default_factory=list)
    resource: list[int] = field(default_factory=list)
    predecessors: list[list[int]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    held: dict[int, set[int]] = field(default_factory=dict)

    def region(self, region: Region, issue: Issue, trip: tuple[int, ...], trips: float) -> None:
        """Add one run of a region that stands for `trips` of them."""
        ends: dict[int, tuple[int, ...]] = {}
        for index in issue.order:
            node = region.nodes[index]
            waits = {task for before in node.after for task in ends[before]}
            if node.body is None:
                ends[index] = (self._task(node, waits, trip, trips),)
            else:
                ends[index] = self._loop(node, node.body, issue.bodies[index], waits, trip, trips)

    def _loop(
        self,
        node: Node,
        body: Region,
        issue: Issue,
        waits: set[int],
        trip: tuple[int, ...],
        trips: float,
    ) -> tuple[int, ...]:
        """Add the trips of a loop; the tasks that end it."""
        lanes = (COMPUTE, self.link) if node.communicates else (COMPUTE,)
        shown = min(node.trips, self.most_trips)
        for number in range(shown):
            self._meet(lanes, waits)
            self.region(body, issue, (*trip, number), trips * node.trips / shown)
        self._meet(lanes, waits)
        return tuple({self.last[lane] for lane in lanes if lane in self.last} | waits)

    def _meet(self, lanes: Sequence[int], waits: set[int]) -> None:
        """What comes next on the lanes begins when all of them are done."""
        done = {self.last[lane] for lane in lanes if lane in self.last} | waits
        for lane in lanes:
            self.held[lane] = self.held.get(lane, set()) | done

    def _task(self, node: Node, waits: set[int], trip: tuple[int, ...], trips: float) -> int:
        lane, task = self.link if node.communicates else COMPUTE, len(self.runs)
        waits |= self.held.pop(lane, set())
        if lane in self.last:
            waits.add(self.last[lane])
        self.seconds.append(node.seconds * trips)
        self.resource.append(lane)
        self.predecessors.append(sorted(waits))
        self.runs.append(Run(node, trip, trips))
        self.last[lane] = task
        return task


def simulate_spmd(
    program: Region, platform: Platform, most_tasks: int = MOST_TASKS
) -> SpmdTimeline:
    """One step of a program on one device of a platform, with at most about `most_tasks` tasks."""
    is_beside = backend_for(platform).collectives == "beside kernels"
    issue = on_two_lanes(program) if is_beside else in_line(program)
    emitter = _Emitter(_most_trips(program, most_tasks), LINK if is_beside else COMPUTE)
    emitter.region(program, issue, (), 1.0)
    counts = [len(waits) for waits in emitter.predecessors]
    tasks = Tasks(
        seconds=np.array(emitter.seconds, np.float64),
        resource=np.array(emitter.resource, np.int32),
        first_predecessor=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        predecessors=np.array([t for waits in emitter.predecessors for t in waits], np.int32),
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
    return max(
        (max(n.trips, _longest(n.body)) for n in region.nodes if n.body is not None), default=1
    )


def _count(region: Region, most_trips: int) -> int:
    return sum(
        1 if n.body is None else min(n.trips, most_trips) * _count(n.body, most_trips)
        for n in region.nodes
    )
