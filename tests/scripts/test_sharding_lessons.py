"""What moves are worth, against their definition on a space that is priced whole."""

import numpy as np
import pytest


pytest.importorskip("torch")

from automap.search.agent.options import Seen
from automap.search.agent.play import decided, mesh_starts
from automap.search.exhaustive import exhaustive
from scripts.sharding_lessons import NEAR, worths
from scripts.sharding_problems import generated_step
from tests.automap.search.contexts import search_context
from tests.steps import mlp


def test_worths_are_differences_of_least_costs():
    context = search_context(*mlp(batch=4096, width=1024, hidden=4096), topology="v5e:2x2")
    start = mesh_starts(context)[-1]
    options = Seen(context).options(start, 0)
    exhaustive(context)
    own = decided(context.space, start.point)

    plans = [
        (decided(context.space, c.point), context.objective.cost(c.estimate))
        for c in context.priced_on(start.point.mesh)
    ]

    def least(point, changes):
        """The least cost of all plans that decide some things as a point does."""
        wanted = decided(context.space, point)[changes]
        return min(
            cost + NEAR * int((plan != own).sum())
            for plan, cost in plans
            if (plan[changes] == wanted).all()
        )

    worth = worths(context, start, options)
    assert worth[0] == 0.0
    checked = 0
    for place in np.flatnonzero(np.isfinite(worth)).tolist()[1:]:
        changes = decided(context.space, options.points[place]) != own
        expected = least(start.point, changes) - least(options.points[place], changes)
        assert worth[place] == pytest.approx(expected, abs=1e-5)
        checked += 1
    assert checked > 3


def test_a_generated_step_follows_from_its_seed():
    for seed in range(12):
        _, first = generated_step(seed)
        _, again = generated_step(seed)
        assert first == again
