"""Placements of one problem on one machine, simulated (`automap.placement.timeline`).

simulator = Simulator(problem, placed_machine(get_graph("haswell-4xk80")))
outcome = simulator.run([0] * problem.n_operators)          # all on device 0
outcome.step_seconds, outcome.peak_bytes, outcome.fits
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.errors import InputError
from automap.placement.choices import Degrees, machine_choices
from automap.placement.dataflow import NOBODY
from automap.placement.prices import peak_bytes, price_all
from automap.placement.splits import Splits, whole
from automap.placement.tasks import Piece, PlacementProblem, Tensor
from automap.placement.timeline import Machine, Step, run_step
from automap.topology import Graph, shortest_routes


def placed_machine(
    graph: Graph,
    memory_limit_bytes: float | None = None,
    forms: Sequence[Degrees] = ((),),
) -> Machine:
    """The arrays of a machine whose operators have these forms; devices have all of their memory,
    or the limit where that is less.
    """
    routes, kinds = shortest_routes(graph), graph.kinds
    kind = np.array([kinds.index(node.device) for node in graph.devices], np.int64)
    memory = [float(node.device.memory_bytes) for node in graph.devices]
    if memory_limit_bytes is not None:
        memory = [min(n_bytes, memory_limit_bytes) for n_bytes in memory]
    return Machine(
        kind=kind,
        memory_bytes=np.array(memory),
        rate=routes.bytes_per_s,
        latency=routes.latency_seconds,
        first=routes.first.astype(np.int64),
        media=routes.media.astype(np.int64),
        n_media=len(routes.medium_names),
        choices=machine_choices(kind, routes.bytes_per_s, routes.latency_seconds, forms),
    )


@dataclass(frozen=True)
class Outcome:
    """A simulated step. `busy_seconds`, `peak_bytes` [devices]; `moved_bytes` between devices;
    tasks' `start_seconds`, `end_seconds` and, of these, seconds of sums [tasks]; `transfers` [n, 3]
    (tensor, from, to) with `transfer_bytes` [n] and `transfer_seconds` [n, 2] from and to.
    `too_full` is the first device that does not hold its part, None if all do.
    """

    step_seconds: float
    moved_bytes: float
    busy_seconds: np.ndarray
    peak_bytes: np.ndarray
    too_full: int | None
    start_seconds: np.ndarray
    end_seconds: np.ndarray
    sum_seconds: np.ndarray
    transfers: np.ndarray
    transfer_bytes: np.ndarray
    transfer_seconds: np.ndarray

    @property
    def fits(self) -> bool:
        """Whether every device has memory for what it holds."""
        return self.too_full is None


@dataclass(frozen=True)
class Simulator:
    """Placements of one problem on one machine, whose choices are of the forms of `splits`; whole
    operators without.
    """

    problem: PlacementProblem
    machine: Machine
    splits: Splits | None = None

    def run(self, device: Sequence[int]) -> Outcome:
        """All of one step, with the choice of each operator, [operators]: a device, or a split.
        Raises `InputError` for another number of operators, and for what the machine has not.
        """
        placed = np.asarray(device, np.int64)
        self._check(placed)
        step, machine = self.step, self.machine
        line = run_step(step, machine, placed)
        peaks = peak_bytes(step, machine, placed, line)
        choices, seconds = machine.choices, line.end - line.start
        is_busy = choices.part_on[placed[step.operator]] >= 0
        busy = (is_busy * seconds[:, None]).sum(axis=0)
        full = np.flatnonzero(peaks > machine.memory_bytes)
        return Outcome(
            step_seconds=float(line.end.max(initial=0.0)),
            moved_bytes=float(line.sent_bytes.sum()),
            busy_seconds=busy,
            peak_bytes=peaks,
            too_full=int(full[0]) if len(full) else None,
            start_seconds=line.start,
            end_seconds=line.end,
            sum_seconds=self._sum_seconds(placed, seconds),
            transfers=line.transfer,
            transfer_bytes=line.sent_bytes,
            transfer_seconds=np.stack([line.sent_start, line.sent_end], axis=1),
        )

    def price_all(self, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, whether it fits) [n] of placements, int64 [n, operators], unchecked."""
        seconds, overflow = price_all(self.step, self.machine, devices)
        return seconds, overflow == 0.0

    def _sum_seconds(self, placed: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """What each task takes beyond its slowest part."""
        choices, choice = self.machine.choices, placed[self.step.operator]
        by_kind = self.step.seconds[choices.form[choice], :, np.arange(len(choice))]
        is_there = choices.part_on[choice] >= 0
        slowest = np.where(is_there, by_kind[:, self.machine.kind], 0.0).max(axis=1, initial=0.0)
        return np.where(choices.n_parts[choice] > 1, np.maximum(seconds - slowest, 0.0), 0.0)

    @cached_property
    def step(self) -> Step:
        """The problem as arrays."""
        return _arrays(self.problem, self.splits or whole(self.problem))

    @cached_property
    def able(self) -> np.ndarray:
        """Which choices each operator has, bool [operators, choices]."""
        splits, choices = self.splits or whole(self.problem), self.machine.choices
        return np.ascontiguousarray(splits.able[choices.form].T)

    def _check(self, device: np.ndarray) -> None:
        names, count = self.problem.operators.names, len(self.machine.choices.form)
        if device.shape != (len(names),):
            raise InputError(
                f"placement: got {len(device)} devices; allowed: one for each of {len(names)} "
                "operators"
            )
        for name, number in zip(names, device.tolist(), strict=True):
            if not 0 <= number < count:
                raise InputError(
                    f"placement of {name}: got device {number}; allowed: 0 to {count - 1}"
                )


def _arrays(problem: PlacementProblem, splits: Splits) -> Step:
    tensors, n_tasks = problem.tensors, len(problem.tasks)
    n_waiting = np.zeros(n_tasks, np.int64)
    for x in tensors:
        if x.maker != NOBODY or x.home != NOBODY:
            n_waiting[list(x.receivers)] += 1
    maker = np.array([x.maker for x in tensors], np.int64)
    # Tensors of no task sort behind those of all.
    place = np.where(maker == NOBODY, n_tasks, maker)
    readers = [reader for x in tensors for reader in x.readers]
    receives = [reader in x.receivers for x in tensors for reader in x.readers]
    pieces = [x.pieces or (_whole_piece(x),) for x in tensors]
    listed = [piece for each in pieces for piece in each]
    # Only classes that some form splits are told apart.
    n_classes = 1 + max((c for form in splits.forms for c, _ in form), default=0)
    has_class = np.array([[c in p.classes for c in range(n_classes)] for p in listed], np.bool_)
    return Step(
        operator=np.array([task.operator for task in problem.tasks], np.int64),
        seconds=np.ascontiguousarray(splits.seconds),
        workspace=splits.workspace_bytes,
        sum_messages=splits.sum_messages,
        sum_bytes=splits.sum_bytes,
        term_messages=splits.term_messages,
        term_bytes=splits.term_bytes,
        first_before=_firsts(splits.before),
        before=np.array([o for each in splits.before for o in each], np.int64),
        n_waiting=n_waiting,
        maker=maker,
        home=np.array([x.home for x in tensors], np.int64),
        is_result=np.array([x.is_result for x in tensors], np.bool_),
        first_piece=_firsts(pieces),
        moved_bytes=np.array([p.moved_bytes for p in listed], np.float64),
        kept_bytes=np.array([p.kept_bytes for p in listed], np.float64),
        has_class=has_class.reshape(len(listed), n_classes),
        first_reader=_firsts([x.readers for x in tensors]),
        reader=np.array(readers, np.int64),
        is_receiver=np.array(receives, np.bool_),
        first_made=np.searchsorted(np.sort(place), np.arange(n_tasks + 2)).astype(np.int64),
        made=np.argsort(place, kind="stable").astype(np.int64),
    )


def _whole_piece(tensor: Tensor) -> Piece:
    return Piece(classes=frozenset(), moved_bytes=tensor.moved_bytes, kept_bytes=tensor.kept_bytes)


def _firsts(rows: Sequence[Sized]) -> np.ndarray:
    """Where each row begins among all, and where the last ends."""
    return np.cumsum([0, *map(len, rows)]).astype(np.int64)
