"""Seconds of collectives beside computation, of random plans: with those waited for, all of them;
none is below 0.
"""

from random import Random

import pytest

from automap.search.greedy import random_point
from tests.automap.search.brute import context_of
from tests.steps import mlp, problem_of


@pytest.mark.parametrize("topology", ["8xh100", "4xa100"])
def test_waited_for_and_hidden_are_all_seconds_of_collectives(topology):
    context, source = context_of(problem_of(*mlp()), topology), Random(0)
    for _ in range(150):
        point = random_point(context, source.choice(context.meshes), source)
        priced = context.evaluator.priced(context.space.split_classes(point))
        found = context.evaluator.estimate(priced)
        each = (priced.of_collective + priced.beside) * priced.found.count
        assert found.hidden_seconds >= 0
        assert found.collective_seconds + found.hidden_seconds == pytest.approx(sum(each.tolist()))
