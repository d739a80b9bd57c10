"""Placements of one problem on one machine, simulated (`automap.placement.timeline`).

simulator = Simulator(problem, placed_machine(get_graph("haswell-4xk80")))
outcome = simulator.run([0] * problem.n_operators)          # all on device 0
outcome.step_seconds, outcome.peak_bytes, outcome.fits
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.errors import InputError
from automap.placement.dataflow import NOBODY
from automap.placement.tasks import PlacementProblem
from automap.placement.timeline import Machine, Step, peak_bytes, price_all, run_step
from automap.topology import Graph, shortest_routes


def placed_machine(graph: Graph, memory_limit_bytes: float | None = None) -> Machine:
    """The arrays of a machine; devices have all of their memory, or the limit where that is
    less.
    """
    routes, kinds = shortest_routes(graph), graph.kinds
    memory = [float(node.device.memory_bytes) for node in graph.devices]
    if memory_limit_bytes is not None:
        memory = [min(n_bytes, memory_limit_bytes) for n_bytes in memory]
    return Machine(
        kind=np.array([kinds.index(node.device) for node in graph.devices], np.int64),
        memory_bytes=np.array(memory),
        rate=routes.bytes_per_s,
        latency=routes.latency_seconds,
        first=routes.first.astype(np.int64),
        media=routes.media.astype(np.int64),
        n_media=len(routes.medium_names),
    )


@dataclass(frozen=True)
class Outcome:
    """A simulated step. `busy_seconds`, `peak_bytes` [devices]; `moved_bytes` between devices;
    tasks' `start_seconds` and `end_seconds` [tasks]; `transfers` [n, 3] (tensor, from, to) with
    `transfer_seconds` [n, 2] from and to. `too_full` is the first device that does not hold its
    part, None if all do.
    """

    step_seconds: float
    moved_bytes: float
    busy_seconds: np.ndarray
    peak_bytes: np.ndarray
    too_full: int | None
    start_seconds: np.ndarray
    end_seconds: np.ndarray
    transfers: np.ndarray
    transfer_seconds: np.ndarray

    @property
    def fits(self) -> bool:
        """Whether every device has memory for what it holds."""
        return self.too_full is None


@dataclass(frozen=True)
class Simulator:
    """Placements of one problem on one machine."""

    problem: PlacementProblem
    machine: Machine

    def run(self, device: Sequence[int]) -> Outcome:
        """All of one step, with `device` [operators]. Raises `InputError` for another number of
        operators, and for devices that the machine has not.
        """
        placed = np.asarray(device, np.int64)
        self._check(placed)
        step, machine = self.step, self.machine
        line = run_step(step, machine, placed)
        peaks = peak_bytes(step, machine, placed, line)
        here = placed[step.operator]
        busy = np.bincount(here, line.end - line.start, len(machine.kind))
        full = np.flatnonzero(peaks > machine.memory_bytes)
        return Outcome(
            step_seconds=float(line.end.max(initial=0.0)),
            moved_bytes=float(step.moved_bytes[line.transfer[:, 0]].sum()),
            busy_seconds=busy,
            peak_bytes=peaks,
            too_full=int(full[0]) if len(full) else None,
            start_seconds=line.start,
            end_seconds=line.end,
            transfers=line.transfer,
            transfer_seconds=np.stack([line.sent_start, line.sent_end], axis=1),
        )

    def price_all(self, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, whether it fits) [n] of placements, int64 [n, operators], unchecked."""
        seconds, overflow = price_all(self.step, self.machine, devices)
        return seconds, overflow == 0.0

    @cached_property
    def step(self) -> Step:
        """The problem as arrays."""
        return _arrays(self.problem)

    def _check(self, device: np.ndarray) -> None:
        names, count = self.problem.operators.names, len(self.machine.kind)
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


def _arrays(problem: PlacementProblem) -> Step:
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
    return Step(
        operator=np.array([task.operator for task in problem.tasks], np.int64),
        seconds=np.ascontiguousarray(problem.seconds),
        workspace=np.array(problem.workspace_bytes, np.float64),
        n_waiting=n_waiting,
        maker=maker,
        home=np.array([x.home for x in tensors], np.int64),
        moved_bytes=np.array([x.moved_bytes for x in tensors], np.float64),
        kept_bytes=np.array([x.kept_bytes for x in tensors], np.float64),
        is_result=np.array([x.is_result for x in tensors], np.bool_),
        first_reader=np.cumsum([0, *(len(x.readers) for x in tensors)]).astype(np.int64),
        reader=np.array(readers, np.int64),
        is_receiver=np.array(receives, np.bool_),
        first_made=np.searchsorted(np.sort(place), np.arange(n_tasks + 2)).astype(np.int64),
        made=np.argsort(place, kind="stable").astype(np.int64),
    )
