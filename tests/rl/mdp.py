"""A small random decision process as an environment, with its exact Q by value iteration."""

from collections.abc import Mapping

import numpy as np

from rl.env import EnvShape, Observation, Outcome


class TableEnv:
    """States are rows of tables, moves are certain: `after[s, a]` with `reward[s, a]`; a state
    without moves ends.

    Not every action is allowed everywhere. Episodes begin in states drawn from the environment's
    own generator.
    """

    def __init__(self, n_states: int, n_actions: int, n_envs: int, seed: int):
        source = np.random.default_rng(seed)
        self.after = source.integers(n_states, size=(n_states, n_actions))
        self.reward = source.normal(size=(n_states, n_actions)).astype(np.float32)
        self.ends = source.random((n_states, n_actions)) < 0.25
        self.allowed = source.random((n_states, n_actions)) < 0.7
        self.allowed[np.arange(n_states), source.integers(n_actions, size=n_states)] = True
        self.states = source.integers(n_states, size=n_envs)
        self.begun = np.zeros(1, np.int64)
        self.chosen: list[np.ndarray] = []

    @property
    def shape(self) -> EnvShape:
        n_states, n_actions = self.reward.shape
        return EnvShape(len(self.states), n_actions, n_states, n_states + n_actions)

    def observe(self) -> Observation:
        return self.states_as_seen(self.states)

    def states_as_seen(self, states: np.ndarray) -> Observation:
        n_states, n_actions = self.reward.shape
        flat = np.eye(n_states, dtype=np.float32)[states]
        features = np.zeros((len(states), n_actions, n_states + n_actions), np.float32)
        features[:, :, :n_states] = flat[:, None]
        features[:, :, n_states:] = np.eye(n_actions)
        # What is known beforehand: the next reward.
        return Observation(flat, features, self.reward[states], self.allowed[states])

    def step(self, actions: np.ndarray) -> Outcome:
        assert self.allowed[self.states, actions].all()
        self.chosen.append(actions)
        at = self.states, actions
        rewards, dones = self.reward[at], self.ends[at]
        self.states = self.after[at]
        for env in np.flatnonzero(dones):
            self.begun += 1
            self.states[env] = (7 * int(self.begun[0])) % len(self.reward)
        return Outcome(rewards, dones)

    def arrays(self) -> Mapping[str, np.ndarray]:
        return {"states": self.states, "begun": self.begun}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in self.arrays().items():
            array[...] = arrays[name]

    def exact_q(self, gamma: float) -> np.ndarray:
        q = np.zeros(self.reward.shape)
        for _ in range(2_000):
            best = np.where(self.allowed, q, -np.inf).max(1)
            q = self.reward + np.where(self.ends, 0.0, gamma * best[self.after])
        return np.where(self.allowed, q, -np.inf)

    def policy_values(self, policy: np.ndarray, gamma: float) -> np.ndarray:
        """V [n_states] of a policy: (I - gamma P) V = r."""
        rows = np.arange(len(policy))
        moves = np.zeros((len(policy),) * 2)
        moves[rows, self.after[rows, policy]] = np.where(self.ends[rows, policy], 0.0, gamma)
        return np.linalg.solve(np.eye(len(policy)) - moves, self.reward[rows, policy])
