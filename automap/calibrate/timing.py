"""Seconds of one trip of a loop that a device runs.

    t = (median over samples of T(n) - T_0) / n,   n such that T(n) - T_0 >= `Effort.least_seconds`

T(n) is the wall time of a compiled program of n trips, from the call until its results are there,
after a run that is not counted; T_0 the time of a program of none. n starts where the expectation
says, and is raised until the loop is long enough to stand out of the clock's and the dispatch's
noise                                                              -> in: `seconds_per_trip`
"""

from collections.abc import Callable
from dataclasses import dataclass
import math
from statistics import median


Clock = Callable[[], float]
Run = Callable[[], None]
Compile = Callable[[int], Run]
"""Number of trips -> what runs that many and waits for the results."""

_MAX_TRIPS = 1 << 16
# The loop is aimed to be this much longer than the least, so that it need not be compiled again.
_MARGIN = 1.5
# A loop that is this much longer than the least stands out of noise with few samples.
_LONG, _FEWEST_SAMPLES = 10, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure: a loop's least duration, its samples, and what takes too long."""

    least_seconds: float
    samples: int
    longest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one trip; `spread` is (greatest - least) / median of the samples."""

    seconds: float
    spread: float


def seconds_per_trip(
    compile_trips: Compile,
    *,
    expected_seconds: float,
    overhead_seconds: float,
    effort: Effort,
    clock: Clock,
) -> Timing:
    """Measure one trip; `overhead_seconds` is T_0, and a trip is expected to take
    `expected_seconds`.
    """
    trips = _power_of_two(effort.least_seconds / expected_seconds)
    while True:
        run = compile_trips(trips)
        run()
        first = _timed(run, clock) - overhead_seconds
        if first >= effort.least_seconds or trips == _MAX_TRIPS:
            break
        # About a hundred times as long at most: a first measure may be nothing but noise.
        longer = _MARGIN * effort.least_seconds / max(first, effort.least_seconds / 64)
        trips = _power_of_two(max(trips * longer, 2 * trips))
    is_long = first > _LONG * effort.least_seconds
    count = _FEWEST_SAMPLES if is_long else effort.samples
    samples = [first, *(_timed(run, clock) - overhead_seconds for _ in range(count - 1))]
    middle = median(samples)
    if middle <= 0:
        return Timing(seconds=0.0, spread=math.inf)
    return Timing(seconds=middle / trips, spread=(max(samples) - min(samples)) / middle)


def _timed(run: Run, clock: Clock) -> float:
    start = clock()
    run()
    return clock() - start


def _power_of_two(number: float) -> int:
    return 1 << min(max(math.ceil(math.log2(max(number, 1.0))), 0), _MAX_TRIPS.bit_length() - 1)
