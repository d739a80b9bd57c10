"""A machine with configured operators, their timeline, and what a change of one configuration does
to it.

    sim = Simulator(graph, machine, configurations)
    sim.move(7, Configuration(degrees=(4, 1), devices=(0, 1, 2, 3)), Method.FULL)
    sim.makespan_seconds

The timeline is the same, to the last bit, however it came about: `automap.simulate.operators.full`
or `.delta`. A search that has a limit, beyond which it does not want to know the makespan, is
served best by `simulate_within`: docs/reports/flexflow.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
import math
from typing import NamedTuple

import numpy as np

from automap.errors import InputError
from automap.numba_jit import Array
from automap.simulate.operators.arrays import (
    NONE,
    Links,
    Placement,
    TaskSlots,
    device_links,
    empty_placement,
    empty_slots,
    operator_wiring,
)
from automap.simulate.operators.configuration import Configuration, check
from automap.simulate.operators.delta import replace_configuration, simulate_changed
from automap.simulate.operators.full import ROUNDING, place_all, replace_all, simulate_all
from automap.simulate.operators.graph import OperatorGraph
from automap.simulate.operators.network import DeviceNetwork


class Method(Enum):
    """How the timeline is brought up to date."""

    FULL = "full"
    DELTA = "delta"
    EITHER = "delta, then full where that would take longer"


# Visits per task after which a delta simulation is given up. One takes as long as several tasks of
# a full one, so EITHER wastes little; past the bound of DELTA nothing is to be learnt from it any
# more.
_VISITS_PER_TASK = {Method.DELTA: 5.0, Method.EITHER: 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTimeline:
    """All tasks by ascending id, [n]: seconds float64; resource d for device d, P + m for medium
    m.
    """

    ident: np.ndarray
    resource: np.ndarray
    ready_seconds: np.ndarray
    start_seconds: np.ndarray
    end_seconds: np.ndarray


# Room for transfers at first.
_FIRST_SLOTS = 4096
# New arrays have room for _GROWTH times what is needed; those with room for less than
# _GROWTH / _ROOMY times are replaced.
_GROWTH, _ROOMY = 2, 1.5
# Slots are int32 in the arrays.
_MOST_SLOTS = 2**31 - 1
# With more changes than this share of the operators, the task graph is written anew rather than
# change by change.
_REBUILT_SHARE = 0.5


class _Arrays(NamedTuple):
    """The configurations as `automap.simulate.operators.full.place_all` takes them: degrees [O, F],
    devices [O, P].
    """

    degrees: Array
    devices: Array
    part_seconds: Array
    part_bytes: Array


def _arrays(graph: OperatorGraph, n_factors: int, n_devices: int) -> _Arrays:
    count = len(graph.operators)
    return _Arrays(
        degrees=np.ones((count, n_factors), np.int64),
        devices=np.zeros((count, n_devices), np.int64),
        part_seconds=np.zeros(count),
        part_bytes=np.zeros(count),
    )


class Simulator:
    """Operators with their configurations on a machine. Not safe for use by two threads."""

    def __init__(
        self, graph: OperatorGraph, network: DeviceNetwork, configurations: Sequence[Configuration]
    ):
        """Simulate once.

        Raises `InputError` for configurations that do not fit, and for too many tasks.
        """
        if len(configurations) != len(graph.operators):
            raise InputError(
                f"simulator: got {len(configurations)} configurations; allowed: one for each of "
                f"the {len(graph.operators)} operators"
            )
        for operator, configuration in zip(graph.operators, configurations, strict=True):
            check(operator, configuration, network.n_devices)
        self.graph = graph
        self.network = network
        self.configurations = list(configurations)
        self._wiring = operator_wiring(graph, network.n_devices)
        self._links: Links = device_links(network)
        self._placement: Placement = empty_placement(self._wiring, network.n_devices)
        # Slots of parts and all-reduces, which every graph on P devices has.
        fixed = 2 * len(graph.operators) * network.n_devices
        self._n_resources = network.n_devices + network.n_media
        self._tasks: TaskSlots = empty_slots(fixed + _FIRST_SLOTS, self._n_resources)
        self._free_slot = 0
        # Those that the task graph was written of, and operators that were placed since.
        self._written = list(configurations)
        self._changed = set[int]()
        self._n_factors = np.array([len(o.factors) for o in graph.operators], np.int64)
        self._arrays = _arrays(graph, self._wiring.adds.shape[1] - 1, network.n_devices)
        for operator in range(len(graph.operators)):
            self._record(operator)
        self.rebuild()
        self.simulate()

    @property
    def makespan_seconds(self) -> float:
        """When the last task ends: the time of one step."""
        last = self._tasks.last
        return float(self._tasks.end[last[last != NONE]].max(initial=0.0))

    @property
    def n_tasks(self) -> int:
        """Tasks of all devices and media."""
        return int(np.count_nonzero(self._tasks.resource != NONE))

    def timeline(self) -> PlacedTimeline:
        """Every task and when it runs."""
        tasks = self._tasks
        slots = np.flatnonzero(tasks.resource != NONE)
        slots = slots[np.argsort(tasks.ident[slots])]
        before = tasks.before[slots]
        # When the task before it on its resource ends; the first one is free from the beginning.
        free = np.where(before == NONE, 0.0, tasks.end[before])
        return PlacedTimeline(
            ident=tasks.ident[slots],
            resource=tasks.resource[slots],
            ready_seconds=tasks.ready[slots],
            start_seconds=np.maximum(tasks.ready[slots], free),
            end_seconds=tasks.end[slots],
        )

    def move(self, operator: int, configuration: Configuration, method: Method) -> Method:
        """Change one operator's configuration; the timeline is right again afterwards.

        Returns whether it came by full or delta simulation.

        Raises `InputError`, and changes nothing, if the configuration does not fit.
        """
        # Delta simulation corrects a timeline, so there has to be one.
        if method is not Method.FULL and self._changed:
            self.simulate()
        self.place(operator, configuration)
        if method is not Method.FULL:
            self._changed.clear()
            self._written[operator] = configuration
            orphans = self._replace(operator)
            if orphans is not None and simulate_changed(
                self._wiring,
                self._placement,
                self._tasks,
                operator,
                orphans,
                _VISITS_PER_TASK[method],
            ):
                return Method.DELTA
        self.simulate()
        return Method.FULL

    def place(self, operator: int, configuration: Configuration) -> None:
        """Change one operator's configuration; the timeline is void until `simulate` is called.

        Raises `InputError`, and changes nothing, if the configuration does not fit.
        """
        check(self.graph.operators[operator], configuration, self.network.n_devices)
        self.configurations[operator] = configuration
        self._record(operator)
        self._changed.add(operator)

    def simulate(self) -> int:
        """Simulate the configurations as they are from the beginning; the number of tasks."""
        self.write_changes()
        return simulate_all(self._wiring, self._placement, self._tasks, math.inf)

    def simulate_within(self, limit_seconds: float) -> float | None:
        """Simulate as `simulate` does, and return the makespan; None if it is over the limit, and
        then the timeline is void.
        """
        # Most proposals of a walk are over it by what one device computes: nothing is written then.
        if self._least_seconds() > limit_seconds * ROUNDING:
            return None
        self.write_changes()
        done = simulate_all(self._wiring, self._placement, self._tasks, limit_seconds)
        return None if done == NONE else self.makespan_seconds

    def serial_seconds(self) -> float:
        """The sum over operators, all-reduces and tensors of the longest that their tasks take a
        device or medium, as if none ran beside another: OptCNN's estimate (Jia et al. 2018). The
        timeline may be void.
        """
        self.write_changes()
        tasks, rows = self._tasks, 2 * len(self.configurations)
        used = np.flatnonzero(tasks.resource != NONE)
        # Rows of parts and all-reduces, then a row for each edge.
        edge = tasks.edge[used].astype(np.int64)
        row = np.where(edge == NONE, used // self.network.n_devices, rows + edge)
        place = row * self._n_resources + tasks.resource[used]
        shape = (rows + len(self.graph.edges), self._n_resources)
        total = np.bincount(place, tasks.seconds[used], shape[0] * shape[1])
        return float(total.reshape(shape).max(axis=1).sum())

    def moved_bytes(self) -> float:
        """Bytes sent in a step; of an all-reduce as a ring sends them."""
        tasks, n = self._tasks, self.network.n_devices
        used = np.flatnonzero(tasks.resource >= n)
        total = 0.0
        sums = used[used < 2 * len(self.configurations) * n]
        for operator in sums // n - len(self.configurations):
            adding = float(self._placement.n_adding[operator])
            total += 2 * (adding - 1) / adding * self._arrays.part_bytes[operator]
        moved, wiring, device = used[len(sums) :], self._wiring, self._placement.device
        pair = tasks.ident[moved] - wiring.edge_id[tasks.edge[moved]]
        # What is received was counted where it was sent.
        moved, pair = moved[pair < n * n], pair[pair < n * n]
        edge = tasks.edge[moved]
        ends = device[wiring.source[edge], pair // n], device[wiring.target[edge], pair % n]
        latency, rate = self._links.latency_seconds[ends], self._links.bytes_per_s[ends]
        return total + float(((tasks.seconds[moved] - latency) * rate).sum())

    def busy_seconds(self) -> float:
        """Seconds that all devices together compute in a step."""
        tasks = self._tasks
        on_device = (tasks.resource != NONE) & (tasks.resource < self.network.n_devices)
        return float(tasks.seconds[on_device].sum())

    def write_changes(self) -> None:
        """Bring the task graph up to date with the configurations, as every simulation does first.
        The timeline may be void then.
        """
        # What was taken back before it was written is as it was.
        now, written = self.configurations, self._written
        differing = sorted(o for o in self._changed if now[o] != written[o])
        if len(differing) > _REBUILT_SHARE * len(self.configurations):
            self.rebuild()
            return
        self._changed.clear()
        if differing:
            changed = np.array(differing, np.int64)
            for operator in differing:
                written[operator] = now[operator]
            self._free_slot = replace_all(
                self._wiring,
                self._placement,
                self._tasks,
                self._links,
                changed,
                self._n_factors,
                *self._arrays,
                self._free_slot,
            )
            if self._free_slot > len(self._tasks.resource):
                self.rebuild()

    def _least_seconds(self) -> float:
        """What the device that computes longest does, beyond which no step ends sooner."""
        arrays, speed = self._arrays, self._links.speed
        n_parts = arrays.degrees.prod(axis=1)
        is_part = np.arange(arrays.devices.shape[1]) < n_parts[:, None]
        seconds = np.repeat(arrays.part_seconds, np.minimum(n_parts, is_part.shape[1]))
        busy = np.bincount(arrays.devices[is_part], seconds, len(speed)) / speed
        return float(busy.max(initial=0.0))

    def _record(self, operator: int) -> None:
        target, configuration = self.graph.operators[operator], self.configurations[operator]
        arrays = self._arrays
        arrays.degrees[operator, : len(configuration.degrees)] = configuration.degrees
        arrays.devices[operator, : len(configuration.devices)] = configuration.devices
        arrays.part_seconds[operator] = target.part_seconds(configuration.degrees)
        arrays.part_bytes[operator] = target.part_bytes(configuration.degrees)

    def _replace(self, operator: int) -> np.ndarray | None:
        """Write an operator's tasks and edges anew; the slots of tasks that lost the one before,
        None if all are new.
        """
        arrays = self._arrays
        n_factors = self._n_factors[operator]
        orphans, self._free_slot = replace_configuration(
            self._wiring,
            self._placement,
            self._tasks,
            self._links,
            operator,
            arrays.degrees[operator, :n_factors],
            arrays.devices[operator],
            float(arrays.part_seconds[operator]),
            float(arrays.part_bytes[operator]),
            self._free_slot,
        )
        if self._free_slot > len(self._tasks.resource):
            self.rebuild()
            return None
        return orphans

    def rebuild(self) -> None:
        """Write the whole task graph anew, without gaps; the timeline is void then."""
        self._changed.clear()
        self._written = list(self.configurations)
        while True:
            self._free_slot = place_all(
                self._wiring, self._placement, self._tasks, self._links, *self._arrays
            )
            # With little room left, every few moves would come back here: moves put an edge's tasks
            # behind all others and leave gaps.
            if _GROWTH * self._free_slot <= _ROOMY * len(self._tasks.resource):
                return
            room = _room(_GROWTH * self._free_slot, self._free_slot)
            self._tasks = empty_slots(room, self._n_resources)


def _room(wanted: int, needed: int) -> int:
    if needed > _MOST_SLOTS:
        raise InputError(
            f"simulator: got {needed} tasks; allowed: {_MOST_SLOTS}; use fewer devices or parts"
        )
    return min(wanted, _MOST_SLOTS)
