"""The game as an environment of the agents, which keeps the best whole plan that was played.

The plan that is kept counts most; it is the first that does.
"""

from collections.abc import Mapping

import numpy as np

from automap.search.counts.choices import Choices
from automap.search.counts.game import SPLIT, Game
from automap.search.counts.views import View
from rl.env import EnvShape, Observation, Outcome


NOTHING = -1


class CountEnv:
    """`n_tables` games at once."""

    def __init__(self, choices: Choices, view: View, n_tables: int):
        """All games at their beginning, nothing found."""
        self._choices, self._view = choices, view
        self._game = Game(choices, n_tables)
        self._best = np.zeros(len(choices), bool)
        self._best_count = np.full(1, NOTHING, np.int64)

    @property
    def shape(self) -> EnvShape:
        """Sizes of the view."""
        return self._view.shape(len(self._game.position))

    @property
    def best(self) -> np.ndarray:
        """The best whole plan [n] bool; nothing is split in it before there is one."""
        return self._best

    @property
    def best_count(self) -> int:
        """What it counts, `NOTHING` before there is one."""
        return int(self._best_count[0])

    def observe(self) -> Observation:
        """All games."""
        return self._view.observe(self._game)

    def step(self, actions: np.ndarray) -> Outcome:
        """Make a decision in each game; those that end begin anew."""
        moved = self._game.move(actions)
        whole = np.flatnonzero(moved.ended & ~moved.wrong)
        if len(whole):
            plans = self._game.decided[whole] == SPLIT
            counts = plans @ self._choices.weights
            first = int(counts.argmax())
            if counts[first] > self._best_count[0]:
                self._best[:], self._best_count[0] = plans[first], counts[first]
        if moved.ended.any():
            self._game.clear(moved.ended)
        return Outcome(self._view.rewards(moved), moved.ended)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that changes."""
        return self._game.arrays() | {"best": self._best, "best count": self._best_count}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        self._game.restore(arrays)
        self._best[:], self._best_count[:] = arrays["best"], arrays["best count"]
