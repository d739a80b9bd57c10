"""The integer programme against trying every choice."""

from itertools import product
import math

import numpy as np
import pytest

from automap.search.exact.programme import Programme
from tests.automap.search.factored.test_model import factored_on, total


@pytest.mark.parametrize("limit", [math.inf, 1.5, 1.1, 0.9])
def test_the_least_that_keeps_a_limit(limit):
    context, model, factored = factored_on("mlp", "v5e:2x4", (8,))
    features, every = model.features, list(product(*map(range, factored.variables.sizes)))
    seconds, n_bytes = np.zeros(features.count), np.zeros(features.count)
    seconds[: features.shapes] = 1.0
    rows, copies, _ = context.evaluator.memory_timeline.at(
        len(context.evaluator.memory_timeline.positions) // 2
    )
    n_bytes[features.shapes : features.kept] = np.concatenate([rows, copies])
    tables, parts = factored.tables(seconds), [p.table(n_bytes) for p in factored.terms]
    allowed = [x for x in every if math.isfinite(total(tables, x))]
    least = min(total(parts, x) for x in allowed)
    programme = Programme(factored, seconds)
    if limit < math.inf:
        programme.limit(n_bytes / (limit * least))
    solution = programme.solve(60, math.inf)
    fitting = [x for x in allowed if total(parts, x) <= limit * least]
    if not fitting:
        assert solution.assignment is None
        assert solution.bound == math.inf
        return
    best = min(total(tables, x) for x in fitting)
    assert total(tables, solution.assignment) == pytest.approx(best, rel=1e-6)
    assert solution.bound == pytest.approx(best, rel=1e-6)
    programme.leave_out(solution.assignment)
    others = [total(tables, x) for x in fitting if list(x) != solution.assignment]
    again = programme.solve(60, math.inf)
    assert again.bound == pytest.approx(min(others, default=math.inf), rel=1e-6)


def test_without_time_or_work_there_is_no_wrong_answer():
    _, model, factored = factored_on("decoder", "v5e:2x4", (8,))
    seconds = np.zeros(model.features.count)
    seconds[: model.features.shapes] = 1.0
    whole = Programme(factored, seconds).solve(60, math.inf)
    assert whole.is_done
    for seconds_left, work_left in ((0, math.inf), (60, 0.0)):
        solution = Programme(factored, seconds).solve(seconds_left, work_left)
        assert solution.bound <= whole.bound * (1 + 1e-6)
