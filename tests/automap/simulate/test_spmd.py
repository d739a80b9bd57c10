"""Issue orders: closed forms, and what must hold for any region. Task graphs of one device: the
timeline is that of the issue order, unrolled or folded.
"""

from hypothesis import given
import numpy as np
import pytest

from automap.simulate.region import NodeKind
from automap.simulate.spmd import COMPUTE, LINK, list_schedule, program_order, simulate_spmd
from tests.automap.simulate.reference import simulate_reference
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
    assert list_schedule(program).seconds == pytest.approx(seconds)


@given(regions())
def test_a_line_takes_the_sum_of_all(program):
    issue = program_order(program)
    assert issue.order == tuple(range(len(program.nodes)))
    assert issue.seconds == pytest.approx(total_seconds(program, KERNEL, SPARE, COLLECTIVE))


@given(regions())
def test_two_lanes_take_at_least_the_busier_and_at_most_both(program):
    issue = list_schedule(program)
    compute = total_seconds(program, KERNEL, SPARE)
    collective = total_seconds(program, COLLECTIVE)
    assert max(compute, collective) - 1e-9 <= issue.seconds <= compute + collective + 1e-9
    assert sorted(issue.order) == list(range(len(program.nodes)))
    at = {node: place for place, node in enumerate(issue.order)}
    for node, it in enumerate(program.nodes):
        assert all(at[before] < at[node] for before in it.after)


@given(regions())
def test_the_timeline_takes_what_the_issue_order_takes(program):
    for platform, issue in (("cuda", list_schedule(program)), ("cpu", program_order(program))):
        for most_tasks in (10_000, 20, 1):
            simulated = simulate_spmd(program, platform, most_tasks)
            assert simulated.timeline.makespan_seconds == pytest.approx(issue.seconds)
            assert simulate_reference(simulated.tasks).makespan_seconds == pytest.approx(
                issue.seconds
            )


@given(regions())
def test_each_lane_does_one_thing_at_a_time_and_every_node_runs_its_trips(program):
    simulated = simulate_spmd(program, "cuda")
    for lane in (COMPUTE, LINK):
        chosen = simulated.tasks.resource == lane
        ends, starts = (
            simulated.timeline.end_seconds[chosen],
            simulated.timeline.start_seconds[chosen],
        )
        assert (starts[1:] >= ends[:-1]).all(), "tasks of a lane are numbered in its order"
    for run, lane in zip(simulated.runs, simulated.tasks.resource.tolist(), strict=True):
        assert (lane == LINK) == (run.node.kind is NodeKind.COLLECTIVE)


LOOP = region(
    (NodeKind.KERNEL, 1.0, ()),
    (NodeKind.COLLECTIVE, 2.0, (0,), "urgent"),
    (NodeKind.KERNEL, 1.0, (1,)),
)


def test_a_short_loop_is_unrolled():
    simulated = simulate_spmd(region((LOOP, 7, ())), "cuda")
    assert [run.trip for run in simulated.runs] == [(trip,) for trip in range(7) for _ in range(3)]
    assert {run.trips for run in simulated.runs} == {1.0}
    kernels = simulated.timeline.start_seconds[simulated.tasks.resource == COMPUTE]
    assert kernels.tolist() == [4.0 * trip + at for trip in range(7) for at in (0.0, 3.0)]


def test_a_long_loop_is_shown_in_part_and_takes_as_long():
    simulated = simulate_spmd(region((LOOP, 1000, ())), "cuda", most_tasks=30)
    assert len(simulated.runs) <= 30
    assert len({run.trip for run in simulated.runs}) >= 3, "some trips can be told apart"
    assert sum(run.trips for run in simulated.runs) == pytest.approx(3000)
    assert simulated.timeline.makespan_seconds == pytest.approx(4000.0)


def test_an_empty_program_takes_no_time():
    simulated = simulate_spmd(region(), "cuda")
    assert len(simulated.runs) == 0 and simulated.timeline.makespan_seconds == 0.0
    assert np.array_equal(simulated.tasks.first_predecessor, [0])
