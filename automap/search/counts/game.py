"""The game of both tasks, n tables at a time: decisions one after the other, a contradiction ends
it.

    state     decision vector: 1 split, 0 whole, -1 undecided; position of the decision to make
    move      SPLIT or WHOLE; splitting decides what it implies too, and both mark others as blocked
              or forced (`automap.search.counts.solvers`)
    wrong     splitting what is blocked, leaving whole what is forced: the game ends and counts
              nothing
    whole plan  nothing left to decide and no move wrong

A game may begin with decisions that are kept: those split already, with all that they imply; the
paper's second stage begins so                                                  -> in: `Game.keep`

A move is a look-up in the tables of `Choices`: nothing is propagated through the program.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from automap.search.counts.choices import Choices


WHOLE, SPLIT, UNDECIDED = 0, 1, -1


@dataclass(frozen=True, slots=True)
class Moved:
    """What a move did at each table: `wrong` and `ended`, bool [tables], and what the decisions
    count that it made, int64 [tables]: those `partitioned` and those `replicated`.
    """

    wrong: np.ndarray
    ended: np.ndarray
    partitioned: np.ndarray
    replicated: np.ndarray


class Game:
    """The tables; `decided` [tables, n] int8, `position` [tables], marks [tables, n]."""

    def __init__(self, choices: Choices, n_tables: int):
        """Every table at its first decision."""
        size = (n_tables, len(choices))
        self.choices = choices
        self.position = np.zeros(n_tables, np.int64)
        self.decided = np.full(size, UNDECIDED, np.int8)
        self.blocked = np.zeros(size, bool)
        self.forced = np.zeros(size, bool)
        self._kept = np.zeros(len(choices), bool)
        self.clear(np.ones(n_tables, bool))

    def keep(self, split: np.ndarray) -> bool:
        """Begin all games anew, now and from here on, with the decisions `split` [n] bool made.

        False if they leave nothing to decide: there is no game then, and all goes on as before.
        """
        before, self._kept = self._kept, split.copy()
        if (self._first_decided() != UNDECIDED).all():
            self._kept = before
            return False
        self.clear(np.ones(len(self.position), bool))
        return True

    def move(self, actions: np.ndarray) -> Moved:
        """Decide at every table; those that end are not cleared."""
        tables, at, choices = np.arange(len(actions)), self.position, self.choices
        is_split = actions == SPLIT
        here = tables, at
        # A contradiction is seen at the move that makes it, as marks follow from all decisions
        # before.
        wrong = np.where(is_split, self.blocked[here], self.forced[here])
        self.decided[here] = actions
        linked = choices.linked[at]
        # Splitting blocks what conflicts; leaving whole blocks what is linked, which is to be whole
        # too.
        self.blocked |= np.where(is_split[:, None], choices.conflicts[at], linked)
        self.forced |= is_split[:, None] & linked
        implied = is_split[:, None] & choices.implied[at] & (self.decided == UNDECIDED)
        self.decided[implied] = WHOLE
        wrong |= (implied & self.forced).any(1)
        is_open = self.decided == UNDECIDED
        own = choices.weights[at]
        # A game that is over stays at a decision that it has made until it is cleared.
        self.position = np.where(is_open.any(1), is_open.argmax(1), at)
        return Moved(
            wrong=wrong,
            ended=wrong | ~is_open.any(1),
            partitioned=np.where(is_split, own, 0),
            replicated=np.where(is_split, implied @ choices.weights, own),
        )

    def clear(self, tables: np.ndarray) -> None:
        """Begin anew at the tables that are marked."""
        choices, first = self.choices, self._first_decided()
        self.decided[tables] = first
        self.position[tables] = (first == UNDECIDED).argmax()
        # What the axis does not divide is blocked from the beginning.
        blocked = ~choices.allowed | choices.conflicts[self._kept].any(0)
        self.blocked[tables] = blocked & ~self._kept
        self.forced[tables] = choices.linked[self._kept].any(0)

    def _first_decided(self) -> np.ndarray:
        """The decision vector [n] with which a game begins."""
        decided = np.full(len(self._kept), UNDECIDED, np.int8)
        decided[self.choices.implied[self._kept].any(0)] = WHOLE
        decided[self._kept] = SPLIT
        return decided

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that changes."""
        names = ("position", "decided", "blocked", "forced")
        return {name: getattr(self, name) for name in names} | {"kept": self._kept}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go back to where `arrays` were taken."""
        for name, array in self.arrays().items():
            array[...] = arrays[name]
