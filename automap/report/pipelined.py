"""A simulated pipeline as text: the step beside the plan's prediction, and what each stage does and
waits for.
"""

from collections.abc import Iterator

from automap.pipeline.simulation import PipelineSimulationRecord, StageRow
from automap.plan.pipeline import device_names
from automap.quantities import bytes_text, seconds_text


def report(record: PipelineSimulationRecord) -> str:
    """Everything, for people."""
    lines = [*_parts(record)]
    for row in record.stages:
        lines += _stage(row, record.step_seconds)
    if record.warnings:
        lines += ["warnings:", *(f"  {warning}" for warning in record.warnings)]
    return "\n".join(lines) + "\n"


def _parts(record: PipelineSimulationRecord) -> Iterator[str]:
    step, predicted = record.step_seconds, record.predicted_seconds
    yield (
        f"{record.target} on {record.topology}, pipeline of {len(record.stages)} stages, "
        f"{record.microbatches} microbatches, "
        f"schedule {record.schedule}: {len(record.events)} tasks"
    )
    # Adding zero makes -0.0 positive.
    change = f" ({round(step / predicted - 1, 3) + 0.0:+.1%})" if predicted else ""
    yield f"simulated step {seconds_text(step)}, predicted {seconds_text(predicted)}{change}"
    yield (
        f"  bubble {record.bubble_fraction:.1%} of the step, the mean over devices: "
        f"{seconds_text(record.bubble_fraction * step)}"
    )


def _stage(row: StageRow, step_seconds: float) -> Iterator[str]:
    def with_share(seconds: float) -> str:
        return f"{seconds_text(seconds)} ({seconds / step_seconds if step_seconds else 0.0:.1%})"

    yield f"  stage {row.stage} on {device_names(row.devices)}: {row.layers}"
    yield (
        f"    busy {with_share(row.busy_seconds)}: forward {seconds_text(row.forward_seconds)}, "
        "backward "
        f"{seconds_text(row.backward_seconds)}, all-reduce and update "
        f"{seconds_text(row.reduce_seconds)}"
    )
    yield (
        f"    waits {with_share(row.idle_seconds)}: for other stages "
        f"{seconds_text(row.stage_wait_seconds)}, for "
        f"transfers {seconds_text(row.transfer_wait_seconds)}, at the end "
        f"{seconds_text(row.end_wait_seconds)}"
    )
    if row.sends:
        yield (
            f"    sends {bytes_text(row.sent_bytes)} to stage {row.stage + 1} in {row.sends} "
            "transfers, and as much comes "
            f"back; link busy {with_share(row.link_seconds)} each way"
        )
