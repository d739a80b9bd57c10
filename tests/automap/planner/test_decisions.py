"""A plan that leaves devices doing the same work says how many, of how much, and why; others say
nothing.
"""

import jax
import jax.numpy as jnp
import pytest

import automap
from models import mlp


def array(*dims):
    return jax.ShapeDtypeStruct(dims, "float32")


def step(params, x):
    def loss(p):
        return jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def said(params, x, **options):
    plan = automap.plan(
        step, (params, x), **{"topology": "v5e:2x4", "strategy": "greedy", **options}
    )
    sentences = [
        warning
        for warning in plan.warnings
        if "same work" in warning or "splits nothing" in warning
    ]
    assert all(warning in plan.explain() for warning in sentences)
    return "\n".join(sentences)


def test_a_batch_of_one_and_dimensions_that_do_not_divide():
    text = said({"w1": array(15, 9), "w2": array(9, 5)}, array(1, 15))
    assert text.startswith("8 of 8 devices do the same work in 100% of the computation; ")
    assert "the batch has one example" in text
    assert (
        "too small or not divisible: [0]['w1'][1] into 9 parts, [0]['w1'][0] into 15 parts, "
        in text
    )


def test_everything_is_small():
    """A sum over all devices takes longer than so few products."""
    text = said({"w1": array(16, 16), "w2": array(16, 16)}, array(16, 16))
    assert text.startswith("8 of 8 devices do the same work in 100% of the computation; ")
    assert "the best other choice, " in text and " us a step instead of 3.39 us" in text


def test_a_small_batch_beside_dimensions_that_do_not_divide():
    text = said(
        {"w1": array(1024, 1023), "w2": array(1023, 511)},
        array(4096, 1024),
        mesh={"data": 4, "model": 2},
        preset="data-parallel",
    )
    assert not text
    text = said(
        {"w1": array(1023, 1023), "w2": array(1023, 511)},
        array(4, 1023),
        mesh={"data": 4, "model": 2},
    )
    assert " of 8 devices do the same work in " in text
    assert "[0]['w1'][1] into 1023 parts" in text


@pytest.mark.parametrize("topology", ["v5e:2x4", "v5e:1x1"])
def test_nothing_is_said_where_work_is_divided_or_there_is_one_device(topology):
    train_step, args = mlp.mlp(batch=4096)
    plan = automap.plan(train_step, args, topology=topology, preset="data-parallel")
    assert not [warning for warning in plan.warnings if "same work" in warning]


def test_parameters_without_optimizer_state_have_none_stored_split():
    def half(state, x):
        params, momentum = state

        def loss(p):
            return jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        momentum = 0.9 * momentum + grads["w2"]
        new = {"w1": params["w1"] - 0.1 * grads["w1"], "w2": params["w2"] - 0.1 * momentum}
        return (new, momentum), value

    params, x = {"w1": array(256, 512), "w2": array(512, 256)}, array(64, 256)
    plain = automap.plan(step, (params, x), topology="cpu:8", preset="zero-1")
    assert "optimizer state" not in plan_decisions(plain)
    assert "update computed in parts over data, parameters not stored split" in plain.explain()
    mixed = automap.plan(half, ((params, params["w2"]), x), topology="cpu:8", preset="zero-1")
    assert {
        "storage [0][*]['w1']: update computed in parts over data, parameters not stored split; "
        "covers 1 leaf",
        "storage [0][*]['w2']: optimizer state stored split over data; covers 2 leaves",
    } <= {line.strip() for line in plan_decisions(mixed).splitlines()}


def plan_decisions(plan):
    return plan.explain().split("\ndecisions:")[1]
