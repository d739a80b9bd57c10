"""The `placement` field of a plan: what is refused, and what is said of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from automap.errors import PlanError
from automap.plan.codec import decode, encode
from automap.plan.placement import (
    PlacedArrayRecord,
    PlacedDeviceRecord,
    PlacedOperatorRecord,
    PlacedTaskRecord,
    PlacedTransferRecord,
    PlacementRecord,
    check_fits,
    check_placement,
    operator_devices,
    placement_lines,
    placement_text,
    task_ranges,
)


def record() -> PlacementRecord:
    """Two operators on two devices."""
    operator = {"seconds": 1.0, "state_bytes": 8}

    def task(number: int, first: int, last: int) -> PlacedTaskRecord:
        return PlacedTaskRecord(
            operator=number,
            phase="forward",
            equations=((first, last),),
            start_seconds=0.0,
            seconds=1.0,
        )

    return PlacementRecord(
        devices=tuple(
            PlacedDeviceRecord(name=name, busy_seconds=1.0, peak_bytes=8) for name in ("a", "b")
        ),
        operators=(
            PlacedOperatorRecord(name="w #1", device=0, **operator),
            PlacedOperatorRecord(name="w #2", device=1, **operator),
        ),
        tasks=(task(0, 0, 3), task(1, 4, 9)),
        transfers=(
            PlacedTransferRecord(
                maker=0, source=0, target=1, bytes=4, start_seconds=1.0, seconds=0.5
            ),
        ),
        input_devices=(0, None),
    )


def _with_operator(given: PlacementRecord, **changes: Any) -> PlacementRecord:
    return replace(given, operators=(replace(given.operators[0], **changes), given.operators[1]))


def _with_task(given: PlacementRecord, **changes: Any) -> PlacementRecord:
    return replace(given, tasks=(given.tasks[0], replace(given.tasks[1], **changes)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: replace(r, devices=()), r"devices: got \[\]; allowed: one at least"),
        (lambda r: _with_operator(r, device=2), r"operators\[0\].device: got 2.*of 'w #1'"),
        (lambda r: _with_task(r, operator=7), r"tasks\[1\].operator: got 7; allowed: 0 to 1"),
        (lambda r: _with_task(r, equations=((3, 3),)), r"tasks\[1\].*3 of 'w #2' is in task 0"),
        (lambda r: _with_task(r, equations=((5, 4),)), r"equations\[0\]: got \[5, 4\]"),
        (lambda r: _with_task(r, seconds=float("nan")), "seconds: got nan"),
        (lambda r: replace(r, input_devices=(5, None)), r"input_devices\[0\]: got 5"),
        (
            lambda r: replace(r, input_devices=(None, 5), input_operators=(None, 1)),
            r"input_devices\[1\]: got 5.*stored with 'w #2'",
        ),
        (
            lambda r: replace(
                r, arrays=(PlacedArrayRecord(equation=None, number=2, classes=(0,)),)
            ),
            r"arrays\[0\].number: got 2; allowed: 0 to 1, an input",
        ),
        (
            lambda r: replace(r, transfers=(replace(r.transfers[0], target=3),)),
            r"transfers\[0\].target: got 3; allowed: 0 to 1.* what 'w #1' makes",
        ),
        (
            lambda r: replace(r, transfers=(replace(r.transfers[0], maker=9),)),
            r"transfers\[0\].maker: got 9",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_its_name(
    change: Callable[[PlacementRecord], PlacementRecord], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        change(record())


def test_devices_and_inputs_are_those_of_the_plan() -> None:
    check_placement(record(), ["a", "b"], 2)
    with pytest.raises(PlanError, match="the devices of the topology: a, c"):
        check_placement(record(), ["a", "c"], 2)
    with pytest.raises(PlanError, match="input_devices: got 2; allowed: 3"):
        check_placement(record(), ["a", "b"], 3)


@pytest.mark.parametrize(
    ("given", "memory_bytes", "message"),
    [
        # By the peak, and by what an operator stores that a hand has moved there.
        (record(), (8, 7), r"devices\[1\]: b needs 8 B, .*\(8 B\) for 'w #2'; allowed: 7 B"),
        (_with_operator(record(), device=1, state_bytes=9), (8, 16), "b needs 17 B, .* for 'w #1'"),
        (_with_operator(record(), degrees=((3, 2),), parts=(0, 1)), (8, 11), "b needs 12 B"),
    ],
)
def test_more_than_a_device_holds_is_refused_with_the_operator(
    given: PlacementRecord, memory_bytes: tuple[int, int], message: str
) -> None:
    check_fits(given, (8, 17))
    with pytest.raises(PlanError, match=message):
        check_fits(given, memory_bytes)


def test_operators_of_inputs_are_as_many_as_inputs_or_none() -> None:
    given = replace(record(), input_operators=(0,))
    with pytest.raises(PlanError, match=r"placement.input_operators: got 1; allowed: 2"):
        check_placement(given, ["a", "b"], 2)


def test_numbers_are_ranges_and_back() -> None:
    numbers = [0, 1, 2, 5, 7, 8]
    ranges = task_ranges(numbers)
    assert ranges == ((0, 2), (5, 5), (7, 8))
    assert list(replace(record().tasks[0], equations=ranges).numbers) == numbers


def test_what_is_said() -> None:
    assert placement_text(None) == "no"
    assert placement_text(record()) == "2 operators on 2 of 2 devices, 1 transfers"
    lines = placement_lines(record(), 2.0)
    assert lines[1] == "  a: busy 1 s (50%), peak 8 B"
    assert lines[2] == "    w #1: 1 s, 8 B stored"


def test_an_operator_in_parts_says_what_is_split() -> None:
    given = _with_operator(record(), degrees=((3, 2),), parts=(0, 1))
    given = replace(
        given,
        input_operators=(0, None),
        arrays=(
            PlacedArrayRecord(equation=None, number=0, classes=(None, 5)),
            PlacedArrayRecord(equation=2, number=0, classes=(3, 5)),
        ),
    )
    assert placement_text(given) == "2 operators (1 split) on 2 of 2 devices, 1 transfers"
    lines = placement_lines(given, 2.0)
    assert "    1 of 2 parts of w #1 (samples in 2): 1 s, 8 B stored with all parts" in lines
    assert dict(operator_devices(given)) == {"w #1": "a, b by samples in 2", "w #2": "b"}
    other = _with_operator(given, degrees=((5, 2),))
    assert dict(operator_devices(other))["w #1"] == "a, b by dimension 1 of w #1 in 2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"degrees": ((3, 2),), "parts": (0,)}, "2 different devices, as the degrees of 'w #1'"),
        ({"degrees": ((3, 2),), "parts": (0, 0)}, "2 different devices"),
        ({"degrees": ((3, 2),), "parts": (1, 0)}, "the first on device 0"),
        ({"degrees": ((3, 1),), "parts": (0,)}, "degrees from 2"),
        ({"degrees": ((3, 2), (3, 2)), "parts": (0, 1, 2, 3)}, "each class once"),
        ({"parts": (0,)}, "parts of degrees"),
        ({"degrees": ((3, 2),), "parts": (0, 7)}, r"operators\[0\].parts: got \[0, 7\]"),
    ],
)
def test_parts_that_are_none_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        _with_operator(record(), **changes)


def test_a_file_from_before_operators_had_parts_is_read() -> None:
    older = encode(record())
    del older["input_operators"], older["arrays"]
    for operator in older["operators"]:
        del operator["degrees"], operator["parts"]
    assert decode(PlacementRecord, older, "placement") == record()


def test_inputs_of_split_operators_say_their_operator() -> None:
    given = _with_operator(record(), degrees=((3, 2),), parts=(0, 1))
    with pytest.raises(PlanError, match="placement.input_operators: got 0; allowed: 2"):
        check_placement(given, ("a", "b"), 2)
    with pytest.raises(PlanError, match=r"input_operators\[1\]: got 9; allowed: 0 to 1"):
        replace(given, input_operators=(0, 9))
