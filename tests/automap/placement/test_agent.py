"""The pretrained placement agent: what it sees, what it draws, and what its lessons are worth."""

from itertools import product

import numpy as np
import pytest

from automap.action_network import shapes
from automap.placement import PLACEMENT_STRATEGIES
from automap.placement.agent import (
    ACTION_FEATURES,
    FORMAT,
    STATE_FEATURES,
    Course,
    Progress,
    drawn,
    shipped_weights,
)
from automap.placement.dataflow import NOBODY
from automap.placement.search import Search
from automap.placement.simulation import Simulator, placed_machine
from automap.topology import get_graph
from tests.automap.placement.problems import random_problem
from tests.automap.placement.test_baselines import forward_problem, search


def some_search(seed: int, count: int = 10, machine: str = "haswell-4xk80") -> Search:
    graph = get_graph(machine)
    problem = random_problem(np.random.default_rng(seed), count, kinds=len(graph.kinds))
    return Search(Simulator(problem, placed_machine(graph)), seed)


def random_weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0.0, 0.1, shape).astype(np.float32)
        for name, shape in shapes(FORMAT, 8).items()
    }


def test_without_learning_the_first_draw_ends_first_as_heft_does():
    # Two chains side by side, and readers that wait longer for 64 GB than for their turn.
    chains = drawn(Course(search(forward_problem([1.0] * 4, {(0, 1): 8, (2, 3): 8}))), None, 0, 1)
    assert chains.seconds == pytest.approx(2.0)
    dear = forward_problem([1.0, 1.0, 1.0], {(0, 1): 1 << 36, (0, 2): 1 << 36})
    assert len(set(drawn(Course(search(dear)), None, 0, 1).device)) == 1


def test_operators_that_take_no_time_are_placed():
    placed = drawn(
        Course(search(forward_problem([0.0, 1.0, 0.0], {(0, 1): 8, (1, 2): 8}))), None, 0
    )
    assert placed.seconds == pytest.approx(1.0)


@pytest.mark.parametrize("machine", ["haswell-2xk80", "haswell-4xk80", "4xp100"])
def test_it_places_on_any_number_of_devices_and_the_same_seed_places_alike(machine):
    placed = drawn(Course(some_search(0, machine=machine)), random_weights(1), 3, 4)
    assert set(placed.device) <= set(range(get_graph(machine).device_count))
    assert placed == drawn(Course(some_search(0, machine=machine)), random_weights(1), 3, 4)


def test_what_it_sees_does_not_depend_on_how_devices_are_numbered():
    progress = Progress(Course(some_search(2, machine="4xp100")))
    other = Progress(progress.course)
    order = progress.course.order
    for number, operator in enumerate(order[:6]):
        progress.put(operator, number % 3)
        other.put(operator, (2, 0, 1)[number % 3])
    (one, state, known), (two, same, also) = (p.described(order[6]) for p in (progress, other))
    assert one.shape == (4, ACTION_FEATURES)
    assert state.shape == (STATE_FEATURES,)
    np.testing.assert_allclose(state, same)
    renamed = [2, 0, 1, 3]
    # The last columns are what baselines do, which have numbers of their own.
    np.testing.assert_allclose(one[:, :-4], two[renamed][:, :-4], rtol=1e-5)
    np.testing.assert_allclose(known, also[renamed], rtol=1e-5)


def test_the_strategy_is_never_worse_than_the_baselines_that_it_knows():
    one = some_search(4)
    placed = PLACEMENT_STRATEGIES["agent"](one)
    assert placed.rank <= min(hint.rank for hint in Course(one).hints)
    assert sum(array.nbytes for array in shipped_weights().values()) < 1e6


@pytest.mark.parametrize("seed", range(3))
def test_what_a_device_is_worth_is_what_all_that_goes_on_so_can_reach(seed):
    lessons = pytest.importorskip("scripts.placement_lessons")
    one = some_search(seed, count=6, machine="haswell-2xk80")
    progress = Progress(Course(one))
    first, second, operator = progress.course.order[:3]
    progress.put(first, 1)
    progress.put(second, 2)
    everything = np.array(list(product(range(3), repeat=6)))
    is_so = (everything == progress.device) | (progress.device == NOBODY)
    everything = everything[is_so.all(axis=1)]
    seconds, _ = one.simulator.price_all(everything)
    least = np.array([seconds[everything[:, operator] == device].min() for device in range(3)])
    best = one.place(everything[seconds.argmin()].tolist())
    worths = lessons.device_worths(one, progress, operator, best)
    # Descents from the best placement may end above the least of a device, never below.
    assert worths.max() == 0.0
    assert worths.argmax() == least.argmin()
    assert (worths <= np.log(least.min() / least) + 1e-6).all()
