"""`mcmc`: Metropolis walks over the points of all meshes (FlexFlow, section 6.2), from many starts.

    E(x) = log step(x) + w max(0, log(peak(x) / limit))                                 -> in: `_Walker.energy`

A point that does not fit has a price, so that a walk may pass through it; w doubles with every
`_PATIENCE` proposals since the walk last fitted, so that it is led back, however much slower what
fits may be.

    starts    each preset on its best mesh, the best empty point, random points               -> in: `_starts`
    proposal  random moves, or with chance `_CARRIES` the decisions on another mesh  -> `automap.search.proposals`
    length    in proportion to the number of decisions, not of seconds                         -> in: `walked`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import math
import random

from automap.search.candidate import Candidate
from automap.search.context import LEAST_SECONDS, SearchContext, preset_points
from automap.search.greedy import random_point
from automap.search.metropolis import Patience, walk
from automap.search.proposals import carried, changed, decisions
from automap.space.point import Point


# At 100 a step that is 1 % longer is accepted with chance 1/e. FlexFlow keeps one beta; here starts
# take turns.
_BETAS = (100.0, 30.0, 300.0)
_CARRIES = 0.05
_RANDOM_STARTS = 4
_LEAST_PER_DECISION, _MOST_PER_DECISION, _MOST_PROPOSALS = 10, 40, 4_000
_MEMORY_WEIGHT, _PATIENCE, _MOST_DOUBLINGS = 4.0, 50, 10


def mcmc(context: SearchContext) -> None:
    """Walk from every preset, from nothing and from random points."""
    source = random.Random(context.seed)
    walked(context, list(_starts(context, source)), source)


def walked(context: SearchContext, starts: Sequence[Candidate], source: random.Random) -> None:
    """Walk from each start until nothing better is found for half of the walk."""
    places = max((decisions(context.space, mesh) for mesh in context.meshes), default=0)
    for number, start in enumerate(starts):
        walker = _Walker(context, source)
        patience = Patience(
            least=min(_LEAST_PER_DECISION * places, _MOST_PROPOSALS),
            most=min(_MOST_PER_DECISION * places, _MOST_PROPOSALS),
        )
        beta = _BETAS[number % len(_BETAS)]
        for candidate in walk(start, walker.energy, walker.propose, beta, source):
            walker.follow(candidate)
            patience.record(context.objective.key(candidate.estimate))
            if patience.is_spent:
                break


def _starts(context: SearchContext, source: random.Random) -> Iterator[Candidate]:
    """The best point of each preset and the best empty one, and random points."""
    kinds: dict[str, list[Point]] = {}
    for name, point in preset_points(context):
        kinds.setdefault(name, []).append(point)
    kinds["empty"] = [context.empty(mesh) for mesh in context.meshes]
    # Pins may leave no mesh.
    for number in range(_RANDOM_STARTS if context.meshes else 0):
        mesh = source.choice(context.meshes)
        kinds[f"random {number}"] = [random_point(context, mesh, source)]
    for points in kinds.values():
        found = (context.evaluate(context.pinned.nearest(point), "mcmc") for point in points)
        allowed = [candidate for candidate in found if candidate is not None]
        if allowed:
            yield min(allowed, key=lambda candidate: context.objective.key(candidate.estimate))


@dataclass
class _Walker:
    """One walk's proposals and energies; `outside` counts the proposals since it last fitted."""

    context: SearchContext
    source: random.Random
    outside: int = 0

    def follow(self, candidate: Candidate) -> None:
        """The walk is now here."""
        self.outside = 0 if self.context.objective.fits(candidate.estimate) else self.outside + 1

    def energy(self, candidate: Candidate) -> float:
        """The logarithm of a step's seconds, and a price for memory beyond the limit."""
        estimate = candidate.estimate
        excess = estimate.peak_bytes / self.context.objective.memory_limit_bytes
        weight = _MEMORY_WEIGHT * 2.0 ** min(self.outside // _PATIENCE, _MOST_DOUBLINGS)
        seconds = max(estimate.step_seconds, LEAST_SECONDS)
        return math.log(seconds) + weight * math.log(max(1.0, excess))

    def propose(self, candidate: Candidate) -> Candidate | None:
        """Another point, priced; None if it is not allowed."""
        context, source = self.context, self.source
        if len(context.meshes) > 1 and source.random() < _CARRIES:
            mesh = source.choice(context.meshes)
            point = carried(context.space, candidate.point, mesh, source)
        else:
            point = changed(context.space, candidate.point, source)
        return context.evaluate(context.pinned.imposed(point), "mcmc")
