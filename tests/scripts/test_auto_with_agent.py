"""Searches that are given equal work: none does more, and what each had when is remembered."""

from functools import partial
import math

import pytest


pytest.importorskip("torch")

from automap.program.trace import trace_step
from automap.search import OutOfBudget, get_strategy
from automap.search.agent.play import Player, roll_outs
from automap.search.portfolio import begun_with
from scripts.auto_with_agent import AGENT, AUTO, SEARCHES, SOONER_HEADER, Cell, metered, sooner
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
    begun_with(context, partial(roll_outs, Player()))
    steps = [seconds for _, seconds in context.found]
    assert steps == sorted(steps, reverse=True)
    assert fitting_seconds(context) == steps[-1] < steps[0]


def test_what_a_search_had_after_a_share_of_the_work():
    found = {name: [[(0.0, 4.0), (1.0, 3.0), (9.0, 2.0)]] * 2 for name in SEARCHES}
    found[AGENT] = [[(0.0, 4.0), (0.5, 2.5)], [(0.0, 4.0), (0.5, 2.0)]]
    took = {name: [1.0, 3.0] for name in SEARCHES}
    cell = Cell("step", "machine", [10.0, 5.0], [7, 7], 1.0, took, found)
    shares = (0.05, 0.1, 0.5, 1.0)
    assert [cell.step_seconds(AUTO, share, 0) for share in shares] == [4, 3, 3, 2]
    assert [cell.step_seconds(AGENT, share, 0) for share in shares] == [2.5] * 4
    assert math.isclose(cell.gap(AGENT, 0.5, 0), 0.25)
    assert (cell.share_to_best(AUTO, 0), cell.share_to_best(AGENT, 0)) == (0.9, math.inf)
    assert cell.share_to_best(AGENT, 1) == 0.1
    # A search that never has it counts as twice the work; of seeds the median.
    row = dict(zip(SOONER_HEADER, sooner("all", [cell]), strict=True))
    assert (row["sooner, with the agent"], row["later, with the agent"]) == ("1", "1")
    assert row["processor s in the mean, auto"] == "2.0"
    mean = row["mean work until it is within 0.1%, with the agent"]
    assert mean == "105.00% (10.00% to 200.00%)"
