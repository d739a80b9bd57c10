"""The walk against the closed form of what it comes to visit."""

import math
import random

from hypothesis import given, strategies as st
import pytest

from automap.search.metropolis import Patience, acceptance, walk


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 50))
def test_there_and_back_are_accepted_in_the_ratio_of_the_weights(one, other, beta):
    there, back = acceptance(one, other, beta), acceptance(other, one, beta)
    assert max(there, back) == 1.0
    assert there * math.exp(-beta * one) == pytest.approx(back * math.exp(-beta * other), rel=1e-9)


@pytest.mark.parametrize("beta", [0.0, 1.0, 3.0])
def test_states_are_visited_in_proportion_to_their_weights(beta):
    """A ring of six states: what a long walk visits is within five standard deviations of exp(-beta
    E).
    """
    energies = [math.log(cost) for cost in (1.0, 1.5, 3.0, 1.2, 2.0, 1.1)]
    source, steps = random.Random(7), 200_000
    visits = [0] * len(energies)

    def propose(state: int) -> int:
        return (state + source.choice((-1, 1))) % len(energies)

    states = walk(0, energies.__getitem__, propose, beta, source)
    for _ in range(steps):
        visits[next(states)] += 1
    weights = [math.exp(-beta * energy) for energy in energies]
    for visited, weight in zip(visits, weights, strict=True):
        share = weight / sum(weights)
        # Neighbouring visits are not independent: on this ring one in about ten counts.
        deviation = math.sqrt(share * (1 - share) / (steps / 10))
        assert abs(visited / steps - share) < 5 * deviation


def test_a_change_that_is_not_allowed_leaves_the_walk_where_it_is():
    states = walk(3, float, lambda state: None, 1.0, random.Random(0))
    assert [next(states) for _ in range(4)] == [3, 3, 3, 3]


def test_a_walk_ends_when_its_best_is_older_than_half_of_it():
    patience, made = Patience(least=4, most=100), 0
    keys = [5.0, 4.0, 4.0, 4.0, 3.0, *[3.0] * 95]
    while not patience.is_spent:
        patience.record((keys[made],))
        made += 1
    # After four proposals the best is at the second: spent, before the fifth would have been
    # better.
    assert made == 4
    patience, made = Patience(least=5, most=100), 0
    while not patience.is_spent:
        patience.record((keys[made],))
        made += 1
    assert made == 10


def test_a_walk_that_keeps_improving_ends_after_the_most_proposals():
    patience = Patience(least=2, most=9)
    for made in range(9):
        assert not patience.is_spent
        patience.record((-float(made),))
    assert patience.is_spent
