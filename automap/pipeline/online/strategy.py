"""`rainbow`: learn on the one problem, then improve the best partition that was played.

1. play and learn: MOST_DECISIONS of them, or until PATIENCE games have brought nothing better   -> in: `_train`
2. second thoughts, which the paper has not: one boundary after the other is moved to its best place
                                                                             -> in: `automap.pipeline.solvers.local.improved`

Numbers of games, not seconds, end it where the budget allows: then the same seed finds the same
partition. Of the faithful agent gamma, capacity, alpha, beta, updates between targets and no noisy
layers are the paper's, which gives them for operator partitioning; network, rate, batch, n-step and
epsilon's way down are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from automap.deadline import Deadline
from automap.pipeline.arrays import Arrays
from automap.pipeline.online.env import Mode, PipelineEnv
from automap.pipeline.online.rules import rules_of
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.local import improved
from automap.pipeline.value import value
from automap.search.torch_needed import need_torch
from rl.config import RainbowConfig
from rl.schedule import Linear


if TYPE_CHECKING:
    from rl.train import Trainer

N_GAMES: Final = 32
MOST_DECISIONS: Final = 48_000
PATIENCE: Final = 4_000
CONFIGS: Final[Mapping[Mode, RainbowConfig]] = {
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


@dataclass(frozen=True)
class Found:
    """The end of a search; partitions as in `PipelineEnv.best`.

    `first` is the best of the first games, of an agent that has learnt nothing yet; `played` of all
    games; `improved` after second thoughts, `seconds` after torch and the game were loaded.
    """

    first: Partition | None
    played: Partition | None
    improved: Partition | None
    episodes: int = 0
    seconds: float = 0.0


def find(
    arrays: Arrays,
    stages: int,
    parted_by: np.ndarray,
    mode: Mode,
    *,
    seed: int,
    deadline: Deadline,
    most_decisions: int = MOST_DECISIONS,
    patience: int = PATIENCE,
) -> Found:
    """Search for S stages; one game is always played to its end.

    It ends after `most_decisions`, or when `patience` games have brought nothing better.

    Raises `InputError` if torch is not installed.
    """
    need_torch()
    rules = rules_of(arrays, stages, parted_by)
    if rules is None:
        return Found(None, None, None)
    if stages == 1:
        ends = np.array([0, arrays.n_points], np.int64), np.array([0, arrays.n_units], np.int64)
        only = Partition(*ends, float(value(arrays, *ends)))
        return Found(only, only, only)
    env = PipelineEnv(arrays, rules, mode, N_GAMES)
    trainer = _trainer(env, mode, seed)
    start = time.monotonic()
    first = _train(trainer, env, deadline, most_decisions, patience)
    played = env.best
    better = improved(arrays, played) if played else None
    seconds = time.monotonic() - start
    return Found(first, played, better, env.episodes, seconds)


def _trainer(env: PipelineEnv, mode: Mode, seed: int) -> "Trainer":
    """A run about to begin; torch is loaded here, and the game compiled."""
    from rl.train import Trainer

    env.observe()
    return Trainer(env, CONFIGS[mode], seed)


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
