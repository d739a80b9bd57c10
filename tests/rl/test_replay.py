"""Prioritized replay against its formulas."""

import numpy as np
import pytest


pytest.importorskip("torch")

from rl.env import EnvShape, empty_observation  # noqa: E402
from rl.replay import EPSILON, Replay, Transitions  # noqa: E402


SHAPE = EnvShape(n_envs=1, n_actions=2, n_flat=1, n_features=1)


def numbered(first: int, count: int) -> Transitions:
    now, after = (empty_observation(SHAPE, count) for _ in range(2))
    now.flat[:, 0] = np.arange(first, first + count)
    returns = now.flat[:, 0].copy()
    return Transitions(now, np.zeros(count, np.int64), returns, np.ones(count, np.float32), after)


def test_holds_the_last_and_its_parts_belong_together():
    replay = Replay(8, SHAPE, alpha=0.5)
    for first in range(0, 21, 3):
        replay.add(numbered(first, 3))
    assert len(replay) == 8
    batch = replay.sample(200, 0.5, np.random.default_rng(0))
    assert set(batch.transitions.returns.tolist()) == set(range(13, 21))
    assert (batch.transitions.now.flat[:, 0] == batch.transitions.returns).all()


def test_probabilities_and_weights_are_the_papers():
    alpha, beta, size = 0.7, 0.4, 40_000
    replay = Replay(10, SHAPE, alpha=alpha)
    replay.add(numbered(0, 10))
    errors = np.linspace(0.1, 3.0, 10, dtype=np.float32)
    replay.update(np.arange(10), errors)
    probability = (errors.astype(float) + EPSILON) ** alpha
    probability /= probability.sum()
    batch = replay.sample(size, beta, np.random.default_rng(1))
    # Strata leave at most one draw of doubt at both ends of an item.
    drawn = np.bincount(batch.items, minlength=10)
    assert np.abs(drawn - size * probability).max() <= 2
    weights = (10 * probability) ** -beta
    assert batch.weights == pytest.approx((weights / weights.max())[batch.items], rel=1e-6)


def test_new_transitions_have_the_greatest_priority_so_far():
    replay = Replay(4, SHAPE, alpha=1.0)
    replay.add(numbered(0, 2))
    replay.update(np.array([0, 1]), np.array([7.0, 0.0], np.float32))
    replay.add(numbered(2, 1))
    priorities = replay.arrays()["priorities"]
    assert priorities[2] == priorities[0] == 7.0 + EPSILON


def test_restored_it_draws_the_same():
    replay, other = (Replay(8, SHAPE, alpha=0.5) for _ in range(2))
    replay.add(numbered(0, 13))
    replay.update(np.arange(8), np.arange(8, dtype=np.float32))
    other.restore({name: array.copy() for name, array in replay.arrays().items()})
    for each in (replay, other):
        each.add(numbered(13, 2))
    batches = [each.sample(20, 0.5, np.random.default_rng(2)) for each in (replay, other)]
    assert (batches[0].items == batches[1].items).all()
    assert (batches[0].transitions.returns == batches[1].transitions.returns).all()
