"""Prioritized replay against its formulas, its sum tree against cumulative sums, and n-step
transitions against a loop over one environment at a time.
"""

from hypothesis import given, strategies as st
import numpy as np
import pytest


pytest.importorskip("torch")

from rl.env import EnvShape, Outcome, empty_observation  # noqa: E402
from rl.replay import EPSILON, NStep, Replay, SumTree, Transitions  # noqa: E402


SHAPE = EnvShape(n_envs=1, n_actions=2, n_flat=1, n_features=1)
# Small whole numbers: their sums are exact, so both ways give the same item.
CHANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=40)
GAMMA = 0.5


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


@given(CHANGES, st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1))
def test_finds_what_cumulative_sums_find(changes, shares):
    tree, priorities = SumTree(13), np.zeros(13)
    items, values = (np.array(column) for column in zip(*changes))
    tree.set(items, values)
    for item, value in changes:
        priorities[item] = value
    assert tree.total == priorities.sum()
    assert (tree.priorities == priorities).all()
    if tree.total:
        targets = np.array(shares) * tree.total
        expected = np.searchsorted(np.cumsum(priorities), targets, side="right")
        assert (tree.find(targets) == expected).all()


@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_items_of_priority_zero_are_never_found(capacity, seed):
    source = np.random.default_rng(seed)
    tree = SumTree(capacity)
    priorities = source.random(capacity) * (source.random(capacity) < 0.3)
    priorities[source.integers(capacity)] = 1e-9
    tree.set(np.arange(capacity), priorities)
    ends = np.nextafter(np.cumsum(priorities), 0.0)
    targets = np.clip(np.concatenate([ends, [tree.total]]), 0.0, None)
    assert (priorities[tree.find(targets)] > 0.0).all()


def test_draws_in_proportion():
    tree = SumTree(4)
    tree.set(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    targets = (np.arange(1_000) + 0.5) * tree.total / 1_000
    assert np.bincount(tree.find(targets)).tolist() == [100, 200, 300, 400]


def by_loop(rewards, dones, n_steps):
    """(start, return, discount, state after) of every completed transition of one environment."""
    transitions = []
    for start in range(len(rewards)):
        total = 0.0
        for age, at in enumerate(range(start, min(start + n_steps, len(rewards)))):
            total += GAMMA**age * rewards[at]
            if dones[at] or age == n_steps - 1:
                discount = 0.0 if dones[at] else GAMMA ** (age + 1)
                transitions.append((start, total, discount, at + 1))
                break
    return transitions


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(
        st.tuples(*[st.tuples(st.integers(-3, 3), st.booleans())] * 3), min_size=1, max_size=20
    ),
)
def test_transitions_are_those_of_a_loop(n_steps, n_envs, steps):
    shape = EnvShape(n_envs, n_actions=1, n_flat=2, n_features=1)
    window = NStep(shape, n_steps, GAMMA)
    by_env = [[] for _ in range(n_envs)]
    for time, step in enumerate(steps):
        now, after = (empty_observation(shape, n_envs) for _ in range(2))
        now.flat[:] = np.stack([np.full(n_envs, time), np.arange(n_envs)], axis=1)
        after.flat[:] = np.stack([np.full(n_envs, time + 1), np.arange(n_envs)], axis=1)
        rewards = np.array([reward for reward, _ in step[:n_envs]], np.float32)
        dones = np.array([done for _, done in step[:n_envs]])
        actions = np.full(n_envs, time)
        t = window.push(now, actions, Outcome(rewards, dones), after)
        assert (t.actions == t.now.flat[:, 0]).all()
        assert (t.now.flat[:, 1] == t.after.flat[:, 1]).all()
        for row in range(len(t.actions)):
            env = int(t.now.flat[row, 1])
            start, end = int(t.now.flat[row, 0]), int(t.after.flat[row, 0])
            by_env[env].append((start, float(t.returns[row]), float(t.discounts[row]), end))
    for env in range(n_envs):
        rewards, dones = zip(*(step[env] for step in steps))
        assert by_env[env] == by_loop(rewards, dones, n_steps)
