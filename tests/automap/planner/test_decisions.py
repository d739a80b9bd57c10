"""A plan that leaves devices doing the same work says how many, of how much, and why; others say
nothing.
"""

import jax
import jax.numpy as jnp
import pytest

import automap
from automap.errors import InputError
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


def test_a_dimension_that_is_also_split_around_its_weights_is_named_once():
    def experts(params, x):
        def loss(p):
            gates = jax.nn.softmax(x @ p["gate"])
            chosen = jnp.argmax(gates, -1)
            order = jnp.argsort(chosen)
            sizes = jnp.bincount(chosen, length=4).astype(jnp.int32)
            hidden = jax.lax.ragged_dot(
                jax.nn.relu(jax.lax.ragged_dot(x[order], p["up"], sizes)), p["down"], sizes
            )
            return jnp.mean((hidden[jnp.argsort(order)] * gates.max(-1, keepdims=True)) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    params = {"gate": array(32, 4), "up": array(4, 32, 48), "down": array(4, 48, 32)}
    plan = automap.plan(experts, (params, array(96, 32)), topology="cpu:8")
    (text,) = (part for part in plan.warnings if "not divisible" in part)
    assert text.count("[0]['down'][0] into 4 parts") == 1
    assert "[0]['up'][0] into 4 parts" in text and " more;" not in text


@pytest.mark.parametrize(
    ("weight", "x", "expected"),
    [
        (array(3, 5), array(1, 3), "the batch has one example; too small or not divisible: "),
        (array(7, 5), array(9, 7), r"as 16; too small or not divisible: .*, batch into 9 parts"),
        (array(), array(), "nothing is computed over a dimension of several elements"),
    ],
)
def test_where_no_preset_suits_the_reason_is_said(weight, x, expected):
    def train(w, x):
        value, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(jnp.dot(x, w)) ** 2))(w)
        return w - 0.1 * grad, value

    with pytest.raises(InputError, match=f"{expected}.*; presets that do: none"):
        automap.plan(train, (weight, x), topology="v5e:2x4", preset="zero-3")
