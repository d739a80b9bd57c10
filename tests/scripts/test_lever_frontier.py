"""The frontier of levers: which plan is told of a limit, of all that were found for a model."""

from dataclasses import asdict

import pytest

from scripts.frontier_rows import Plan, Row, read_rows
from scripts.lever_frontier import _fitting, _shared
from scripts.tables import keep_row


LEVERS = "with levers"


def _row(share, limit, seconds, peak):
    """A row with a plan, or with none, and with a preset that is there in any case."""
    plans = {} if seconds is None else {LEVERS: Plan(seconds, peak, {"peak": peak})}
    plans["full"] = Plan(9.0, 1.0, {})
    return Row("GPT", "8xh100", share, limit, 0.0, plans, compiler="gpu")


def test_a_faster_plan_of_less_memory_is_told_of_more_too():
    rows = [_row("100%", 10.0, 3.0, 9.0), _row("50%", 5.0, 2.0, 4.0), _row("35%", 3.5, 4.0, 3.0)]
    (changed,) = _shared(rows)
    assert changed.share == "100%" and changed.plans[LEVERS].plan == {"peak": 4.0}
    # It is compiled again, and the presets stay.
    assert not changed.compiler and changed.plans["full"] == rows[0].plans["full"]


def test_where_nothing_was_found_what_fits_is_told():
    rows = [_row("50%", 5.0, None, None), _row("least", 2.0, 7.0, 2.0)]
    (changed,) = _shared(rows)
    assert changed.share == "50%" and list(changed.plans) == [LEVERS, "full"]


def test_a_plan_that_does_not_fit_is_not_told():
    rows = [_row("100%", 10.0, 1.0, 9.0), _row("50%", 5.0, 2.0, 4.0)]
    assert not list(_shared(rows))
    assert [plan.seconds for plan in _fitting(rows, 5.0)] == [2.0]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.xz"])
def test_rows_are_kept_one_behind_the_other_and_the_last_of_a_limit_counts(tmp_path, name):
    rows = [_row("100%", 10.0, 3.0, 9.0), _row("50%", 5.0, 2.0, 4.0), _row("100%", 10.0, 2.5, 8.0)]
    for row in rows:
        keep_row(tmp_path / name, asdict(row))
    assert list(read_rows(tmp_path / name).values()) == [rows[2], rows[1]]
