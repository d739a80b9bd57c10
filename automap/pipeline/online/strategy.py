"""`rainbow`: learn on the one problem, then improve the best partition that was played.

1. play and learn: MOST_DECISIONS of them, or until PATIENCE games have brought nothing better
                                                                                  -> in: `_train`
2. local search, which the paper has not: one boundary after the other is moved to its best place
                                              -> in: `automap.pipeline.solvers.local.improve`

Many games of the problem are an environment of `rl`, which keeps the best partition that was
played. Nothing in it is drawn at random, and all games begin alike. An agent in the mode

    faithful   plays the paper's game: pivots, of which nothing is known beforehand
                                        -> in: `PivotEnv`, `automap.pipeline.online.pivots`
    ours       chooses units and points, and knows the reward of dividing evenly afterwards; it
               learns what that lacks                                        -> in: `PipelineEnv`

Numbers of games, not seconds, end it where the budget allows: then the same seed finds the same
partition. Of the faithful agent gamma, capacity, alpha, beta, learning rate, batch, epsilon's way
down (an iteration is a decision), updates between targets and no noisy layers are the paper's
(sections 2 and 5.1); it does not give the network, what an update follows on, nor when it ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import time
from typing import TYPE_CHECKING, Final, Literal, Protocol

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
from automap.pipeline.online.pivots import PIVOT_FEATURES, PivotFilter, pivot_filter, pivot_state
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.local import improve
from automap.pipeline.value import price_partition, value
from automap.search.torch_needed import need_torch
from rl.config import Linear, RainbowConfig
from rl.env import Env, EnvShape, Observation, Outcome, empty_observation
from rl.metrics import Log, Row


if TYPE_CHECKING:
    from rl.train import Trainer

Mode = Literal["faithful", "ours"]
MOST_DECISIONS: Final = 48_000
_STEPS_BETWEEN_ROWS: Final = 400
PATIENCE: Final[Mapping[Mode, int]] = {"faithful": 2_500, "ours": 4_000}
# At once: one pass of the network decides for all of them.
N_GAMES: Final[Mapping[Mode, int]] = {"faithful": 16, "ours": 32}
CONFIGS: Final[Mapping[Mode, RainbowConfig]] = {
    # Auto-MAP section 5.1, where it gives a number.
    "faithful": RainbowConfig(
        network="flat",
        hidden=(128, 128),
        gamma=0.6,
        n_steps=1,
        capacity=2_000,
        alpha=0.2,
        beta=Linear(0.6, 0.6, 1),
        epsilon=Linear(1.0, 0.1, 10_000),
        batch=64,
        learning_rate=1e-3,
        warm_up=64,
        steps_per_update=8,
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


class PartitionEnv(Env, Protocol):
    """Games of a partition; the best that was played is kept."""

    episodes: int
    """Games that have ended."""
    best_at: int
    """How many had ended when the best was played."""

    @property
    def best(self) -> Partition | None:
        """The best so far; inf seconds if none fitted, None before a game has ended."""
        ...


class PipelineEnv:
    """Our mode's game, `n_games` at once, of S stages, two or more."""

    def __init__(self, arrays: Arrays, allowed: ActionFilter, n_games: int):
        """All games at their beginning, nothing found."""
        self._arrays, self._allowed = arrays, allowed
        self._work = work_before(arrays)
        self._numbers = np.zeros(n_games, np.int64)
        self._cuts, self._device_cuts = np.zeros((2, n_games, allowed.stages + 1), np.int64)
        self._cuts[:, -1], self._device_cuts[:, -1] = arrays.n_points, arrays.n_units
        # (bytes over the memory, L in seconds): what needs less memory is better until one fits.
        self._best_key = np.full(2, np.inf)
        self._best_cuts, self._best_device_cuts = np.zeros((2, allowed.stages + 1), np.int64)
        self.ideal_seconds = ideal_seconds(arrays)
        self.episodes = self.best_at = 0

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
        fill_even(arrays, self.ideal_seconds, self._work, *may, *games, seen.mask, seen.baseline)
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


class PivotEnv:
    """The paper's game, `n_games` at once, of S stages, two or more."""

    def __init__(self, arrays: Arrays, allowed: PivotFilter, n_games: int):
        """All games at their beginning, nothing found."""
        self._arrays, self._allowed = arrays, allowed
        self._cuts: list[tuple[int, ...]] = [(0,)] * n_games
        # By the cuts so far: games come to the same few thousand states again and again.
        self._seen: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
        # (bytes over the memory, L in seconds): what needs less memory is better until one fits.
        self._best_key, self._best_cuts = (np.inf, np.inf), (0,)
        self.ideal_seconds = ideal_seconds(arrays)
        self.episodes = self.best_at = 0

    @property
    def shape(self) -> EnvShape:
        """A number for each point; no features of actions."""
        n = self._arrays.n_points
        return EnvShape(len(self._cuts), n_actions=n, n_flat=PIVOT_FEATURES * n, n_features=0)

    @property
    def best(self) -> Partition | None:
        """The best so far; inf seconds if none fitted, None before a game has ended."""
        over, seconds = self._best_key
        if np.isinf(over):
            return None
        return Partition(*self._partition(self._best_cuts), seconds if over == 0 else np.inf)

    def observe(self) -> Observation:
        """All games."""
        flat, masks = zip(*(self._state(cuts) for cuts in self._cuts))
        mask = np.stack(masks)
        nothing = np.zeros(mask.shape, np.float32)
        return Observation(np.stack(flat), nothing[:, :, None][:, :, :0], nothing, mask)

    def step(self, actions: np.ndarray) -> Outcome:
        """Make a decision in each game; those that end begin anew."""
        outcome = Outcome(np.zeros(len(actions), np.float32), np.zeros(len(actions), bool))
        for game, action in enumerate(actions):
            cuts = (*self._cuts[game], int(action))
            if len(cuts) == self._allowed.stages:
                outcome.rewards[game], outcome.dones[game] = self._end(cuts), True
                cuts = (0,)
            self._cuts[game] = cuts
        return outcome

    def _state(self, cuts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(flat, mask)."""
        if cuts not in self._seen:
            mask = self._allowed.mask(cuts[-1], self._allowed.stages - len(cuts))
            flat = pivot_state(self._arrays, self.ideal_seconds, self._allowed.unit, cuts, mask)
            self._seen[cuts] = flat, mask
        return self._seen[cuts]

    def _end(self, cuts: tuple[int, ...]) -> float:
        """The reward of a whole partition, which is kept if it is the best."""
        self.episodes += 1
        over, seconds = price_partition(self._arrays, *self._partition(cuts))
        key = max(over, 0.0), float(seconds)
        if key < self._best_key:
            self._best_key, self._best_cuts, self.best_at = key, cuts, self.episodes
        share = self.ideal_seconds / seconds
        return share if over <= 0.0 else -np.sqrt(share)

    def _partition(self, cuts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        ends = np.array([*cuts, self._arrays.n_points], np.int64)
        return ends, self._allowed.unit[ends]


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
    patience: int | None = None,
    radius: int = RADIUS,
    config: RainbowConfig | None = None,
    log: Log[Row] | None = None,
) -> RainbowResult:
    """Search for S stages; one game is always played to its end.

    It ends after `most_decisions`, or when `patience` games (`PATIENCE`) bring nothing better.
    `radius` is that of `near_boundaries`, `config` another one than the mode's; `log` gets a row
    now and then. Raises `InputError` if torch is not installed.
    """
    need_torch()
    env = _games(arrays, stages, boundary_level, mode, radius)
    if env is None:
        return RainbowResult(None, None, None)
    if stages == 1:
        ends = np.array([0, arrays.n_points], np.int64), np.array([0, arrays.n_units], np.int64)
        only = Partition(*ends, float(value(arrays, *ends)))
        return RainbowResult(only, only, only)
    trainer = _trainer(env, config or CONFIGS[mode], seed, log)
    # After torch is loaded and the game compiled, which take the same time for every problem.
    start = time.monotonic()
    first = _train(trainer, env, deadline, most_decisions, patience or PATIENCE[mode])
    played = env.best
    better = improve(arrays, played) if played else None
    seconds = time.monotonic() - start
    return RainbowResult(first, played, better, env.episodes, seconds)


def _games(
    arrays: Arrays, stages: int, boundary_level: np.ndarray, mode: Mode, radius: int
) -> PartitionEnv | None:
    """The mode's games; None if they have no partition."""
    if mode == "faithful":
        pivots = pivot_filter(arrays, stages, boundary_level, radius)
        return None if pivots is None else PivotEnv(arrays, pivots, N_GAMES[mode])
    allowed = action_filter(arrays, stages, boundary_level, radius)
    return None if allowed is None else PipelineEnv(arrays, allowed, N_GAMES[mode])


def _trainer(
    env: PartitionEnv, config: RainbowConfig, seed: int, log: Log[Row] | None
) -> "Trainer":
    """A run about to begin; torch is loaded here, and the game compiled."""
    from rl.train import Trainer

    # The first call compiles the game's functions, which is not to count as learning.
    env.observe()
    return Trainer(env, config, seed, log, _STEPS_BETWEEN_ROWS)


def _train(
    trainer: "Trainer", env: PartitionEnv, deadline: Deadline, most_decisions: int, patience: int
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
