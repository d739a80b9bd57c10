"""A base model that is an argument of its own is priced as one that the state carries; no batch is
taken for one.
"""

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from automap.config import Options
from automap.planner.sharding import find
from automap.program import trace_step
from automap.topology import get_topology
from hlo_tools.analyses.roles import Role


LAYERS, WIDTH, RANK, BATCH = 3, 256, 8, 1024


def array(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


def adapted(adapters, base, x):
    """A residual network of frozen layers, with an adapter beside each."""

    def layer(x, both):
        frozen, adapter = both
        beside = x @ adapter["a"] @ adapter["b"]
        hidden = jax.nn.relu(x @ frozen["up"].astype(x.dtype) + frozen["bias"])
        return x + hidden @ frozen["down"] + beside, None

    return lax.scan(jax.checkpoint(layer), x, (base, adapters))[0]


def trained(adapters, base, x, y):
    """New adapters and the loss."""
    loss, grads = jax.value_and_grad(lambda a: jnp.mean((adapted(a, base, x) - y) ** 2))(adapters)
    return jax.tree.map(lambda p, g: p - 0.1 * g, adapters, grads), loss


def with_argument(adapters, base, x, y):
    return trained(adapters, base, x, y)


def with_state(state, x, y):
    adapters, loss = trained(state["adapters"], state["base"], x, y)
    return {"adapters": adapters, "base": state["base"]}, loss


def pieces(dtype="float32"):
    adapters = {"a": array(LAYERS, WIDTH, RANK), "b": array(LAYERS, RANK, WIDTH)}
    base = {
        "up": array(LAYERS, WIDTH, 4 * WIDTH, dtype=dtype),
        "bias": array(LAYERS, 4 * WIDTH),
        "down": array(LAYERS, 4 * WIDTH, WIDTH),
    }
    return adapters, base, array(BATCH, WIDTH), array(BATCH, WIDTH)


def role_by_leaf(step, *args):
    problem = trace_step(step, args, platform="tpu").problem
    return dict(zip(problem.paths, problem.roles, strict=True))


def prices(step, args):
    workload = trace_step(step, args, platform="tpu")
    context = find(workload, get_topology("v5e:2x4"), Options(preset="data-parallel")).context
    return {
        name: (c.point.mesh, c.estimate.step_seconds, c.estimate.peak_bytes)
        for name, c in context.best_per_preset.items()
    }


def test_presets_are_those_of_a_step_that_carries_the_base():
    adapters, base, *batch = pieces()
    carried = prices(with_state, ({"adapters": adapters, "base": base}, *batch))
    assert "zero-3" in carried and "megatron" in carried
    assert prices(with_argument, (adapters, base, *batch)) == carried


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
def test_all_of_a_base_are_parameters_whatever_their_numbers(dtype):
    adapters, base, *batch = pieces(dtype)
    role_by_path = role_by_leaf(with_argument, adapters, base, *batch)
    assert {path for path, role in role_by_path.items() if role is Role.BATCH} == {"[2]", "[3]"}
    assert all(role_by_path[f"[1]['{name}']"] is Role.PARAMETER for name in base)


def sgd(loss):
    """A train step of a state and a batch of several arrays."""

    def step(state, *batch):
        value, grads = jax.value_and_grad(loss)(state, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    return step


def two_domains(state, inside, boundary):
    def field(x):
        return jax.nn.relu(x @ state["a"]) @ state["b"]

    return jnp.mean(field(inside) ** 2) + jnp.mean(field(boundary) ** 2)


def contrast(state, questions, answers):
    scores = (questions @ state["a"]) @ (answers @ state["a"]).T
    return jnp.mean(jax.nn.logsumexp(scores, axis=1))


def messages(state, nodes, edges, weights):
    hidden = jax.nn.relu(nodes @ state["a"])
    return jnp.mean((weights[:, None] * hidden[edges]) @ state["b"])


def over_time(state, inputs, targets):
    def cell(h, x):
        h = jnp.tanh(x @ state["a"] + h @ state["c"])
        return h, h @ state["b"]

    outputs = lax.scan(cell, jnp.zeros((32, WIDTH)), inputs)[1]
    return jnp.mean((outputs - targets) ** 2)


STATE = {"a": array(64, WIDTH), "b": array(WIDTH, 64), "c": array(WIDTH, WIDTH)}
BATCHES = {
    "points of two domains": (two_domains, array(4096, 64), array(512, 64)),
    "answers beside questions": (contrast, array(512, 64), array(768, 64)),
    "nodes and edges": (messages, array(512, 64), array(4096, dtype="int32"), array(4096)),
    "time first": (over_time, array(16, 32, 64), array(16, 32, 64)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_what_comes_with_each_step_stays_the_batch(name):
    loss, *batch = BATCHES[name]
    role_by_path = role_by_leaf(sgd(loss), STATE, *batch)
    assert all(
        role is Role.BATCH for path, role in role_by_path.items() if not path.startswith("[0]")
    )
