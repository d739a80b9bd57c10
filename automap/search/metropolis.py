"""The Metropolis walk: random changes, always made if they help, sometimes if they do not.

    x        a state of energy E(x) = log cost(x); a change of it is proposed at random
    accept   y in place of x with probability  min(1, exp(beta (E(x) - E(y))))
                                                                             -> in: `acceptance`
    end      when nothing better was found for half of the proposals made so far
                                                                             -> in: `Patience`

Both are FlexFlow's (Jia et al. 2019, section 6.2), but for two things. Its energy is the cost
itself, so that a good beta depends on the unit of cost and the size of the model; with logarithms
beta is a number without a unit, that of the paper times the cost to first order. And it ends after
half of a number of seconds; proposals are counted here, so that the same seed gives the same plan.

Where y is proposed from x as often as x from y, the walk comes to visit states in proportion to
exp(-beta E(x)).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import math
import random
from typing import TypeVar


State = TypeVar("State")


def acceptance(energy: float, proposed: float, beta: float) -> float:
    """Probability of going from a state of `energy` to one of `proposed`."""
    # Not only faster: exp would overflow for much better states.
    return 1.0 if proposed <= energy else math.exp(beta * (energy - proposed))


def walk(
    start: State,
    energy: Callable[[State], float],
    propose: Callable[[State], State | None],
    beta: float,
    source: random.Random,
) -> Iterator[State]:
    """The state after each proposal, without end.

    `propose` gives None for a change that is not allowed: the walk stays.
    """
    current = start
    while True:
        proposed = propose(current)
        if proposed is not None:
            chance = acceptance(energy(current), energy(proposed), beta)
            # For a sure one a number is drawn too: how many are drawn depends on the proposals
            # alone.
            current = proposed if source.random() < chance else current
        yield current


@dataclass
class Patience:
    """When to end: after `most` proposals, or after `least` if the best is older than half of those
    made.
    """

    least: int
    most: int
    made: int = 0
    best_after: int = 0
    best: tuple[float, ...] | None = None

    def record(self, key: tuple[float, ...]) -> None:
        """One proposal later the walk is at a state of this key, smaller being better."""
        self.made += 1
        if self.best is None or key < self.best:
            self.best, self.best_after = key, self.made

    @property
    def is_spent(self) -> bool:
        """Whether the walk should end."""
        # The best is older than half of the proposals.
        is_stale = self.made >= self.least and self.made >= 2 * self.best_after
        return is_stale or self.made >= self.most
