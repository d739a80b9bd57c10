"""The `placement` field of a plan: which operator runs on which device, and when.

Operators are layers and unrolled steps, each with its backward pass and its update, on one device
or in parts along classes of dimensions (samples, parameters, others). What runs is
*tasks*, equations of one operator and one phase; they stand in the order in which they start, which
is one in which all can run: what a task reads is an input, made by a task before it, or made again
from what is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import math
from typing import Literal

from automap.errors import PlanError
from automap.plan.checks import check_numbers, refuse, shown
from automap.plan.codec import ADDED_LATER
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
    - `device`: the number of its device, of several the first.
    - `seconds`: predicted, of all its tasks there.
    - `state_bytes`: of parameters and other state that are stored with it, all parts together.
    - `degrees`: (class, degree) of what is split, classes as in `PlacementRecord.arrays`; none of
      an operator in one part.
    - `parts`: the devices of its parts; the first class of `degrees` varies fastest. None of an
      operator in one part.
    """

    name: str
    device: int
    seconds: float
    state_bytes: int
    degrees: tuple[tuple[int, int], ...] = field(default=(), metadata=ADDED_LATER)
    parts: tuple[int, ...] = field(default=(), metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range, and parts that are none of the degrees."""
        check_numbers(self)
        wanted = math.prod(degree for _, degree in self.degrees)
        classes = [each for each, _ in self.degrees]
        if any(degree < 2 or each < 0 for each, degree in self.degrees):
            allowed = f"classes from 0 and degrees from 2, of {shown(self.name)}"
            raise refuse("degrees", [*map(list, self.degrees)], allowed)
        if len(set(classes)) < len(classes):
            raise refuse("degrees", [*map(list, self.degrees)], "each class once")
        if self.degrees and (len(set(self.parts)), len(self.parts)) != (wanted, wanted):
            allowed = f"{wanted} different devices, as the degrees of {shown(self.name)} say"
            raise refuse("parts", list(self.parts), allowed)
        if self.parts and (not self.degrees or self.parts[0] != self.device):
            allowed = f"parts of degrees, the first on device {self.device}, of {shown(self.name)}"
            raise refuse("parts", list(self.parts), allowed)

    @property
    def devices(self) -> tuple[int, ...]:
        """Of its parts, or the one that it is on."""
        return self.parts or (self.device,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedArrayRecord:
    """An array that a split operator reads or makes.

    - `equation`: the number of the step's equation that makes it, None for an input.
    - `number`: of the equation's results, or of the inputs.
    - `classes`: the class of each dimension, None for one that is never split.
    """

    equation: int | None
    number: int
    classes: tuple[int | None, ...]

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
    - `input_devices`: where each input of the step is stored, the first of several devices; None
      for what is on every device that reads it, as batches are.
    - `input_operators`: the operator that each input is stored with, as that is split; None as
      above, and none of a placement without split operators.
    - `arrays`: those whose dimensions operators split, whole ones are left out.
    """

    devices: tuple[PlacedDeviceRecord, ...]
    operators: tuple[PlacedOperatorRecord, ...]
    tasks: tuple[PlacedTaskRecord, ...]
    transfers: tuple[PlacedTransferRecord, ...]
    input_devices: tuple[int | None, ...]
    input_operators: tuple[int | None, ...] = field(default=(), metadata=ADDED_LATER)
    arrays: tuple[PlacedArrayRecord, ...] = field(default=(), metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        """Raise `PlanError` for a device or operator that is not there, and for an equation in two
        tasks.
        """
        if not self.devices:
            raise refuse("devices", [], "one at least")
        allowed = f"0 to {len(self.devices) - 1}, the devices"
        for index, operator in enumerate(self.operators):
            if operator.device >= len(self.devices):
                path = f"operators[{index}].device"
                raise refuse(path, operator.device, f"{allowed}, of {shown(operator.name)}")
            if not all(0 <= part < len(self.devices) for part in operator.parts):
                path = f"operators[{index}].parts"
                raise refuse(path, list(operator.parts), f"{allowed}, of {shown(operator.name)}")
        for index, number in enumerate(self.input_operators):
            if number is not None and not 0 <= number < len(self.operators):
                known = f"0 to {len(self.operators) - 1}, the operators, or null"
                raise refuse(f"input_operators[{index}]", number, known)
        for index, device in enumerate(self.input_devices):
            if device is not None and not 0 <= device < len(self.devices):
                number = self.input_operators[index] if index < len(self.input_operators) else None
                stored = "" if number is None else f", stored with {self._name(number)}"
                raise refuse(f"input_devices[{index}]", device, f"{allowed}, or null{stored}")
        self._check_tasks()
        self._check_arrays()
        self._check_transfers(allowed)

    def _check_arrays(self) -> None:
        for index, array in enumerate(self.arrays):
            if array.equation is None and array.number >= len(self.input_devices):
                known = f"0 to {len(self.input_devices) - 1}, an input"
                raise refuse(f"arrays[{index}].number", array.number, known)

    def _check_transfers(self, allowed: str) -> None:
        for index, move in enumerate(self.transfers):
            if move.maker is not None and move.maker >= len(self.tasks):
                known = f"0 to {len(self.tasks) - 1}, a task, or null"
                raise refuse(f"transfers[{index}].maker", move.maker, known)
            of = "state"
            if move.maker is not None:
                of = f"what {self._name(self.tasks[move.maker].operator)} makes"
            for end in ("source", "target"):
                if getattr(move, end) >= len(self.devices):
                    path = f"transfers[{index}].{end}"
                    raise refuse(path, getattr(move, end), f"{allowed}, to send {of}")

    def _name(self, operator: int) -> str:
        return shown(self.operators[operator].name)

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
                name = self._name(self.tasks[other].operator)
                allowed = f"equations in one task; {first} of {name} is in task {one} too"
                raise refuse(f"tasks[{other}].equations", first, allowed)

    @property
    def used(self) -> Sequence[int]:
        """Numbers of the devices that some operator is on."""
        return sorted({device for operator in self.operators for device in operator.devices})

    @property
    def n_split(self) -> int:
        """How many operators are in several parts."""
        return sum(bool(operator.parts) for operator in self.operators)


def check_fits(record: PlacementRecord, memory_bytes: Sequence[int]) -> None:
    """Refuse devices whose peak, or the state of whose operators, is more than their memory. Raises
    `PlanError` with the operator that stores most there.

    The peak is what was predicted of the plan; state is counted again, so that operators which a
    hand has moved are refused where their state alone does not fit.
    """
    for number, (device, has) in enumerate(zip(record.devices, memory_bytes, strict=True)):
        stored = [
            (each.state_bytes // len(each.devices), each.name)
            for each in record.operators
            if number in each.devices
        ]
        needed = max(device.peak_bytes, sum(n_bytes for n_bytes, _ in stored))
        if needed > has:
            n_bytes, name = max(stored, default=(0, "no operator"))
            raise PlanError(
                f"placement.devices[{number}]: {device.name} needs {bytes_text(needed)}, most of "
                f"its state ({bytes_text(n_bytes)}) for {shown(name)}; allowed: "
                f"{bytes_text(has)}, its memory"
            )


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
    if (record.n_split or record.input_operators) and len(record.input_operators) != n_inputs:
        allowed = f"{n_inputs}, one for each input of a step with split operators"
        raise refuse("placement.input_operators", len(record.input_operators), allowed)


def placement_text(record: PlacementRecord | None) -> str:
    """`18 operators (4 split) on 2 of 5 devices, 12 transfers`, or `no`."""
    if record is None:
        return "no"
    split = f" ({record.n_split} split)" if record.n_split else ""
    return (
        f"{len(record.operators)} operators{split} on {len(record.used)} of {len(record.devices)} "
        f"devices, {len(record.transfers)} transfers"
    )


def operator_devices(record: PlacementRecord | None) -> Iterator[tuple[str, str]]:
    """(operator, names of its devices, with what is split)."""
    if record is not None:
        names = class_names(record)
        for operator in record.operators:
            devices = ", ".join(record.devices[device].name for device in operator.devices)
            split = split_text(operator, names)
            yield operator.name, f"{devices} by {split}" if split else devices


def split_text(operator: PlacedOperatorRecord, names: Mapping[int, str]) -> str:
    """`samples in 4, w.1 in 2`, with the names of classes; nothing for an operator in one part."""
    return ", ".join(f"{names.get(each, each)} in {degree}" for each, degree in operator.degrees)


def class_names(record: PlacementRecord) -> Mapping[int, str]:
    """A class as `samples` if no stored input has it, else `dimension 1 of ` the operator that
    stores the first that has.
    """
    names: dict[int, str] = {}
    for array in record.arrays:
        if array.equation is None and array.number < len(record.input_operators):
            stored = record.input_operators[array.number]
            for dim, each in enumerate(array.classes):
                if stored is not None and each is not None:
                    name = record.operators[stored].name
                    names.setdefault(each, f"dimension {dim} of {name}")
    split = {each for operator in record.operators for each, _ in operator.degrees}
    return names | {each: "samples" for each in split if each not in names}


def placement_lines(record: PlacementRecord, step_seconds: float) -> list[str]:
    """What `explain` says: each device with what it does, and the operators that it has."""
    moved = sum(move.bytes for move in record.transfers)
    lines = [f"placement: {placement_text(record)} of {bytes_text(moved)}"]
    runs = _runs(record)
    # Devices that do the same, as those of a split do, are said once.
    alike: dict[tuple[object, ...], list[int]] = {}
    for number in record.used:
        device = record.devices[number]
        key = (device.busy_seconds, device.peak_bytes, *runs[number])
        alike.setdefault(key, []).append(number)
    for numbers in alike.values():
        device, its = record.devices[numbers[0]], runs[numbers[0]]
        share = device.busy_seconds / step_seconds if step_seconds else 0.0
        names = ", ".join(record.devices[number].name for number in numbers)
        lines.append(
            f"  {names}: busy {seconds_text(device.busy_seconds)} ({share:.0%}), peak "
            f"{bytes_text(device.peak_bytes)}"
        )
        lines += [f"    {text}" for text in its[:_SHOWN]]
        if len(its) > _SHOWN:
            lines.append(f"    and {len(its) - _SHOWN} more")
    return lines


def _runs(record: PlacementRecord) -> Mapping[int, list[str]]:
    """For each device its operators, those of one layer that follow each other as one line."""
    runs: dict[int, list[str]] = {number: [] for number in record.used}
    names, first = class_names(record), 0
    for number, operator in enumerate(record.operators):
        following = record.operators[number + 1] if number + 1 < len(record.operators) else None
        layer = operator.name.partition(" #")[0]
        if (
            following is not None
            and following.devices == operator.devices
            and following.degrees == operator.degrees
            and following.name.partition(" #")[0] == layer
        ):
            continue
        its = record.operators[first : number + 1]
        seconds = seconds_text(sum(each.seconds for each in its))
        state = sum(each.state_bytes for each in its)
        name = operator.name if first == number else f"{its[0].name} to {operator.name}"
        if operator.parts:
            name = f"1 of {len(operator.parts)} parts of {name} ({split_text(operator, names)})"
        # All parts together: how much of it is on one device depends on what its arrays have split.
        which = "with all parts" if operator.parts else ""
        held = f", {bytes_text(state)} stored {which}".rstrip() if state else ""
        for device in operator.devices:
            runs[device].append(f"{name}: {seconds}{held}")
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
