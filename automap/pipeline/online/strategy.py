"""`rainbow`: learn on the one problem, then improve the best partition that was played.

1. play and learn: MOST_DECISIONS of them, or until PATIENCE games have brought nothing better
                                                                                  -> in: `_train`
2. local search, which the paper has not: one boundary after the other is moved to its best place
                                              -> in: `automap.pipeline.solvers.local.improve`

Many games of the problem are an environment of `rl`, which keeps the best partition that was
played. Nothing in it is drawn at random, and all games begin alike.         -> in: `PipelineEnv`
Of an action an agent in the mode

    faithful   knows nothing beforehand, as in the paper
    ours       knows the reward of dividing evenly afterwards; it learns what that lacks

Numbers of games, not seconds, end it where the budget allows: then the same seed finds the same
partition. Of the faithful agent gamma, capacity, alpha, beta, learning rate, updates between
targets and no noisy layers are the paper's (sections 2 and 5.1); network, batch, n-step and
epsilon's way down are ours: the paper's goes from 1.0 to 0.1 in 10,000 iterations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import time
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from automap.deadline import Deadline
from automap.pipeline.arrays import Arrays
from automap.pipeline.online.game import (
    RADIUS,
    STAGE_FEATURES,
    ActionFilter,
    action_filter,
    fill_even,
    fill_flat,
    fill_mask,
    ideal_seconds,
    play,
    work_before,
)
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.local import improve
from automap.pipeline.value import value
from automap.search.torch_needed import need_torch
from rl.config import Linear, RainbowConfig
from rl.env import EnvShape, Observation, Outcome, empty_observation


if TYPE_CHECKING:
    from rl.train import Trainer

Mode = Literal["faithful", "ours"]
# At once: one pass of the network decides for all of them.
N_GAMES: Final = 32
MOST_DECISIONS: Final = 48_000
PATIENCE: Final = 4_000
CONFIGS: Final[Mapping[Mode, RainbowConfig]] = {
    # Auto-MAP section 5.1, where it gives a number.
    "faithful": RainbowConfig(
        network="flat",
        hidden=(128, 128),
        gamma=0.6,
        n_steps=3,
        capacity=2_000,
        alpha=0.2,
        beta=Linear(0.6, 0.6, 1),
        epsilon=Linear(1.0, 0.05, 40_000),
        batch=64,
        learning_rate=1e-3,
        warm_up=500,
        steps_per_update=32,
        target_every=100,
    ),
    # Knowing the even completion, it explores less and learns faster; rewards come at the end
    # only, so none is discounted.
    "ours": RainbowConfig(
        network="flat",
        hidden=(128, 128),
        gamma=1.0,
        n_steps=1,
        capacity=10_000,
        alpha=0.6,
        beta=Linear(0.4, 1.0, 30_000),
        epsilon=Linear(0.2, 0.05, 20_000),
        batch=64,
        learning_rate=3e-3,
        warm_up=500,
        steps_per_update=32,
        target_every=50,
    ),
}


class PipelineEnv:
    """`n_games` at once, of S stages, two or more."""

    def __init__(self, arrays: Arrays, allowed: ActionFilter, mode: Mode, n_games: int):
        """All games at their beginning, nothing found."""
        self._arrays, self._allowed, self._mode = arrays, allowed, mode
        self._work = work_before(arrays)
        self._numbers = np.zeros(n_games, np.int64)
        self._cuts, self._device_cuts = np.zeros((2, n_games, allowed.stages + 1), np.int64)
        self._cuts[:, -1], self._device_cuts[:, -1] = arrays.n_points, arrays.n_units
        # (bytes over the memory, L in seconds): what needs less memory is better until one fits.
        self._best_key = np.full(2, np.inf)
        self._best_cuts, self._best_device_cuts = np.zeros((2, allowed.stages + 1), np.int64)
        self.ideal_seconds = ideal_seconds(arrays)
        self.episodes = self.best_at = 0
        """Games that have ended, and how many had when the best was played."""

    @property
    def shape(self) -> EnvShape:
        """One space of actions for points and units; no features of actions."""
        return EnvShape(
            n_envs=len(self._numbers),
            n_actions=max(self._arrays.n_points, self._arrays.n_units),
            n_flat=(2 + STAGE_FEATURES) * (self._allowed.stages - 1),
            n_features=0,
        )

    @property
    def best(self) -> Partition | None:
        """The best so far; inf seconds if none fitted, None before a game has ended."""
        over, seconds = self._best_key
        if np.isinf(over):
            return None
        return Partition(
            self._best_cuts.copy(),
            self._best_device_cuts.copy(),
            float(seconds) if over == 0 else np.inf,
        )

    def observe(self) -> Observation:
        """All games."""
        seen = empty_observation(self.shape, len(self._numbers))
        arrays, allowed = self._arrays, self._allowed
        games = self._numbers, self._cuts, self._device_cuts
        may = allowed.points_divide, allowed.units_divide, allowed.has_variable
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
            self._device_cuts,
            outcome.rewards,
            outcome.dones,
            self._best_key,
            self._best_cuts,
            self._best_device_cuts,
        )
        self.episodes += int(outcome.dones.sum())
        if better:
            self.best_at = self.episodes
        return outcome


@dataclass(frozen=True)
class RainbowResult:
    """The end of a search; partitions as in `PipelineEnv.best`.

    `first` is the best of the first games, of an agent that has learnt nothing yet; `played` of all
    games; `improved` after local search, `seconds` after torch and the game were loaded.
    """

    first: Partition | None
    played: Partition | None
    improved: Partition | None
    episodes: int = 0
    seconds: float = 0.0


def find(
    arrays: Arrays,
    stages: int,
    boundary_level: np.ndarray,
    mode: Mode,
    *,
    seed: int,
    deadline: Deadline,
    most_decisions: int = MOST_DECISIONS,
    patience: int = PATIENCE,
    radius: int = RADIUS,
    config: RainbowConfig | None = None,
) -> RainbowResult:
    """Search for S stages; one game is always played to its end.

    It ends after `most_decisions`, or when `patience` games have brought nothing better. `radius`
    is that of `near_boundaries`, `config` another one than the mode's.

    Raises `InputError` if torch is not installed.
    """
    need_torch()
    allowed = action_filter(arrays, stages, boundary_level, radius)
    if allowed is None:
        return RainbowResult(None, None, None)
    if stages == 1:
        ends = np.array([0, arrays.n_points], np.int64), np.array([0, arrays.n_units], np.int64)
        only = Partition(*ends, float(value(arrays, *ends)))
        return RainbowResult(only, only, only)
    env = PipelineEnv(arrays, allowed, mode, N_GAMES)
    trainer = _trainer(env, config or CONFIGS[mode], seed)
    # After torch is loaded and the game compiled, which take the same time for every problem.
    start = time.monotonic()
    first = _train(trainer, env, deadline, most_decisions, patience)
    played = env.best
    better = improve(arrays, played) if played else None
    seconds = time.monotonic() - start
    return RainbowResult(first, played, better, env.episodes, seconds)


def _trainer(env: PipelineEnv, config: RainbowConfig, seed: int) -> "Trainer":
    """A run about to begin; torch is loaded here, and the game compiled."""
    from rl.train import Trainer

    # The first call compiles the game's functions, which is not to count as learning.
    env.observe()
    return Trainer(env, config, seed)


def _train(
    trainer: "Trainer", env: PipelineEnv, deadline: Deadline, most_decisions: int, patience: int
) -> Partition | None:
    """Play until it is over; the best of the first games."""
    first = None

    def ended() -> bool:
        nonlocal first
        first = first or env.best
        is_late = env.episodes > 0 and deadline.is_over
        return is_late or env.episodes - env.best_at >= patience

    trainer.run(most_decisions, ended)
    return first
