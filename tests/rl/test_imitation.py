"""Learning from an oracle: the best action is learnt, and a saved learner goes on as if nothing had
been.
"""

import numpy as np
import pytest


pytest.importorskip("torch")

from rl.agent import Agent  # noqa: E402
from rl.env import EnvShape, Observation  # noqa: E402
from rl.imitation import Imitator, Lessons  # noqa: E402
from rl.train import one_thread  # noqa: E402
from tests.rl.configs import SMALL  # noqa: E402


SHAPE = EnvShape(n_envs=1, n_actions=6, n_flat=2, n_features=3)


def lessons(count, seed, known="all"):
    """q* = x y - 0.1 z of features (x, y, z), under a mask; with `known` "best" the others are not
    told.
    """
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 6, 3)).astype(np.float32)
    mask = rng.random((count, 6)) < 0.8
    mask[:, 2] = True
    worth = (0.3 * features[:, :, 0] * features[:, :, 1] - 0.1 * features[:, :, 2]) / 2
    worth = np.where(mask, worth, np.nan).astype(np.float32)
    if known == "best":
        best = np.nanmax(worth, 1, keepdims=True)
        worth = np.where(worth == best, worth, np.nan)
    flat = rng.normal(size=(count, 2)).astype(np.float32)
    states = Observation(flat, features, np.zeros((count, 6), np.float32), mask)
    return Lessons(states, worth)


def share_of_best(imitator, held):
    return (imitator.values(held.states).argmax(1) == np.nanargmax(held.worth, 1)).mean()


def learnt(known, updates):
    imitator = Imitator(SHAPE, (32, 32), seed=1, learning_rate=3e-3, updates=updates)
    with one_thread():
        for step in range(updates):
            imitator.learn(lessons(32, step + 1, known))
    return imitator


def test_the_best_action_is_learnt():
    held = lessons(500, 10_000)
    for known in ("all", "best"):
        before = share_of_best(Imitator(SHAPE, (32, 32), 1, 3e-3, 1), held)
        after = share_of_best(learnt(known, 200), held)
        assert before < 0.5
        assert after > 0.8


def test_what_actions_are_worth_is_learnt_where_it_is_known():
    held = lessons(300, 10_001)
    q = learnt("all", 200).values(held.states)
    best = np.nanmax(held.worth, 1, keepdims=True)
    near = held.worth >= best - 0.1
    errors = np.abs(q - held.worth)[near]
    assert errors.mean() < np.abs(held.worth)[near].mean() / 3
    assert (q[~held.states.mask] == -np.inf).all()


def test_resumed_learning_is_the_same_to_the_bit():
    whole = learnt("all", 20)
    again = Imitator(SHAPE, (32, 32), seed=5, learning_rate=3e-3, updates=20)
    first_of_whole = Imitator(SHAPE, (32, 32), seed=1, learning_rate=3e-3, updates=20)
    with one_thread():
        for step in range(10):
            first_of_whole.learn(lessons(32, step + 1))
        again.restore(first_of_whole.arrays())
        for step in range(10, 20):
            again.learn(lessons(32, step + 1))
    assert again.updates == whole.updates
    for name, array in whole.weights().items():
        assert np.array_equal(array, again.weights()[name]), name


def test_reinforcement_begins_where_imitation_ended():
    imitator, held = learnt("all", 20), lessons(50, 10_000)
    agent = Agent(SHAPE, SMALL, seed=7)
    assert not np.array_equal(agent.values(held.states), imitator.values(held.states))
    agent.begin_with(imitator.weights())
    assert np.array_equal(agent.values(held.states), imitator.values(held.states))
    # The target network too, which no update has made equal yet.
    arrays = agent.arrays()
    for name, array in imitator.weights().items():
        assert np.array_equal(arrays[f"target.{name}"], array)
        assert np.array_equal(agent.weights()[name], array)
