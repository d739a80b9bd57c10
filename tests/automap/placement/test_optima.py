"""FlexFlow's section 8.4: what the search finds on four P100 is the proven best of all placements,
with operators whole and in parts, and a local optimum on two, four and eight.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from automap.placement import PLACEMENT_STRATEGIES, Search
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.splits import problem_splits
from automap.placement.tasks import PlacementProblem
from automap.topology import get_graph
from models import lenet, rnnlm
from tests.automap.placement.problems import traced


TARGETS = [lambda: lenet.lenet(batch=64), lambda: rnnlm.rnnlm(batch=64, seq=2)]


def _search(problem: PlacementProblem, machine: str, *, in_parts: bool) -> Search:
    graph = get_graph(machine)
    if not in_parts:
        return Search(Simulator(problem, placed_machine(graph)))
    splits = problem_splits(problem, graph.platform, graph.device_count)
    return Search(Simulator(problem, placed_machine(graph, None, splits.forms), splits))


@pytest.mark.slow
@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("target", TARGETS, ids=["lenet", "rnnlm"])
def test_the_search_finds_the_proven_best(target: Callable[[], Any], *, in_parts: bool) -> None:
    step, args = target()
    search = _search(traced(step, args, "4xp100"), "4xp100", in_parts=in_parts)
    exact = PLACEMENT_STRATEGIES["exact"](search)
    assert PLACEMENT_STRATEGIES["mcmc"](search).seconds == pytest.approx(exact.seconds, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("target", TARGETS, ids=["lenet", "rnnlm"])
def test_what_is_found_is_a_local_optimum(target: Callable[[], Any], *, in_parts: bool) -> None:
    step, args = target()
    problem = traced(step, args, "4xp100")
    for machine in ("2xp100", "4xp100", "2x4xp100"):
        search = _search(problem, machine, in_parts=in_parts)
        best = PLACEMENT_STRATEGIES["mcmc"](search)
        operators, choices = np.nonzero(search.moves.able)
        neighbours = np.tile(np.array(best.device), (len(operators), 1))
        neighbours[np.arange(len(operators)), operators] = choices
        seconds, _ = search.simulator.price_all(neighbours)
        assert best.seconds <= seconds.min() * (1 + 1e-12)
