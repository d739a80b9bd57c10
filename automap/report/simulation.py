"""A simulated step as text, beside the plan's prediction.

one program    its parts, and the longest of everything        -> in: `report`
a pipeline     what each stage does, and what it waits for     -> in: `pipeline_report`
a placement    what each device does, and what it is sent      -> in: `placement_report`
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from automap.pipeline.simulation import PipelineSimulationRecord, StageRow
from automap.plan.pipeline import device_names
from automap.quantities import bytes_text, number_text, seconds_text
from automap.simulate.placed import PlacementSimulationRecord
from automap.simulate.simulation import CollectiveRow, OpRow, SimulationRecord


_SHOWN: Final = 8


def report(record: SimulationRecord) -> str:
    """Everything, for people."""
    return (
        "\n".join([*_parts(record), *_phases(record), *_longest(record), *_warnings(record)]) + "\n"
    )


def _parts(record: SimulationRecord) -> Iterator[str]:
    mesh = " x ".join(f"{name}={size}" for name, size in record.mesh) or "of one device"
    step, predicted = record.step_seconds, record.predicted_seconds
    yield (
        f"{record.target} on {record.topology}, mesh {mesh}: one device of all, "
        f"{len(record.events)} tasks"
    )
    yield _step_text(step, predicted)
    compute, link = record.compute_seconds, record.collective_seconds
    yield f"  compute busy {seconds_text(compute)}{_share(compute, step)}"
    yield (
        f"  link busy {seconds_text(link)}{_share(link, step)}: exposed "
        f"{seconds_text(record.exposed_seconds)}{_share(record.exposed_seconds, step)}, "
        f"hidden {seconds_text(record.hidden_seconds)}"
    )


def _phases(record: SimulationRecord) -> Iterator[str]:
    for row in record.phases:
        if row.compute_seconds or row.collective_seconds:
            yield (
                f"  {row.phase}: compute {seconds_text(row.compute_seconds)}, collectives "
                f"{seconds_text(row.collective_seconds)}, exposed "
                f"{seconds_text(row.exposed_seconds)}"
            )


def _longest(record: SimulationRecord) -> Iterator[str]:
    yield from _section("kernels", record.ops, [_op(row) for row in record.ops[:_SHOWN]], record)
    messages = record.collectives
    yield from _section(
        "collectives", messages, [_collective(row) for row in messages[:_SHOWN]], record
    )


def _section(
    title: str,
    rows: Sequence[OpRow | CollectiveRow],
    shown: Sequence[str],
    record: SimulationRecord,
) -> Iterator[str]:
    if rows:
        yield f"longest {title}:"
    # Fewer texts than rows: the rest are added up below.
    for row, text in zip(rows, shown, strict=False):
        yield f"  {seconds_text(row.seconds)}{_share(row.seconds, record.step_seconds)} {text}"
        yield f"    {row.op_name}" + (f" at {_source(row.source)}" if row.source else "")
    if len(rows) > len(shown):
        rest = sum(row.seconds for row in rows[len(shown) :])
        share = _share(rest, record.step_seconds)
        yield f"  {seconds_text(rest)}{share} {len(rows) - len(shown)} more"


def _warnings(record: SimulationRecord) -> Iterator[str]:
    if record.warnings:
        yield "warnings:"
    for warning in record.warnings:
        yield f"  {warning}"


def _op(row: OpRow) -> str:
    # A stage of streams has several results, and none is said.
    return f"{row.phase} {row.opcode} {row.result}".rstrip() + f", {_runs(row.runs)}"


def _collective(row: CollectiveRow) -> str:
    return (
        f"{row.phase} {row.kind} over {'+'.join(row.axes)} of {row.tensor}, {_runs(row.runs)}, "
        f"{bytes_text(round(row.bytes))}, exposed {seconds_text(row.exposed_seconds)}"
    )


def _runs(runs: float) -> str:
    # Not whole where a task of a long loop stands for several trips.
    return f"{runs:.0f} run{'' if round(runs) == 1 else 's'}"


def _source(source: str) -> str:
    # Shorter where the code is in the folder that people are in, and a path that editors open.
    return source.removeprefix(f"{Path.cwd()}/")


def _share(seconds: float, step_seconds: float) -> str:
    return f" ({seconds / step_seconds:.1%})" if step_seconds else ""


def _step_text(step_seconds: float, predicted_seconds: float) -> str:
    # Rounded before zero is added, which makes -0.0 positive: a tiny difference is "+0.0%".
    ratio = step_seconds / predicted_seconds if predicted_seconds else 0.0
    change = f" ({round(ratio - 1, 3) + 0.0:+.1%})" if predicted_seconds else ""
    return (
        f"simulated step {seconds_text(step_seconds)}, predicted "
        f"{seconds_text(predicted_seconds)}{change}"
    )


def pipeline_report(record: PipelineSimulationRecord) -> str:
    """Everything, for people."""
    lines = [*_pipeline_parts(record)]
    for row in record.stages:
        lines += _stage(row, record.step_seconds)
    if record.warnings:
        lines += ["warnings:", *(f"  {warning}" for warning in record.warnings)]
    return "\n".join(lines) + "\n"


def _pipeline_parts(record: PipelineSimulationRecord) -> Iterator[str]:
    step, predicted = record.step_seconds, record.predicted_seconds
    yield (
        f"{record.target} on {record.topology}, pipeline of "
        f"{number_text(len(record.stages), 'stage')}, "
        f"{number_text(record.microbatches, 'microbatch', 'microbatches')}, "
        f"schedule {record.schedule}: {len(record.events)} tasks"
    )
    yield _step_text(step, predicted)
    yield (
        f"  bubble {record.bubble_fraction:.1%} of the step, the mean over devices: "
        f"{seconds_text(record.bubble_fraction * step)}"
    )


def _stage(row: StageRow, step_seconds: float) -> Iterator[str]:
    def with_share(seconds: float) -> str:
        return f"{seconds_text(seconds)} ({seconds / step_seconds if step_seconds else 0.0:.1%})"

    yield f"  stage {row.stage} on {device_names(row.devices)}: {row.layers}"
    weights = f", weights {seconds_text(row.weights_seconds)}" if row.weights_seconds else ""
    yield (
        f"    busy {with_share(row.busy_seconds)}: forward {seconds_text(row.forward_seconds)}, "
        "backward "
        f"{seconds_text(row.backward_seconds)}{weights}, all-reduce and update "
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


def placement_report(record: PlacementSimulationRecord) -> str:
    """Everything, for people."""
    lines = [
        f"{record.target} on {record.topology}, operators on "
        f"{number_text(len(record.devices), 'device')}: {len(record.events)} tasks and transfers",
        _step_text(record.step_seconds, record.predicted_seconds),
        f"  {record.transfers} transfers of together {bytes_text(record.moved_bytes)}",
    ]
    for row in record.devices:
        busy = f"{seconds_text(row.busy_seconds)}{_share(row.busy_seconds, record.step_seconds)}"
        lines += [
            f"  {row.name}: {row.tasks} tasks, busy {busy}, peak {bytes_text(row.peak_bytes)}",
            f"    forward {seconds_text(row.forward_seconds)}, backward "
            f"{seconds_text(row.backward_seconds)}, update {seconds_text(row.update_seconds)}; "
            f"is sent {bytes_text(row.received_bytes)} in {row.received} transfers",
        ]
    if record.warnings:
        lines += ["warnings:", *(f"  {warning}" for warning in record.warnings)]
    return "\n".join(lines) + "\n"
