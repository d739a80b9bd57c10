"""Planners that are ended lose no plan and leave nothing behind: a few moments here, hundreds by
the script.
"""

import random

import pytest

from scripts.end_planners import TOO_EARLY, cached_together, ended


def _check(outcomes, *endings):
    assert (outcomes.lost, outcomes.files_left, outcomes.processes_left) == ([], [], 0)
    assert set(outcomes.ended) <= {"done", *endings}, outcomes.ended


@pytest.mark.slow
def test_ctrl_c_ends_a_planner_in_time_with_its_status():
    _check(ended("interrupt", [1.0, 3.0], workers=2), "status 130", TOO_EARLY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "endings"),
    [
        ("kill", ["signal 9"]),
        ("verify", ["signal 9"]),
        ("terminate", ["status 143", TOO_EARLY]),
        ("interrupt", ["status 130", TOO_EARLY]),
    ],
)
def test_at_any_moment_nothing_is_lost_or_left(way, endings):
    _check(ended(way, [0.5 * moment for moment in range(1, 13)], workers=2), *endings)


@pytest.mark.slow
def test_eight_planners_with_one_cache_have_one_plan():
    _check(cached_together(2, random.Random(0), 4.0), "signal 9")
