"""Waiting at the end of a step: updates, sums before them and gathers behind them."""

import pytest

from automap.cost.schedule.order import KERNEL, LATE
from automap.cost.schedule.overlap import exposed_seconds
from tests.automap.cost.schedule.programs import Program


# What the scheduler takes late kernels to be that are no longer than a launch.
NO_WORK = {1: 0.0, 2: 0.0, 3: 0.0}


def _two_gathers(**others):
    """Of new parameters that two late kernels make; a third makes none."""
    return Program(
        [(KERNEL, 1.0), (LATE, 0.5), (LATE, 0.5), (LATE, 3.0)],
        renewed={2: 2.0, 3: 1.0},
        data_at={1: 2, 2: 3, 3: 4},
        makers={1, 2},
        **others,
    )


CASES = {
    "the update waits for its sum": (
        Program([(KERNEL, 1.0), (LATE, 2.0)], backlog={1: 3.0}, data_at={1: 1}),
        3.0,
    ),
    "the update of one layer hides the sum of another": (
        Program(
            [(KERNEL, 1.0), (LATE, 2.0), (LATE, 2.0)],
            backlog={0: 1.0, 1: 2.0},
            data_at={1: 0, 2: 1},
        ),
        0.0,
    ),
    "new parameters are gathered after the update": (
        Program([(KERNEL, 1.0), (LATE, 2.0)], renewed={1: 3.0}, data_at={1: 1}, makers={1}),
        3.0,
    ),
    "but not after what else is updated": (
        Program([(KERNEL, 1.0), (LATE, 2.0)], renewed={1: 3.0}, data_at={1: 1}),
        1.0,
    ),
    "no new parameter is gathered before the end": (
        Program(
            [(KERNEL, 1.0), (LATE, 2.0), (KERNEL, 9.0)],
            renewed={1: 3.0},
            data_at={1: 1},
            makers={1},
        ),
        3.0,
    ),
    "new parameters are gathered beside the update of others": (
        Program(
            [(KERNEL, 1.0), (LATE, 2.0), (LATE, 2.0)],
            renewed={1: 1.0, 2: 1.0},
            data_at={1: 1, 2: 2},
            makers={1, 2},
        ),
        1.0,
    ),
    "an update hides two gathers": (_two_gathers(), 0.0),
    "kernels that are no longer than a launch hide one of them": (
        _two_gathers(expected=NO_WORK),
        0.5,
    ),
    "the one that the scheduler believes to be longest, though it is not": (
        _two_gathers(expected=NO_WORK, believed={"renewed": {3: 9.0}}),
        1.5,
    ),
    "or the one that ends the longest chain": (
        _two_gathers(expected=NO_WORK, backlog={3: 1.5}),
        2.5,
    ),
    "the update fills a wait": (
        Program([(KERNEL, 1.0), (LATE, 2.0), (KERNEL, 1.0)], urgent=[(1, 2, 3.0)], data_at={1: 1}),
        1.0,
    ),
}


@pytest.mark.parametrize(("program", "expected"), CASES.values(), ids=CASES)
def test_waits_in_closed_form(program, expected):
    assert exposed_seconds(program.work()) == pytest.approx(expected, abs=1e-12)
