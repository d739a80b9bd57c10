"""Trace files, read back."""

from hypothesis import given
import pytest

from automap.errors import PlanError
from automap.simulate.spmd import COMPUTE, simulate_spmd
from automap.simulate.trace import Event, Lane, save_trace, trace
from tests.automap.simulate.regions import regions


def events(program, device=0):
    """What a simulated program does, task by task, under invented names."""
    simulated = simulate_spmd(program, "cuda")
    times = zip(simulated.timeline.start_seconds, simulated.tasks.seconds, strict=True)
    for lane, (start, seconds) in zip(simulated.tasks.resource, times, strict=True):
        name = "compute" if lane == COMPUTE else "link"
        yield Event(
            lane=Lane(device=device, name=name),
            name=f"a task of the {name}",
            category="forward",
            start_seconds=float(start),
            seconds=float(seconds),
            details={"device": device},
        )


@given(regions())
def test_a_trace_holds_every_task_once_and_no_two_at_a_time(program):
    both = [*events(program, device=0), *events(program, device=3)]
    rows = trace(both, device_names={3: "a processor"})["traceEvents"]
    tasks = [row for row in rows if row["ph"] == "X"]
    assert sorted(row["args"]["seconds"] for row in tasks) == sorted(e.seconds for e in both)
    assert all(row["dur"] == row["args"]["seconds"] * 1e6 for row in tasks)
    assert all(row["pid"] == row["args"]["device"] for row in tasks)
    lanes = {}
    for row in tasks:
        lanes.setdefault((row["pid"], row["tid"]), []).append(row["args"])
    named = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    assert lanes.keys() == named.keys()
    for lane in lanes.values():
        ends = [task["start_seconds"] + task["seconds"] for task in lane]
        assert all(task["start_seconds"] >= end for task, end in zip(lane[1:], ends))


def test_devices_have_names_and_an_order():
    lanes = [Lane(device=device, name="compute") for device in (10, 2)]
    tasks = [Event(lane=x, name="", category="", start_seconds=0.0, seconds=1.0) for x in lanes]
    rows = trace(tasks, device_names={2: "a processor"})["traceEvents"]
    named = {r["pid"]: r["args"] for r in rows if r["name"] == "process_name"}
    assert named == {2: {"name": "a processor"}, 10: {"name": "device 10"}}
    places = {r["pid"]: r["args"]["sort_index"] for r in rows if r["name"] == "process_sort_index"}
    assert places[2] < places[10]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PlanError, match="cannot be written"):
        save_trace(tmp_path / "missing" / "trace.json", [])
