"""The environment of the agent: episodes that change a whole point by one decision after the other,
what the agent sees of them, and several of them at once.

Table. At a decision the agent keeps the point as it is, or makes one of at most `MOST_MOVES` moves.
In order                                                            -> in: `decisions`

    candidates    most parameter bytes first: for each axis put there or take off, put beside those
                  it meets, or move to another axis
    axes          exchange all of two
    dimensions    that classes split where a tensor holds them twice, and their small parts
    storage       all leaves of an axis, then the largest leaves one by one

    cost      c = log step seconds; where the plan does not fit, more by TOO_LARGE + OVER_WEIGHT
              log(peak / limit), so that leaving the memory is a loss and coming back pays step by
              step                                    -> in: `Objective.cost`
    reward    c before - c after a decision; an episode's rewards add up to log(first / last cost)
    option    what a decision can do: keep, or a move with the candidate it leads to
                                                                    -> in: `Table.options`

Every option is priced by the evaluator, once: the search remembers the points it has seen.

Features. Numbers that depend neither on the model's size nor on the mesh's -> in: `Features`

    of an option    its kind of move, what it changes in cost, compute, waiting and peak (logs of
                    ratios), how far the peak is from the limit, and of what it moves: size of the
                    axis, share of the parameters' bytes, share of the work
    of the table    how far the episode is, how far the plan is from the best, how much of it is
                    waiting, its peak
    baseline        what the option saves at once; what it opens or closes for later decisions is
                    left to learn

Environment. An episode begins at the best point so far of a mesh or at one of its presets, in
turns; the mesh is drawn, a better one more often: the r-th best with probability in proportion to
1 / r                                                               -> in: `StepTimeEnv`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
import math
import random

import numpy as np

from automap.cost.evaluate import Estimate
from automap.search.agent.options import class_shares, leaf_shares
from automap.search.context import LEAST_SECONDS, Candidate, SearchContext
from automap.search.moves import (
    AxisChange,
    AxisSwap,
    ClassJoin,
    ClassToggle,
    DimChange,
    LeafStorageChange,
    Move,
    SmallPartsChange,
    StorageChange,
    moves,
)
from automap.space.point import StorageLevel
from automap.space.space import Space
from automap.topology.mesh import Mesh
from rl.config import Linear, RainbowConfig
from rl.env import EnvShape, Observation, Outcome


Decision = tuple[Move, ...]
# Actions of the network beside keeping: at most as many moves as a class has on three axes.
MOST_MOVES = 4
# Leaf classes that are decided one by one.
_SINGLE_LEAVES = 8


def decisions(space: Space, mesh: Mesh) -> tuple[Decision, ...]:
    """All decisions on a mesh of at most three axes, in order."""
    axes = range(len(mesh.sizes))
    in_order: list[Decision] = []
    for group_class in space.candidates:
        for axis in axes:
            others = (AxisChange(axis, other, group_class) for other in axes if other != axis)
            joins = (ClassJoin(axis, group_class),) if group_class in space.meeting else ()
            in_order.append((ClassToggle(axis, group_class), *joins, *others))
    in_order += [(AxisSwap(first, second),) for first in axes for second in axes if first < second]
    in_order += [(DimChange(group_class),) for group_class in space.repeated_classes]
    in_order += [(SmallPartsChange(group_class),) for group_class in space.small_part_classes]
    in_order += [tuple(StorageChange(axis, level) for level in StorageLevel) for axis in axes]
    for leaf in range(min(len(space.leaves), _SINGLE_LEAVES)):
        in_order += [
            tuple(LeafStorageChange(axis, leaf, level) for level in StorageLevel) for axis in axes
        ]
    return tuple(in_order)


@dataclass(frozen=True, slots=True)
class Option:
    """A move (None: keep) and the plan it leads to."""

    move: Move | None
    candidate: Candidate


class Table:
    """An episode from `start` on its mesh."""

    def __init__(self, context: SearchContext, start: Candidate):
        """At the first decision."""
        self._context = context
        self.decisions = decisions(context.space, start.point.mesh)
        self.current = start
        self.position = 0
        self.options = self._options()

    @property
    def is_over(self) -> bool:
        """Whether every decision is made."""
        return self.position == len(self.decisions)

    def take(self, action: int) -> float:
        """Make the decision by option `action`, which is there; returns the reward."""
        chosen = self.options[action]
        if chosen is None:
            raise ValueError(f"option {action} is not there")
        objective, before = self._context.objective, self.current.estimate
        self.current = chosen.candidate
        self.position += 1
        if not self.is_over:
            self.options = self._options()
        return objective.cost(before) - objective.cost(self.current.estimate)

    def _options(self) -> Sequence[Option | None]:
        """Keep, and for each move of the decision where it leads; None where it does nothing or is
        not allowed.
        """
        decision: Decision = self.decisions[self.position]
        point = self.current.point
        # Decisions are of the mesh and made before the point is known, so some moves do nothing by
        # now.
        possible = {*moves(self._context.space, point)} & {*decision}
        options: list[Option | None] = [Option(None, self.current)]
        for move in decision:
            changed = None
            if move in possible:
                moved = self._context.pinned.impose(move.apply(self._context.space, point))
                # Pins may have taken the move back.
                changed = None if moved == point else self._context.evaluate(moved, "rainbow")
            options.append(Option(move, changed) if changed else None)
        return options


N_ACTIONS = 1 + MOST_MOVES
_KINDS = (
    ClassToggle,
    ClassJoin,
    AxisChange,
    StorageChange,
    LeafStorageChange,
    DimChange,
    SmallPartsChange,
    AxisSwap,
)
N_FEATURES = 1 + len(_KINDS) + 10
N_FLAT = 6
# Ratios are of seconds: added to both, it keeps the logs of plans that never wait finite.
_LEAST_SHARE = 1e-3


class Features:
    """Descriptions of tables of one search."""

    def __init__(self, context: SearchContext):
        """Weights of classes and leaves come from the context's space."""
        self._context = context

    @cached_property
    def _leaf_shares(self) -> np.ndarray:
        return leaf_shares(self._context.space)

    @cached_property
    def _class_shares(self) -> np.ndarray:
        return class_shares(self._context.space)

    def baseline(self, table: Table) -> np.ndarray:
        """What each option saves at once, [A]; 0 where there is none."""
        objective = self._context.objective
        now = objective.cost(table.current.estimate)
        saved = np.zeros(N_ACTIONS)
        for action, option in enumerate(table.options):
            if option is not None:
                saved[action] = now - objective.cost(option.candidate.estimate)
        return saved

    def table_numbers(self, table: Table) -> list[float]:
        """The flat vector, `N_FLAT` numbers."""
        estimate, best = table.current.estimate, self._context.best
        objective = self._context.objective
        # In logarithms, so that models and machines of any speed look alike.
        behind = objective.cost(estimate) - objective.cost(best.estimate) if best else 0.0
        sizes = table.current.point.mesh.sizes
        return [
            table.position / len(table.decisions),
            behind,
            estimate.collective_seconds / max(estimate.step_seconds, LEAST_SECONDS),
            self._peak(estimate),
            float(objective.fits(estimate)),
            len(sizes) / 3.0,
        ]

    def option_numbers(self, table: Table) -> np.ndarray:
        """Of each option, [A, N_FEATURES]; zeros where there is none."""
        numbers = np.zeros((N_ACTIONS, N_FEATURES))
        now = table.current.estimate
        baseline = self.baseline(table)
        for action, option in enumerate(table.options):
            if option is None:
                continue
            then, move = option.candidate.estimate, option.move
            kinds = [float(isinstance(move, kind)) for kind in _KINDS]
            numbers[action] = [
                float(move is None),
                *kinds,
                baseline[action],
                _log_times(then.step_seconds, now.step_seconds, LEAST_SECONDS),
                _log_times(then.compute_seconds, now.compute_seconds, LEAST_SECONDS),
                _log_ratio(
                    then.collective_seconds,
                    now.collective_seconds,
                    max(now.step_seconds, LEAST_SECONDS),
                ),
                _log_times(then.peak_bytes, now.peak_bytes, 1.0),
                self._peak(then),
                float(self._context.objective.fits(then)),
                *self._subject(table, move),
            ]
        return numbers

    def _subject(self, table: Table, move: Move | None) -> tuple[float, float, float]:
        """Log of the axis's size, shares of bytes and of work of what is moved."""
        sizes = table.current.point.mesh.sizes
        match move:
            case (
                ClassToggle(axis, group_class)
                | ClassJoin(axis, group_class)
                | AxisChange(axis, _, group_class)
            ):
                return math.log2(sizes[axis]), *self._class_shares[group_class].tolist()
            case DimChange(group_class) | SmallPartsChange(group_class):
                return 0.0, *self._class_shares[group_class].tolist()
            case StorageChange(axis, level):
                return math.log2(sizes[axis]), 1.0, float(level)
            case LeafStorageChange(axis, leaf, level):
                return math.log2(sizes[axis]), float(self._leaf_shares[leaf]), float(level)
            case AxisSwap(first, second):
                return math.log2(sizes[first] / sizes[second]), 0.0, 0.0
        return 0.0, 0.0, 0.0

    def _peak(self, estimate: Estimate) -> float:
        limit = self._context.objective.memory_limit_bytes
        return _log_times(estimate.peak_bytes, limit, 1.0)


def _log_times(then: float, now: float, least: float) -> float:
    return math.log(max(then, least) / max(now, least))


def _log_ratio(then: float, now: float, whole: float) -> float:
    least = _LEAST_SHARE * whole
    return math.log((then + least) / (now + least))


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
    """`n_tables` episodes at once. `step` raises `OutOfBudget` when the search's time is up."""

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
        # Better meshes more often, but none never: its presets may just be far from what it could
        # be.
        weights = [1.0 / rank for rank in range(1, len(ranked) + 1)]
        (chosen,) = self._source.choices(ranked, weights)
        self._begun += 1
        # Every other episode goes on from the best; those between explore from the mesh's other
        # starts.
        if self._begun % 2:
            return Table(self._context, chosen)
        return Table(self._context, self._source.choice(self._starts[chosen.point.mesh]))
