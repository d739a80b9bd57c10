"""Trace files, read back."""

import json

import numpy as np
import pytest

from automap.errors import PlanError
from automap.simulate.operators.configuration import random_configuration
from automap.simulate.operators.events import events_of
from automap.simulate.operators.simulator import Simulator
from automap.simulate.trace import save_trace
from tests.automap.simulate.operators.cases import random_graph, random_network


@pytest.fixture(scope="module")
def simulator():
    rng = np.random.default_rng(0)
    graph = random_graph(0)
    configurations = [random_configuration(o, 4, rng) for o in graph.operators]
    return Simulator(graph, random_network(0, 4), configurations)


def test_a_trace_holds_every_task_once_and_no_two_at_a_time(simulator, tmp_path):
    path = tmp_path / "trace.json"
    save_trace(path, events_of(simulator))
    rows = json.loads(path.read_text())["traceEvents"]
    tasks = [row for row in rows if row["ph"] == "X"]
    named = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    lanes = {}
    for row in tasks:
        lanes.setdefault((row["pid"], row["tid"]), []).append(row["args"])
    assert lanes.keys() == named.keys()
    assert {name.split(" to ")[0] for name in named.values()} == {"compute", "link"}
    for lane in lanes.values():
        ends = [task["start_seconds"] + task["seconds"] for task in lane]
        assert all(task["start_seconds"] >= end for task, end in zip(lane[1:], ends))
    found = simulator.placement()
    assert len(tasks) == len(found.ident)
    wanted = sorted((found.end_seconds - found.start_seconds).tolist())
    assert sorted(row["args"]["seconds"] for row in tasks) == wanted
    assert all(row["dur"] == row["args"]["seconds"] * 1e6 for row in tasks)
    ends = [row["args"]["start_seconds"] + row["args"]["seconds"] for row in tasks]
    assert max(ends) == simulator.makespan_seconds


def test_tasks_say_what_they_are(simulator):
    events = list(events_of(simulator))
    categories = {event.category for event in events}
    assert categories == {"forward", "all-reduce", "transfer", "transfer for the next step"}
    for event in events:
        source = event.details.get("operator", event.details.get("from_operator"))
        assert event.lane.device in simulator.configurations[source].devices


def test_a_folder_that_is_not_there_is_refused(simulator, tmp_path):
    with pytest.raises(PlanError, match="cannot be written"):
        save_trace(tmp_path / "missing" / "trace.json", events_of(simulator))
