"""Rainbow on the count objective, in the paper's mode and in ours.

1. play and learn until a target is reached or the budget is spent              -> in: `find`
2. second thoughts about what the best plan keeps whole               -> in: `reconsidered`

Numbers of the faithful mode are the paper's where it gives them (gamma, capacity, alpha, beta,
updates between targets, no noisy layers); network, rate, batch, n-step and the steps of epsilon's
way down are ours.

The environment keeps the best whole plan that was played: the one that counts most, the first that
does                                                                            -> in: `CountEnv`
"""

from collections.abc import Mapping
from dataclasses import dataclass
import time

import numpy as np

from automap.search.counts.choices import Choices
from automap.search.counts.game import SPLIT, Game
from automap.search.counts.solvers import reconsidered
from automap.search.counts.views import Mode, View, make_view
from automap.search.torch_needed import need_torch
from rl.config import Linear, RainbowConfig
from rl.env import EnvShape, Observation, Outcome


N_TABLES = 8
# gamma 0.6 is the paper's: it looks few decisions ahead. In ours rewards are shares of one total,
# so nothing is discounted.
CONFIGS: Mapping[Mode, RainbowConfig] = {
    "faithful": RainbowConfig(
        network="flat",
        hidden=(256, 256),
        gamma=0.6,
        n_steps=3,
        capacity=2_000,
        alpha=0.2,
        beta=Linear(0.6, 0.6, 1),
        epsilon=Linear(1.0, 0.02, 20_000),
        batch=64,
        learning_rate=5e-4,
        warm_up=500,
        steps_per_update=4,
        target_every=100,
    ),
    "ours": RainbowConfig(
        network="per-action",
        hidden=(64, 64),
        gamma=1.0,
        n_steps=5,
        capacity=20_000,
        alpha=0.6,
        beta=Linear(0.4, 1.0, 50_000),
        epsilon=Linear(0.05, 0.002, 20_000),
        batch=64,
        learning_rate=1e-3,
        warm_up=500,
        steps_per_update=16,
        target_every=50,
    ),
}


# Less than any count, so that the first whole plan of a game is kept.
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
        # Games that ended because all decisions were made, and not by a contradiction.
        whole = np.flatnonzero(moved.ended & ~moved.wrong)
        if len(whole):
            # Before the games are cleared, which forgets what was decided.
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


@dataclass(frozen=True, slots=True)
class Improvement:
    """A best plan so far: what it counts, and when it was found."""

    count: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Found:
    """The end of a search.

    `split` [n] bool is the best plan after second thoughts; `improvements` are the agent's own,
    `steps` and `seconds` what it took in all.
    """

    split: np.ndarray
    improvements: tuple[Improvement, ...]
    steps: int
    seconds: float


def find(
    choices: Choices,
    mode: Mode,
    *,
    seed: int,
    budget_seconds: float,
    most_steps: int,
    target_count: int,
) -> Found:
    """Search until a plan counts `target_count`, or `most_steps` decisions are made, or the time is
    up.

    Raises `InputError` if torch is not installed.
    """
    need_torch()
    from rl.train import Trainer  # torch loads here

    start = time.monotonic()
    env = CountEnv(choices, make_view(mode, choices), N_TABLES)
    trainer = Trainer(env, CONFIGS[mode], seed)
    improvements: list[Improvement] = []

    def ended() -> bool:
        seconds = time.monotonic() - start
        if env.best_count > (improvements[-1].count if improvements else -1):
            improvements.append(Improvement(env.best_count, trainer.steps, seconds))
        return env.best_count >= target_count or seconds > budget_seconds

    trainer.run(most_steps, ended)
    return Found(
        split=reconsidered(choices, env.best.copy()),
        improvements=tuple(improvements),
        steps=trainer.steps,
        seconds=time.monotonic() - start,
    )
