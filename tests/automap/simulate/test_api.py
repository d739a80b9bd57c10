"""`automap.simulate`: the plan's own step again, what it says, and what it refuses."""

from dataclasses import replace
import json

import jax
import pytest

import automap
from automap.api.plan import Plan
from automap.errors import InputError, MeshMismatchError, PlanError, TopologyError
from automap.simulate.simulation import summary
from automap.simulate.trace import Event, Lane
from automap.topology import get_topology
from tests.automap.simulate.test_spmd_program import scanned
from tests.steps import decoder, mlp


STEP, ARGS = decoder(layers=2)
OPTIONS = {"budget": 2, "strategy": "greedy"}


@pytest.fixture(scope="module")
def plan():
    return automap.plan(STEP, ARGS, topology="8xh100", preset="megatron")


@pytest.fixture(scope="module")
def simulation(plan):
    return automap.simulate(plan, STEP, ARGS)


def with_fresh_memory():
    machine = get_topology("cpu:8")
    return replace(machine, device=replace(machine.device, fresh_seconds_per_byte=1e-9))


@pytest.mark.parametrize("topology", ["cpu:8", "v5e:2x4", with_fresh_memory()], ids=str)
@pytest.mark.parametrize("layers", ["folded", "apart"])
def test_in_line_the_step_is_what_the_saved_plan_predicts(topology, layers, tmp_path):
    automap.plan(STEP, ARGS, topology=topology, layers=layers, **OPTIONS).save(tmp_path / "plan")
    plan = Plan.load(tmp_path / "plan")
    simulation = automap.simulate(plan, STEP, ARGS)
    assert simulation.warnings == ()
    assert simulation.step_seconds == pytest.approx(plan.predicted.step_seconds, rel=1e-9)
    assert simulation.compute_seconds == pytest.approx(plan.predicted.compute_seconds)
    assert simulation.exposed_seconds == pytest.approx(plan.predicted.collective_seconds, abs=1e-12)
    assert simulation.hidden_seconds == 0.0 and "(+0.0%)" in simulation.explain()


def test_everything_adds_up(simulation, plan):
    assert simulation.warnings == ()
    assert simulation.compute_seconds == pytest.approx(plan.predicted.compute_seconds)
    assert 0 < simulation.exposed_seconds < simulation.collective_seconds
    for name, rows in (
        ("seconds", simulation.collectives),
        ("exposed_seconds", simulation.collectives),
    ):
        total = simulation.collective_seconds if name == "seconds" else simulation.exposed_seconds
        assert sum(getattr(row, name) for row in rows) == pytest.approx(total)
    assert sum(row.seconds for row in simulation.ops) == pytest.approx(simulation.compute_seconds)
    assert sum(row.compute_seconds for row in simulation.phases) == pytest.approx(
        simulation.compute_seconds
    )
    assert sum(p.exposed_seconds for p in simulation.phases) == pytest.approx(
        simulation.exposed_seconds
    )
    predicted = {(c.kind, c.axes, c.phase): c for c in plan.predicted.collectives}
    for key, record in predicted.items():
        rows = [r for r in simulation.collectives if (r.kind, r.axes, r.phase) == key]
        assert sum(row.bytes for row in rows) == pytest.approx(record.bytes, abs=1)
        assert sum(row.runs for row in rows) == pytest.approx(record.count)


def test_kernels_and_collectives_say_where_they_come_from(simulation):
    sources = [row.source for row in (*simulation.ops, *simulation.collectives)]
    assert sum("steps.py" in source for source in sources) > len(sources) / 2
    assert any(row.opcode == "dot" and "dot_general" in row.op_name for row in simulation.ops)
    event = next(e for e in simulation.events if e.details.get("kind") == "all-reduce")
    assert event.name == "all-reduce over data" or event.name == "all-reduce over model"
    assert event.category in ("forward", "backward", "update")
    assert event.details.keys() >= {"axes", "bytes", "tensor", "op_name", "source", "trips"}


def test_trips_of_a_loop_are_seen_in_the_trace(tmp_path):
    step, args = scanned()
    plan = automap.plan(step, args, topology="8xh100", preset="zero-3")
    simulation = automap.simulate(plan, step, args)
    simulation.save_trace(tmp_path / "trace.json")
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    trips = {tuple(row["args"].get("trip", ())) for row in rows if row["ph"] == "X"}
    assert trips == {(), (0,), (1,), (2,), (3,)}
    assert len([row for row in rows if row["ph"] == "X"]) == len(simulation.events)
    ends = [
        row["args"]["start_seconds"] + row["args"]["seconds"] for row in rows if row["ph"] == "X"
    ]
    assert max(ends) == pytest.approx(simulation.step_seconds)


def test_json_and_text_say_the_same(simulation):
    data = json.loads(json.dumps(simulation.to_json()))
    assert data["step_seconds"] == simulation.step_seconds and data["tasks"] == len(
        simulation.events
    )
    assert len(data["ops"]) == len(simulation.ops) and "events" not in data
    text = simulation.explain()
    assert "simulated step" in text and "link busy" in text and "8xh100" in text
    assert "longest kernels" in text and "longest collectives" in text


def test_another_topology_prices_the_same_point(plan, simulation):
    # Which is faster says nothing here: kernels this small take what a launch takes.
    other = automap.simulate(plan, STEP, ARGS, topology="8xk80")
    assert other.step_seconds != simulation.step_seconds
    assert "8xk80" in other.warnings[0] and "8xh100" in other.warnings[0]
    in_line = automap.simulate(plan, STEP, ARGS, topology="v5e:2x4")
    assert "lowered for cuda" in in_line.warnings[0]
    assert {event.lane.name for event in in_line.events} == {"compute"}


def test_a_prediction_that_is_no_longer_made_is_a_warning(plan):
    predicted = replace(plan.predicted, step_seconds=plan.predicted.step_seconds * 1.01)
    simulation = automap.simulate(replace(plan, predicted=predicted), STEP, ARGS)
    (warning,) = simulation.warnings
    assert "made by another version" in warning and "--profile" in warning


def with_point(plan, **fields):
    return replace(plan, search=replace(plan.search, point=replace(plan.search.point, **fields)))


def test_a_plan_without_its_point_is_to_be_made_again(plan):
    older = replace(plan, search=replace(plan.search, point=None))
    with pytest.raises(
        PlanError, match=r"^search\.point: missing: .*plan again in Python, with automap\.plan\("
    ):
        automap.simulate(older, STEP, ARGS)


def test_a_point_of_another_step_is_refused(plan):
    point = plan.search.point
    with pytest.raises(PlanError, match=r"^search\.point\.compute\[0\]\[0\]: got 10000; allowed"):
        automap.simulate(with_point(plan, compute=((10000,), *point.compute[1:])), STEP, ARGS)
    with pytest.raises(PlanError, match=r"^search\.point\.last\[0\]: got 9999; allowed: a compute"):
        automap.simulate(with_point(plan, last=(9999,)), STEP, ARGS)
    longer = tuple((*levels, 0) for levels in point.storage)
    with pytest.raises(PlanError, match=r"^search\.point\.storage\[0\]: .*one per leaf class"):
        automap.simulate(with_point(plan, storage=longer), STEP, ARGS)
    larger = automap.plan(STEP, ARGS, topology="2x8xh100", preset="data-parallel")
    every = (tuple(range(8)),) * len(larger.mesh.axes)
    with pytest.raises(
        PlanError, match=r"^search\.point\.compute: got classes .* cannot split.*plan again"
    ):
        automap.simulate(with_point(larger, compute=every), STEP, ARGS)


def test_another_step_or_machine_is_refused(plan):
    with pytest.raises(PlanError, match="inputs are not those of the plan"):
        automap.simulate(plan, *mlp())
    with pytest.raises(MeshMismatchError, match=r"4xh100 has 4 devices.*does not lie"):
        automap.simulate(plan, STEP, ARGS, topology="4xh100")
    with pytest.raises(TopologyError):
        automap.simulate(plan, STEP, ARGS, topology="8xabacus")
    with pytest.raises(InputError):
        automap.simulate(plan, lambda state, batch: 1 / 0, ARGS)


def test_static_arguments_are_kept():
    step = jax.jit(lambda s, n: s * n, static_argnums=1)
    args = (jax.ShapeDtypeStruct((8, 8), "float32"), 3)
    plan = automap.plan(step, args, topology="cpu:8", **OPTIONS)
    assert automap.simulate(plan, step, args).step_seconds > 0


def event(start, seconds, **details):
    common = {"op_name": "f", "source": "", "phase": "forward", "trips": 1.0}
    return Event(
        lane=Lane(device=0, name="x"),
        name="x",
        category="forward",
        start_seconds=start,
        seconds=seconds,
        details=common | details,
    )


def test_what_is_exposed_in_closed_form():
    kernel = {"opcode": "dot", "result": "f32[1]"}
    message = {"kind": "all-reduce", "axes": ["a"], "tensor": "f32[1]", "bytes": 1.0}
    simulation = summary(
        (
            event(0.0, 2.0, **kernel),
            event(1.0, 3.0, **message),
            event(3.0, 4.0, **kernel),
            event(5.0, 3.0, **message),
        ),
        target="t",
        topology="m",
        mesh=(),
        predicted_seconds=1.0,
        warnings=(),
    )
    assert (simulation.step_seconds, simulation.compute_seconds, simulation.collective_seconds) == (
        8.0,
        6.0,
        6.0,
    )
    (row,) = simulation.collectives
    assert row.exposed_seconds == pytest.approx(2.0) == pytest.approx(simulation.exposed_seconds)
    assert simulation.hidden_seconds == pytest.approx(4.0)
