"""The simulated step of a plan's placement, as the plan has it: what each device does, and when.

A placement's tasks and transfers have their starts and seconds in the plan, so nothing is simulated
anew: record -> events of a trace, and a row for each device. A device that is not busy waits, for
tensors that are on their way or for the end of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
import math
from pathlib import Path
from typing import Any, Final

from automap.plan.codec import encode
from automap.plan.placement import PlacementRecord
from automap.plan.record import PlanRecord
from automap.quantities import bytes_text, seconds_text
from automap.simulate.trace import Event, Lane, save_trace


# Relative: sums of the same seconds differ by rounding only, those of an edited plan by more.
_SAME: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A device's step: seconds of its tasks, in all and by phase, and what it is sent."""

    name: str
    tasks: int
    busy_seconds: float
    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    received: int
    received_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class PlacementSimulationRecord:
    """One simulated step of a placement; `predicted_seconds` is what the plan says.

    `devices` are those that do something; `transfers` and `moved_bytes` are of all of them.
    """

    target: str
    topology: str
    predicted_seconds: float
    step_seconds: float
    transfers: int
    moved_bytes: int
    devices: tuple[DeviceRow, ...]
    warnings: tuple[str, ...]
    events: tuple[Event, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """JSON values, as `automap simulate --json` prints them: all but the events."""
        fields = {name: encode(value) for name, value in vars(self).items() if name != "events"}
        return fields | {"tasks": len(self.events)}

    def save_trace(self, path: str | Path) -> None:
        """Write the timeline for Perfetto, whole or not at all; raises `PlanError` if that cannot
        be done.
        """
        names = {event.lane.device: event.details["device"] for event in self.events}
        save_trace(path, self.events, names)


def simulate_placement(plan: PlanRecord, record: PlacementRecord) -> PlacementSimulationRecord:
    """The step of a plan's placement."""
    ends = [task.start_seconds + task.seconds for task in record.tasks]
    step_seconds, predicted = max(ends, default=0.0), plan.predicted.step_seconds
    changed = (
        f"the plan predicts {seconds_text(predicted)}, but its tasks end after "
        f"{seconds_text(step_seconds)}: it was changed after it was planned; plan again"
    )
    is_same = math.isclose(step_seconds, predicted, rel_tol=_SAME)
    return PlacementSimulationRecord(
        target=plan.workload.target,
        topology=str(plan.topology["name"]),
        predicted_seconds=predicted,
        step_seconds=step_seconds,
        transfers=len(record.transfers),
        moved_bytes=sum(move.bytes for move in record.transfers),
        devices=tuple(_rows(record)),
        warnings=() if is_same else (changed,),
        events=(*_tasks(record), *_transfers(record)),
    )


def _rows(record: PlacementRecord) -> Iterator[DeviceRow]:
    for number in record.used:
        tasks = [t for t in record.tasks if number in record.operators[t.operator].devices]
        received = [move.bytes for move in record.transfers if move.target == number]
        by_phase = {
            phase: sum(task.seconds for task in tasks if task.phase == phase)
            for phase in ("forward", "backward", "update")
        }
        yield DeviceRow(
            name=record.devices[number].name,
            tasks=len(tasks),
            busy_seconds=sum(by_phase.values()),
            forward_seconds=by_phase["forward"],
            backward_seconds=by_phase["backward"],
            update_seconds=by_phase["update"],
            received=len(received),
            received_bytes=sum(received),
            peak_bytes=record.devices[number].peak_bytes,
        )


def _tasks(record: PlacementRecord) -> Iterator[Event]:
    """On each device that a task has a part on."""
    for task in record.tasks:
        operator = record.operators[task.operator]
        for part, device in enumerate(operator.devices):
            which = f", part {part + 1} of {len(operator.parts)}" if operator.parts else ""
            yield Event(
                lane=Lane(device=device, name="tasks"),
                name=f"{task.phase} {operator.name}{which}",
                category=task.phase,
                start_seconds=task.start_seconds,
                seconds=task.seconds,
                details={"device": record.devices[device].name, "operator": operator.name},
            )


def _transfers(record: PlacementRecord) -> Iterator[Event]:
    """On a lane of the sender for each device that it sends to."""
    for move in record.transfers:
        what = "state"
        if move.maker is not None:
            maker = record.tasks[move.maker]
            what = f"{maker.phase} {record.operators[maker.operator].name}"
        yield Event(
            lane=Lane(device=move.source, name=f"to {record.devices[move.target].name}"),
            name=f"{what}, {bytes_text(move.bytes)}",
            category="transfer",
            start_seconds=move.start_seconds,
            seconds=move.seconds,
            details={"device": record.devices[move.source].name, "bytes": move.bytes},
        )
