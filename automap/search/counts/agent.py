"""Rainbow on the count objective, in the paper's mode and in ours.

1. play and learn until a target is reached, or nothing better comes any more    -> in: `play`
2. the second stage goes back over what the best plan keeps whole
       faithful   the game begins with what is split and decides the rest anew; the agent learns on
       ours       second thoughts                                     -> in: `reconsidered`

Numbers of the faithful mode are the paper's where it gives them (its section 5.1: Adam's rate,
batch, gamma, epsilon's way down, alpha, beta, capacity, updates between targets; no noisy layers).
It does not give the network's size, what an update follows on, and when a strategy is stable.

The environment keeps the best whole plan that was played: the one that counts most, the first that
does                                                                            -> in: `CountEnv`
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
import math
import time
from typing import Final, Literal

import numpy as np

from automap.search.counts.choices import Choices
from automap.search.counts.game import SPLIT, UNDECIDED, Game, Mode, Task, View, make_view
from automap.search.counts.solvers import reconsidered
from automap.search.torch_needed import need_torch
from rl.config import Linear, RainbowConfig
from rl.env import EnvShape, Observation, Outcome
from rl.metrics import Row


SecondStage = Literal["played on", "reconsidered", "none"]
"""How the best plan is gone back over: the agent plays on with what it splits, second thoughts
without an agent, or not at all.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """An agent, at how many tables it plays at once, and after how many decisions without a better
    plan a stage ends.
    """

    config: RainbowConfig
    n_tables: int
    patience: int
    second_stage: SecondStage


_FAITHFUL: Final = RainbowConfig(
    network="flat",
    hidden=(256, 256),
    gamma=0.6,
    n_steps=1,
    capacity=2_000,
    alpha=0.2,
    beta=Linear(0.6, 0.6, 1),
    epsilon=Linear(1.0, 0.1, 2_000),
    batch=64,
    learning_rate=5e-4,
    warm_up=64,
    steps_per_update=1,
    target_every=100,
)
_OURS: Final = RainbowConfig(
    network="per-action",
    hidden=(64, 64),
    # Rewards are shares of one total: nothing is discounted.
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
)
_OURS_PLAYER: Final = Player(config=_OURS, n_tables=8, patience=10**9, second_stage="reconsidered")
PLAYERS: Final[Mapping[tuple[Mode, Task], Player]] = {
    ("faithful", "operator partitioning"): Player(
        config=_FAITHFUL, n_tables=1, patience=20_000, second_stage="played on"
    ),
    ("faithful", "auto data parallelism"): Player(
        config=replace(_FAITHFUL, epsilon=Linear(1.0, 0.1, 500)),
        n_tables=1,
        patience=5_000,
        second_stage="played on",
    ),
    ("ours", "operator partitioning"): _OURS_PLAYER,
    ("ours", "auto data parallelism"): _OURS_PLAYER,
}
"""Who plays, by mode and task."""


_STEPS_BETWEEN_POINTS: Final = 200
# Less than any count, so that the first whole plan of a game is kept.
NOTHING = -1


class CountEnv:
    """`n_tables` games at once."""

    def __init__(self, choices: Choices, view: View, n_tables: int):
        """All games at their beginning, no plan yet."""
        self._choices, self._view = choices, view
        self._game = Game(choices, n_tables)
        # Of the games that ended since it was asked: shares of dimensions decided, and games.
        self._shares = np.zeros(2)
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

    def keep(self) -> bool:
        """Begin all games with what the best plan splits; False if nothing is left to decide."""
        return self._game.keep(self._best)

    def take_share(self) -> float:
        """The mean share of dimensions that were decided when a game ended, since it was last
        asked; NaN if none has. The paper calls it the progress of propagation.
        """
        total, games = self._shares
        self._shares[:] = 0.0
        return float(total / games) if games else math.nan

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
            weights = self._choices.weights
            decided = (self._game.decided[moved.ended] != UNDECIDED) @ weights / weights.sum()
            self._shares += decided.sum(), len(decided)
            self._game.clear(moved.ended)
        return Outcome(self._view.rewards(moved), moved.ended)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that changes."""
        return self._game.arrays() | {
            "best": self._best,
            "best count": self._best_count,
            "shares": self._shares,
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        self._game.restore(arrays)
        self._best[:], self._best_count[:] = arrays["best"], arrays["best count"]
        self._shares[:] = arrays["shares"]


@dataclass(frozen=True, slots=True)
class Improvement:
    """A best plan so far: what it counts, in which stage and when it was found."""

    count: int
    stage: int
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Means since the last point: sums of rewards, shares decided (`CountEnv.take_share`), loss."""

    steps: int
    score: float
    decided_share: float
    loss: float


@dataclass(frozen=True)
class Found:
    """The end of a search.

    `split` [n] bool is the best plan after both stages; `improvements` are the agent's own, `steps`
    and `seconds` (of the processor, as a run beside others is timed too) what it took in all,
    `curve` how it went.
    """

    split: np.ndarray
    improvements: tuple[Improvement, ...]
    steps: int
    seconds: float
    curve: tuple[CurvePoint, ...]

    def first_stage_count(self) -> int:
        """What the agent's best plan counted before the second stage; 0 without one."""
        return max((it.count for it in self.improvements if it.stage == 1), default=0)


class _Curve:
    """A log that adds what the games say."""

    def __init__(self, env: CountEnv):
        self._env = env
        self.points: list[CurvePoint] = []

    def write(self, row: Row) -> None:
        point = CurvePoint(row.steps, row.mean_return, self._env.take_share(), row.loss)
        self.points.append(point)


def find(
    choices: Choices,
    mode: Mode,
    task: Task,
    *,
    seed: int,
    most_steps: int,
    target_count: int,
    is_over: Callable[[], bool] = lambda: False,
    learns: bool = True,
) -> Found:
    """`play` by the player and the view of a mode. With `learns=False` the same player never
    learns, to show what learning adds.
    """
    player = PLAYERS[mode, task]
    if not learns:
        player = replace(player, config=replace(player.config, steps_per_update=None))
    return play(
        choices,
        player,
        make_view(mode, choices),
        seed=seed,
        most_steps=most_steps,
        target_count=target_count,
        is_over=is_over,
    )


def play(
    choices: Choices,
    player: Player,
    view: View,
    *,
    seed: int,
    most_steps: int,
    target_count: int,
    is_over: Callable[[], bool] = lambda: False,
) -> Found:
    """Search until a plan counts `target_count`, or nothing better comes any more in both stages,
    or `most_steps` decisions are made, or `is_over` says so.

    Raises `InputError` if torch is not installed.
    """
    need_torch()
    from rl.train import Trainer  # torch loads here

    start = time.process_time()
    env = CountEnv(choices, view, player.n_tables)
    curve = _Curve(env)
    trainer = Trainer(env, player.config, seed, log=curve, log_every_steps=_STEPS_BETWEEN_POINTS)
    improvements: list[Improvement] = []
    stage, stage_began = 1, 0

    def is_stable() -> bool:
        """Note a better plan; whether the stage has brought none for long, or the search ends."""
        seconds = time.process_time() - start
        if env.best_count > (improvements[-1].count if improvements else NOTHING):
            improvements.append(Improvement(env.best_count, stage, trainer.steps, seconds))
        since = max(improvements[-1].steps if improvements else 0, stage_began)
        return is_ended() or trainer.steps - since >= player.patience

    def is_ended() -> bool:
        return env.best_count >= target_count or is_over()

    trainer.run(most_steps, is_stable)
    if player.second_stage == "played on" and not is_ended() and env.keep():
        stage, stage_began = 2, trainer.steps
        trainer.run(most_steps, is_stable)
    best = env.best.copy()
    return Found(
        split=reconsidered(choices, best) if player.second_stage == "reconsidered" else best,
        improvements=tuple(improvements),
        steps=trainer.steps,
        seconds=time.process_time() - start,
        curve=tuple(curve.points),
    )
