"""One episode: a whole point, changed by one decision after the other.

At a decision the agent keeps the point as it is, or makes one of at most `MOST_MOVES` moves. In
order                                                               -> in: `decisions`

    candidates    most parameter bytes first: for each axis put there or take off, put beside those
                  it meets, or move to another axis
    axes          exchange all of two
    dimensions    that classes split where a tensor holds them twice, and their small parts
    storage       all leaves of an axis, then the largest leaves one by one

cost      c = log step seconds; where the plan does not fit, more by TOO_LARGE + OVER_WEIGHT
          log(peak / limit), so that leaving the memory is a loss and coming back pays step by step
                                                                    -> in: `cost`
reward    c before - c after a decision; an episode's rewards add up to log(first / last cost)
option    what a decision can do: keep, or a move with the candidate it leads to
                                                                    -> in: `Table.options`

Every option is priced by the evaluator, once: the search remembers the points it has seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math

from automap.cost.evaluate import Estimate
from automap.search.context import LEAST_SECONDS, Candidate, Objective, SearchContext
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
from automap.space.point import Level
from automap.space.space import Space
from automap.topology.mesh import Mesh


Decision = tuple[Move, ...]
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
    in_order += [tuple(StorageChange(axis, level) for level in Level) for axis in axes]
    for leaf in range(min(len(space.leaves), _SINGLE_LEAVES)):
        in_order += [
            tuple(LeafStorageChange(axis, leaf, level) for level in Level) for axis in axes
        ]
    return tuple(in_order)


TOO_LARGE = math.log(2.0)
OVER_WEIGHT = 2.0


def cost(objective: Objective, estimate: Estimate) -> float:
    """c of the module docstring."""
    seconds = math.log(max(estimate.step_seconds, LEAST_SECONDS))
    if objective.fits(estimate):
        return seconds
    over = estimate.peak_bytes / objective.memory_limit_bytes
    return seconds + TOO_LARGE + OVER_WEIGHT * math.log(over)


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
        return cost(objective, before) - cost(objective, self.current.estimate)

    def _options(self) -> Sequence[Option | None]:
        """Keep, and for each move of the decision where it leads; None where it does nothing or is
        not allowed.
        """
        decision: Decision = self.decisions[self.position]
        point = self.current.point
        possible = {*moves(self._context.space, point)} & {*decision}
        options: list[Option | None] = [Option(None, self.current)]
        for move in decision:
            changed = None
            if move in possible:
                moved = self._context.pinned.impose(move.apply(self._context.space, point))
                changed = None if moved == point else self._context.evaluate(moved, "rainbow")
            options.append(Option(move, changed) if changed else None)
        return options
