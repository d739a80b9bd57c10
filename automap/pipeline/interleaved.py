"""Interleaved pipelines: their stages' seconds and bytes, and the search for their cuts.

P equal groups of r units have v stages each, so a partition has S + 1 cuts, S = v P, and P + 1
device cuts; stage s is on group s mod P. Its links are the fabric's, but for those from the last
group back to the first                                              -> in: `interleaved_stages`

    bytes of a device = sum of its stages' (state + (2 cut_bytes[i]) / replicas)
        + (the most that its passes hold in their order + the largest working) / replicas
                                                                              -> in: `group_bytes`

No value function knows the longest path of this order, so a partition is simulated: the task graph
is the same for all cuts, and only its seconds change                         -> in: `_Simulator`
The search begins with the cuts of the least sum of squares of T, a stage's seconds of a microbatch,
by a dynamic programme, and then moves one cut, or two, to the next places that are allowed, as long
as the simulated step gets shorter                                            -> in: `best_cuts`
It proves nothing. What no interleaved pipeline is below: each group does its passes and its sums of
gradients one after the other, so with the mean over the groups

    L >= (M T + R) / P          T, R of all points on r units                 -> in: `least_step`
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import Final

import numpy as np

from automap.deadline import Deadline
from automap.pipeline.arrays import Arrays
from automap.pipeline.fabric import Fabric
from automap.pipeline.profile.points import Points
from automap.pipeline.schedules import Interleaved
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.task_graph import StageSeconds, pipeline_tasks
from automap.simulate.tasks import Tasks, simulate


MOST_SIMULATED: Final = 400
"""Partitions that a search simulates: some tenths of a second."""


def interleaved_stages(
    arrays: Arrays, fabric: Fabric, cuts: np.ndarray, groups: int
) -> list[StageSeconds]:
    """The seconds of the stages."""
    r, stages = arrays.n_units // groups, []
    line = arrays.forward[r], arrays.backward[r]
    for s, (i, j) in enumerate(pairwise(cuts.tolist())):
        d = s % groups * r
        transfer = 0.0
        if s < len(cuts) - 2:
            is_back = s % groups == groups - 1
            per_byte = (
                fabric.back_seconds_per_byte[r]
                if is_back
                else arrays.transfer_seconds_per_byte[d, d + r, d + 2 * r]
            )
            latency = fabric.back_latency_seconds if is_back else arrays.latency_seconds[d + r]
            transfer = float(latency + per_byte * arrays.cut_bytes[j])
        stages.append(
            StageSeconds(
                forward=float(line[0][j] - line[0][i]),
                backward=float(line[1][j] - line[1][i]),
                transfer=transfer,
                reduce=float(
                    arrays.reduce_seconds_per_byte[d, d + r] * arrays.gradient_bytes[i, j]
                ),
            )
        )
    return stages


def group_bytes(
    arrays: Arrays, schedule: Interleaved, cuts: np.ndarray, group: int, groups: int
) -> dict[str, float]:
    """Bytes on each device of a group, by the kinds of `MemoryRecord`."""
    replicas = arrays.n_units // groups * arrays.unit_devices
    own = [(int(cuts[s]), int(cuts[s + 1])) for s in range(group, len(cuts) - 1, groups)]
    saved = [float(arrays.saved_bytes[i, j]) for i, j in own]
    held = most = 0.0
    for job in schedule.passes(group, groups, arrays.microbatches):
        held += saved[job.stage // groups] * (1 if job.kind == "forward" else -1)
        most = max(most, held)
    parameters = sum(float(arrays.gradient_bytes[i, j]) for i, j in own)
    entering = sum(2 * float(arrays.cut_bytes[i]) for i, _ in own)
    working = max(float(arrays.working_bytes[i, j]) for i, j in own)
    return {
        "parameters": parameters,
        "optimizer": sum(float(arrays.state_bytes[i, j]) for i, j in own) - parameters,
        "activations": most / replicas,
        "temporaries": (working + entering) / replicas,
    }


def least_step(arrays: Arrays, groups: int) -> float:
    """Seconds that no interleaved pipeline on so many groups is below."""
    r = arrays.n_units // groups
    each = float(arrays.forward[r, -1] + arrays.backward[r, -1])
    rates = [arrays.reduce_seconds_per_byte[g * r, (g + 1) * r] for g in range(groups)]
    reduce = float(min(rates) * arrays.gradient_bytes[0, -1])
    return (arrays.microbatches * each + reduce) / groups


def best_cuts(
    arrays: Arrays, fabric: Fabric, schedule: Interleaved, groups: int, deadline: Deadline
) -> Partition | None:
    """The best partition that the search finds, with its simulated step; None if none fits."""
    stages = groups * schedule.stages_per_group
    allowed = np.flatnonzero(arrays.may_cut[1:-1]) + 1
    if len(allowed) < stages - 1 or not arrays.usable[arrays.n_units // groups]:
        return None
    places = np.concatenate([[0], allowed, [arrays.n_points]])
    simulator = _Simulator(arrays, fabric, schedule, groups)
    # Places are numbers of `places`; each stage has at least one.
    chosen = _even(arrays, places, stages, groups)
    best = simulator.price(places[chosen])
    moved = True
    while moved and simulator.count < MOST_SIMULATED and not deadline.is_over:
        moved = False
        for trial in _neighbours(chosen):
            price = simulator.price(places[trial])
            if price < best:
                chosen, best, moved = trial, price, True
                break
    over, seconds = best
    if over > 0:
        return None
    units = arrays.n_units // groups * np.arange(groups + 1)
    return Partition(places[chosen], units, seconds)


class _Simulator:
    """Prices partitions: (bytes over a device's memory, seconds of a step), less is better."""

    def __init__(self, arrays: Arrays, fabric: Fabric, schedule: Interleaved, groups: int) -> None:
        self._arrays, self._fabric = arrays, fabric
        self._schedule, self._groups = schedule, groups
        nothing = StageSeconds(forward=0.0, backward=0.0, transfer=0.0, reduce=0.0)
        stages = [nothing] * (groups * schedule.stages_per_group)
        self._tasks, jobs = pipeline_tasks(stages, arrays.microbatches, schedule)
        # Of each task, the stage and the column of the table of seconds.
        self._stage = np.array([job.stage for job in jobs])
        self._column = np.array([_COLUMNS[job.kind] for job in jobs])
        self.count = 0

    def price(self, cuts: np.ndarray) -> tuple[float, float]:
        """Of a partition."""
        self.count += 1
        stages = interleaved_stages(self._arrays, self._fabric, cuts, self._groups)
        table = np.array([(x.forward, x.backward, x.transfer, x.reduce) for x in stages])
        tasks = Tasks(
            seconds=table[self._stage, self._column],
            resource=self._tasks.resource,
            first_predecessor=self._tasks.first_predecessor,
            predecessors=self._tasks.predecessors,
        )
        needed = max(
            sum(group_bytes(self._arrays, self._schedule, cuts, g, self._groups).values())
            for g in range(self._groups)
        )
        over = max(needed - self._arrays.memory_limit_bytes, 0.0)
        return over, simulate(tasks).makespan_seconds


_COLUMNS: Final = {
    "forward": 0,
    "backward": 1,
    "send forward": 2,
    "send backward": 2,
    "all-reduce": 3,
}


def _even(arrays: Arrays, places: np.ndarray, stages: int, groups: int) -> np.ndarray:
    """The numbers of the places at which stages of the least sum of squares begin and end."""
    r = arrays.n_units // groups
    line = (arrays.forward[r] + arrays.backward[r])[places]
    n = len(places)
    # squares[a, b]: of a stage from place a to place b, inf where it would be empty.
    squares = np.where(
        np.arange(n)[:, None] < np.arange(n), (line[None, :] - line[:, None]) ** 2, np.inf
    )
    least = squares[0]
    links = []
    for _ in range(stages - 1):
        through = least[:, None] + squares
        links.append(through.argmin(0))
        least = through.min(0)
    chosen = [n - 1]
    for link in reversed(links):
        chosen.append(int(link[chosen[-1]]))
    return np.array([0, *reversed(chosen)])


def _neighbours(chosen: np.ndarray) -> Iterator[np.ndarray]:
    """One cut at the next places, one or two on either side; then two cuts at once, by one; no
    stage is left empty.
    """
    inner = range(1, len(chosen) - 1)
    moves = [((s, step),) for s in inner for step in (-1, 1, -2, 2)]
    pairs = [
        ((s, one), (t, other))
        for s, t in combinations(inner, 2)
        for one, other in product((-1, 1), repeat=2)
    ]
    for move in (*moves, *pairs):
        trial = chosen.copy()
        for s, step in move:
            trial[s] += step
        if (np.diff(trial) > 0).all():
            yield trial


def group_counts(
    points: Points, fabric: Fabric, schedule: Interleaved, asked: int | None, counts: Sequence[int]
) -> Iterator[int]:
    """The numbers of groups that are possible, of `counts`, or that make `asked` stages in all."""
    most, each = int(points.may_cut[1:-1].sum()) + 1, schedule.stages_per_group
    for groups in counts if asked is None else (asked // each,):
        is_possible = groups > 1 and fabric.n_units % groups == 0 and groups * each <= most
        if is_possible and asked in (None, groups * each):
            yield groups
