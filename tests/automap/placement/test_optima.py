"""FlexFlow's section 8.4 with an operator on one device: what the search finds on four P100 is the
proven best, and a local optimum on two, four and eight.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from automap.placement import PLACEMENT_STRATEGIES, Search
from automap.placement.simulation import Simulator, placed_machine
from automap.topology import get_graph
from models import lenet, rnnlm
from tests.automap.placement.problems import traced


TARGETS = [lambda: lenet.lenet(batch=64), lambda: rnnlm.rnnlm(batch=64, seq=2)]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=["lenet", "rnnlm"])
def test_the_search_finds_the_proven_best(target: Callable[[], Any]) -> None:
    problem = traced(*target(), "4xp100")
    search = Search(Simulator(problem, placed_machine(get_graph("4xp100"))))
    exact = PLACEMENT_STRATEGIES["exact"](search)
    assert PLACEMENT_STRATEGIES["mcmc"](search).seconds == pytest.approx(exact.seconds, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=["lenet", "rnnlm"])
def test_what_is_found_is_a_local_optimum(target: Callable[[], Any]) -> None:
    problem = traced(*target(), "4xp100")
    for machine in ("2xp100", "4xp100", "2x4xp100"):
        search = Search(Simulator(problem, placed_machine(get_graph(machine))))
        best = PLACEMENT_STRATEGIES["mcmc"](search)
        neighbours = np.tile(np.array(best.device), (problem.n_operators * search.n_devices, 1))
        for row in range(len(neighbours)):
            neighbours[row, row // search.n_devices] = row % search.n_devices
        seconds, _ = search.simulator.price_all(neighbours)
        assert best.seconds <= seconds.min() * (1 + 1e-12)
