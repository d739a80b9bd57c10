"""The record of a simulated step: how long it takes, how busy a device is, which collectives it
waits for, and the longest of everything.

step       end of the last task
compute    seconds of kernels;  collective   seconds of collectives
events     of a program: record -> region -> timeline -> events -> in: `simulated_program`
exposed    step - compute: in those nothing runs but a collective   -> in: `_exposed_seconds`
hidden     collective - exposed
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from automap.plan.codec import encode
from automap.plan.program import ProgramRecord
from automap.plan.record import PlanRecord
from automap.simulate.recorded import recorded_region, spmd_events
from automap.simulate.spmd import simulate_spmd
from automap.simulate.trace import Event, save_trace
from automap.topology.model import Topology
from hlo_tools.analyses.phases import Phase


# Shares of a time below this are what is left of differences of large numbers.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """The kernels of one line of code, opcode, result and phase; `source` is "" if unknown.

    `runs` and `seconds` are of a whole step.
    """

    opcode: str
    result: str
    op_name: str
    source: str
    phase: str
    runs: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """The collectives of one kind and tensor over the same axes; `bytes` of all runs, on one
    device.
    """

    kind: str
    axes: tuple[str, ...]
    tensor: str
    op_name: str
    source: str
    phase: str
    runs: float
    bytes: float
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """Seconds of a phase's kernels and collectives, and of those collectives in which nothing else
    runs.
    """

    phase: str
    compute_seconds: float
    collective_seconds: float
    exposed_seconds: float


@dataclass(frozen=True, kw_only=True)
class SimulationRecord:
    """One simulated step. Rows are sorted, the longest first; `predicted_seconds` is what the plan
    says.
    """

    target: str
    topology: str
    mesh: tuple[tuple[str, int], ...]
    predicted_seconds: float
    step_seconds: float
    compute_seconds: float
    collective_seconds: float
    phases: tuple[PhaseRow, ...]
    ops: tuple[OpRow, ...]
    collectives: tuple[CollectiveRow, ...]
    warnings: tuple[str, ...]
    events: tuple[Event, ...] = field(repr=False)

    @property
    def exposed_seconds(self) -> float:
        """Seconds of collectives in which nothing else runs."""
        return max(self.step_seconds - self.compute_seconds, 0.0)

    @property
    def hidden_seconds(self) -> float:
        """Seconds of collectives beside computation."""
        # A difference of nearly equal sums: what rounding leaves is no time.
        hidden = self.collective_seconds - self.exposed_seconds
        return hidden if hidden > _ROUNDING * self.collective_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values, as `automap simulate --json` prints them: all but the events."""
        fields = {name: encode(value) for name, value in vars(self).items() if name != "events"}
        exposed = {"exposed_seconds": self.exposed_seconds, "hidden_seconds": self.hidden_seconds}
        return fields | exposed | {"tasks": len(self.events)}

    def save_trace(self, path: str | Path) -> None:
        """Write the timeline for Perfetto, whole or not at all; raises `PlanError` if that cannot
        be done.
        """
        save_trace(path, self.events)


def simulated_program(
    plan: PlanRecord, program: ProgramRecord, machine: Topology, warnings: tuple[str, ...] = ()
) -> SimulationRecord:
    """The step that a program is on a machine, on one representative device and its links."""
    timeline = simulate_spmd(recorded_region(program), machine.platform)
    return summary(
        tuple(spmd_events(program, timeline)),
        target=plan.workload.target,
        topology=machine.name,
        mesh=plan.mesh.axes,
        predicted_seconds=plan.predicted.step_seconds,
        warnings=warnings,
    )


def summary(
    events: tuple[Event, ...],
    *,
    target: str,
    topology: str,
    mesh: tuple[tuple[str, int], ...],
    predicted_seconds: float,
    warnings: tuple[str, ...],
) -> SimulationRecord:
    """The simulation that events stand for; collectives are those with a `kind` among their
    details.
    """
    kernels = [e for e in events if "kind" not in e.details]
    messages = [e for e in events if "kind" in e.details]
    exposed = _exposed_seconds(kernels, messages)
    return SimulationRecord(
        target=target,
        topology=topology,
        mesh=mesh,
        predicted_seconds=predicted_seconds,
        step_seconds=max((e.start_seconds + e.seconds for e in events), default=0.0),
        compute_seconds=sum(e.seconds for e in kernels),
        collective_seconds=sum(e.seconds for e in messages),
        phases=_phases(kernels, messages, exposed),
        ops=_op_rows(kernels),
        collectives=_collective_rows(messages, exposed),
        warnings=warnings,
        events=events,
    )


def _exposed_seconds(kernels: list[Event], messages: list[Event]) -> list[float]:
    """Of each collective the seconds in which no kernel runs; kernels run one at a time."""
    # busy[i] seconds of kernels have run when kernel i starts: kernels do not overlap, so the time
    # that any interval shares with them is a difference of two values of one growing function.
    order = sorted(kernels, key=lambda e: e.start_seconds)
    start = np.array([e.start_seconds for e in order])
    busy = np.concatenate([[0.0], np.cumsum([e.seconds for e in order])])

    def busy_until(time: np.ndarray) -> np.ndarray:
        """Seconds of kernels before each time."""
        at = np.searchsorted(start, time, side="right")
        began = np.maximum(at - 1, 0)
        # What of the kernel under way is over, at most all of it; before the first one nothing is.
        within = time - start[began] if len(start) else np.zeros(len(time))
        length = busy[np.minimum(began + 1, len(order))] - busy[began]
        return np.where(at > 0, busy[began] + np.minimum(within, length), 0.0)

    begin = np.array([e.start_seconds for e in messages])
    seconds = np.array([e.seconds for e in messages])
    # [messages] each collective's seconds less those of kernels from its begin to its end.
    alone = seconds - (busy_until(begin + seconds) - busy_until(begin))
    return np.where(alone > _ROUNDING * seconds, np.minimum(alone, seconds), 0.0).tolist()


def _phases(
    kernels: list[Event], messages: list[Event], exposed: list[float]
) -> tuple[PhaseRow, ...]:
    def total(events: Iterable[Event], phase: str) -> float:
        return sum(e.seconds for e in events if e.category == phase)

    return tuple(
        PhaseRow(
            phase=name,
            compute_seconds=total(kernels, name),
            collective_seconds=total(messages, name),
            exposed_seconds=sum(x for e, x in zip(messages, exposed) if e.category == name),
        )
        for name in (phase.name.lower() for phase in Phase)
    )


_Item = TypeVar("_Item")


def _grouped(items: Iterable[_Item], key: Callable[[_Item], Hashable]) -> list[list[_Item]]:
    groups: dict[Hashable, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _op_rows(kernels: list[Event]) -> tuple[OpRow, ...]:
    names = ("opcode", "result", "op_name", "source", "phase")
    groups = _grouped(kernels, lambda e: tuple(e.details[name] for name in names))
    rows = [
        OpRow(
            **{name: group[0].details[name] for name in names},
            runs=sum(e.details["trips"] for e in group),
            seconds=sum(e.seconds for e in group),
        )
        for group in groups
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _collective_rows(messages: list[Event], exposed: list[float]) -> tuple[CollectiveRow, ...]:
    names = ("kind", "tensor", "op_name", "source", "phase")
    pairs = zip(messages, exposed, strict=True)
    groups = _grouped(
        pairs, lambda p: (*(p[0].details[name] for name in names), *p[0].details["axes"])
    )
    rows = [
        CollectiveRow(
            **{name: group[0][0].details[name] for name in names},
            axes=tuple(group[0][0].details["axes"]),
            runs=sum(e.details["trips"] for e, _ in group),
            # Bytes of an event are those of one run; an event of a folded loop stands for `trips`.
            bytes=sum(e.details["bytes"] * e.details["trips"] for e, _ in group),
            seconds=sum(e.seconds for e, _ in group),
            exposed_seconds=sum(seconds for _, seconds in group),
        )
        for group in groups
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))
