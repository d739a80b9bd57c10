"""`exact`: the best plan with a proof, or the best known with a proven lower bound.

    bound = min(step of the best plan, min over meshes of bound(mesh))

Every mesh is first bounded without regard to memory; then they are worked on in the order of those
bounds, as long as theirs are below the best step known. Where collectives run beside kernels bounds
are not met by plans, so there greedy search makes better ones of the best so far. The bound stands
at every moment, also when time is up.

Of meshes that hold the same plans one is worked on -> in: `SearchContext.distinct_meshes`

One mesh: its bound is raised, and its plans tried, until the best plan known is proven or nothing
helps any more                                                              -> in: `MeshSearch`

1. tables over at most `_FEW_CHOICES` joint choices; larger ones are left out, and count as nothing
2. bounds and plans by prices on memory                           -> in: `automap.search.exact.dual`
3. choices whose marginal is no better than the best plan known are dropped
4. if that made room, or tables were left out: again from 1 with what is left, and larger tables
5. an integer programme of what is left                      -> in: `automap.search.exact.programme`
"""

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from automap.search.context import EQUAL, OutOfBudget, SearchContext
from automap.search.exact.dual import Dual, MemoryPrices, Solved, between, costs, order_on_mesh
from automap.search.exact.overlap import bounding_weights
from automap.search.exact.programme import MOST_ENTRIES, Programme
from automap.search.factored.cells import Rows
from automap.search.factored.model import Factored, Model
from automap.search.factored.variables import Variables, mesh_variables
from automap.search.greedy import climb, greedy, starts
from automap.space.point import Point


# Joint choices of a table at first and at most, and how many times more in each round.
_FEW_CHOICES, _MANY_CHOICES, _MORE = 1 << 17, 1 << 24, 8
# Rounds of prices, rounds in a row that raise the bound by less than `_PROGRESS` of it.
_MOST_ROUNDS, _MOST_STALLED, _PROGRESS = 60, 6, 1e-5
_LEAST_SECONDS = 1e-9
# Nominal seconds of an entry in an elimination, and of the highest prices, with those of each
# number of their linear programme: four models on 2 cores, 2026-11.
_SECONDS_PER_ENTRY, _SECONDS_PER_PRICES, _SECONDS_PER_NUMBER = 3e-8, 1e-2, 2e-6


@dataclass
class MeshSearch:
    """A mesh whose `bound_seconds` is at most the step of any of its plans that fits and beats the
    best known.
    """

    context: SearchContext
    model: Model
    dual: Dual
    variables: Variables
    most_choices: float = _FEW_CHOICES
    bound_seconds: float = 0.0
    factored: Factored | None = None
    best: Solved | None = None
    fitting: list[np.ndarray] = field(default_factory=list)
    _tried: set[Point] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left out of the tables."""
        return self.factored is not None and self.factored.is_complete

    @property
    def is_proven(self) -> bool:
        """Whether nothing better than the best plan known is left here."""
        return self.bound_seconds >= self.context.fitting_seconds * (1 - EQUAL)

    def first_bound(self) -> Solved:
        """A bound without prices on memory, and a plan."""
        factored = self.tables()
        # Weights are chosen for plans, so there has to be one.
        if self.dual.weights.count and not self.dual.planes:
            self._try_point(self.context.empty(self.variables.mesh))
        self.best = self._solve(self.dual.start(self.context.seconds_left), order_on_mesh(factored))
        self._raise(self.best.bound)
        return self.best

    def _solve(self, prices: MemoryPrices, order: tuple[int, ...]) -> Solved:
        solved = self.dual.solve(self.tables(), prices, order, self.context.check_time)
        self.context.spend(_SECONDS_PER_ENTRY * solved.elimination.n_entries)
        return solved

    def tables(self) -> Factored:
        """The tables of what is left."""
        if self.factored is None:
            self.factored = self.model.on_mesh(self.variables, self.most_choices)
        return self.factored

    def run(self) -> None:
        """Raise the bound and try plans until nothing helps."""
        while not self.is_proven:
            self.price_memory()
            if self.is_proven:
                break
            if not self.narrow():
                break

    def price_memory(self) -> None:
        """Raise the bound by prices on memory, and by other weights."""
        order = order_on_mesh(self.tables())
        best = self.best or self.first_bound()
        # The first bound gives the unit of prices: they are limited to a multiple of it.
        scale, stalled = max(best.bound, _LEAST_SECONDS), 0
        self._try(best.elimination.assignment())
        for _ in range(_MOST_ROUNDS):
            if self.is_proven or stalled > _MOST_STALLED:
                break
            self.context.spend(_SECONDS_PER_PRICES + _SECONDS_PER_NUMBER * self.dual.n_numbers)
            sought = self._highest(scale)
            # The planes bound q from above: where they are no higher than what is proven nothing is
            # left to gain.
            if sought is None or sought[1] <= best.bound + EQUAL * scale:
                break
            highest, _ = sought
            # All of the way at first. A new plane cuts off overshoot, so after a round without
            # progress half of the way is tried, and so on.
            prices = between(best.prices, highest, 0.5**stalled)
            if prices.equals(best.prices):
                break
            solved = self._solve(prices, order)
            self._try(solved.elimination.assignment())
            stalled = 0 if solved.bound > best.bound + _PROGRESS * scale else stalled + 1
            if solved.bound > best.bound:
                best = solved
            self._raise(solved.bound)
        self.best = best
        self._drop_unfit_choices(order)

    def _highest(self, scale_seconds: float) -> tuple[MemoryPrices, float] | None:
        if not self.dual.planes:
            return None
        return self.dual.highest(scale_seconds, self.context.seconds_left)

    def _drop_unfit_choices(self, order: tuple[int, ...]) -> None:
        """Find choices with which no plan fits, whatever its seconds, at the prices of memory
        found.
        """
        if self.best is None or not self.best.prices.by_position.any():
            return
        # q without seconds is at most 0 for a plan that fits: its weighted excesses are.
        least = self._solve(replace(self.best.prices, counts_seconds=False), order)
        # Rounding of sums must not rule out a plan that fills the memory exactly.
        room = EQUAL * float(self.best.prices.by_position.sum())
        self.fitting = [excess <= room for excess in least.marginals()]
        # Nothing fits at all, so nothing here can beat any plan.
        if least.bound > room:
            self._raise(np.inf)

    def narrow(self) -> bool:
        """Drop choices that cannot beat the best plan known; whether that, or larger tables, may
        raise the bound.
        """
        if self.best is None or self.factored is None:
            return False
        self.context.spend(_SECONDS_PER_ENTRY * self.best.elimination.n_entries)
        # A choice whose marginal is no better than the best plan known is in no plan that is
        # better.
        most = self.context.fitting_seconds * (1 - EQUAL)
        kept = [bound < most for bound in self.best.marginals()]
        if self.fitting:
            kept = [choices & fits for choices, fits in zip(kept, self.fitting, strict=True)]
        # A variable without a choice: no plan of this mesh beats the best one known.
        if not all(choices.any() for choices in kept):
            self._raise(self.context.fitting_seconds)
            return False
        before, is_complete = prod(self.variables.sizes), self.is_complete
        variables = self.variables.where(kept)
        # Tables of fewer choices are smaller, so larger ones have room; without that only a higher
        # limit may help.
        is_smaller = 2 * prod(variables.sizes) <= before
        if not is_smaller:
            if is_complete or self.most_choices >= _MANY_CHOICES:
                return False
            self.most_choices *= _MORE
        self.variables, self.factored, self.best, self.fitting = variables, None, None, []
        return True

    def programme(self) -> None:
        """Solve what is left as an integer programme, if it is small enough.

        Not where weights are free: the bound for given ones is met already, and no plan meets it.
        """
        factored, best = self.factored, self.best
        if factored is None or best is None or self.dual.weights.count or self.is_proven:
            return
        # Memory is no price in the programme but a row for each position.
        seconds = MemoryPrices((), np.zeros(0), best.prices.z)
        programme = Programme(factored, self.dual.full_weights(seconds)[0])
        if programme.n_entries > MOST_ENTRIES:
            return
        # Positions that have a row already.
        positions = set[int]()
        while not self.is_proven:
            for position in sorted(set(self.dual.positions) - positions):
                weights = np.zeros(self.model.features.count)
                alive = self.dual.alive(position) / self.context.objective.memory_limit_bytes
                weights[self.model.features.shapes :] = alive
                programme.limit(weights)
            positions.update(self.dual.positions)
            if programme.first_seconds > self.context.work_left_seconds:
                return
            solution = programme.solve(self.context.seconds_left, self.context.work_left_seconds)
            self._raise(solution.bound)
            if solution.assignment is not None:
                self._try(solution.assignment)
            # Time or work is over: the bound stands, and the search ends with it.
            if not solution.is_done:
                raise OutOfBudget
            self.context.spend(solution.nominal_seconds)
            if solution.assignment is None:
                return
            # The solution overfills no new position, and still was not the proof: it is invalid for
            # another reason, or tables that were left out make it slower than the programme says.
            if not set(self.dual.positions) - positions:
                if self.is_proven or not factored.is_complete:
                    return
                programme.leave_out(solution.assignment)

    def _raise(self, bound_seconds: float) -> None:
        self.bound_seconds = max(self.bound_seconds, bound_seconds)

    def _try(self, assignment: list[int]) -> None:
        self._try_point(self.variables.point(assignment))

    def _try_point(self, point: Point) -> None:
        """Price a plan, and learn from it."""
        context = self.context
        if point in self._tried or not context.space.is_valid(point):
            return
        self._tried.add(point)
        if context.evaluate(point, "exact") is not None:
            limit = context.objective.memory_limit_bytes
            split_classes = context.space.split_classes(point)
            self.dual.add(costs(context.evaluator, self.model.features, split_classes, limit))


def exact(context: SearchContext) -> None:
    """Prove the best plan of all meshes, or bound it."""
    model = Model(Rows(context.space, context.evaluator), context.pins, context.spend)
    weights = bounding_weights(context.evaluator, model.features)
    limit = context.objective.memory_limit_bytes
    searches = [
        MeshSearch(
            context,
            model,
            Dual(context.evaluator, model.features, weights, limit),
            mesh_variables(context.space, mesh),
            # No step is shorter than its program's beginning, whatever its kernels add up to.
            bound_seconds=context.evaluator.backend.launch_gap_seconds,
        )
        # Fewer axes first: their tables are small, so that some bound is there early.
        for mesh in sorted(context.distinct_meshes, key=lambda mesh: len(mesh.sizes))
    ]
    try:
        # Presets and empty points, so that there is a plan to return, and a step to beat.
        starts(context)
        for search in searches:
            context.check_time()
            search.first_bound()
        # Where collectives hide behind kernels the plans of elimination are not the best ones.
        if weights.count and context.best is not None:
            climb(context, context.best)
        # The mesh of the lowest bound may have the best plan, which then proves others by being
        # better.
        for search in sorted(searches, key=lambda s: (not s.is_complete, s.bound_seconds)):
            search.run()
        for search in searches:
            search.programme()
        if not all(search.is_proven for search in searches):
            greedy(context)
    finally:
        # Also when the budget is over: what was proven until then holds.
        context.raise_bound(min((search.bound_seconds for search in searches), default=np.inf))
