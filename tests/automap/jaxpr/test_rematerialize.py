"""A step that computes values again computes what the step computes, and keeps less."""

from dataclasses import replace
from functools import cache

import jax
from jax import lax
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from automap.errors import PlanError
from automap.jaxpr.again import COMPUTED_AGAIN, Choice
from automap.jaxpr.blocks import block_groups
from automap.jaxpr.flatten import equations, flatten
from automap.jaxpr.rematerialize import levered_call, read_choices, rematerialized, with_levers
from automap.plan.levers import KeptRecord, LeversRecord, RematRecord, WithoutLeversRecord
from automap.step.step import traced_call


LAYERS, WIDTH, HIDDEN, BATCH = 4, 8, 24, 8


def _layer(x, p):
    centred = x - x.mean(-1, keepdims=True)
    normed = centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(jnp.tanh(normed @ p["a"]) * jnp.sin(normed @ p["c"])) @ p["b"]


def _unrolled(params, x):
    for i in range(LAYERS):
        x = _layer(x, jax.tree.map(lambda p: p[i], params))  # noqa: B023 - used at once
    return (x**2).mean()


def _scanned(params, x):
    return (lax.scan(lambda x, p: (_layer(x, p), None), x, params)[0] ** 2).mean()


def _with_dropout(params, x):
    """A loop that carries a key and is given another one, with a constant and a loop inside."""
    scale = x.mean()

    def body(carry, p):
        x, key = carry
        key, own = jax.random.split(key)
        mask = jax.random.bernoulli(own, 0.7, x.shape)
        inner, _ = lax.scan(lambda y, w: (jnp.tanh(y * w + scale), None), x, p["a"].T[:3, :])
        return (_layer(jnp.where(mask, inner, 0.0), p) + x, key), x.sum()

    (x, _), sums = lax.scan(body, (x, jax.random.key(3)), params)
    return (x**2).mean() + 0.1 * sums.sum()


def _in_reverse(params, x):
    return (lax.scan(lambda x, p: (_layer(x, p), None), x, params, reverse=True)[0] ** 2).mean()


def _checkpointed(params, x):
    return (lax.scan(jax.checkpoint(lambda x, p: (_layer(x, p), None)), x, params)[0] ** 2).mean()


def _accumulated(params, x):
    """The user's own microbatches: both passes stand in the body of a loop."""
    parts = x.reshape(2, BATCH // 2, WIDTH)
    return lax.map(lambda part: _scanned(params, part), parts).mean()


LOSSES = {
    "unrolled": _unrolled,
    "scanned": _scanned,
    "dropout": _with_dropout,
    "reverse": _in_reverse,
    "checkpointed": _checkpointed,
    "accumulated": _accumulated,
}


def _step(loss):
    optimizer = optax.sgd(1e-1, momentum=0.9)

    def step(params, state, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    return step, optimizer


def _arguments(optimizer):
    rng = np.random.default_rng(0)
    shapes = {"a": (WIDTH, HIDDEN), "c": (WIDTH, HIDDEN), "b": (HIDDEN, WIDTH)}
    params = {
        name: jnp.asarray(rng.normal(0, 0.2, (LAYERS, *shape)), jnp.float32)
        for name, shape in shapes.items()
    }
    return params, optimizer.init(params), jnp.asarray(rng.normal(size=(BATCH, WIDTH)), jnp.float32)


def _traced(name):
    step, optimizer = _step(LOSSES[name])
    args = _arguments(optimizer)
    jaxpr = jax.jit(step).trace(*args).jaxpr
    return flatten(jaxpr, {}), jaxpr, jax.tree.leaves(args)


def _run(jaxpr, leaves):
    """The second step, which has what the first one has updated."""
    run = jax.jit(jaxpr_as_fun(jaxpr))
    return run(*run(*leaves)[: len(leaves) - 1], leaves[-1])


@cache
def _expected(name):
    _, jaxpr, leaves = _traced(name)
    return _run(jaxpr, leaves)


def _kept_by(rule, groups):
    """Choices by a rule of (number in the block, primitive)."""
    return [
        Choice(block, frozenset(v for v, (n, _) in block.number.items() if rule(n, block)))
        for group in groups
        for block in group.blocks
    ]


RULES = {
    "nothing": lambda number, block: False,
    "products": lambda n, block: block.equations[n].eqn.primitive.name == "dot_general",
    "every third": lambda number, block: number % 3 == 0,
}


DEFAULT = {("unrolled", "products"), ("accumulated", "every third"), ("dropout", "nothing")}
CASES = [
    pytest.param(loss, rule, marks=() if (loss, rule) in DEFAULT else pytest.mark.slow)
    for loss in LOSSES
    for rule in RULES
]


@pytest.mark.parametrize(("loss", "rule"), CASES)
def test_numbers_are_those_of_the_step(loss, rule):
    flat, _, leaves = _traced(loss)
    changed = rematerialized(flat, _kept_by(RULES[rule], block_groups(flat)))
    for got, expected in zip(_run(changed, leaves), _expected(loss), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


def _hosted(rule, groups, host_stacks="one order"):
    """Choices that keep what a rule says, and have all of it that a loop stacks in the host's
    memory, its carries too.
    """
    return [
        replace(choice, hosted=choice.kept | set(choice.block.carries), host_stacks=host_stacks)
        for choice in _kept_by(rule, groups)
        if choice.block.outer is not None
    ]


HOSTED = [("scanned", "nothing"), ("scanned", "products"), ("scanned", "every third")]
HOSTED += [("reverse", "products"), ("accumulated", "every third"), ("dropout", "every third")]


@pytest.mark.parametrize(
    ("loss", "rule"),
    [
        pytest.param(*case, marks=() if case[1] == "products" else pytest.mark.slow)
        for case in HOSTED
    ],
)
def test_numbers_are_those_of_the_step_with_values_in_host_memory(loss, rule):
    flat, _, leaves = _traced(loss)
    floats = [
        replace(c, hosted=frozenset(v for v in c.hosted if v.aval.dtype == jnp.float32))
        for c in _hosted(RULES[rule], block_groups(flat))
    ]
    changed = rematerialized(flat, floats)
    assert "<host>" in str(changed)
    for got, expected in zip(_run(changed, leaves), _expected(loss), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


def test_a_hosted_carry_is_brought_back_once_a_trip():
    flat, _, _ = _traced("scanned")
    changed = rematerialized(flat, _hosted(RULES["nothing"], block_groups(flat)))
    moves = [e.eqn for e in equations(flatten(changed, {})) if e.eqn.primitive.name == "device_put"]
    # The carry of each trip, there and back.
    assert len(moves) == 2
    assert {eqn.invars[0].aval.shape for eqn in moves} == {(BATCH, WIDTH)}


@pytest.mark.parametrize(("stacks", "count"), [("one order", 2), ("any order", 0)])
def test_the_order_of_dimensions_is_said_before_and_after(stacks, count):
    flat, _, _ = _traced("scanned")
    changed = rematerialized(flat, _hosted(RULES["nothing"], block_groups(flat), stacks))
    said = [
        e.eqn
        for e in equations(flatten(changed, {}))
        if e.eqn.primitive.name == "layout_constraint"
    ]
    assert len(said) == count
    assert len({str(eqn.params["layout"]) for eqn in said}) <= 1


def _again(jaxpr):
    return [
        e.eqn.primitive.name
        for e in equations(flatten(jaxpr, {}))
        if COMPUTED_AGAIN in str(e.eqn.source_info.name_stack)
    ]


def test_equal_layers_are_one_group():
    flat, _, _ = _traced("unrolled")
    layers = max(block_groups(flat), key=lambda group: len(group.blocks))
    # The first one has no gradient of its input, and so other equations.
    assert len(layers.blocks) == LAYERS - 1
    # Two products with the layer's input, and one with the gate's.
    again = _again(rematerialized(flat, _kept_by(RULES["nothing"], [layers])))
    assert again.count("dot_general") == 2 * (LAYERS - 1)


def test_a_loop_stacks_what_is_kept_and_its_carry():
    flat, jaxpr, _ = _traced("scanned")
    (group,) = (g for g in block_groups(flat) if g.blocks[0].kind == "scan")
    kept = _kept_by(RULES["products"], [group])
    for choices, stacks in ((kept, 2 + 1), (_kept_by(RULES["nothing"], [group]), 1)):
        loop = next(
            e.eqn
            for e in flatten(rematerialized(flat, choices), {}).equations
            if e.eqn.primitive.name == "scan"
        )
        # Beside the carry itself: the products that are kept, and the carry of each trip.
        assert len(loop.outvars) == 1 + stacks
    assert not _again(jaxpr)


def test_what_is_kept_is_not_computed_again():
    flat, _, _ = _traced("unrolled")
    groups = block_groups(flat)
    everything = _kept_by(lambda number, block: True, groups)
    assert not _again(rematerialized(flat, everything))
    assert "dot_general" not in _again(rematerialized(flat, _kept_by(RULES["products"], groups)))


def test_what_the_compiler_allocates_falls():
    """The backward pass of each layer needs its own activations only."""
    params, x = _arguments(optax.identity())[0], jnp.zeros((4096, WIDTH))
    jaxpr = jax.jit(jax.grad(_scanned)).trace(params, x).jaxpr
    flat = flatten(jaxpr, {})
    changed = rematerialized(flat, _kept_by(RULES["nothing"], block_groups(flat)))
    temporary = [
        jax.jit(jaxpr_as_fun(each)).lower(*jax.tree.leaves((params, x))).compile().memory_analysis()
        for each in (jaxpr, changed)
    ]
    stacks = 4096 * HIDDEN * 4 * LAYERS
    assert temporary[1].temp_size_in_bytes < temporary[0].temp_size_in_bytes - stacks


def _classified(params, x):
    """A loss over many classes, whose gradient is broadcast to them and added to zeros."""
    logits = _layer(x, jax.tree.map(lambda p: p[0], params)) @ jnp.tile(params["a"][1], 16)
    labels = jnp.arange(BATCH) % logits.shape[1]
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -found.mean()


def test_a_barrier_holds_no_gradient_that_is_made_of_a_smaller_one():
    """Broadcast to all classes, and zeros to add to, they would be in memory for it."""
    step, optimizer = _step(_classified)
    leaves = _arguments(optimizer)
    jaxpr = jax.jit(step).trace(*leaves).jaxpr
    leaves, flat = jax.tree.leaves(leaves), flatten(jaxpr, {})
    # Exponentials of the logits, and the places of the labels.
    dropped = {"exp", "reshape"}
    choices = _kept_by(
        lambda n, block: block.equations[n].eqn.primitive.name not in dropped, block_groups(flat)
    )
    changed = rematerialized(flat, choices)
    for got, want in zip(_run(changed, leaves), _run(jaxpr, leaves), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    names = [e.eqn.primitive.name for e in flatten(changed, {}).equations]
    barriers = [e.eqn for e in flatten(changed, {}).equations if e.eqn.outvars[1:]]
    barriers = [eqn for eqn in barriers if eqn.primitive.name == "optimization_barrier"]
    assert barriers
    gradients = [eqn.invars[-1].aval.shape for eqn in barriers]
    assert not any(16 * HIDDEN in shape for shape in gradients)
    # Moved behind the barrier, and not made twice.
    before = [e.eqn.primitive.name for e in flat.equations]
    assert names.count("scatter-add") == before.count("scatter-add")


@jax.custom_vjp
def _gated(x, scale):
    return jnp.concatenate([jnp.exp(scale) * x[:, :-1], jnp.sinh(x[:, -1:])], 1)


def _gated_backward(residuals, gradient):
    """Of a gradient in two parts, the narrow one is the latest when something is made of none."""
    x, factor = residuals
    wide, narrow = lax.split(gradient, (WIDTH - 1, 1), axis=1)
    slope = jnp.cosh(x[:, -1:])
    made = wide * factor
    return jnp.concatenate([made, narrow * slope], 1), made * x[:, :-1]


_gated.defvjp(lambda x, scale: (_gated(x, scale), (x, jnp.exp(scale))), _gated_backward)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_makes_two_gradients_is_not_moved_behind_a_barrier_of_one_of_them(rule):
    """The wide one is made of a smaller gradient, the rows' weights."""

    def loss(params, x, weights):
        matrix, scale = params
        return (_gated(jnp.tanh(x @ matrix), scale).sum(1) * weights).sum()

    rng = np.random.default_rng(0)
    shapes = (WIDTH, WIDTH), (BATCH, WIDTH - 1), (BATCH, WIDTH), (BATCH,)
    *params, x, weights = (jnp.asarray(rng.normal(0, 0.3, s), jnp.float32) for s in shapes)
    jaxpr = jax.jit(jax.grad(loss)).trace(tuple(params), x, weights).jaxpr
    flat = flatten(jaxpr, {})
    changed = rematerialized(flat, _kept_by(rule, block_groups(flat)))
    leaves = (*params, x, weights)
    for got, want in zip(*(jax.jit(jaxpr_as_fun(j))(*leaves) for j in (changed, jaxpr))):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_effects_are_not_repeated():
    def loss(params, x):
        for i in range(LAYERS):
            x = _layer(x, jax.tree.map(lambda p: p[i], params))  # noqa: B023 - used at once
            jax.debug.callback(lambda: None)
        return (x**2).mean()

    step, optimizer = _step(loss)
    jaxpr = jax.jit(step).trace(*_arguments(optimizer)).jaxpr
    flat = flatten(jaxpr, {})
    changed = rematerialized(flat, _kept_by(RULES["nothing"], block_groups(flat)))
    names = [e.eqn.primitive.name for e in equations(flatten(changed, {}))]
    assert names.count("debug_callback") == LAYERS


def _levers(blocks, count, kept=(), kind="layers"):
    return LeversRecord(
        remat=(RematRecord(kind=kind, blocks=blocks, equations=count, kept=kept),),
        recompute_seconds=0.0,
        without=WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False),
    )


@pytest.mark.parametrize(
    ("levers", "message"),
    [
        (_levers(("99999",), 3), "no block of 3 equations at 99999"),
        (_levers(("0",), 10**6), "no block of 1000000 equations at 0"),
        (_levers(("0",), 2, kind="scan"), "no block of 2 equations at 0"),
        (_levers(("0", "1"), 2), "the blocks at 0 and 1 overlap"),
        (_levers(("0",), 2, (KeptRecord(at="1:out9", value=""),)), "has no result 9"),
    ],
)
def test_levers_of_another_step_are_refused(levers, message):
    flat, _, _ = _traced("scanned")
    with pytest.raises(PlanError, match=message):
        with_levers(flat, levers, "any order")


def test_a_record_names_the_choice():
    flat, _, _ = _traced("scanned")
    (group,) = (g for g in block_groups(flat) if g.blocks[0].kind == "scan")
    block = group.blocks[0]
    record = _levers((block.site,), block.count, (KeptRecord(at="0:out0", value=""),), "scan")
    (choice,) = read_choices(flat, record, "any order")
    assert (choice.block.site, choice.block.loop) == (block.site, block.loop)
    assert choice.kept == {v for v, place in choice.block.number.items() if place == (0, 0)}


def test_a_call_gets_levers_once():
    step, optimizer = _step(_unrolled)
    call = traced_call(step, _arguments(optimizer), {})
    levers = _levers(("0",), 5)
    changed = levered_call(call, levers, {}, "any order")
    assert levered_call(changed, levers, {}, "any order") is changed
    assert changed.own_jaxpr is call.jaxpr
    assert levered_call(call, None, {}, "any order") is call
