"""Programs to be waited in, made by hand."""

from dataclasses import dataclass, field

import numpy as np

from automap.cost.collectives import CollectiveCost
from automap.cost.collectives.algorithms import Line
from automap.cost.evaluate import Evaluator
from automap.cost.schedule.merging import LoopSums
from automap.cost.schedule.order import KERNEL, LATE, SPARE
from automap.cost.schedule.placing import Messages
from automap.cost.schedule.work import Work
from automap.cost.tables import build_tables
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology
from automap.topology.mesh import Mesh


@dataclass
class Program:
    """Slots as (kind, seconds); collectives by boundary, urgent ones as (ready, needed,
    seconds), sums of two stages as (ready, seconds, seconds).
    """

    slots: list
    backlog: dict = field(default_factory=dict)
    stages: list = field(default_factory=list)
    renewed: dict = field(default_factory=dict)
    prefetch: dict = field(default_factory=dict)
    urgent: list = field(default_factory=list)
    data_at: dict = field(default_factory=dict)
    read_at: dict = field(default_factory=dict)
    sum_at: dict = field(default_factory=dict)
    reads_sum: dict = field(default_factory=dict)
    made_from: dict = field(default_factory=dict)
    gathered_at: dict = field(default_factory=dict)
    expected: dict = field(default_factory=dict)
    believed: dict = field(default_factory=dict)
    makers: set = field(default_factory=set)
    sliced: set = field(default_factory=set)
    slices: dict = field(default_factory=dict)

    def work(self, factor=1.0):
        n = len(self.slots) + 1
        columns = {
            name: np.zeros(n)
            for name in ("spare", "late", "brief", "makers", "backlog", "renewed", "prefetch")
        }
        for slot, (kind, seconds) in enumerate(self.slots):
            if kind in (SPARE, LATE):
                name = "spare" if kind == SPARE else "late"
                columns[name][self.data_at.get(slot, slot)] += seconds
                if kind == LATE and slot in self.makers:
                    columns["makers"][self.data_at.get(slot, slot)] += seconds
                elif kind == LATE and self.expected.get(slot, seconds) == 0:
                    columns["brief"][self.data_at.get(slot, slot)] += seconds
        for name in ("backlog", "renewed", "prefetch"):
            for boundary, seconds in getattr(self, name).items():
                columns[name][boundary] += factor * seconds
        for boundary, *stages in self.stages:
            columns["backlog"][boundary] += factor * sum(stages)
        for name in ("backlog", "renewed", "prefetch"):
            columns[f"{name}_believed"] = columns[name].copy()
            for boundary, seconds in self.believed.get(name, {}).items():
                columns[f"{name}_believed"][boundary] = factor * seconds
        columns["renewed_one"] = columns["renewed"]
        urgent = sorted(self.urgent, key=lambda row: row[1])
        urgent_seconds = factor * np.array([row[2] for row in urgent], float)
        return Work(
            kind=np.array([kind for kind, _ in self.slots], np.int64),
            seconds=np.array([seconds for _, seconds in self.slots], float),
            expected=np.array(
                [self.expected.get(s, seconds) for s, (_, seconds) in enumerate(self.slots)], float
            ),
            data_at=np.array([self.data_at.get(s, s) for s in range(n - 1)], np.int64),
            read_at=np.array([self.read_at.get(s, s + 1) for s in range(n - 1)], np.int64),
            gathered_at=np.array([self.gathered_at.get(s, -1) for s in range(n - 1)], np.int64),
            urgent_ready=np.array([row[0] for row in urgent], np.int64),
            urgent_needed=np.array([row[1] for row in urgent], np.int64),
            urgent_seconds=urgent_seconds,
            urgent_believed=urgent_seconds,
            sums=self._sums(factor),
            **columns,
        )

    def _sums(self, factor):
        """A message for each boundary of the backlog, and two for each sum of two stages."""
        messages = [(boundary, seconds, False) for boundary, seconds in self.backlog.items()]
        for boundary, first, second in self.stages:
            messages += [(boundary, first, True), (boundary, second, False)]
        messages.sort(key=lambda row: row[0])
        ready = [row[0] for row in messages]
        seconds = factor * np.array([row[1] for row in messages], float)
        slots = range(len(self.slots))

        def numbers(boundaries):
            """The messages that are ready at the boundaries of slots."""
            at = [boundaries.get(slot, -1) for slot in slots]
            return np.array([ready.index(k) if k in ready else -1 for k in at], np.int64)

        return LoopSums(
            ready=np.array(ready, np.int64),
            seconds=seconds,
            believed=np.array(
                [factor * self.believed.get("backlog", {}).get(k, s) for k, s, _ in messages]
            ),
            made_from=np.array([self.made_from.get(k, k) for k in ready], np.int64),
            then=np.array([i + 1 if row[2] else -1 for i, row in enumerate(messages)], np.int64),
            parts=np.array([1 + (k in self.sliced) for k in ready], np.int64),
            is_sliced=np.array([k in self.sliced for k in ready], bool),
            slices=np.array([self.slices.get(k, 0.0) for k in ready], float),
            makes=numbers(self.sum_at),
            reads=numbers(self.reads_sum),
        )

    @property
    def compute_seconds(self):
        return sum(seconds for _, seconds in self.slots) + sum(self.slices.values())

    @property
    def collective_seconds(self):
        later = (self.backlog, self.renewed, self.prefetch)
        stages = sum(sum(seconds) for _, *seconds in self.stages)
        return stages + sum(sum(x.values()) for x in later) + sum(row[2] for row in self.urgent)


def kernels(*seconds):
    return [(KERNEL, s) for s in seconds]


def priced_on_gpus(problem, preset):
    """The order of a step's kernels, and their price under a preset on eight GPUs."""
    evaluator = Evaluator(build_tables(problem, "cuda"), problem.n_classes, get_topology("8xh100"))
    space = Space(problem)
    (point,) = PRESETS[preset].points(space, Mesh(("data",), (8,)))
    return evaluator.tables.order, evaluator.price_point(space.split_classes(point))


def sent_messages(parts):
    """Messages of such parts, whose every byte takes a second, and copies of it a thousand."""
    n = len(parts)
    cost = CollectiveCost(lines=(Line(alpha_seconds=0.0, beta_seconds_per_byte=1.0),))
    return Messages(
        parts,
        rows=np.full(n, -1),
        trip_bytes=np.ones(n),
        trips=np.ones(n),
        cost=np.zeros(n, np.int64),
        costs=[cost],
        copy_seconds=lambda n_bytes: 1e3 * n_bytes,
    )
