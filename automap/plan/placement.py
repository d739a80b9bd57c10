"""The `placement` field of a plan: which operator runs on which device, and when.

Operators are layers and unrolled steps, each with its backward pass and its update. What runs is
*tasks*, equations of one operator and one phase; they stand in the order in which they start, which
is one in which all can run: what a task reads is an input, made by a task before it, or made again
from what is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from automap.plan.checks import check_numbers, refuse, shown
from automap.quantities import bytes_text, seconds_text


TaskPhase = Literal["forward", "backward", "update"]
_SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDeviceRecord:
    """A device: its name in the topology, `busy_seconds` of a step, and its `peak_bytes`."""

    name: str
    busy_seconds: float
    peak_bytes: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOperatorRecord:
    """An operator.

    - `name`: the parameter that it reads, numbered where several read one, as unrolled steps do.
    - `device`: the number of its device.
    - `seconds`: predicted, of all its tasks there.
    - `state_bytes`: of parameters and other state that are stored with it.
    """

    name: str
    device: int
    seconds: float
    state_bytes: int

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTaskRecord:
    """Equations of an operator that run together.

    - `operator`: its number.
    - `phase`: forward, backward or update.
    - `equations`: numbers of the step's equations, as ranges from first to last; none for a program
      without equations.
    - `start_seconds`, `seconds`: predicted.
    """

    operator: int
    phase: TaskPhase
    equations: tuple[tuple[int, int], ...]
    start_seconds: float
    seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)
        for index, (first, last) in enumerate(self.equations):
            if not 0 <= first <= last:
                raise refuse(f"equations[{index}]", [first, last], "first <= last, both from 0")

    @property
    def numbers(self) -> Iterator[int]:
        """The equations one by one."""
        for first, last in self.equations:
            yield from range(first, last + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTransferRecord:
    """What goes from a device to another: numbers of devices, bytes, and when, predicted; `maker`
    is the number of the task that makes it, None for state that is stored elsewhere.
    """

    maker: int | None
    source: int
    target: int
    bytes: int
    start_seconds: float
    seconds: float

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range."""
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRecord:
    """Operators on devices.

    - `devices`: by number.
    - `operators`: in the order of the forward pass.
    - `tasks`: in the order in which they start.
    - `transfers`: in the order in which they start.
    - `input_devices`: where each input of the step is stored; None for what is on every device that
      reads it, as batches are.
    """

    devices: tuple[PlacedDeviceRecord, ...]
    operators: tuple[PlacedOperatorRecord, ...]
    tasks: tuple[PlacedTaskRecord, ...]
    transfers: tuple[PlacedTransferRecord, ...]
    input_devices: tuple[int | None, ...]

    def __post_init__(self) -> None:
        """Raise `PlanError` for a device or operator that is not there, and for an equation in two
        tasks.
        """
        allowed = f"0 to {len(self.devices) - 1}, the devices"
        for index, operator in enumerate(self.operators):
            if operator.device >= len(self.devices):
                path = f"operators[{index}].device"
                raise refuse(path, operator.device, f"{allowed}, of {shown(operator.name)}")
        for index, device in enumerate(self.input_devices):
            if device is not None and not 0 <= device < len(self.devices):
                raise refuse(f"input_devices[{index}]", device, f"{allowed}, or null")
        for index, move in enumerate(self.transfers):
            for end in ("source", "target"):
                if getattr(move, end) >= len(self.devices):
                    raise refuse(f"transfers[{index}].{end}", getattr(move, end), allowed)
            if move.maker is not None and move.maker >= len(self.tasks):
                known = f"0 to {len(self.tasks) - 1}, a task, or null"
                raise refuse(f"transfers[{index}].maker", move.maker, known)
        self._check_tasks()

    def _check_tasks(self) -> None:
        ranges: list[tuple[int, int, int]] = []
        for index, task in enumerate(self.tasks):
            if task.operator >= len(self.operators):
                known = f"0 to {len(self.operators) - 1}, an operator"
                raise refuse(f"tasks[{index}].operator", task.operator, known)
            ranges += [(first, last, index) for first, last in task.equations]
        ranges.sort()
        # Ranges and not numbers one by one: a file may say a range of any length.
        for (_, last, one), (first, _, other) in zip(ranges, ranges[1:]):
            if first <= last:
                name = self.operators[self.tasks[other].operator].name
                allowed = f"equations in one task; {first} of {shown(name)} is in task {one} too"
                raise refuse(f"tasks[{other}].equations", first, allowed)

    @property
    def used(self) -> Sequence[int]:
        """Numbers of the devices that some operator is on."""
        return sorted({operator.device for operator in self.operators})


def check_placement(record: PlacementRecord, device_names: Sequence[str], n_inputs: int) -> None:
    """Refuse devices other than those of the topology, and another number of inputs. Raises
    `PlanError`.
    """
    names = [device.name for device in record.devices]
    if names != list(device_names):
        allowed = f"the devices of the topology: {', '.join(device_names[:8])}"
        raise refuse("placement.devices", names[:8], allowed)
    if len(record.input_devices) != n_inputs:
        allowed = f"{n_inputs}, one for each input"
        raise refuse("placement.input_devices", len(record.input_devices), allowed)


def placement_text(record: PlacementRecord | None) -> str:
    """`18 operators on 2 of 5 devices, 12 transfers`, or `no`."""
    if record is None:
        return "no"
    return (
        f"{len(record.operators)} operators on {len(record.used)} of {len(record.devices)} "
        f"devices, {len(record.transfers)} transfers"
    )


def operator_devices(record: PlacementRecord | None) -> Iterator[tuple[str, str]]:
    """(operator, name of its device)."""
    if record is not None:
        for operator in record.operators:
            yield operator.name, record.devices[operator.device].name


def placement_lines(record: PlacementRecord, step_seconds: float) -> list[str]:
    """What `explain` says: each device with what it does, and the operators that it has."""
    moved = sum(move.bytes for move in record.transfers)
    lines = [f"placement: {placement_text(record)} of {bytes_text(moved)}"]
    runs = _runs(record)
    for number in record.used:
        device = record.devices[number]
        share = device.busy_seconds / step_seconds if step_seconds else 0.0
        lines.append(
            f"  {device.name}: busy {seconds_text(device.busy_seconds)} ({share:.0%}), peak "
            f"{bytes_text(device.peak_bytes)}"
        )
        its = runs[number]
        lines += [f"    {text}" for text in its[:_SHOWN]]
        if len(its) > _SHOWN:
            lines.append(f"    and {len(its) - _SHOWN} more")
    return lines


def _runs(record: PlacementRecord) -> Mapping[int, list[str]]:
    """For each device its operators, those of one layer that follow each other as one line."""
    runs: dict[int, list[str]] = {number: [] for number in record.used}
    first = 0
    for number, operator in enumerate(record.operators):
        following = record.operators[number + 1] if number + 1 < len(record.operators) else None
        layer = operator.name.partition(" #")[0]
        if (
            following is not None
            and following.device == operator.device
            and following.name.partition(" #")[0] == layer
        ):
            continue
        its = record.operators[first : number + 1]
        seconds = seconds_text(sum(each.seconds for each in its))
        state = sum(each.state_bytes for each in its)
        name = operator.name if first == number else f"{its[0].name} to {operator.name}"
        held = f", {bytes_text(state)} stored" if state else ""
        runs[operator.device].append(f"{name}: {seconds}{held}")
        first = number + 1
    return runs


def task_ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges from first to last."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return tuple((first, last) for first, last in ranges)
