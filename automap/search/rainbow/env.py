"""Several tables as one environment; each begins its episodes from points of the context's search.

An episode begins at the best point so far of a mesh or at one of its presets, in turns; the mesh is
drawn, a better one more often: the r-th best with probability in proportion to 1 / r.

`CONFIG` has the agent's numbers: few episodes, so a fast rate and little that is random.
"""

from collections.abc import Sequence
import random

import numpy as np

from automap.search.context import Candidate, SearchContext
from automap.search.rainbow.features import N_ACTIONS, N_FEATURES, N_FLAT, Features
from automap.search.rainbow.table import Table
from rl.config import RainbowConfig
from rl.env import EnvShape, Observation, Outcome
from rl.schedule import Linear


CONFIG = RainbowConfig(
    network="per-action",
    hidden=(64, 64),
    gamma=1.0,
    n_steps=5,
    capacity=20_000,
    alpha=0.6,
    beta=Linear(0.4, 1.0, 10_000),
    epsilon=Linear(0.15, 0.02, 6_000),
    batch=64,
    learning_rate=1e-3,
    warm_up=200,
    steps_per_update=8,
    target_every=50,
)


class StepTimeEnv:
    """`n_tables` episodes at once. Raises `OutOfBudget` out of `step` when the search's time is up."""

    def __init__(self, context: SearchContext, starts: Sequence[Candidate], n_tables: int):
        """`starts` are points of any meshes, at least one."""
        self._context, self._features = context, Features(context)
        self._starts: dict[object, list[Candidate]] = {}
        for candidate in starts:
            self._starts.setdefault(candidate.point.mesh, []).append(candidate)
        self._best = {mesh: ranked[0] for mesh, ranked in self._starts.items()}
        self._source = random.Random(context.seed)
        self._begun = 0
        self._tables = [self._new_table() for _ in range(n_tables)]
        self.episodes = 0

    @property
    def shape(self) -> EnvShape:
        """Sizes that no model and no mesh changes."""
        return EnvShape(len(self._tables), N_ACTIONS, N_FLAT, N_FEATURES)

    @property
    def best_by_mesh(self) -> list[Candidate]:
        """The best point that began, or ended, an episode on each mesh; best first."""
        return sorted(self._best.values(), key=lambda c: self._context.objective.key(c.estimate))

    def observe(self) -> Observation:
        """All tables."""
        tables, features = self._tables, self._features
        mask = np.zeros((len(tables), N_ACTIONS), bool)
        for row, table in enumerate(tables):
            mask[row, : len(table.options)] = [option is not None for option in table.options]
        return Observation(
            flat=np.array([features.table_numbers(table) for table in tables], np.float32),
            features=np.array([features.option_numbers(table) for table in tables], np.float32),
            baseline=np.array([features.baseline(table) for table in tables], np.float32),
            mask=mask,
        )

    def step(self, actions: np.ndarray) -> Outcome:
        """Make a decision at each table; those whose episode ends begin another."""
        rewards = np.zeros(len(actions), np.float32)
        dones = np.zeros(len(actions), bool)
        for row, action in enumerate(actions.tolist()):
            table = self._tables[row]
            rewards[row] = table.take(action)
            dones[row] = table.is_over
            if table.is_over:
                self.episodes += 1
                mesh = table.current.point.mesh
                if self._context.is_better(table.current, self._best[mesh]):
                    self._best[mesh] = table.current
                self._tables[row] = self._new_table()
        return Outcome(rewards, dones)

    def _new_table(self) -> Table:
        ranked = self.best_by_mesh
        weights = [1.0 / rank for rank in range(1, len(ranked) + 1)]
        (chosen,) = self._source.choices(ranked, weights)
        self._begun += 1
        if self._begun % 2:
            return Table(self._context, chosen)
        return Table(self._context, self._source.choice(self._starts[chosen.point.mesh]))
