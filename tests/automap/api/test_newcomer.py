"""What a newcomer meets first: a value of the wrong type, a small step, a machine that is not
there, a plan saved in Python that the command is given.
"""

import logging

from click.testing import CliRunner
import jax
import jax.numpy as jnp
import pytest

import automap
from automap.cli import main
from automap.errors import PlanWarning
from automap.terminal import Verbosity, verbosity
from models.mlp import mlp_tiny
from tests.automap.api.steps import parallelized


W, X = jnp.full((64, 64), 0.1), jnp.ones((32, 64))


def init_params(key):
    return jax.random.normal(key, (64, 64))


def train_step(w, x):
    """So small that every device does all of it."""
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - grad, loss


@pytest.mark.parametrize("given", [8, None, ["cpu:8"]])
def test_a_topology_of_another_type_is_refused_before_the_first_call(given):
    with pytest.raises(automap.TopologyError, match="topology: got .* of type .*allowed: a name"):
        automap.parallelize(train_step, topology=given)
    with pytest.raises(automap.TopologyError, match="topology: got .* of type .*allowed: a name"):
        automap.plan(train_step, (W, X), topology=given)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"memory_limit": "8G"}, "memory limit '8G': must be a positive number of GiB"),
        ({"budget": "3"}, "budget '3': must be a positive number of seconds"),
        ({"seed": "a"}, "seed a; allowed: an integer from 0"),
    ],
)
def test_numbers_are_numbers(option, message):
    with pytest.raises(automap.InputError, match=message):
        automap.parallelize(train_step, **option)


def test_init_takes_the_function_and_not_what_it_made():
    step = automap.parallelize(train_step)
    with pytest.raises(automap.InputError, match=r"type dict; allowed: the function that makes it"):
        step.init({"w": W})


@pytest.mark.parametrize("space", ["sharding", "pipeline"])
def test_a_plan_that_was_kept_makes_state_where_it_stores_it(space):
    """All of it, as many values as `init` makes, and no more of them on a device than planned."""
    step, (state, batch) = mlp_tiny()
    plan = automap.plan(step, (state, batch), topology="cpu:8", space=space)
    planned = automap.Plan.from_json(plan.to_json()).jit(step)
    if space == "pipeline":
        with pytest.raises(automap.PlanError, match="known after `prepare`"):
            planned.init(lambda: state)
        planned.prepare(state, batch)
    born = planned.init(lambda: jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), state))
    stored = [leaf.sharding for leaf in jax.tree.leaves(born)]
    assert stored == list(planned.input_shardings[: len(stored)])
    assert all(bool((leaf == 1).all()) for leaf in jax.tree.leaves(born))


def test_a_plan_that_was_kept_makes_no_state_of_another_step():
    step, args = mlp_tiny()
    planned = automap.plan(step, args, topology="cpu:8", preset="data-parallel").jit(step)
    with pytest.raises(automap.PlanError, match=r"makes float32\[3, 3\]; allowed: what .* takes"):
        planned.init(lambda: jnp.ones((3, 3)))
    with pytest.raises(automap.InputError, match=r"type dict; allowed: the function that makes it"):
        planned.init({"w": W})


def test_devices_that_do_the_same_work_are_told_of_where_the_step_is_called():
    step = parallelized(train_step)
    with pytest.warns(PlanWarning, match="8 of 8 devices do the same work in 100%") as caught:
        step(W, X)
    assert {record.filename for record in caught} == {__file__}
    with pytest.warns(PlanWarning, match="; 1 plan is kept, at most 16"):
        step(W, X[:16])


def test_a_plan_for_another_platform_is_told_of():
    step = automap.parallelize(train_step, topology="8xh100", preset="data-parallel")
    with pytest.warns(PlanWarning, match="planned for 8xh100 and run on devices of platform cpu"):
        step(W, X)


def test_the_logger_says_how_much_is_said_in_python():
    logger = logging.getLogger("automap")
    try:
        for level, said in (
            (logging.NOTSET, Verbosity.NORMAL),
            (logging.INFO, Verbosity.NORMAL),
            (logging.WARNING, Verbosity.QUIET),
            (logging.DEBUG, Verbosity.VERBOSE),
        ):
            logger.setLevel(level)
            assert verbosity() is said
    finally:
        logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("command", ["verify", "simulate"])
def test_of_a_plan_made_in_python_the_command_asks_for_a_function(command, tmp_path):
    plan = automap.plan(train_step, (W, X), topology="cpu:8", preset="data-parallel")
    assert plan.workload.made_from == "step"
    path = tmp_path / "plan.json"
    plan.save(path)
    # Without a target `simulate` takes what is recorded.
    more = () if command == "verify" else ("--topology", "cpu:4")
    run = CliRunner().invoke(main, [command, str(path), *more])
    assert run.exit_code == 2
    assert "--target tests." not in run.stderr
    assert f"automap.{command}(plan, step, args)" in run.stderr
    assert "        return train_step, (params, batch)\n" in run.stderr


def test_a_plan_made_in_python_is_made_again_in_python():
    plan = automap.plan(train_step, (W, X), topology="cpu:8", preset="data-parallel")
    with pytest.raises(automap.PlanError, match=r'automap\.plan\(step, args, topology="cpu:8"\)'):
        plan.jit(train_step)(W, X[:16])


TRANSFORMATIONS = {
    "grad": lambda step: jax.grad(lambda w: step(w, X)[1])(W),
    "jit": lambda step: jax.jit(step)(W, X),
    "vmap": lambda step: jax.vmap(step, in_axes=(None, 0))(W, jnp.stack([X, X])),
    "eval_shape": lambda step: jax.eval_shape(step, W, X),
    "make_jaxpr": lambda step: jax.make_jaxpr(step)(W, X),
}


@pytest.mark.parametrize("transform", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS.keys())
@pytest.mark.parametrize("space", ["sharding", "pipeline", "placement"])
def test_a_planned_step_inside_a_transformation_says_what_to_plan_instead(space, transform):
    step = automap.parallelize(train_step, space=space)
    # Nothing is planned for it.
    with pytest.raises(automap.InputError, match=r"inside a transformation.*the whole function"):
        transform(step)
    with pytest.raises(automap.PlanError, match="no plan yet"):
        _ = step.plan


def test_the_step_of_a_plan_inside_a_transformation_says_what_to_plan_instead():
    plan = automap.plan(train_step, (W, X), topology="local", preset="data-parallel")
    step = plan.jit(train_step)
    for transform in TRANSFORMATIONS.values():
        with pytest.raises(automap.InputError, match=r"inside a transformation.*the whole"):
            transform(step)
    assert step(W, X)[1].shape == ()
