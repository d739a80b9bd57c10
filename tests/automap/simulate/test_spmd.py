"""Task graphs of one device: the timeline is that of the issue order, unrolled or folded."""

from hypothesis import given
import numpy as np
import pytest

from automap.simulate.issue import in_line, on_two_lanes
from automap.simulate.region import NodeKind
from automap.simulate.spmd import COMPUTE, LINK, simulate_spmd
from automap.simulate.tasks import simulate_reference
from tests.automap.simulate.regions import region, regions


@given(regions())
def test_the_timeline_takes_what_the_issue_order_takes(program):
    for platform, issue in (("cuda", on_two_lanes(program)), ("cpu", in_line(program))):
        for most_tasks in (10_000, 20, 1):
            found = simulate_spmd(program, platform, most_tasks)
            assert found.timeline.makespan_seconds == pytest.approx(issue.seconds)
            assert simulate_reference(found.tasks).makespan_seconds == pytest.approx(issue.seconds)


@given(regions())
def test_each_lane_does_one_thing_at_a_time_and_every_node_runs_its_trips(program):
    found = simulate_spmd(program, "cuda")
    for lane in (COMPUTE, LINK):
        chosen = found.tasks.resource == lane
        ends, starts = found.timeline.end_seconds[chosen], found.timeline.start_seconds[chosen]
        assert (starts[1:] >= ends[:-1]).all(), "tasks of a lane are numbered in its order"
    for run, lane in zip(found.runs, found.tasks.resource.tolist(), strict=True):
        assert (lane == LINK) == (run.node.kind is NodeKind.COLLECTIVE)


LOOP = region(
    (NodeKind.KERNEL, 1.0, ()),
    (NodeKind.COLLECTIVE, 2.0, (0,), "urgent"),
    (NodeKind.KERNEL, 1.0, (1,)),
)


def test_a_short_loop_is_unrolled():
    found = simulate_spmd(region((LOOP, 7, ())), "cuda")
    assert [run.trip for run in found.runs] == [(trip,) for trip in range(7) for _ in range(3)]
    assert {run.trips for run in found.runs} == {1.0}
    kernels = found.timeline.start_seconds[found.tasks.resource == COMPUTE]
    assert kernels.tolist() == [4.0 * trip + at for trip in range(7) for at in (0.0, 3.0)]


def test_a_long_loop_is_shown_in_part_and_takes_as_long():
    found = simulate_spmd(region((LOOP, 1000, ())), "cuda", most_tasks=30)
    assert len(found.runs) <= 30
    assert len({run.trip for run in found.runs}) >= 3, "some trips can be told apart"
    assert sum(run.trips for run in found.runs) == pytest.approx(3000)
    assert found.timeline.makespan_seconds == pytest.approx(4000.0)


def test_an_empty_program_takes_no_time():
    found = simulate_spmd(region(), "cuda")
    assert len(found.runs) == 0 and found.timeline.makespan_seconds == 0.0
    assert np.array_equal(found.tasks.first_predecessor, [0])
