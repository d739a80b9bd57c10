"""A calibration with a stopwatch that reads a table: resume, Ctrl-C, what cannot be measured."""

from dataclasses import dataclass, field

import pytest

from automap.calibrate.session import Session, Unmeasurable
from automap.calibrate.timing import Timing
from automap.cost.profile import KernelProfile
from automap.cost.profile.signatures import DotSignature, StreamSignature


EMPTY = KernelProfile(device="h100", device_kind="NVIDIA H100", jax_version="0")
TINY = StreamSignature(family="elementwise", elements="wide float", n_bytes=1024)
REDUCE = StreamSignature(family="reduce", elements="wide float", n_bytes=2**20)
DOTS = [DotSignature(dtype="f32", batch=1, m=m, n=8, k=8) for m in (8, 16, 32)]
LOOP = 1e-6


@dataclass
class Table:
    """A stopwatch: every item takes `seconds` and the loop's own kernel; some raise."""

    seconds: float = 1e-3
    spread: float = 0.0
    raises: dict = field(default_factory=dict)
    longest_seconds: float = 10.0
    timed: list = field(default_factory=list)
    expected: list = field(default_factory=list)

    def time(self, item, expected_seconds):
        self.timed.append(item)
        self.expected.append(expected_seconds)
        if item in self.raises:
            raise self.raises[item]
        own = LOOP if item == TINY else self.seconds + LOOP
        return Timing(seconds=own, spread=self.spread)


def session(table, profile=EMPTY, saved=None):
    saved = [] if saved is None else saved
    return Session(table, profile, lambda number, total, item: None, saved.append)


def test_the_loops_own_kernel_is_taken_off():
    done = session(Table())
    done.run([TINY, REDUCE, *DOTS])
    times = done.profile.times()
    assert times[TINY] == LOOP
    assert times[REDUCE] == pytest.approx(1e-3)
    assert [times[dot] for dot in DOTS] == pytest.approx([1e-3] * 3)


def test_known_signatures_are_not_measured_again():
    first = session(Table())
    first.run([TINY, *DOTS[:2]])
    table = Table()
    again = session(table, first.profile)
    again.run([TINY, *DOTS, DOTS[2]])
    assert table.timed == [DOTS[2]]
    assert set(again.profile.times()) == {TINY, *DOTS}


def test_ctrl_c_keeps_and_saves_what_was_measured():
    saved = []
    stopped = session(Table(raises={DOTS[1]: KeyboardInterrupt()}), saved=saved)
    stopped.run([TINY, *DOTS])
    assert stopped.is_interrupted
    assert set(stopped.profile.times()) == {TINY, DOTS[0]}
    assert saved == [stopped.profile]


def test_a_failure_keeps_what_was_measured_too():
    saved = []
    failed = session(Table(raises={DOTS[1]: RuntimeError("device lost")}), saved=saved)
    with pytest.raises(RuntimeError, match="device lost"):
        failed.run([TINY, *DOTS])
    assert set(saved[0].times()) == {TINY, DOTS[0]}


def test_what_does_not_fit_is_left_out_with_its_reason():
    done = session(Table(raises={DOTS[0]: Unmeasurable("RESOURCE_EXHAUSTED")}))
    done.run(DOTS)
    assert done.skipped == [(DOTS[0], "RESOURCE_EXHAUSTED")]
    assert set(done.profile.times()) == set(DOTS[1:])


def test_what_would_take_too_long_is_not_begun():
    large = DotSignature(dtype="f32", batch=1, m=8 * 10**5, n=8, k=8)
    table = Table()
    done = session(table)
    done.run([DOTS[0], large])
    assert table.timed == [DOTS[0]]
    assert done.skipped[0][0] == large and "would take about 100 s" in done.skipped[0][1]


def test_expectations_follow_the_latest_rate():
    table = Table()
    session(table).run(DOTS[:2])
    assert table.expected[1] == pytest.approx(2 * (table.seconds + LOOP))


def test_a_busy_device_is_noticed():
    done = session(Table(spread=0.9))
    done.run(DOTS)
    assert done.noisy == DOTS
