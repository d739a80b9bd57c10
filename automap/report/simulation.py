"""A simulation as text: the step beside the plan's prediction, its parts, and the longest of
everything.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from automap.quantities import bytes_text, seconds_text
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
    yield f"{record.target} on {record.topology}, mesh {mesh}: one device of all, {len(record.events)} tasks"
    # Adding zero makes -0.0 positive.
    change = f" ({round(step / predicted - 1, 3) + 0.0:+.1%})" if predicted else ""
    yield f"simulated step {seconds_text(step)}, predicted {seconds_text(predicted)}{change}"
    yield f"  compute busy {seconds_text(record.compute_seconds)}{_share(record.compute_seconds, step)}"
    yield (
        f"  link busy {seconds_text(record.collective_seconds)}{_share(record.collective_seconds, step)}: "
        f"exposed {seconds_text(record.exposed_seconds)}{_share(record.exposed_seconds, step)}, "
        "hidden "
        f"{seconds_text(record.hidden_seconds)}"
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
    for row, text in zip(rows, shown, strict=False):
        yield f"  {seconds_text(row.seconds)}{_share(row.seconds, record.step_seconds)} {text}"
        yield f"    {row.op_name}" + (f" at {_source(row.source)}" if row.source else "")
    if len(rows) > len(shown):
        rest = sum(row.seconds for row in rows[len(shown) :])
        yield f"  {seconds_text(rest)}{_share(rest, record.step_seconds)} {len(rows) - len(shown)} more"


def _warnings(record: SimulationRecord) -> Iterator[str]:
    if record.warnings:
        yield "warnings:"
    for warning in record.warnings:
        yield f"  {warning}"


def _op(row: OpRow) -> str:
    return f"{row.phase} {row.opcode} {row.result}, {_runs(row.runs)}"


def _collective(row: CollectiveRow) -> str:
    return (
        f"{row.phase} {row.kind} over {'+'.join(row.axes)} of {row.tensor}, {_runs(row.runs)}, "
        f"{bytes_text(round(row.bytes))}, exposed {seconds_text(row.exposed_seconds)}"
    )


def _runs(runs: float) -> str:
    return f"{runs:.0f} run{'' if round(runs) == 1 else 's'}"


def _source(source: str) -> str:
    return source.removeprefix(f"{Path.cwd()}/")


def _share(seconds: float, step_seconds: float) -> str:
    return f" ({seconds / step_seconds:.1%})" if step_seconds else ""
