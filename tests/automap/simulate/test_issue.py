"""Issue orders: closed forms, and what must hold for any region."""

from hypothesis import given
import pytest

from automap.simulate.issue import in_line, on_two_lanes
from automap.simulate.region import NodeKind
from tests.automap.simulate.regions import region, regions, total_seconds


KERNEL, SPARE, COLLECTIVE = NodeKind.KERNEL, NodeKind.SPARE, NodeKind.COLLECTIVE
BODY = region((KERNEL, 2.0, ()), (COLLECTIVE, 1.0, (0,), "urgent"), (KERNEL, 1.0, (1,)))
CASES = {
    "an urgent all-reduce between two kernels": (
        region((KERNEL, 1.0, ()), (COLLECTIVE, 3.0, (0,), "urgent"), (KERNEL, 1.0, (1,))),
        5.0,
    ),
    "a gather that hides": (
        region((KERNEL, 4.0, ()), (COLLECTIVE, 3.0, ()), (KERNEL, 1.0, (0, 1))),
        5.0,
    ),
    "a sum that begins before the next kernel ends": (
        region((KERNEL, 1.0, ()), (COLLECTIVE, 3.0, (0,)), (KERNEL, 2.0, (0,))),
        4.0,
    ),
    "a spare kernel waits for the wait": (
        region(
            (KERNEL, 1.0, ()), (SPARE, 2.0, (0,)), (KERNEL, 1.0, (0,)),
            (COLLECTIVE, 2.0, (2,), "urgent"), (KERNEL, 1.0, (3,)),
        ),
        5.0,
    ),
    "without urgent ones the spare kernel is first, for its sum": (
        region((SPARE, 2.0, ()), (KERNEL, 2.0, ()), (COLLECTIVE, 2.0, (0,))),
        4.0,
    ),
    "a spare kernel with a long sum is not kept back": (
        region(
            (SPARE, 1.0, ()), (KERNEL, 1.0, ()), (COLLECTIVE, 3.0, (0,)),
            (COLLECTIVE, 2.0, (1,), "urgent"), (KERNEL, 1.0, (3,)),
        ),
        7.0,
    ),
    "of two gathers the one needed first": (
        region(
            (COLLECTIVE, 2.0, ()), (KERNEL, 2.0, (0,)), (COLLECTIVE, 2.0, ()), (KERNEL, 1.0, (2,))
        ),
        5.0,
    ),
    "a loop takes its trips": (region((BODY, 3, ())), 12.0),
    "no collective runs beside a loop that has its own": (
        region((KERNEL, 1.0, ()), (BODY, 2, (0,)), (COLLECTIVE, 4.0, (0,))),
        13.0,
    ),
    "one runs beside a loop without": (
        region((KERNEL, 1.0, ()), (region((KERNEL, 2.0, ())), 2, (0,)), (COLLECTIVE, 4.0, (0,))),
        5.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("program", "seconds"), CASES.values(), ids=CASES)
def test_two_lanes_in_closed_form(program, seconds):
    assert on_two_lanes(program).seconds == pytest.approx(seconds)


@given(regions())
def test_a_line_takes_the_sum_of_all(program):
    issue = in_line(program)
    assert issue.order == tuple(range(len(program.nodes)))
    assert issue.seconds == pytest.approx(total_seconds(program, KERNEL, SPARE, COLLECTIVE))


@given(regions())
def test_two_lanes_take_at_least_the_busier_and_at_most_both(program):
    issue = on_two_lanes(program)
    compute = total_seconds(program, KERNEL, SPARE)
    collective = total_seconds(program, COLLECTIVE)
    assert max(compute, collective) - 1e-9 <= issue.seconds <= compute + collective + 1e-9
    assert sorted(issue.order) == list(range(len(program.nodes)))
    at = {node: place for place, node in enumerate(issue.order)}
    for node, it in enumerate(program.nodes):
        assert all(at[before] < at[node] for before in it.after)
