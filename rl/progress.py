"""What has happened in a run: counts, and sums since the last row of the log."""

from collections.abc import Mapping
import math
from typing import TYPE_CHECKING

import numpy as np

from rl.env import Outcome
from rl.metrics import Row


if TYPE_CHECKING:
    from rl.agent import Learned


class Progress:
    """Counts of one run. A sum of rewards belongs to the episode that an environment is in."""

    def __init__(self, n_envs: int):
        """Nothing has happened."""
        self._counts = np.zeros(2, np.int64)  # steps, episodes
        self._rewards = np.zeros(n_envs)
        self._best = np.full(1, -np.inf)
        # Since the last row: (sum, number) of returns, losses, surprises.
        self._sums = np.zeros((3, 2))

    @property
    def steps(self) -> int:
        """Steps of single environments."""
        return int(self._counts[0])

    def played(self, outcome: Outcome) -> None:
        """Count a step of all environments."""
        self._rewards += outcome.rewards
        # The sums of the episodes that this step has ended.
        ended = self._rewards[outcome.dones]
        self._counts += len(outcome.dones), len(ended)
        self._best[0] = max(self._best[0], ended.max(initial=-np.inf))
        self._sums[0] += ended.sum(), len(ended)
        self._rewards[outcome.dones] = 0.0

    def learned(self, learned: "Learned") -> None:
        """Count an update."""
        self._sums[1:, 0] += learned.loss, float(learned.surprises.mean())
        self._sums[1:, 1] += 1

    def row(self, *, epsilon: float, beta: float, updates: int, held: int) -> Row:
        """A row of the log; sums begin anew."""
        # No episode ended, or nothing was learnt: there is no mean.
        means = [total / count if count else math.nan for total, count in self._sums.tolist()]
        self._sums[:] = 0.0
        steps, episodes = self._counts.tolist()
        return Row(
            steps=steps,
            episodes=episodes,
            mean_return=means[0],
            best_return=float(self._best[0]) if episodes else math.nan,
            epsilon=epsilon,
            beta=beta,
            updates=updates,
            loss=means[1],
            surprise=means[2],
            held=held,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, for a checkpoint."""
        return {
            "counts": self._counts,
            "rewards": self._rewards,
            "best": self._best,
            "sums": self._sums,
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        for name, array in self.arrays().items():
            array[...] = arrays[name]
