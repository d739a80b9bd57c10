"""Plans of `--space placement`: on graphs of devices, through the plan file, refused where they do
not fit.
"""

from dataclasses import replace
import json
import re
from typing import Any

import pytest

import automap
from automap.errors import InfeasiblePlanError, InputError, PlanError, TopologyError
from models import lenet


@pytest.fixture(scope="module")
def plan() -> automap.Plan:
    # So few samples that no operator is split.
    step, args = lenet.lenet_tiny(batch=2)
    return automap.plan(step, args, topology="haswell-2xk80", space="placement", strategy="exact")


def test_a_plan_has_every_equation_once_and_is_read_back(plan: automap.Plan) -> None:
    placement = plan.placement
    assert placement is not None
    numbers = [n for task in placement.tasks for n in task.numbers]
    assert len(numbers) == len(set(numbers)) > 100
    assert [device.name for device in placement.devices] == ["cpu:0", "gpu:0", "gpu:1"]
    assert automap.Plan.from_json(plan.to_json()) == plan
    assert plan.search.gap == 0.0
    assert plan.predicted.step_seconds <= min(row.step_seconds for row in plan.presets)
    starts = [task.start_seconds for task in placement.tasks]
    assert starts == sorted(starts)
    end = max(task.start_seconds + task.seconds for task in placement.tasks)
    assert end == pytest.approx(plan.predicted.step_seconds)


def test_the_text_says_the_operators_and_a_difference_the_devices(plan: automap.Plan) -> None:
    step, args = lenet.lenet_tiny(batch=2)
    other = automap.plan(step, args, topology="haswell-2xk80", space="placement", strategy="single")
    assert "placement: 5 operators on" in plan.explain()
    difference = plan.diff(other)
    assert "operators on devices" in difference
    assert ": gpu:1" in difference


def test_its_simulation_has_the_plans_seconds_and_a_trace(plan: automap.Plan, tmp_path) -> None:
    simulation = automap.simulate(plan)
    assert isinstance(simulation, automap.PlacementSimulation)
    assert simulation.step_seconds == pytest.approx(plan.predicted.step_seconds)
    assert simulation.warnings == ()
    busy = {row.name: row.busy_seconds for row in simulation.devices}
    assert plan.placement is not None
    for device in plan.placement.devices:
        assert busy.get(device.name, 0.0) == pytest.approx(device.busy_seconds)
    simulation.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tasks = [event for event in events if event["ph"] == "X" and event["cat"] != "transfer"]
    assert len(tasks) == len(plan.placement.tasks)
    assert "transfers of together" in simulation.explain()
    with pytest.raises(InputError, match="not for a placement"):
        automap.simulate(plan, topology="4xk80")


def test_a_hostile_file_is_refused(plan: automap.Plan) -> None:
    data: Any = plan.to_json()
    data["placement"]["operators"][1]["device"] = 12
    with pytest.raises(PlanError, match=r"placement.operators\[1\].device: got 12"):
        automap.Plan.from_json(data)
    data = plan.to_json()
    data["placement"]["devices"][0]["name"] = "tpu:0"
    with pytest.raises(PlanError, match="placement.devices"):
        automap.Plan.from_json(data)


@pytest.mark.parametrize("way", ["file", "Python"])
def test_what_a_hand_made_of_a_placement_is_refused_with_the_operator(
    plan: automap.Plan, way: str
) -> None:
    """Operators on devices that are not there, or that do not hold them."""
    placement = plan.placement
    assert placement is not None
    first, *others = placement.operators

    def put(**changes: Any) -> None:
        if way == "Python":
            operators = (replace(first, **changes), *others)
            replace(plan, placement=replace(placement, operators=operators))
            return
        data: Any = plan.to_json()
        data["placement"]["operators"][0].update(changes)
        automap.Plan.from_json(data)

    its = re.escape(first.name[:20])
    put(device=1)
    with pytest.raises(PlanError, match=rf"got 3; allowed: 0 to 2.*{its}"):
        put(device=3)
    # A K80 has 12 GB.
    with pytest.raises(PlanError, match=rf"gpu:1 needs 10.91 TiB.*{its}"):
        put(device=2, state_bytes=12_000_000_000_000)


def test_too_little_memory_is_said_with_device_and_operator() -> None:
    step, args = lenet.lenet_tiny(batch=8)
    with pytest.raises(InfeasiblePlanError, match=r"gpu:0 needs .*\['params'\]"):
        automap.plan(
            step,
            args,
            topology="haswell-2xk80",
            space="placement",
            strategy="single",
            memory_limit=1e-5,
        )


def test_what_no_mesh_lies_on_is_for_placement_alone() -> None:
    step, args = lenet.lenet_tiny(batch=8)
    with pytest.raises(TopologyError, match="a graph serves --space placement"):
        automap.plan(step, args, topology="haswell-2xk80")
    with pytest.raises(InputError, match="unknown strategy 'rainbow' of placements"):
        automap.plan(step, args, topology="haswell-2xk80", space="placement", strategy="rainbow")
    with pytest.raises(InputError, match="--stages 2 is of pipelines"):
        automap.plan(step, args, topology="haswell-2xk80", space="placement", stages=2)
