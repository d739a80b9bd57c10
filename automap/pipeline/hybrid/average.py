"""A stage of average size: what inner plans are judged by before there are any cuts.

Of S stages it has 1 / S of all seconds and bytes. The stages in front keep the most microbatches,
so a device has room if the average stage has it with as many as the schedule allows.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from automap.cost.evaluate import Estimate, Evaluator
from automap.pipeline.hybrid.pricing import Costs, InnerPlan, Pricer
from automap.space.point import Point, SplitClasses


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """For which pipeline inner plans are chosen: S stages, M microbatches, of which a stage keeps
    `in_flight`.
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
    kept_bytes: float
    working_bytes: float

    def peak_bytes(self, setting: Setting) -> float:
        """Bytes of a device."""
        return self.state_bytes + setting.in_flight * self.kept_bytes + self.working_bytes

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
        kept_bytes=share * costs.held.kept.total_bytes / m,
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
        point = Point(split_classes.mesh, split_classes.classes, ())
        inner = InnerPlan(self.topology.device_count, point, split_classes, "search")
        found = totals(self.pricer.costs(inner, setting.microbatches), setting)
        return Estimate(
            compute_seconds=found.step_seconds(setting),
            collective_seconds=0.0,
            hidden_seconds=0.0,
            peak_bytes=found.peak_bytes(setting),
        )
