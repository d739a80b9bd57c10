"""Verification of small plans with the CPU compiler: verdict, memory, collectives, numerics."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import automap
from automap.errors import CompilerError, InputError, PlanError
from automap.step.step import traced_call
from automap.verify import compiling
from automap.verify.numerics import compare_numerics, tolerance
from automap.verify.program import PlannedProgram, export_program, planned_program
from tests.steps import mlp


TIMEOUT_SECONDS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("witnesses")


def _planned(topology="cpu:8", preset="zero-3"):
    step, args = mlp()
    return automap.plan(step, args, topology=topology, preset=preset), step, args


def test_a_plan_is_confirmed_and_its_witness_kept(folder, monkeypatch):
    plan, step, args = _planned()
    verified = automap.verify(plan, step, args, cache_dir=folder, timeout=TIMEOUT_SECONDS)
    assert verified.fits and verified.witness.compiler == "cpu"
    assert verified.comparison.rows and all(row.agrees for row in verified.comparison.rows)
    assert (
        verified.numerics is not None and verified.numerics.agrees and not verified.numerics.skipped
    )
    assert {leaf.path for leaf in verified.numerics.leaves} == {leaf.path for leaf in plan.outputs}
    text = verified.explain()
    assert "fits, says the CPU compiler" in text and "collectives: as predicted" in text
    assert json.loads(json.dumps(verified.to_json()))["witness"]["program"].endswith(".pb.gz")

    def fail(*_, **__):
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiling, "run_job", fail)
    # What an earlier version read of the kept program does not matter.
    (kept,) = folder.glob("*.json")
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"collectives": []}))
    again = automap.verify(plan, step, args, cache_dir=folder, numerics=False)
    assert again.witness == verified.witness


def test_planning_can_verify(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    step, args = mlp()
    plan = automap.plan(step, args, topology="cpu:4", preset="zero-3", verify=True)
    assert plan.verified is not None and plan.verified.fits
    with pytest.raises(InputError, match="verify top 0"):
        automap.plan(step, args, topology="cpu:8", verify=True, verify_top=0)


def test_the_plan_of_another_platform_is_compiled_for_the_cpu_if_asked(folder):
    plan, step, args = _planned("v5e:2x2", "megatron")
    verified = automap.verify(
        plan, step, args, compiler="cpu", cache_dir=folder, numerics=False, timeout=TIMEOUT_SECONDS
    )
    assert verified.fits and verified.witness.topology == "v5e:2x2"
    assert verified.witness.memory_limit_bytes == plan.topology["device"]["memory_bytes"]


@pytest.mark.parametrize("memory_bytes", [2**34, 1000])
def test_another_compiler_than_the_plans_own_gives_no_verdict_on_memory(folder, memory_bytes):
    plan, step, args = _planned("v5e:2x2", "megatron")
    topology = json.loads(json.dumps(plan.topology))
    topology["device"]["memory_bytes"] = memory_bytes
    verified = automap.verify(
        dataclasses.replace(plan, topology=topology),
        step,
        args,
        compiler="cpu",
        cache_dir=folder,
        numerics=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert verified.fits == (memory_bytes > 1000) and not verified.is_verdict
    text = verified.explain()
    assert "compiled by the CPU compiler, which is not that of v5e:2x2" in text
    assert "only the TPU compiler can say" in text and "jax-automap[tpu]" in text
    assert "FIT" not in text and "fits, says" not in text and "%" not in text.splitlines()[3]
    assert "does not measure the prediction" in text
    assert verified.to_json()["plan_compiler"] == "tpu"


def test_a_plan_too_large_for_its_device_does_not_fit(folder):
    plan, step, args = _planned()
    topology = json.loads(json.dumps(plan.topology))
    topology["device"]["memory_bytes"] = 1000
    small = dataclasses.replace(plan, topology=topology)
    verified = automap.verify(
        small, step, args, cache_dir=folder, numerics=False, timeout=TIMEOUT_SECONDS
    )
    assert not verified.fits
    assert "DOES NOT FIT" in verified.explain()


def test_wrong_plans_are_refused():
    plan, step, args = _planned()
    with pytest.raises(PlanError, match="are not those of the plan"):
        automap.verify(plan, *mlp(batch=32), cache=False)
    with pytest.raises(PlanError, match="computes something else"):
        automap.verify(plan, lambda state, batch: (state, batch["x"].sum()), args, cache=False)
    file_plan = dataclasses.replace(
        plan, workload=dataclasses.replace(plan.workload, jaxpr_sha256=None)
    )
    with pytest.raises(InputError, match="there is no step to compile; plan module:function"):
        automap.verify(file_plan, step, args, cache=False)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"timeout": 0.0}, "timeout 0.0: must be a positive number of seconds"),
        ({"numerics_limit": float("nan")}, "positive number of GiB"),
        ({"compiler": "cuda"}, "compiler 'cuda'; allowed: cpu, gpu, tpu"),
    ],
)
def test_bad_options_are_refused(options, match):
    plan, step, args = _planned()
    with pytest.raises(InputError, match=match):
        automap.verify(plan, step, args, **options)


def test_a_compilation_can_be_timed_out():
    plan, step, args = _planned()
    with pytest.raises(CompilerError, match="larger --timeout"):
        automap.verify(plan, step, args, cache=False, timeout=0.1)


def test_a_step_that_calls_back_into_python_is_refused():
    def step(x):
        jax.debug.print("{}", x[0, 0])
        return 2 * x

    args = (jax.ShapeDtypeStruct((8, 8), "float32"),)
    plan = automap.plan(step, args, topology="cpu:8")
    with pytest.raises(InputError, match="calls back into Python"):
        automap.verify(plan, step, args, cache=False)


def _program(plan, step, args):
    return planned_program(plan, traced_call(step, args))


def _numerics(program, args, limit_bytes=2.0**30):
    leaves = jax.tree.leaves(args)
    return compare_numerics(
        program, leaves, timeout_seconds=TIMEOUT_SECONDS, limit_bytes=limit_bytes
    )


def test_a_planned_step_that_computes_something_else_is_found_out(monkeypatch):
    plan, step, args = _planned()
    other, _ = mlp(hidden=64)

    def wrong(state, batch):
        # One percent too large a target: gradients are off by as little.
        return other(state, {**batch, "y": 1.01 * batch["y"]})

    call = traced_call(wrong, args)
    instead = planned_program(automap.plan(wrong, args, topology="cpu:8", preset="zero-3"), call)
    monkeypatch.setattr(PlannedProgram, "exported_single", lambda self: single)
    single = _single(instead)
    numerics = _numerics(_program(plan, step, args), args)
    assert not numerics.agrees
    assert any(not leaf.agrees for leaf in numerics.leaves if "['m']" in leaf.path)


def _single(program):
    avals = program.call.jaxpr.in_avals
    step = jax.jit(program.reemitter.scoped(), keep_unused=True)
    inputs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return export_program(step, inputs, "cpu")


def test_a_model_too_large_for_the_cpu_is_skipped_with_the_reason():
    plan, step, args = _planned()
    numerics = _numerics(_program(plan, step, args), args, limit_bytes=1000.0)
    assert numerics.agrees and not numerics.leaves
    assert "1000 B are allowed; give a larger --numerics-limit" in numerics.skipped


def test_dropout_indices_and_concrete_inputs_agree():
    """Random keys, integer inputs that index, bfloat16, and arrays that the caller has."""

    def step(state, batch):
        def loss(w):
            rows = w[batch["index"]].astype(jnp.bfloat16)
            kept = jax.random.bernoulli(batch["key"], 0.5, rows.shape)
            return jnp.sum(jnp.where(kept, rows, 0).astype(jnp.float32) @ batch["x"]) / rows.size

        gradient = jax.grad(loss)(state["w"])
        return {"w": state["w"] - 0.1 * gradient, "n": state["n"] + 1}, {
            "loss": loss(state["w"]),
            "key": jax.random.split(batch["key"])[0],
        }

    args = (
        {"w": np.linspace(-1, 1, 64 * 16, dtype=np.float32).reshape(64, 16), "n": jnp.int32(3)},
        {
            "index": jax.ShapeDtypeStruct((32,), "int32"),
            "key": jax.random.key(7),
            "x": jax.ShapeDtypeStruct((16, 8), "float32"),
        },
    )
    plan = automap.plan(step, args, topology="cpu:4", mesh={"data": 2, "model": 2})
    numerics = _numerics(_program(plan, step, args), args)
    assert numerics.agrees, numerics.leaves
    by_path = {leaf.path: leaf for leaf in numerics.leaves}
    assert by_path["[0]['n']"].error == 0 and by_path["[1]['key']"].error == 0


def test_tolerances_grow_with_the_rounding_of_a_type_and_the_devices():
    assert tolerance("float32", 4) == pytest.approx(8 * 2**-24 * (2**8 + 2))
    assert tolerance("float64", 1) < 1e-12 < tolerance("float32", 1) < tolerance("float16", 1)
    assert tolerance("float16", 1) < tolerance("bfloat16", 1) < 0.04 < tolerance("bfloat16", 8)
