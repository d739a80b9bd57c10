"""n-step transitions against a loop over one environment at a time."""

from hypothesis import given, strategies as st
import numpy as np
import pytest


pytest.importorskip("torch")

from rl.env import EnvShape, Outcome, empty_observation  # noqa: E402
from rl.n_step import NStep  # noqa: E402


GAMMA = 0.5


def by_loop(rewards, dones, n_steps):
    """(start, return, discount, state after) of every completed transition of one environment."""
    found = []
    for start in range(len(rewards)):
        total = 0.0
        for age, at in enumerate(range(start, min(start + n_steps, len(rewards)))):
            total += GAMMA**age * rewards[at]
            if dones[at] or age == n_steps - 1:
                discount = 0.0 if dones[at] else GAMMA ** (age + 1)
                found.append((start, total, discount, at + 1))
                break
    return found


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
    found = [[] for _ in range(n_envs)]
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
            found[env].append((start, float(t.returns[row]), float(t.discounts[row]), end))
    for env in range(n_envs):
        rewards, dones = zip(*(step[env] for step in steps))
        assert found[env] == by_loop(rewards, dones, n_steps)
