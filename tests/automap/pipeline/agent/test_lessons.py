"""Lessons of the agent's training against brute force."""

from itertools import combinations

from hypothesis import given, settings
import numpy as np
import pytest

from automap.pipeline.agent.candidates import candidates, new_game
from automap.pipeline.agent.states import next_state
from automap.pipeline.solvers.exact import solve
from automap.pipeline.value import values
from tests.automap.pipeline.problems import LEARNT_SCHEDULES, SEEDS, random_arrays


pytest.importorskip("torch")
from scripts.pipeline_lessons import (  # noqa: E402
    MOST_LOSS,
    all_worths,
    batched,
    frozen,
    problem_lessons,
)


def bound_score(found):
    return found.baseline


def steps_of(arrays, state, stages):
    """The step of every partition that a state can become, with its cuts and parts."""
    more = stages - state.decided - 1
    heads = [
        (c, p)
        for c in combinations(range(1, state.cuts[0]), more)
        for p in combinations(range(1, state.device_cuts[0]), more)
    ]
    cuts = np.array([(0, *c, *state.cuts) for c, _ in heads], np.int64)
    parts = np.array([(0, *p, *state.device_cuts) for _, p in heads], np.int64)
    return values(arrays, cuts, parts), cuts, parts


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, schedule=LEARNT_SCHEDULES)
def test_worths_and_frozen_tails_equal_brute_force(seed, schedule):
    arrays = random_arrays(seed, schedule, topology="2x3xv100", points=8)
    game = new_game(arrays, 4)
    if game is None:
        return
    state = game.start
    for left in (3, 2):
        steps, cuts, parts = steps_of(arrays, state, 4)
        found = candidates(game, state)
        lesson = all_worths(game, state, found, bound_score(found))
        assert lesson is not None
        best = np.array(
            [
                steps[(cuts[:, left] == i) & (parts[:, left] == d)].min()
                for i, d in zip(found.points, found.units)
            ]
        )
        known = np.isfinite(lesson.worth)
        assert (known == (best <= best.min() * (1 + MOST_LOSS)))[~known].all()
        np.testing.assert_allclose(
            game.bound_seconds * np.exp(-lesson.worth[known]), best[known], rtol=1e-5
        )
        if state.decided:
            solved = solve(frozen(arrays, state), 4, steps.min() * 1.5).best
            assert solved is not None
            assert solved.seconds == pytest.approx(steps.min(), rel=1e-9)
            assert tuple(solved.cuts[-state.decided - 1 :]) == state.cuts
            assert tuple(solved.device_cuts[-state.decided - 1 :]) == state.device_cuts
        place = seed % len(found.points)
        state = next_state(arrays, state, int(found.points[place]), int(found.units[place]))


@pytest.mark.slow
def test_a_problem_has_the_same_lessons_every_time():
    first, again = (batched(list(problem_lessons(0, bound_score))) for _ in range(2))
    assert len(first.worth) > 0
    assert np.isfinite(first.worth).any(1).all()
    for name, array in first.states.arrays().items():
        assert np.array_equal(array, again.states.arrays()[name])
    assert np.array_equal(first.worth, again.worth, equal_nan=True)
