"""n-step transitions (Sutton 1988): rewards of n steps together, for n environments at once.

    R = r_t + g r_{t+1} + ... + g^{m-1} r_{t+m-1}      m = n, or fewer where the episode ends
    Q(s_t, a_t) is held against R + g^m max Q(s_{t+m}) where it does not end
                                                                                 -> in: `NStep.push`

A window holds the last n steps of every environment, step t in slot t mod n, and adds each reward
to all that are still open.
"""

from collections.abc import Mapping

import numpy as np

from rl.env import EnvShape, Observation, Outcome, empty_observation
from rl.replay import Transitions


class NStep:
    """The open steps of all environments."""

    def __init__(self, shape: EnvShape, n_steps: int, gamma: float):
        """Nothing open; rewards count `gamma` times as much each step later."""
        self._n_steps, self._gamma = n_steps, gamma
        window = (n_steps, shape.n_envs)
        self._now = empty_observation(shape, *window)
        self._actions = np.zeros(window, np.int64)
        self._returns = np.zeros(window, np.float32)
        self._ages = np.zeros(window, np.int64)
        self._open = np.zeros(window, bool)
        self._pushed = np.zeros(1, np.int64)

    def push(
        self, now: Observation, actions: np.ndarray, outcome: Outcome, after: Observation
    ) -> Transitions:
        """Add a step of every environment; returns the transitions that it completes, oldest
        first.
        """
        slot = int(self._pushed[0]) % self._n_steps
        self._pushed += 1
        self._now.put(slot, now)
        self._actions[slot], self._returns[slot] = actions, 0.0
        self._ages[slot], self._open[slot] = 0, True
        # What this reward counts for each open step: its age is how long ago it was taken.
        factor = np.float32(self._gamma) ** self._ages.astype(np.float32)
        self._returns += np.where(self._open, factor * outcome.rewards, np.float32(0.0))
        self._ages += self._open
        complete = self._open & (outcome.dones | (self._ages == self._n_steps))
        # Oldest first: the slot after the current one is the one that was written longest ago.
        by_age = (slot + 1 + np.arange(self._n_steps)) % self._n_steps
        places, envs = np.nonzero(complete[by_age])
        at = by_age[places], envs
        self._open &= ~complete
        discounts = np.float32(self._gamma) ** self._ages[at].astype(np.float32)
        return Transitions(
            now=self._now.rows(at),
            actions=self._actions[at],
            returns=self._returns[at],
            discounts=np.where(outcome.dones[envs], np.float32(0.0), discounts),
            # After an end this is the next episode's first state, which a discount of zero leaves
            # out.
            after=after.rows(envs),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint."""
        return {f"now.{name}": array for name, array in self._now.arrays().items()} | {
            "actions": self._actions,
            "returns": self._returns,
            "ages": self._ages,
            "open": self._open,
            "pushed": self._pushed,
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        for name, array in self.arrays().items():
            array[...] = arrays[name]
