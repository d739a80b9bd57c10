"""A user's constraints in the compiled program, under plans that would split the tensor otherwise.

The oracle is the shape of a device's part of the constrained tensor: no other tensor has parts of
it.
"""

from functools import partial

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec as P, SingleDeviceSharding
import numpy as np
import pytest

import automap
from automap.errors import InputError
from automap.jaxpr.fingerprint import jaxpr_sha256
from automap.jaxpr.reemit import Reemitter
from automap.step.user_constraints import constraint_text, named
from tests.user_shardings import (
    BATCH,
    FOUR_BY_TWO,
    HIDDEN,
    PROGRAMS,
    WIDTH,
    arguments,
    free,
    largest_difference,
    on,
)


PART = f"f32[{BATCH // 4},{HIDDEN // 2}]"
OPTIONS = [{}, {"preset": "data-parallel"}, {"preset": "megatron"}]


def _compiled(plan, step, args):
    run = plan.jit(step)
    return run(*args), run.lower(*args).compile().as_text()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_compiled_program_has_the_tensor_as_constrained(program, options):
    args = arguments()
    step = partial(PROGRAMS[program], lax.with_sharding_constraint, FOUR_BY_TWO("data", "model"))
    plan = automap.plan(step, args, topology="cpu:8", **options)
    assert plan.mesh.axes == (("data", 4), ("model", 2))
    result, text = _compiled(plan, step, args)
    assert PART in text
    if options.get("preset") == "data-parallel":
        assert any("are met by moving the tensor there and back" in w for w in plan.warnings)
    expected = jax.jit(partial(PROGRAMS[program], free, None))(*args)
    assert largest_difference(result, expected) < 1e-6


def test_without_the_constraint_it_has_not():
    args, step = arguments(), partial(PROGRAMS["plain"], free, None)
    plan = automap.plan(step, args, topology="cpu:8", mesh="data=4,model=2", preset="data-parallel")
    assert PART not in _compiled(plan, step, args)[1]


def test_an_unconstrained_dimension_is_the_plans():
    args = arguments()
    sharding = FOUR_BY_TWO(P.UNCONSTRAINED, "model")
    step = partial(PROGRAMS["plain"], lax.with_sharding_constraint, sharding)
    plan = automap.plan(step, args, topology="cpu:8", pin="[1]=data,null")
    assert PART in _compiled(plan, step, args)[1]
    whole = automap.plan(step, args, topology="cpu:8", pin="[1]=null,null")
    text = _compiled(whole, step, args)[1]
    assert f"f32[{BATCH},{HIDDEN // 2}]" in text
    assert PART not in text


def test_axes_keep_the_users_order():
    """Both axes on one dimension: the minor one changes fastest from part to part."""
    args = arguments()

    def step(params, x):
        return lax.with_sharding_constraint(x @ params["up"][0], FOUR_BY_TWO(("model", "data")))

    plan = automap.plan(step, args, topology="cpu:8")
    assert plan.outputs[0].spec == (("model", "data"), None)
    result = plan.jit(step)(*args)
    assert result.sharding.spec[0] == ("model", "data")
    np.testing.assert_allclose(result, step_of_one_device(args), rtol=1e-5)


def step_of_one_device(args):
    params, x = args
    return x @ params["up"][0]


def test_constraints_on_parameters_and_new_state():
    args = arguments()
    stored = FOUR_BY_TWO(None, None, "model")

    def step(params, x):
        params = {**params, "up": lax.with_sharding_constraint(params["up"], stored)}
        new, loss = PROGRAMS["plain"](free, None, params, x)
        return {**new, "up": lax.with_sharding_constraint(new["up"], stored)}, loss

    plan = automap.plan(step, args, topology="cpu:8", preset="data-parallel")
    assert plan.inputs[1].spec == plan.outputs[1].spec
    result, text = _compiled(plan, step, args)
    assert f"f32[2,{WIDTH},{HIDDEN // 2}]" in text
    expected = jax.jit(partial(PROGRAMS["plain"], free, None))(*args)
    assert largest_difference(result, expected) < 1e-6


def test_a_random_key_may_be_constrained():
    def step(key, x):
        key = lax.with_sharding_constraint(key, FOUR_BY_TWO())
        h = lax.with_sharding_constraint(x, FOUR_BY_TWO("data"))
        return h * jax.random.bernoulli(key, 0.5, x.shape)

    args = (jax.random.key(1), jnp.ones((BATCH, WIDTH)))
    plan = automap.plan(step, args, topology="cpu:8")
    expected = args[1] * jax.random.bernoulli(args[0], 0.5, args[1].shape)
    np.testing.assert_array_equal(plan.jit(step)(*args), expected)


def test_the_step_left_out_of_its_constraints_is_the_step():
    args = arguments()
    step = partial(PROGRAMS["plain"], lax.with_sharding_constraint, FOUR_BY_TWO("data", "model"))
    reemitter = Reemitter(jax.jit(step).trace(*args).jaxpr)
    alone = jax.jit(reemitter.scoped("left out"))(*jax.tree.leaves(args))
    expected = jax.jit(partial(PROGRAMS["plain"], free, None))(*args)
    assert largest_difference(alone, expected) == 0.0


def test_the_fingerprint_is_of_names_not_of_meshes():
    args = arguments()

    def of(sharding):
        step = partial(PROGRAMS["plain"], lax.with_sharding_constraint, sharding)
        return jaxpr_sha256(Reemitter(jax.jit(step).trace(*args).jaxpr).flat)

    devices = np.array(jax.devices()).reshape(2, 4)
    real = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    same = jax.sharding.NamedSharding(real, P("data", "model"))
    assert of(FOUR_BY_TWO("data", "model")) == of(same)
    assert of(FOUR_BY_TWO("data", "model")) != of(FOUR_BY_TWO("model", "data"))
    assert of(FOUR_BY_TWO("data", "model")) != of(FOUR_BY_TWO("data", P.UNCONSTRAINED))


def test_text_of_a_constraint():
    traced = jax.make_jaxpr(
        lambda x: lax.with_sharding_constraint(x, FOUR_BY_TWO(("data", "model"), P.UNCONSTRAINED))
    )(jnp.ones((8, 8, 8)))
    (eqn,) = getattr(traced, "jaxpr", traced).eqns
    assert constraint_text(eqn) == "data+model,*,null"


def test_shardings_without_names_and_on_explicit_axes_are_refused():
    with pytest.raises(InputError, match="f.py:3: got a tuple; allowed: a NamedSharding"):
        named(("data",), "f.py:3")
    assert named(SingleDeviceSharding(jax.devices()[0]), "f.py:3") is None
    with pytest.raises(
        InputError, match="f.py:3: in the memory 'pinned_host'; allowed: a device's"
    ):
        named(FOUR_BY_TWO("data").with_memory_kind("pinned_host"), "f.py:3")
    explicit = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    rows = jax.sharding.NamedSharding(explicit, P("data"))
    jitted = jax.jit(lambda x: x * 2, in_shardings=rows)
    with pytest.raises(InputError, match="'data' is of type Explicit; allowed: Auto"):
        automap.plan(jitted, (jnp.ones((8, 8)),), topology="cpu:8")


def test_an_unused_name_is_any_name():
    """Only axes that a sharding names must be in the mesh."""
    step = partial(
        PROGRAMS["plain"], lax.with_sharding_constraint, on(data=4, other=2)("data", None)
    )
    plan = automap.plan(step, arguments(), topology="cpu:8", mesh="data=2,model=4")
    assert dict(plan.mesh.axes) == {"data": 2, "model": 4}
