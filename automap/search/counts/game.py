"""The game of both tasks, n tables at a time: decisions one after the other, a contradiction ends
it.

    state     decision vector: 1 split, 0 whole, -1 undecided; position of the decision to make
    move      SPLIT or WHOLE; it marks others as blocked or forced (`automap.search.counts.solvers`)
    wrong     splitting what is blocked, leaving whole what is forced: the game ends and counts
              nothing
    whole plan  the last decision made and none wrong

A move is a look-up in the tables of `Choices`: nothing is propagated through the program.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from automap.search.counts.choices import Choices


WHOLE, SPLIT, UNDECIDED = 0, 1, -1


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move did at each table, bool [tables]; `weights` [tables] of the decisions that were
    made.
    """

    split: np.ndarray
    wrong: np.ndarray
    ended: np.ndarray
    weights: np.ndarray


class Game:
    """The tables; `decided` [tables, n] int8, `position` [tables], marks [tables, n]."""

    def __init__(self, choices: Choices, n_tables: int):
        """Every table at its first decision."""
        size = (n_tables, len(choices))
        self.choices = choices
        self.position = np.zeros(n_tables, np.int64)
        self.decided = np.full(size, UNDECIDED, np.int8)
        # What the axis does not divide is blocked from the beginning.
        self.blocked = np.tile(~choices.allowed, (n_tables, 1))
        self.forced = np.zeros(size, bool)

    def move(self, actions: np.ndarray) -> Moved:
        """Decide at every table; those that end are not cleared."""
        tables, at, choices = np.arange(len(actions)), self.position, self.choices
        split = actions == SPLIT
        here = tables, at
        # A contradiction is seen at the move that makes it, as marks follow from all decisions
        # before.
        wrong = np.where(split, self.blocked[here], self.forced[here])
        self.decided[here] = actions
        linked = choices.linked[at]
        # Splitting blocks what conflicts; leaving whole blocks what is linked, which is to be whole
        # too.
        self.blocked |= np.where(split[:, None], choices.conflicts[at], linked)
        self.forced |= split[:, None] & linked
        ended = wrong | (at == len(choices) - 1)
        # A game that is over stays at its last decision until it is cleared.
        self.position = np.minimum(at + 1, len(choices) - 1)
        return Moved(split, wrong, ended, choices.weights[at])

    def clear(self, tables: np.ndarray) -> None:
        """Begin anew at the tables that are marked."""
        self.position[tables] = 0
        self.decided[tables] = UNDECIDED
        self.blocked[tables] = ~self.choices.allowed
        self.forced[tables] = False

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that changes."""
        names = ("position", "decided", "blocked", "forced")
        return {name: getattr(self, name) for name in names}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        for name, array in self.arrays().items():
            array[...] = arrays[name]
