"""The tasks of a plan's step as events of a trace: what each is, and where in the user's code it
comes from.
"""

from collections.abc import Iterator
from typing import Any

from automap.plan.program import ProgramRecord
from automap.simulate.spmd import LINK, Run, SpmdTimeline
from automap.simulate.trace import Event, Lane


_LANES = {LINK: Lane(device=0, name="link: collectives")}
_COMPUTE = Lane(device=0, name="compute")


def spmd_events(record: ProgramRecord, simulated: SpmdTimeline) -> Iterator[Event]:
    """One event per task run, in their order; `trips` says for how many runs one stands."""
    named: dict[int, tuple[str, dict[str, Any]]] = {}
    times = zip(
        simulated.timeline.start_seconds.tolist(), simulated.tasks.seconds.tolist(), strict=True
    )
    lanes = simulated.tasks.resource.tolist()
    for run, lane, (start, seconds) in zip(simulated.runs, lanes, times, strict=True):
        task = run.node.number
        if task not in named:
            named[task] = _named(record, task)
        name, details = named[task]
        yield Event(
            lane=_LANES.get(lane, _COMPUTE),
            name=name,
            category=details["phase"],
            start_seconds=start,
            seconds=seconds,
            details={**details, **_trips(run)},
        )


def _named(record: ProgramRecord, task: int) -> tuple[str, dict[str, Any]]:
    """Name and details of a task."""
    text = record.text(task)
    origin = {"op_name": text.op_name, "source": text.source, "phase": text.phase}
    if record.kind[task] in ("collective", "urgent"):
        details = {
            "kind": text.op,
            "axes": text.axes.split("+"),
            "bytes": record.bytes[task],
            "tensor": text.tensor,
        }
        return f"{text.op} over {text.axes}", details | origin
    details = {"opcode": text.op, "result": text.tensor}
    return f"{text.op} {text.op_name}".strip(), details | origin


def _trips(run: Run) -> dict[str, Any]:
    return {"trip": list(run.trip), "trips": run.trips} if run.trip else {"trips": run.trips}
