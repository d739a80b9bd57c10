"""Loops timed with a clock that the loops themselves move."""

import math

from hypothesis import given, strategies as st
import pytest

from automap.calibrate.timing import Effort, seconds_per_trip


EFFORT = Effort(least_seconds=0.01, samples=5, longest_seconds=1.0)


class Machine:
    """A clock, and loops that take `overhead + trips * trip` seconds plus the next jitter."""

    def __init__(self, trip_seconds, overhead_seconds=0.0, jitters=()):
        self.now, self.trip, self.overhead = 0.0, trip_seconds, overhead_seconds
        self.jitters = list(jitters)
        self.compiled = []

    def clock(self):
        return self.now

    def compile_trips(self, trips):
        self.compiled.append(trips)

        def run():
            jitter = self.jitters.pop(0) if self.jitters else 0.0
            self.now += self.overhead + trips * self.trip + jitter

        return run


def timed(machine, expected_seconds):
    return seconds_per_trip(
        machine.compile_trips,
        expected_seconds=expected_seconds,
        overhead_seconds=machine.overhead,
        effort=EFFORT,
        clock=machine.clock,
    )


@given(
    trip_seconds=st.floats(1e-6, 10.0),
    expected_seconds=st.floats(1e-9, 100.0),
    overhead_seconds=st.floats(0, 1e-2),
)
def test_the_time_of_a_trip_is_found_whatever_was_expected(
    trip_seconds, expected_seconds, overhead_seconds
):
    machine = Machine(trip_seconds, overhead_seconds)
    timing = timed(machine, expected_seconds)
    assert timing.seconds == pytest.approx(trip_seconds, rel=1e-6)
    assert machine.compiled[-1] * trip_seconds >= EFFORT.least_seconds * (1 - 1e-6)


def test_a_right_expectation_compiles_once():
    machine = Machine(1e-4)
    timed(machine, 1e-4)
    assert machine.compiled == [128]


def test_the_median_is_not_moved_by_an_outlier():
    warm_up_and_first, outlier = [0.0, 0.0], [5.0]
    timing = timed(Machine(0.02, jitters=warm_up_and_first + outlier), 0.02)
    assert timing.seconds == pytest.approx(0.02)
    assert timing.spread == pytest.approx(5.0 / 0.02)


def test_a_kernel_too_short_for_the_clock_is_said_to_be_so():
    timing = timed(Machine(0.0), 1.0)
    assert (timing.seconds, timing.spread) == (0.0, math.inf)
