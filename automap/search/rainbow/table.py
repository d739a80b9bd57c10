"""One episode: a whole point, changed by one decision after the other.

    cost      c = log step seconds; where the plan does not fit, more by TOO_LARGE + OVER_WEIGHT log(peak / limit), so that
              leaving the memory is a loss and coming back pays step by step        -> in: `cost`
    reward    c before - c after a decision; an episode's rewards add up to log(first cost / last cost)
    option    what a decision can do: keep, or a move with the candidate it leads to -> in: `Table.options`

Every option is priced by the evaluator, once: the search remembers the points it has seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math

from automap.cost.evaluate import Estimate
from automap.search.candidate import Candidate, Objective
from automap.search.context import LEAST_SECONDS, SearchContext
from automap.search.moves import Move, moves
from automap.search.rainbow.decisions import Decision, decisions


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
        found: list[Option | None] = [Option(None, self.current)]
        for move in decision:
            changed = None
            if move in possible:
                moved = self._context.pinned.imposed(move.apply(self._context.space, point))
                changed = None if moved == point else self._context.evaluate(moved, "rainbow")
            found.append(Option(move, changed) if changed else None)
        return found
