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

What an agent sees of the game and is rewarded with: as in the paper, or as we do it.

PaperView   the decision vector, a number for each dimension, with the position behind it; nothing
            is masked.
            reward 0.4 for each dimension that the move splits and 0.1 for each that it leaves
            whole, what follows from it included; -1 for a wrong move
OurView     numbers that do not depend on how many decisions there are; wrong moves are masked.
            reward w / total for splitting, total the sum of all w: the return is the share of the
            count
            baseline of a move = the share that moving so and then greedily brings

Features of the decision i that is to be made, all but the first two the same for both moves. A
*rival* is an undecided decision that could still be split and conflicts with i.

    1 if the move is to split
    greedy share of this move less that of the other
    w_i over the total, and over the largest w
    of the rivals: their w over the total, log of it over w_i, log of the largest over w_i, their
    number over n
    the rivals' w beyond that of what else is open and conflicts with them, over the total
    share of w still open, and split so far
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from scipy.sparse import csr_array

from automap.search.counts.choices import Choices
from automap.search.counts.solvers import completed
from rl.env import EnvShape, Observation


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

    def right_moves(self) -> np.ndarray:
        """Which of WHOLE and SPLIT are not wrong by the marks, bool [tables, 2]."""
        here = np.arange(len(self.position)), self.position
        # What is forced may not stay whole, what is blocked not be split.
        return np.stack([~self.forced[here], ~self.blocked[here]], axis=1)

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


Task = Literal["operator partitioning", "auto data parallelism"]
Mode = Literal["faithful", "ours"]
"""The paper's state, reward and numbers, or ours."""

SPLIT_REWARD, WHOLE_REWARD, WRONG_REWARD = 0.4, 0.1, -1.0
_N_FEATURES = 11


class View(Protocol):
    """One way to look at a game."""

    def shape(self, n_tables: int) -> EnvShape:
        """Sizes of the observations of so many tables."""
        ...

    def observe(self, game: Game) -> Observation:
        """All tables."""
        ...

    def rewards(self, moved: Moved) -> np.ndarray:
        """Of each table, float32 [tables]."""
        ...


@dataclass(frozen=True)
class PaperView:
    """Sections 4.2 and 4.3 of the paper."""

    choices: Choices

    def shape(self, n_tables: int) -> EnvShape:
        """A number for each dimension, and the position."""
        return EnvShape(n_tables, 2, int(self.choices.weights.sum()) + 1, 0)

    def observe(self, game: Game) -> Observation:
        """The decision vector; the position of its next dimension is given as a share of all."""
        n_tables, weights = len(game.position), self.choices.weights
        first = np.cumsum(weights) - weights
        position = first[game.position, None] / weights.sum()
        dimensions = np.repeat(game.decided, weights, axis=1)
        return Observation(
            flat=np.concatenate([dimensions, position], axis=1).astype(np.float32),
            features=np.zeros((n_tables, 2, 0), np.float32),
            baseline=np.zeros((n_tables, 2), np.float32),
            mask=np.ones((n_tables, 2), bool),
        )

    def rewards(self, moved: Moved) -> np.ndarray:
        """By what the decision counts."""
        right = SPLIT_REWARD * moved.partitioned + WHOLE_REWARD * moved.replicated
        return np.where(moved.wrong, WRONG_REWARD, right).astype(np.float32)


@dataclass(frozen=True)
class OurView:
    """Features, masks and a greedy baseline."""

    choices: Choices

    @cached_property
    def _total(self) -> float:
        # Nothing may be allowed, as where the axis divides nothing: then all shares are 0.
        return float(self.choices.weights[self.choices.allowed].sum()) or 1.0

    @cached_property
    def _conflicts(self) -> csr_array:
        return csr_array(self.choices.conflicts.astype(float))

    def shape(self, n_tables: int) -> EnvShape:
        """The same for any number of decisions."""
        return EnvShape(n_tables, 2, 1, _N_FEATURES)

    def rewards(self, moved: Moved) -> np.ndarray:
        """The share of the count that was won."""
        return (moved.partitioned / self._total).astype(np.float32)

    def observe(self, game: Game) -> Observation:
        """All tables."""
        at, n = game.position, len(self.choices)
        baseline = self._greedy_shares(game) / self._total
        features = np.empty((len(at), 2, _N_FEATURES))
        features[:, :, 0] = WHOLE, SPLIT
        # Reversed, the columns are those of the other move.
        features[:, :, 1] = baseline - baseline[:, ::-1]
        features[:, :, 2:] = self._decision_features(game)[:, None]
        return Observation(
            flat=(at[:, None] / n).astype(np.float32),
            features=features.astype(np.float32),
            baseline=baseline.astype(np.float32),
            mask=game.right_moves(),
        )

    def _greedy_shares(self, game: Game) -> np.ndarray:
        """What each move and then greed counts from here on, [tables, 2]; of a wrong move, nothing
        of use.
        """
        choices, at = self.choices, game.position
        linked, conflicts = choices.linked[at], choices.conflicts[at]
        shares = []
        # The marks after either move, WHOLE first; as `Game.move` makes them.
        for blocked, forced in (
            (game.blocked | linked, game.forced),
            (game.blocked | conflicts, game.forced | linked),
        ):
            shares.append(completed(choices, at + 1, blocked, forced) @ choices.weights)
        return np.stack([shares[WHOLE], shares[SPLIT] + choices.weights[at]], axis=1)

    def _decision_features(self, game: Game) -> np.ndarray:
        """Features that both moves share, [tables, 9]."""
        choices, at, total = self.choices, game.position, self._total
        weights = choices.weights.astype(float)
        weight = weights[at]
        is_open = ~game.blocked & (np.arange(len(choices)) > at[:, None])
        rivals = choices.conflicts[at] & is_open
        open_weights = is_open * weights
        # Of each decision the w of all that is open and conflicts with it, [tables, n].
        others = open_weights @ self._conflicts
        lost = (rivals * np.maximum(weights - others, 0.0)).sum(1)
        rival_weights, largest = (rivals * weights).sum(1), (rivals * weights).max(1)
        split = ((game.decided == SPLIT) * weights).sum(1)
        columns = [
            weight / total,
            weight / weights.max(),
            rival_weights / total,
            np.log1p(rival_weights / weight),
            np.log1p(largest / weight),
            rivals.mean(1),
            lost / total,
            open_weights.sum(1) / total,
            split / total,
        ]
        return np.stack(columns, axis=1)


def make_view(mode: Mode, choices: Choices) -> View:
    """The view of a mode."""
    return PaperView(choices) if mode == "faithful" else OurView(choices)
