"""What came of running a plan, as text: the seconds beside the prediction, and the numbers."""

from automap.quantities import seconds_text
from automap.report.verification import numerics_lines
from automap.verify.applied import AppliedRecord


def applied_report(record: AppliedRecord) -> str:
    """Everything, for people."""
    measured, predicted = record.step_seconds, record.predicted_step_seconds
    beside = f"{seconds_text(predicted)} predicted for {record.topology}"
    lines = [
        f"{record.target}: {record.steps} steps as planned on {record.devices} x {record.kind}",
        f"step: {seconds_text(measured)} here, {beside}"
        + (
            f" ({predicted / measured - 1:+.1%})"
            if record.is_planned_kind
            else "; these are other devices, which say nothing of that"
        ),
    ]
    if record.numerics is None:
        lines.append("numerics: not compared")
    else:
        lines += numerics_lines(record.numerics)
    return "\n".join(lines) + "\n"
