"""What figure 11 is made of: the link that measured times make, the longer of two processes, and
what is measured again.
"""

from collections.abc import Iterator
from typing import Any

import click
import numpy as np
import pytest

from scripts import execute_placements
from scripts.execute_placements import SIZES_BYTES, TRIES, compared, link, undisturbed


def test_a_link_has_the_latency_and_rate_of_its_times() -> None:
    latency, rate = 3e-4, 2e9
    rows = [
        {"kind": "collective-permute", "bytes": n, "seconds": latency + n / rate}
        for n in SIZES_BYTES
    ]
    level = link(rows)
    assert level.latency_seconds == pytest.approx(latency, rel=0.02)
    assert level.bytes_per_s == pytest.approx(rate, rel=0.02)


class Pair:
    """Two processes, of which the other measures 2 s, and a machine that is busy for so long."""

    def __init__(self, busy: Iterator[float]):
        self.busy, self.total, self.measured = busy, 0.0, 0

    def process_allgather(self, mine: np.ndarray) -> np.ndarray:
        return np.array([mine, [2.0, 0.0, mine[2]]])

    def broadcast_one_to_all(self, value: np.ndarray) -> np.ndarray:
        return value

    def busy_seconds(self) -> float:
        self.total += next(self.busy)
        return self.total

    def measure(self) -> float:
        self.measured += 1
        return 1.0


def pair(monkeypatch: Any, busy: list[float]) -> Pair:
    """Before and behind each measurement so many seconds of all processors have gone by."""
    both = Pair(iter(busy))
    monkeypatch.setattr(execute_placements, "multihost_utils", both)
    monkeypatch.setattr(execute_placements, "_busy_seconds", both.busy_seconds)
    return both


def test_the_longer_of_two_processes_counts(monkeypatch: Any) -> None:
    both = pair(monkeypatch, [0.0, 0.0])
    assert undisturbed(both.measure) == 2.0
    assert both.measured == 1


def test_what_others_disturb_is_measured_again(monkeypatch: Any) -> None:
    both = pair(monkeypatch, [0.0, 100.0, 0.0, 0.0])
    assert undisturbed(both.measure) == 2.0
    assert both.measured == 2
    both = pair(monkeypatch, [0.0, 100.0] * TRIES)
    with pytest.raises(click.ClickException, match="other processes took"):
        undisturbed(both.measure)
    assert both.measured == TRIES


def test_a_simulation_that_is_too_fast_has_a_negative_error() -> None:
    assert compared(0.1, 0.2) == ["100.0", "200.0", "-50%"]
    assert compared(0.3, 0.2) == ["300.0", "200.0", "+50%"]
