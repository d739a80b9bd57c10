"""Searches that are given equal work: none does more, and what each had when is remembered."""

import math

import pytest


pytest.importorskip("torch")

from automap.program.trace import trace_step
from automap.search import OutOfBudget, get_strategy
from automap.search.agent.play import Player
from scripts.auto_with_agent import AGENT, AUTO, SEARCHES, Cell, begun_with, metered
from scripts.compare_sharding_agent import Cells, fitting_seconds
from tests.steps import mlp


@pytest.fixture(scope="module")
def cells():
    step, args = mlp(batch=4096, width=1024, hidden=4096)
    return Cells(trace_step(step, args, platform="cuda"), "2xh100")


def test_work_ends_a_search_and_is_the_same_every_time(cells):
    whole = metered(cells)
    get_strategy("greedy")(whole)
    for share in (0.1, 0.5):
        part = metered(cells, share * whole.spent_seconds)
        with pytest.raises(OutOfBudget):
            get_strategy("greedy")(part)
        # The last plans, priced together, may go beyond by one batch.
        assert part.spent_seconds <= share * whole.spent_seconds + 32 * part.point_seconds
        had = [seconds for spent, seconds in whole.found if spent <= part.spent_seconds]
        assert fitting_seconds(part) == min(had)


def test_a_search_that_is_begun_with_a_player_is_no_worse_than_its_roll_outs(cells):
    context = metered(cells)
    begun_with(context, Player())
    steps = [seconds for _, seconds in context.found]
    assert steps == sorted(steps, reverse=True)
    assert fitting_seconds(context) == steps[-1] < steps[0]


def test_what_a_search_had_after_a_share_of_the_work():
    found = {name: [(0.0, 4.0), (1.0, 3.0), (9.0, 2.0)] for name in SEARCHES}
    found[AGENT] = [(0.0, 4.0), (0.5, 2.5)]
    cell = Cell("step", "machine", 10.0, 7, 1.0, found)
    assert [cell.step_seconds(AUTO, share) for share in (0.05, 0.1, 0.5, 1.0)] == [4, 3, 3, 2]
    assert [cell.step_seconds(AGENT, share) for share in (0.05, 0.1, 0.5, 1.0)] == [2.5] * 4
    assert math.isclose(cell.gap(AGENT, 0.5), 0.25)
    assert (cell.share_to_best(AUTO), cell.share_to_best(AGENT)) == (0.9, math.inf)
