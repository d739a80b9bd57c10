"""Modules of libraries are born with the shardings of the plan, and a step on them is that on plain
ones.
"""

import equinox as eqx
from flax import nnx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import pytest

import automap
from tests.automap.runtime.kinds import BATCH, TX, Net, arrays, equal, eqx_plain, nnx_step


OPTIONS = {"topology": "cpu:8", "preset": "zero-3"}


def eqx_model(key):
    return Perceptron(eqx.nn.MLP(8, 4, 16, 1, key=key))


class Perceptron(eqx.Module):
    """A module of Equinox's own, with functions in it."""

    inner: eqx.nn.MLP

    def loss(self, batch):
        return jnp.mean((jax.vmap(self.inner)(batch["x"]) - batch["y"]) ** 2)


def eqx_state(key):
    model = eqx_model(key)
    return model, TX.init(eqx.filter(model, eqx.is_array))


def nnx_state(rngs):
    model = Net(rngs)
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def _lie_as_planned(plan, arguments, tree):
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)]
    leaves = [leaf for leaf in plan.inputs if leaf.path.startswith(arguments)]
    return all(
        NamedSharding(x.sharding.mesh, PartitionSpec(*leaf.spec)).is_equivalent_to(
            x.sharding, x.ndim
        )
        for x, leaf in zip(arrays, leaves, strict=True)
    )


@pytest.mark.parametrize("first", ["plan", "init"])
def test_an_equinox_module_with_functions_in_it(first):
    step = automap.parallelize(eqx_plain, **OPTIONS)
    key = jax.random.key(0)
    plain = eqx_state(key)
    if first == "plan":
        step.plan_for(plain, BATCH)
    born = step.init(eqx_state, key)
    assert type(born[0]) is Perceptron
    assert born[0].inner.activation is plain[0].inner.activation
    equal(born, plain)
    assert max(len(x.sharding.device_set) for x in arrays(born)) == 8
    new, loss = step(born, BATCH)
    equal((new, loss), eqx.filter_jit(eqx_plain)(plain, BATCH))
    born = step.init(eqx_state, key)
    assert _lie_as_planned(step.plan, "[0]", born)


def test_of_filter_jit_whose_arguments_are_born_together():
    @eqx.filter_jit
    def train(model, opt, batch):
        return eqx_plain((model, opt), batch)

    step = automap.parallelize(train, **OPTIONS)
    plain = eqx_state(jax.random.key(0))
    plan = step.plan_for(*plain, BATCH)
    born = step.init(eqx_state, jax.random.key(0))
    assert _lie_as_planned(plan, ("[0]", "[1]"), born)
    equal(step(*born, BATCH), train(*plain, BATCH))


@pytest.mark.parametrize("first", ["plan", "init"])
def test_nnx_modules_and_the_random_streams_they_are_made_with(first):
    step = automap.parallelize(nnx_step, **OPTIONS)
    plain = nnx_state(nnx.Rngs(0))
    if first == "plan":
        step.plan_for(*nnx_state(nnx.Rngs(0)), BATCH)
    mine, theirs = nnx.Rngs(0), nnx.Rngs(0)
    born, _ = step.init(nnx_state, mine), nnx_state(theirs)
    model, optimizer = born
    assert type(model) is Net and type(optimizer) is nnx.Optimizer
    equal(nnx.state(mine), nnx.state(theirs))
    equal(nnx.state(born), nnx.state(plain))
    equal(step(model, optimizer, BATCH), nnx_step(*plain, BATCH))
    equal(nnx.state(born), nnx.state(plain))
    born = nnx.to_pure_dict(nnx.state(step.init(lambda: nnx_state(nnx.Rngs(0)))))
    assert _lie_as_planned(step.plan, ("[0]", "[1]"), born)


class Noisy(nnx.Module):
    """Streams of random keys that a step counts on and does not change, and statistics that it
    changes.
    """

    def __init__(self, rngs):
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.down = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.down(self.dropout(self.norm(self.up(x))))


def noisy_state(seed):
    model = Noisy(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def noisy_step(model, optimizer, batch):
    def loss(model):
        return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def test_leaves_that_a_step_leaves_alone_lie_on_the_mesh_of_those_that_it_changes():
    """Before there is a plan they are born on a mesh of other names; JAX refuses to mix these."""
    step = automap.parallelize(noisy_step, **OPTIONS)
    model, optimizer = step.init(noisy_state, 0)
    plain_model, plain_optimizer = noisy_state(0)
    for _ in range(3):
        loss = step(model, optimizer, BATCH)
        expected = noisy_step(plain_model, plain_optimizer, BATCH)
        assert float(loss) == pytest.approx(float(expected), rel=1e-4)
