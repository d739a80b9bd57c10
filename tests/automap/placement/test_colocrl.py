"""ColocRL: its groups on graphs of known groups, its score, and what it finds on small problems."""

from dataclasses import replace
from itertools import product
import math
import pickle

import numpy as np
import pytest

from automap.placement.baselines import heft
from automap.placement.colocrl import (
    FROM_HEFT,
    PAPERS,
    branch_groups,
    learnt,
    merged_groups,
    placement_game,
    step_groups,
)
from automap.placement.search import Search
from automap.placement.simulation import Simulator, placed_machine
from automap.topology import get_graph
from models.stepwise import nmt_stepwise_tiny, rnnlm_stepwise_tiny
from tests.automap.placement.problems import layers_arguments, layers_step, traced
from tests.automap.placement.test_baselines import forward_problem


MACHINE = "haswell-2xk80"


def layers_search(seed: int = 0, **limits: float) -> Search:
    problem = traced(layers_step, layers_arguments(), MACHINE)
    return Search(Simulator(problem, placed_machine(get_graph(MACHINE), **limits)), seed)


def groups(edges: list[tuple[int, int]], count: int, rule) -> list[int]:
    return rule(forward_problem([1.0] * count, dict.fromkeys(edges, 8))).tolist()


def test_groups_are_joined_until_nothing_changes():
    chain = [(0, 1), (1, 2), (2, 3)]
    assert groups(chain, 4, merged_groups) == groups(chain, 4, branch_groups) == [0, 0, 0, 0]
    # Two branches of two operators each from one to one: the paper's rule joins all of them, as in
    # the end one reader is left of everything; branches stay apart.
    fork = [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5)]
    assert groups(fork, 6, merged_groups) == [0, 0, 0, 0, 0, 0]
    assert groups(fork, 6, branch_groups) == [0, 1, 1, 2, 2, 3]
    # Operators without weights, as all of these are, go to the one that reads them.
    assert groups(fork, 6, step_groups) == [0, 0, 0, 0, 0, 0]
    weighted = forward_problem([1.0] * 6, dict.fromkeys(fork, 8), state_bytes=8)
    assert step_groups(weighted).tolist() == [0, 1, 2, 3, 4, 5]
    # Who has two readers is joined to neither.
    assert groups([(0, 1), (0, 2)], 3, merged_groups) == [0, 1, 2]
    assert groups([], 3, merged_groups) == [0, 1, 2]


@pytest.mark.parametrize(("target", "per_step"), [(rnnlm_stepwise_tiny, 4), (nmt_stepwise_tiny, 8)])
def test_the_papers_groups_of_a_step_by_step_model_are_those_that_it_names(target, per_step):
    # A look-up, two cells and a softmax; NMT's encoder and decoder, with attention.
    step, args = target(batch=2, seq=2)
    group = step_groups(traced(step, args, MACHINE))
    assert len(set(group.tolist())) == 2 * per_step


def test_the_score_is_the_root_of_simulated_seconds_and_survives_pickling():
    search = layers_search()
    group = np.arange(search.simulator.problem.n_operators)
    game = placement_game(search, group, None)
    score = pickle.loads(pickle.dumps(game.score))
    everything = np.array(list(product(range(3), repeat=len(group))))
    expected = [math.sqrt(search.simulator.run(row).step_seconds) for row in everything.tolist()]
    assert score(everything) == pytest.approx(expected)
    # No placement takes longer than the failing signal.
    assert max(expected) <= game.task.failing_signal
    tight = layers_search(memory_limit_bytes=1.0)
    assert np.isinf(placement_game(tight, group, None).score(everything)).all()


def test_elements_are_described_as_the_paper_does():
    search = layers_search()
    game = placement_game(search, np.arange(2), heft(search))
    task = game.task
    # Two matrix products of one kind; the first gives [8, 64] to the second.
    assert task.kinds.tolist() == [0, 0]
    assert sorted(task.sizes[0][task.sizes[0] > 0].tolist()) == [8.0, 64.0]
    assert task.edges.tolist() == [[0, 1]]
    chances = np.exp(task.prior)
    assert chances.sum(axis=1) == pytest.approx(np.ones(2))
    assert chances.argmax(axis=1).tolist() == list(heft(search).device)


@pytest.mark.parametrize("config", [PAPERS, FROM_HEFT], ids=["paper's", "from HEFT"])
def test_a_small_problem_is_placed_best_and_alike_by_the_same_seed(config):
    pytest.importorskip("torch")
    search = layers_search()
    everything = np.array(list(product(range(3), repeat=2)))
    seconds, _ = search.simulator.price_all(everything)
    small = replace(config, hidden=8)
    prior = heft(search) if config is FROM_HEFT else None
    placed = learnt(search, small, prior, updates=15)
    assert placed.seconds == pytest.approx(seconds.min())
    assert search.priced >= 15 * small.samples
    assert placed == learnt(layers_search(), small, prior, updates=15)


def test_where_nothing_that_was_drawn_fits_it_says_so():
    pytest.importorskip("torch")
    placed = learnt(layers_search(memory_limit_bytes=1.0), replace(PAPERS, hidden=4), None, 2)
    assert not placed.fits
