"""Shardings in XLA's words carried over to a plan: those of a plan come back as they were."""

import re

import pytest

from automap.config import Options
from automap.errors import PlanError
from automap.jax_compat import lowered_for_gspmd
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify.program import planned_program
from scripts.auto_carried import carried_plan


MESH = Mesh(("data", "model"), (4, 2))


@pytest.fixture(scope="module")
def planned():
    step, args = load_target("models.mlp:mlp_tiny", {})
    call = traced_call(step, tuple(args))
    workload = trace_step(step, args, platform="tpu")
    options = Options(mesh=MESH, preset="zero-3")
    return build_plan(find(workload, get_topology("v5e:2x4"), options)), call


def _texts(plan, call):
    text = lowered_for_gspmd(planned_program(plan, call).traced(), "tpu").as_text()
    signature = text[text.index("@main(") : text.index("{\n", text.index("@main("))]
    inputs, _, outputs = signature.partition(") -> (")
    return tuple(re.findall(r'mhlo.sharding = "(\{.*?\})"', side) for side in (inputs, outputs))


def test_a_plans_own_shardings_come_back(planned):
    plan, call = planned
    assert any(axes for leaf in plan.inputs for axes in leaf.spec)
    inputs, outputs = _texts(plan, call)
    own = carried_plan(plan, MESH, inputs, outputs)
    assert own is not None
    assert [leaf.spec for leaf in own.inputs] == [leaf.spec for leaf in plan.inputs]
    assert own.constraints == ()
    finest = carried_plan(plan, Mesh(("x", "y", "z"), (2, 2, 2)), inputs, outputs)
    assert finest is not None
    assert _texts(finest, call) == (inputs, outputs)


def test_what_no_axes_say_is_not_carried(planned):
    plan, _ = planned
    whole = ["{replicated}"] * len(plan.inputs)
    index = next(i for i, leaf in enumerate(plan.inputs) if len(leaf.shape) == 2)
    texts = [*whole[:index], "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", *whole[index + 1 :]]
    odd = Mesh(("data",), (8,))
    outputs = ["{replicated}"] * len(plan.outputs)
    assert carried_plan(plan, odd, texts, outputs) is None
    with pytest.raises(PlanError, match="sharding"):
        carried_plan(plan, odd, [*whole[:-1], "{odd}"], outputs)
