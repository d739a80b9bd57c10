"""Prices on memory: the best lower bound that elimination gives for plans that fit.

For prices l of positions p of the schedule, and weights w (`automap.search.exact.overlap`), no plan
x that fits has a shorter step than

    q(l, w) = min over x of  w . seconds(x) + sum over p of l_p excess_p(x)

as its excesses are at most 0. Seconds and excesses of a plan are the evaluator's -> in: `costs`

q is concave: each x gives a plane above it, and the next prices are sought where the lowest of the
planes so far is highest (Kelley 1960), a part of the way from the best so far
                                                                             -> in: `Dual.highest`
Every x is a plan: the search gets them all, and the best of them is the upper bound. Only positions
that some x overfilled have a price.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy
from scipy import sparse

from automap.cost.evaluate import Evaluator
from automap.search.exact.overlap import Weights
from automap.search.factored.eliminate import Elimination, elimination_order
from automap.search.factored.model import Factored, FeatureOffsets
from automap.space.point import SplitClasses


@dataclass(frozen=True)
class Costs:
    """One plan; `seconds` has an entry per feature of seconds, `excess` one per position of the
    schedule.
    """

    seconds: np.ndarray
    excess: np.ndarray


def costs(
    evaluator: Evaluator, features: FeatureOffsets, split_classes: SplitClasses, limit_bytes: float
) -> Costs:
    """Of a plan."""
    priced, tables = evaluator.price_point(split_classes), evaluator.tables
    collectives = priced.collectives
    each = (priced.collective_seconds + priced.copying_seconds) * collectives.count
    # Numbered as in `FeatureOffsets`: kernels first, then operand edges, then result edges.
    seconds = np.zeros(features.shapes)
    seconds[: features.operands] = priced.kernel_seconds * tables.kernels.count
    first = np.where(collectives.on_operand, features.operands, features.results)
    np.add.at(seconds, first + collectives.edge, each)
    # Bytes that a later edge finds gathered by an earlier one, and that live from one to the other.
    kept = collectives.copied[tables.operands.repeats[:, 1]] * collectives.is_repeat
    local = evaluator.stored_local(priced.sharding)
    live = evaluator.memory_timeline.live(local, collectives.held_bytes, kept)
    # Over the limit where it is above 0; relative, so that a price is seconds per memory limit.
    return Costs(seconds, live / limit_bytes - 1)


# Prices are at most this many times the seconds of the best bound without any.
_DEAREST = 100.0
# A linear programme may always take as long.
_LEAST_SECONDS = 0.1


@dataclass(frozen=True)
class MemoryPrices:
    """A place where q is known: seconds per memory limit of some positions, and the free numbers of
    the weights.

    Without seconds q tells whether anything fits: it is above 0 only if nothing does.
    """

    positions: tuple[int, ...]
    by_position: np.ndarray
    z: np.ndarray
    counts_seconds: bool = True

    def equals(self, other: "MemoryPrices") -> bool:
        """Whether q is the same there."""
        more = self.by_position[len(other.positions) :]
        # Positions are only ever added, so one list begins with the other; what is new may still
        # have no price.
        alike = np.array_equal(self.by_position[: len(other.positions)], other.by_position)
        return alike and not more.any() and np.array_equal(self.z, other.z)


@dataclass
class Dual:
    """The bound of one mesh, as far as it is known; `planes` are of the plans seen so far."""

    evaluator: Evaluator
    features: FeatureOffsets
    weights: Weights
    limit_bytes: float
    positions: list[int] = field(default_factory=list)
    planes: list[Costs] = field(default_factory=list)
    _alive: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def n_numbers(self) -> int:
        """Numbers in the linear programme of `highest`."""
        return len(self.planes) * (len(self.positions) + self.weights.count)

    def start(self, seconds_left: float) -> MemoryPrices:
        """No price on memory, and weights for the plans known so far; none where none is known."""
        highest = self.highest(0.0, seconds_left) if self.weights.count and self.planes else None
        return (
            MemoryPrices((), np.zeros(0), np.zeros(self.weights.count))
            if highest is None
            else highest[0]
        )

    def full_weights(self, prices: MemoryPrices) -> tuple[np.ndarray, float]:
        """The weight of every feature, and the constant that belongs to them."""
        weights = np.zeros(self.features.count)
        if prices.counts_seconds:
            weights[: self.features.shapes] = self.weights.by_feature(prices.z)
        # l_p excess_p = l_p (bytes_p / limit - 1): bytes are weighted features, the rest is the
        # constant.
        for position, price in zip(prices.positions, prices.by_position):
            if price > 0:
                weights[self.features.shapes :] += price / self.limit_bytes * self.alive(position)
        return weights, -float(prices.by_position.sum())

    def alive(self, position: int) -> np.ndarray:
        """The weight of each feature of memory in the bytes at a position."""
        # The schedule is the same for all plans, and a position is asked about in every round.
        if position not in self._alive:
            shapes, copies, kept = self.evaluator.memory_timeline.at(position)
            repeat_weights = np.zeros(self.features.count - self.features.kept)
            repeat_weights[: len(kept)] = kept
            self._alive[position] = np.concatenate([shapes, copies, repeat_weights])
        return self._alive[position]

    def solve(
        self,
        factored: Factored,
        prices: MemoryPrices,
        order: Sequence[int],
        check_time: Callable[[], None],
    ) -> "Solved":
        """q at some prices; `check_time` is called many times, and may raise."""
        weights, constant = self.full_weights(prices)
        elimination = Elimination(
            factored.tables(weights), factored.variables.sizes, order, check_time
        )
        return Solved(prices, elimination, constant)

    def add(self, plane: Costs) -> None:
        """Learn from a plan."""
        self.planes.append(plane)
        # One position more for each plan: the others are priced if they stay overfull once this one
        # is not.
        worst = int(plane.excess.argmax())
        if plane.excess[worst] > 0 and worst not in self.positions:
            self.positions.append(worst)

    def highest(
        self, scale_seconds: float, seconds_left: float
    ) -> tuple[MemoryPrices, float] | None:
        """The prices where the lowest of the planes is highest, and how high that is.

        None if that is not found in `seconds_left`.
        """
        n_prices, n_free = len(self.positions), self.weights.count
        # The linear programme: its numbers are the height, then the prices, then the free weights
        # z. Each plane is a row that says: height - prices . excess - z . seconds <= fixed seconds.
        fixed = np.array([plane.seconds @ self.weights.base for plane in self.planes])
        rows = [
            np.concatenate([[1.0], -plane.excess[self.positions], -self._by_number(plane)])
            for plane in self.planes
        ]
        padding = sparse.csr_matrix((len(self.weights.most), 1 + n_prices))
        matrix = (
            sparse.vstack([np.array(rows), sparse.hstack([padding, self.weights.matrix])])
            if n_free
            else np.array(rows)
        )
        # Prices have a ceiling, or the height would be infinite as long as no plane fits.
        bounds = [(None, None), *[(0, _DEAREST * scale_seconds)] * n_prices, *[(0, 1)] * n_free]
        solution = scipy.optimize.linprog(
            # `linprog` minimises, and the height is to be the greatest.
            np.concatenate([[-1.0], np.zeros(n_prices + n_free)]),
            A_ub=matrix,
            b_ub=np.concatenate([fixed, self.weights.most]),
            bounds=bounds,
            options={"time_limit": max(seconds_left, _LEAST_SECONDS)},
        )
        if solution.x is None:
            return None
        prices = MemoryPrices(
            tuple(self.positions), solution.x[1 : 1 + n_prices], solution.x[1 + n_prices :]
        )
        return prices, float(solution.x[0])

    def _by_number(self, plane: Costs) -> np.ndarray:
        if not self.weights.count:
            return np.zeros(0)
        return np.bincount(self.weights.which, plane.seconds, self.weights.count)


@dataclass(frozen=True)
class Solved:
    """q at some prices, with what elimination knows there."""

    prices: MemoryPrices
    elimination: Elimination
    constant: float

    @property
    def bound(self) -> float:
        """q, or less."""
        return self.elimination.bound + self.constant

    def marginals(self) -> list[np.ndarray]:
        """For each variable a bound by its choice."""
        return [bounds + self.constant for bounds in self.elimination.marginals()]


def between(first: MemoryPrices, second: MemoryPrices, share: float) -> MemoryPrices:
    """A `share` of the way from one to the other; `second` has all the positions of `first`."""
    # Positions that the first one does not know have no price there.
    prices_of_first = np.zeros(len(second.positions))
    prices_of_first[: len(first.positions)] = first.by_position
    return MemoryPrices(
        second.positions,
        prices_of_first + share * (second.by_position - prices_of_first),
        first.z + share * (second.z - first.z),
    )


def order_on_mesh(factored: Factored) -> tuple[int, ...]:
    """The order of elimination on a mesh."""
    scopes = [*(term.scope for term in factored.terms), *(b.scope for b in factored.barriers)]
    return elimination_order(scopes, factored.variables.sizes)
