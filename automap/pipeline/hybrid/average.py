"""A stage of average size: what inner plans are judged by before there are any cuts.

Of S stages it has 1 / S of all seconds and bytes. The stages in front save the most microbatches,
so a device has room if the average stage has it with as many as the schedule allows.

Of the candidates those are chosen that no other one beats in seconds, bytes, and what it sends, of
these at most `MOST_CHOSEN` of each number of devices: the fastest, the smallest, and between them
the best trades                                                             -> in: `choose_best`
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from automap.cost.evaluate import Estimate, Evaluator
from automap.pipeline.hybrid.pricing import Costs, InnerPlan, Pricer
from automap.space.point import Point, SplitClasses


# An inner plan is one more kind of stage for the exact solver, whose time grows with pairs of
# kinds.
MOST_CHOSEN: Final = 8
# What bytes weigh beside seconds, as shares of the greatest: from seconds alone to bytes alone.
_TRADES: Final = (0.0, 0.02, 0.1, 0.3, 1.0, 3.0, 10.0, 1e6)
# Relative: inner plans that differ by no more in every number are taken to be one.
_ALIKE: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """For which pipeline inner plans are chosen: S stages, M microbatches, of which a stage
    has `in_flight` in flight.
    """

    stages: int
    microbatches: int
    in_flight: int
    memory_limit_bytes: float


@dataclass(frozen=True)
class Totals:
    """An average stage: seconds of a microbatch and after the last one, bytes of a device."""

    seconds: float
    reduce_seconds: float
    state_bytes: float
    saved_bytes: float
    working_bytes: float

    def peak_bytes(self, setting: Setting) -> float:
        """Bytes of a device."""
        return self.state_bytes + setting.in_flight * self.saved_bytes + self.working_bytes

    def step_seconds(self, setting: Setting) -> float:
        """A step of S equal stages."""
        return (setting.microbatches + setting.stages - 1) * self.seconds + self.reduce_seconds


def totals(costs: Costs, setting: Setting) -> Totals:
    """The average of S stages."""
    share, m = 1 / setting.stages, setting.microbatches
    working = costs.held.working_bytes / m + costs.gathered_bytes
    return Totals(
        seconds=share * float(costs.forward.sum() + costs.backward.sum()),
        reduce_seconds=share * (float(costs.reduce.sum()) + costs.update_seconds),
        state_bytes=share * costs.held.state.total_bytes,
        saved_bytes=share * costs.held.saved.total_bytes / m,
        working_bytes=float((working + 2 * costs.held.cut_bytes / m).max()),
    )


@dataclass(frozen=True)
class StageEvaluator(Evaluator):
    """Prices a point as the inner plan of an average stage: what a search needs of an evaluator."""

    has_parts: ClassVar[bool] = False
    pricer: Pricer = field(kw_only=True, repr=False)
    setting: Setting = field(kw_only=True)

    def evaluate(self, split_classes: SplitClasses) -> Estimate:
        """Seconds of a step of such stages, bytes of a device."""
        setting = self.setting
        if not self.pricer.may_run(split_classes, setting.microbatches):
            return Estimate(
                compute_seconds=np.inf,
                collective_seconds=0.0,
                hidden_seconds=0.0,
                peak_bytes=np.inf,
            )
        # Storage is in the classes already. A search asks for the same classes again and again: the
        # pricer remembers what they cost.
        point = Point(split_classes.mesh, split_classes.classes, ())
        inner = InnerPlan(self.topology.device_count, point, split_classes, "search")
        average = totals(self.pricer.costs(inner, setting.microbatches), setting)
        return Estimate(
            compute_seconds=average.step_seconds(setting),
            collective_seconds=0.0,
            hidden_seconds=0.0,
            peak_bytes=average.peak_bytes(setting),
        )


@dataclass(frozen=True)
class Candidate:
    """An inner plan with its costs for as many of the wanted microbatches as it can run."""

    inner: InnerPlan
    costs: Costs
    microbatches: int
    batch_parts: int
    layout_parts: int

    def column(self, setting: Setting) -> tuple[float, ...]:
        """Numbers of which less is better."""
        average = self.totals(setting)
        return (
            average.seconds,
            average.reduce_seconds,
            average.state_bytes,
            average.saved_bytes,
            average.working_bytes,
            self.batch_parts,
            -self.layout_parts,
            -self.microbatches,
        )

    def adapt(self, setting: Setting) -> Setting:
        """The setting with the microbatches that it can run."""
        in_flight = min(setting.in_flight, self.microbatches)
        return replace(setting, microbatches=self.microbatches, in_flight=in_flight)

    def totals(self, setting: Setting) -> Totals:
        """Its average stage."""
        return totals(self.costs, self.adapt(setting))

    def step_seconds(self, setting: Setting) -> float:
        """A step of average stages."""
        return self.totals(setting).step_seconds(self.adapt(setting))

    def peak_bytes(self, setting: Setting) -> float:
        """Bytes of a device of an average stage."""
        return self.totals(setting).peak_bytes(self.adapt(setting))

    def rank(self, setting: Setting) -> tuple[bool, float]:
        """Less is better: what fits by its seconds, and behind it what does not by its bytes."""
        peak_bytes = self.peak_bytes(setting)
        over = peak_bytes > setting.memory_limit_bytes
        return over, peak_bytes if over else self.step_seconds(setting)


def candidate(pricer: Pricer, inner: InnerPlan, setting: Setting) -> Candidate | None:
    """An inner plan with its costs; None if it cannot run at all."""
    m = setting.microbatches
    # The most microbatches that divide the wanted number, so that the batch divides in them too.
    allowed = [n for n in range(m, 0, -1) if m % n == 0 and pricer.may_run(inner.split_classes, n)]
    if not allowed:
        return None
    return Candidate(
        inner,
        pricer.costs(inner, allowed[0]),
        allowed[0],
        pricer.batch_parts(inner.split_classes),
        pricer.layout(inner.split_classes).n_parts,
    )


def choose_best(candidates: Sequence[Candidate], setting: Setting) -> list[InnerPlan]:
    """The inner plans to choose from, of candidates of one number of devices."""
    columns = np.array([c.column(setting) for c in candidates])
    # In lexicographic order none is beaten by a later one, so that one pass finds the Pareto set.
    alive: list[int] = []
    for row in np.lexsort(columns.T[::-1]).tolist():
        limit = columns[row] + _ALIKE * abs(columns[row])
        if not any((columns[other] <= limit).all() for other in alive):
            alive.append(row)
    if len(alive) > MOST_CHOSEN:
        seconds = np.array([candidates[r].step_seconds(setting) for r in alive])
        n_bytes = np.array([candidates[r].peak_bytes(setting) for r in alive])
        chosen: dict[int, None] = {}
        for trade in _TRADES:
            cost = seconds / seconds.min() + trade * n_bytes / n_bytes.max()
            # The best by this trade that no earlier one has taken.
            chosen.setdefault(next(r for r in np.argsort(cost).tolist() if r not in chosen))
        alive = [alive[place] for place in chosen]
    return [candidates[row].inner for row in alive]
