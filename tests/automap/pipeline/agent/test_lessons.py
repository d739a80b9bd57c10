"""Lessons of the agent's training against brute force, and its games for reinforcement."""

from itertools import combinations

from hypothesis import given, settings
import numpy as np
import pytest

from automap.pipeline.agent.candidates import candidates, new_game
from automap.pipeline.agent.play import greedy
from automap.pipeline.agent.states import next_state
from automap.pipeline.value import values
from tests.automap.pipeline.problems import LEARNT_SCHEDULES, SEEDS, random_arrays


pytest.importorskip("torch")
from scripts.pipeline_lessons import (  # noqa: E402
    MOST_LOSS,
    GamesEnv,
    all_worths,
    batched,
    best_known,
    drawn_game,
    problem_lessons,
    unlearned,
)


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
def test_worths_equal_brute_force(seed, schedule):
    arrays = random_arrays(seed, schedule, topology="2x3xv100", points=8)
    game = new_game(arrays, 4)
    if game is None:
        return
    state = game.start
    for left in (3, 2):
        steps, cuts, parts = steps_of(arrays, state, 4)
        found = candidates(game, state)
        lesson = all_worths(game, state, found, unlearned)
        best = np.array(
            [
                steps[(cuts[:, left] == i) & (parts[:, left] == d)].min()
                for i, d in zip(found.points, found.units)
            ]
        )
        known = np.isfinite(lesson.worth)
        # With three actions left only the first candidates are looked at.
        if left == 2:
            assert (known == (best <= best.min() * (1 + MOST_LOSS)))[~known].all()
        np.testing.assert_allclose(
            game.bound_seconds * np.exp(-lesson.worth[known]), best[known], rtol=1e-5
        )
        assert known[best.argmin()]
        place = seed % len(found.points)
        state = next_state(arrays, state, int(found.points[place]), int(found.units[place]))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, schedule=LEARNT_SCHEDULES)
def test_worths_of_many_stages_are_of_partitions_and_the_best_is_the_optimum(seed, schedule):
    arrays = random_arrays(seed, schedule, topology="2x3xv100", points=8)
    game = new_game(arrays, 5)
    if game is None:
        return
    steps, cuts, parts = steps_of(arrays, game.start, 5)
    found = candidates(game, game.start)
    lesson = all_worths(game, game.start, found, unlearned, best_known(game))
    known = np.flatnonzero(np.isfinite(lesson.worth))
    for place in known:
        after = (cuts[:, 4] == found.points[place]) & (parts[:, 4] == found.units[place])
        step = game.bound_seconds * np.exp(-lesson.worth[place])
        assert np.isclose(steps[after], step, rtol=1e-5).any()
    best = game.bound_seconds * np.exp(-np.nanmax(lesson.worth))
    assert best == pytest.approx(steps.min(), rel=1e-2)


@pytest.mark.slow
def test_a_problem_has_the_same_lessons_every_time():
    first, again = (batched(list(problem_lessons(0, unlearned))) for _ in range(2))
    assert len(first.worth) > 0
    assert np.isfinite(first.worth).any(1).all()
    for name, array in first.states.arrays().items():
        assert np.array_equal(array, again.states.arrays()[name])
    assert np.array_equal(first.worth, again.worth, equal_nan=True)


@pytest.mark.slow
def test_rewards_are_of_the_best_that_greedy_knew_of():
    env = GamesEnv(first_seed=50, count=3)
    total = np.zeros(9, np.float32)
    number = np.arange(3)
    while (number < 9).any():
        observation = env.observe()
        actions = np.where(observation.mask, observation.baseline, -np.inf).argmax(1)
        outcome = env.step(actions)
        for row in np.flatnonzero(outcome.dones):
            if number[row] < 9:
                total[number[row]] = outcome.rewards[row]
            number[row] += 3
    for seed, reward in enumerate(total, 50):
        game = drawn_game(seed)
        step = greedy(game, unlearned).seconds
        assert reward == pytest.approx(np.log(game.bound_seconds / step), abs=1e-6)


@pytest.mark.slow
def test_games_go_on_where_they_were_saved():
    env, again = GamesEnv(first_seed=50, count=2), GamesEnv(first_seed=50, count=2)
    for _ in range(7):
        env.step(np.zeros(2, np.int64))
    again.restore(env.arrays())
    for _ in range(3):
        for name, array in env.observe().arrays().items():
            assert np.array_equal(array, again.observe().arrays()[name]), name
        first, second = env.step(np.zeros(2, np.int64)), again.step(np.zeros(2, np.int64))
        assert np.array_equal(first.rewards, second.rewards)
        assert np.array_equal(first.dones, second.dones)
