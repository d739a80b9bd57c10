"""Strategies of placement against brute force, and what they promise of each other."""

from itertools import product

import numpy as np
import pytest

from automap.deadline import Deadline
from automap.placement import BASELINES, PLACEMENT_STRATEGIES, strategies
from automap.placement.baselines import layer_parts
from automap.placement.prices import serial_seconds
from automap.placement.search import Search
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.strategies import least_seconds
from automap.topology import get_graph
from tests.automap.placement.problems import random_problem


def _search(seed: int, count: int = 5, machine: str = "haswell-2xk80") -> Search:
    problem = random_problem(np.random.default_rng(seed), count, kinds=2)
    return Search(Simulator(problem, placed_machine(get_graph(machine))), seed=seed)


@pytest.mark.parametrize("seed", [0, 1])
def test_exact_is_the_best_of_all_placements_and_mcmc_finds_it(seed: int) -> None:
    search = _search(seed)
    everything = np.array(list(product(range(3), repeat=5)))
    seconds, fits = search.simulator.price_all(everything)
    best = seconds[fits].min()
    exact = PLACEMENT_STRATEGIES["exact"](search)
    assert exact.seconds == pytest.approx(best)
    assert exact.gap == 0.0
    assert PLACEMENT_STRATEGIES["auto"](search) == exact
    assert PLACEMENT_STRATEGIES["mcmc"](search).seconds == pytest.approx(best)


@pytest.mark.parametrize("seed", range(4))
def test_no_placement_is_faster_than_the_bound_and_where_time_ends_the_gap_is_to_it(
    seed: int,
) -> None:
    search = _search(seed)
    seconds, _ = search.simulator.price_all(np.array(list(product(range(3), repeat=5))))
    least = least_seconds(search)
    assert 0.0 < least <= seconds.min()
    search.deadline = Deadline.after(0.0)
    ended = PLACEMENT_STRATEGIES["exact"](search)
    assert ended.fits
    assert ended.gap == pytest.approx(ended.seconds / least - 1.0)


def test_a_walk_ends_at_a_local_optimum_and_same_seed_same_placement() -> None:
    search = _search(3, count=9, machine="haswell-4xk80")
    best = PLACEMENT_STRATEGIES["mcmc"](search)
    neighbours = np.array(
        [
            [target if o == moved else d for o, d in enumerate(best.device)]
            for moved in range(9)
            for target in range(5)
        ]
    )
    seconds, _ = search.simulator.price_all(neighbours)
    assert best.seconds <= seconds.min() * (1 + 1e-12)
    assert best == PLACEMENT_STRATEGIES["mcmc"](_search(3, count=9, machine="haswell-4xk80"))
    for baseline in BASELINES.values():
        assert best.rank <= baseline(search).rank


@pytest.mark.parametrize("seed", range(4))
def test_optcnn_is_where_no_layer_alone_shortens_the_sum_of_all(seed: int) -> None:
    search = _search(seed, count=6, machine="haswell-4xk80")
    step, machine = search.simulator.step, search.simulator.machine
    placed = PLACEMENT_STRATEGIES["optcnn"](search)
    least = serial_seconds(step, machine, np.array(placed.device))
    # Nothing runs at once, so that is no less than the step.
    assert placed.seconds <= least * (1.0 + 1e-9)
    for layer in np.unique(search.layers):
        for device in range(search.n_devices):
            other = np.where(search.layers == layer, device, np.array(placed.device))
            assert serial_seconds(step, machine, other) >= least
    alone = [serial_seconds(step, machine, np.full(6, d)) for d in range(search.n_devices)]
    assert least <= min(alone)
    seconds = search.simulator.problem.seconds[machine.kind]
    assert alone == pytest.approx(seconds.sum(axis=1))


@pytest.mark.parametrize("seed", range(4))
def test_auto_is_never_worse_than_any_strategy_without_a_search(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pymetis")
    search = _search(seed, count=12, machine="haswell-4xk80")
    # No walk and no descent: only where it begins.
    monkeypatch.setattr(strategies, "walked", lambda search, start, seed: start)
    monkeypatch.setattr(strategies, "descended", lambda search, start: start)
    auto = PLACEMENT_STRATEGIES["auto"](search)
    for name in (*BASELINES, "mincut", "mapping"):
        assert auto.rank <= PLACEMENT_STRATEGIES[name](search).rank


def test_layers_are_cut_in_parts_of_equal_seconds() -> None:
    seconds = np.array([1.0, 1.0, 1.0, 1.0, 2.0, 2.0])
    layers = np.array([0, 0, 1, 1, 2, 3])
    assert layer_parts(seconds, layers, 2).tolist() == [0, 0, 0, 0, 1, 1]
    assert layer_parts(seconds, layers, 4).tolist() == [0, 0, 1, 1, 2, 3]


def test_a_placement_that_fits_is_preferred() -> None:
    problem = random_problem(np.random.default_rng(5), 6, kinds=2)
    everything = Simulator(problem, placed_machine(get_graph("haswell-4xk80"))).run([1] * 6)
    limit = float(everything.peak_bytes.max()) * 0.8
    machine = placed_machine(get_graph("haswell-4xk80"), memory_limit_bytes=limit)
    search = Search(Simulator(problem, machine))
    assert not PLACEMENT_STRATEGIES["single"](search).fits
    assert PLACEMENT_STRATEGIES["mcmc"](search).fits


def test_exact_that_does_not_end_walks_and_auto_says_its_gap(monkeypatch):
    monkeypatch.setattr(strategies, "MOST_PRICED", -1)
    monkeypatch.setattr(strategies, "FEW_PLACEMENTS", 1)
    search = _search(0)
    walked = PLACEMENT_STRATEGIES["mcmc"](search)
    gap = walked.seconds / least_seconds(search) - 1.0
    for name in ("exact", "auto"):
        placed = PLACEMENT_STRATEGIES[name](search)
        assert placed.rank <= walked.rank
        assert placed.gap == pytest.approx(gap)
