"""Games of one problem as an environment of `rl`, which keeps the best partition that was played.

Nothing is drawn at random here, and all games begin alike. Of an action an agent in the mode
    faithful   knows nothing beforehand, as in the paper
    ours       knows the reward of dividing evenly afterwards; it learns what that lacks
"""

from typing import Literal

import numpy as np

from automap.pipeline.arrays import Arrays
from automap.pipeline.online.game import (
    N_OF_STAGE,
    fill_even,
    fill_flat,
    fill_mask,
    ideal_seconds,
    play,
    work_before,
)
from automap.pipeline.online.rules import Rules
from automap.pipeline.solvers.exact import Partition
from rl.env import EnvShape, Observation, Outcome, empty_observation


Mode = Literal["faithful", "ours"]


class PipelineEnv:
    """`n_games` at once, of S stages, two or more."""

    def __init__(self, arrays: Arrays, rules: Rules, mode: Mode, n_games: int):
        """All games at their beginning, nothing found."""
        self._arrays, self._rules, self._mode = arrays, rules, mode
        self._work = work_before(arrays)
        self._numbers = np.zeros(n_games, np.int64)
        self._cuts, self._parts = np.zeros((2, n_games, rules.stages + 1), np.int64)
        self._cuts[:, -1], self._parts[:, -1] = arrays.n_points, arrays.n_units
        self._best_key = np.full(2, np.inf)
        self._best_cuts, self._best_parts = np.zeros((2, rules.stages + 1), np.int64)
        self.ideal_seconds = ideal_seconds(arrays)
        self.episodes = self.best_at = 0
        """Games that have ended, and how many had when the best was played."""

    @property
    def shape(self) -> EnvShape:
        """One space of actions for points and units; no features of actions."""
        return EnvShape(
            n_envs=len(self._numbers),
            n_actions=max(self._arrays.n_points, self._arrays.n_units),
            n_flat=(2 + N_OF_STAGE) * (self._rules.stages - 1),
            n_features=0,
        )

    @property
    def best(self) -> Partition | None:
        """The best so far; inf seconds if none fitted, None before a game has ended."""
        over, seconds = self._best_key
        if np.isinf(over):
            return None
        return Partition(
            self._best_cuts.copy(), self._best_parts.copy(), float(seconds) if over == 0 else np.inf
        )

    def observe(self) -> Observation:
        """All games."""
        seen = empty_observation(self.shape, len(self._numbers))
        arrays, rules, games = self._arrays, self._rules, (self._numbers, self._cuts, self._parts)
        may = rules.cut_then, rules.part_then, rules.held
        fill_mask(arrays, *may, *games, seen.mask)
        fill_flat(arrays, self.ideal_seconds, *games, seen.flat)
        if self._mode == "ours":
            fill_even(
                arrays, self.ideal_seconds, self._work, *may, *games, seen.mask, seen.baseline
            )
        return seen

    def step(self, actions: np.ndarray) -> Outcome:
        """Make a decision in each game; those that end begin anew."""
        outcome = Outcome(np.empty(len(actions), np.float32), np.empty(len(actions), bool))
        better = play(
            self._arrays,
            self.ideal_seconds,
            actions,
            self._numbers,
            self._cuts,
            self._parts,
            outcome.rewards,
            outcome.dones,
            self._best_key,
            self._best_cuts,
            self._best_parts,
        )
        self.episodes += int(outcome.dones.sum())
        if better:
            self.best_at = self.episodes
        return outcome
