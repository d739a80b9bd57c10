"""The plan that users hold: the record of what was decided (`automap.plan`), which explains itself
and runs a step.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap.api.records import FromRecord
from automap.plan import diff, explain
from automap.plan.record import PlanRecord


if TYPE_CHECKING:
    from automap.runtime.run import RunningStep


class Plan(FromRecord, PlanRecord):
    """What the planner decided, what it predicts and why; frozen, explainable, JSON.

    Its attributes are the fields of the plan file: docs/reference/plan-file.md says what they mean.
    """

    __slots__ = ()

    def explain(self, what: str | None = None) -> str:
        """Why the plan is as it is, as text; with `what`, of one input or decision.

        `what` is an input's path or a decision's group, or a part of one. Raises `PlanError`
        with the closest names if there is none.
        """
        return explain.overview(self) if what is None else explain.detail(self, what)

    def report(self, path: str | Path | None = None) -> str:
        """The plan as one HTML page with pictures, written to `path` if that is given.

        The page needs no network and no other file; nothing that the plan contains can run in it.
        Raises `PlanError` if it cannot be written.
        """
        # Simulates the step, which loads what compiles loops; a plan that is only read needs none.
        from automap.report.page import report, save_report

        if path is not None:
            save_report(self, path)
        return report(self)

    def _repr_html_(self) -> str:
        """What a notebook shows of the plan."""
        from automap.report.notebook import plan_html

        return plan_html(self)

    def jit(
        self, step: Callable[..., Any], devices: Sequence[Any] | None = None, **options: Any
    ) -> "RunningStep":
        """`step` as this plan says, called like it; `options` are those of `jax.jit`.

        A step that is jitted already keeps its own options, donation included. `devices` (default:
        all that JAX sees) may be real, fake, or of an ahead-of-time topology; they are as many as
        the plan's mesh has. The result takes and returns what the step does: global arrays, sharded
        as `inputs` and `outputs` say; arguments that are sharded otherwise are moved. It also has
        `lower(*args)`, unless the plan is a pipeline or a placement.

        Raises `MeshMismatchError` for another number of devices and, at the first call, `PlanError`
        for a step or arguments that are not those of the plan, `NotSeparableError` for a pipeline
        of a step that needs all samples at once. What a step can be, and in what its arguments may
        differ from the planned ones, is in docs/how-to/steps.md.
        """
        # A plan is read and explained without tracing anything.
        from automap.runtime.run import step_under_plan
        from automap.step.step import as_step

        given = as_step(step, options, self.mesh.axes)
        return step_under_plan(self, given, devices, is_own=False)

    def diff(self, other: PlanRecord) -> str:
        """What differs from this plan to the other, as text."""
        return diff.differences(self, other)
