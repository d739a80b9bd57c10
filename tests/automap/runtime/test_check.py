"""All of a plan is held against the step before it runs; a cached plan that does not hold is a
miss.
"""

from collections.abc import Callable
import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import automap
from automap.api.plan import Plan
from automap.errors import PlanWarning
from tests.steps import mlp


STEP, (STATE, DATA) = mlp()
ARGS = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1), (STATE, DATA))
PLAN = automap.plan(STEP, ARGS, topology="cpu:8", mesh={"data": 4, "model": 2}, preset="megatron")
PIPELINED = automap.plan(STEP, ARGS, topology="cpu:8", space="pipeline", stages=2)


def _moved(rows):
    rows[0]["path"], rows[1]["path"] = rows[1]["path"], rows[0]["path"]


def _no_place(data):
    data["constraints"] = [{"value": "x", "at": "9999:out0", "spec": [None]}]


def _too_long(data):
    data["constraints"] = [{"value": "x", "at": "arg0", "spec": [None] * 7}]


def _no_operand(data):
    data["constraints"] = [{"value": "x", "at": "0:made77", "spec": [None]}]


# What was changed in a plan file, and what is said of it.
EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an output's path": (
        lambda d: d["outputs"][0].update(path="['loss']"),
        r"outputs are not those of the plan:\n  \['loss'\]: missing",
    ),
    "outputs in another order": (
        lambda d: _moved(d["outputs"]),
        "outputs are not those of the plan",
    ),
    "an output less": (
        lambda d: d["outputs"].pop(),
        r"outputs .*\[1\]: float32\[\] is not in the plan",
    ),
    "an output's shape": (
        lambda d: d["outputs"][0].update(shape=[64, 32], spec=[None, None]),
        r"outputs .*got float32\[32,64\]",
    ),
    "an output's type": (
        lambda d: d["outputs"][0].update(dtype="bfloat16"),
        "outputs .*the plan has bfloat16",
    ),
    "an input's type": (
        lambda d: d["inputs"][-1].update(dtype="int32"),
        "inputs .*the plan has int32",
    ),
    "a state's type": (
        lambda d: d["inputs"][0].update(dtype="int32"),
        "computes something else than the planned",
    ),
    "the equations' hash": (
        lambda d: d["workload"].update(jaxpr_sha256="0" * 64),
        "computes something else than the planned",
    ),
    "the program's hash": (
        lambda d: d["workload"].update(hlo_sha256="0" * 64),
        r"another program than the planned .*\(hlo_sha256\)",
    ),
    "a constraint's place": (_no_place, "the step has no equation '9999'"),
    "a constraint's number": (_no_operand, "such values; allowed: 0 to 0"),
    "a constraint's dimensions": (_too_long, "does not fit"),
}


def _edited(plan: Plan, edit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    data = plan.to_json()
    edit(data)
    return data


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_plan_is_refused_before_it_runs(name):
    edit, message = EDITS[name]
    with pytest.raises(automap.PlanError, match=f"(?s){message}"):
        Plan.from_json(_edited(PLAN, edit)).jit(STEP).prepare(*ARGS)


@pytest.mark.parametrize("name", ["an output less", "an output's type", "the program's hash"])
def test_an_edited_pipeline_is_refused_before_it_runs(name):
    edit, message = EDITS[name]
    with pytest.raises(automap.PlanError, match=f"(?s){message}"):
        Plan.from_json(_edited(PIPELINED, edit)).jit(STEP).prepare(*ARGS)


@pytest.mark.parametrize(
    ("hash_name", "message"),
    [("jaxpr_sha256", "lowered to the same program"), ("hlo_sha256", "to another program")],
)
def test_what_another_jax_may_have_made_otherwise_is_a_warning(hash_name, message):
    edit = lambda d: d["workload"].update({hash_name: "0" * 64, "jax_version": "0.9"})  # noqa: E731
    run = Plan.from_json(_edited(PLAN, edit)).jit(STEP)
    with pytest.warns(PlanWarning, match=f"was made with JAX 0.9; .*{message}"):
        run.prepare(*ARGS)
    # Once: the second call has the program.
    run.prepare(*ARGS)


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_plan_in_the_cache_is_planned_again_and_replaced(name, tmp_path):
    make = lambda: automap.parallelize(STEP, topology="cpu:8", preset="zero-3", cache_dir=tmp_path)  # noqa: E731
    first = make().plan_for(*ARGS)
    (file,) = tmp_path.iterdir()
    data = json.loads(file.read_text())
    EDITS[name][0](data)
    file.write_text(json.dumps(data))
    assert make().plan_for(*ARGS).outputs == first.outputs
    assert Plan.load(file).outputs == first.outputs
