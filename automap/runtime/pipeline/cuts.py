"""Where a plan cuts the forward pass: places in the order of the step's equations.

    place(12)   = (12, inf)      the equation at site 12
    place(12#3) = (12, 3)        the loop at site 12, up to its third trip

A cut after a place leaves the places up to it before the cut                -> in: `Cuts.stage`
"""

from bisect import bisect_left
from dataclasses import dataclass
import math
import re

from automap.errors import PlanError
from automap.plan.pipeline import PipelineRecord


Place = tuple[int, float]
_PLACE = re.compile(r"([0-9]+)(?:#([0-9]+))?")


def parse_cut(path: str) -> Place:
    """The place of a top-level site, or of trips of a loop. Raises `PlanError` for what is none."""
    match = _PLACE.fullmatch(path)
    if match is None:
        raise PlanError(f"a stage ends after {path!r}; allowed: a site as 12, or 12#3 in a loop")
    return int(match[1]), float(match[2]) if match[2] else math.inf


@dataclass(frozen=True, slots=True)
class Cuts:
    """The last place of every stage but the last, ascending."""

    after: tuple[Place, ...]

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.after) + 1

    def stage(self, path: str) -> int:
        """The stage of an equation of the forward pass."""
        # The number of cuts before the place; at a cut itself the place is still in front of it.
        return bisect_left(self.after, parse_cut(path))

    def trips(self, site: int) -> tuple[int, ...]:
        """After which trips of the loop at a site it is cut."""
        return tuple(
            int(trip) for number, trip in self.after if number == site and trip != math.inf
        )


def plan_cuts(record: PipelineRecord, equations: int) -> Cuts:
    """The cuts of a plan for a step of as many top-level equations.

    Raises `PlanError` for cuts that are not in ascending order or not in the step.
    """
    after = tuple(parse_cut(s.cut_after) for s in record.stages if s.cut_after is not None)
    if any(number >= equations for number, _ in after) or list(after) != sorted(set(after)):
        places = ", ".join(str(s.cut_after) for s in record.stages[:-1])
        raise PlanError(
            f"stages end after {places}; allowed: ascending sites of the step, 0 to "
            f"{equations - 1}; plan again"
        )
    return Cuts(after)
