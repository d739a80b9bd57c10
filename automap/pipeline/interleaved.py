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
Stages that are sharded inside are searched as replicas with other seconds and bytes
                                                                        -> in: `Grouped.from_kind`
It proves nothing. What no interleaved pipeline is below: each group does its passes and its sums of
gradients one after the other, so with the mean over the groups

    L >= (M T + R) / P          T, R of all points on r units                 -> in: `least_step`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from typing import Final

import numpy as np

from automap.deadline import Deadline
from automap.pipeline.arrays import Arrays
from automap.pipeline.fabric import Fabric
from automap.pipeline.profile.points import Points
from automap.pipeline.schedules import Interleaved, Schedule
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.stage_options import StageOptions
from automap.pipeline.task_graph import StageSeconds, pipeline_tasks
from automap.plan.pipeline import MOST_PASSES
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
    """Bytes on each device of a group: its state (parameters, sums of gradients and optimizer), and
    by the other kinds of `MemoryRecord`.
    """
    replicas = arrays.n_units // groups * arrays.unit_devices
    own = [(int(cuts[s]), int(cuts[s + 1])) for s in range(group, len(cuts) - 1, groups)]
    saved = [float(arrays.saved_bytes[i, j]) for i, j in own]
    held = most = 0.0
    for job in schedule.passes(group, groups, arrays.microbatches):
        held += saved[job.stage // groups] * (1 if job.kind == "forward" else -1)
        most = max(most, held)
    entering = sum(2 * float(arrays.cut_bytes[i]) for i, _ in own)
    working = max(float(arrays.working_bytes[i, j]) for i, j in own)
    return {
        "state": sum(float(arrays.state_bytes[i, j]) for i, j in own),
        "activations": most / replicas,
        "temporaries": (working + entering) / replicas,
    }


@dataclass(frozen=True)
class Grouped:
    """Stages of one kind on equal groups of its units, as arrays of replicas."""

    arrays: Arrays
    fabric: Fabric

    @staticmethod
    def from_kind(options: StageOptions, kind: int, arrays: Arrays, fabric: Fabric) -> "Grouped":
        """The stages of a kind; `arrays` are those of replicas for as many microbatches."""
        r, table = int(options.units[kind]), options.table[kind]
        # Bytes that `share` devices have together, as if all of the group's devices did.
        scale = r * arrays.unit_devices / float(options.share[kind])
        entering = options.entering[table] * scale
        sent = options.crossing[kind].max() / max(entering.max(), 1e-300)
        layout, per_byte = options.layout[kind], np.zeros_like(arrays.transfer_seconds_per_byte)
        begins = range(0, arrays.n_units - r, r)
        for d in begins:
            per_byte[d, d + r, d + 2 * r] = options.transfer[layout, layout, d + r] * sent
        # Back to the first group as much longer than replicas as at the worst boundary.
        plain = [fabric.transfer_seconds_per_byte[d, d + r, d + 2 * r] for d in begins]
        ratios = [per_byte[d, d + r, d + 2 * r] / x for d, x in zip(begins, plain) if x > 0]
        back = fabric.back_seconds_per_byte * max(ratios, default=1.0)
        rate = max(options.rate[kind, d] for d in range(0, arrays.n_units, r))
        sums = options.reduce[kind]
        usable, forward, backward = (
            np.zeros_like(x) for x in (arrays.usable, arrays.forward, arrays.backward)
        )
        usable[r] = np.isfinite(rate)
        forward[r], backward[r] = options.forward[kind], options.backward[kind]
        return Grouped(
            arrays._replace(
                usable=usable,
                forward=forward,
                backward=backward,
                cut_bytes=entering,
                state_bytes=options.state[table],
                saved_bytes=options.saved[table] * scale,
                working_bytes=options.working[table] * scale,
                transfer_seconds_per_byte=per_byte,
                # Seconds already: sums over replicas go by stages and not by bytes here.
                gradient_bytes=rate * options.gradient_bytes + (sums[None, :] - sums[:, None]),
                reduce_seconds_per_byte=np.ones_like(arrays.reduce_seconds_per_byte),
            ),
            replace(fabric, back_seconds_per_byte=back),
        )

    def stages(self, cuts: np.ndarray, groups: int) -> list[StageSeconds]:
        """The seconds of each."""
        return interleaved_stages(self.arrays, self.fabric, cuts, groups)


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


def in_rounds(counts: Sequence[int], schedule: Interleaved, groups: int) -> list[int]:
    """Of numbers of microbatches those that so many groups may have: they go through in rounds of
    as many as there are groups.
    """
    most = MOST_PASSES // (groups * schedule.stages_per_group)
    return [m for m in counts if m % groups == 0 and m <= most]


def group_choices(
    points: Points,
    fabric: Fabric,
    schedules: Sequence[Schedule],
    asked: int | None,
    counts: Sequence[int],
) -> list[tuple[Interleaved, int]]:
    """(schedule, groups of devices) that a search looks at, of `counts` groups, or of those that
    make `asked` stages in all.
    """
    most = int(points.may_cut[1:-1].sum()) + 1
    pairs = []
    for schedule in (s for s in schedules if isinstance(s, Interleaved)):
        each = schedule.stages_per_group
        for groups in counts if asked is None else (asked // each,):
            is_possible = groups > 1 and fabric.n_units % groups == 0 and groups * each <= most
            if is_possible and asked in (None, groups * each):
                pairs.append((schedule, groups))
    return pairs
