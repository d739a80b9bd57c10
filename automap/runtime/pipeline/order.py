"""The order of a pipeline's passes: that of the simulation which its plan predicts the step by."""

from automap.pipeline.schedules import Job
from automap.pipeline.simulation import simulated_step
from automap.plan.pipeline import PipelineRecord


def simulated_order(record: PipelineRecord) -> tuple[Job, ...]:
    """Forward and backward passes in the order in which the simulation starts them."""
    found = simulated_step(record)
    passes = [n for n, job in enumerate(found.jobs) if job.kind in ("forward", "backward")]
    passes.sort(key=lambda n: (found.timeline.start_seconds[n], n))
    return tuple(found.jobs[n] for n in passes)


def forward_order(record: PipelineRecord) -> tuple[Job, ...]:
    """The forward passes of a loop without a backward pass, one microbatch after another."""
    return tuple(
        Job("forward", s, m) for m in range(record.microbatches) for s in range(len(record.stages))
    )
