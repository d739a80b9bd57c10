"""A step that accumulates its gradients computes what the step computes, in less memory, and no
sample changes its device.

Tolerances: sums of at most 100 float32 products of order one, associated differently: some 1e-6.
"""

import jax
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
import pytest

from automap.errors import InputError, NotSeparableError
from automap.jaxpr.accumulate import accumulated, microbatch_counts
from automap.jaxpr.blocks import block_groups
from automap.jaxpr.flatten import flatten
from automap.jaxpr.rematerialize import levered_call
from automap.plan.levers import LeversRecord, WithoutLeversRecord
from automap.planner.remat import keep_nothing, remat_records
from automap.step.step import traced_call
from tests.automap.jaxpr.microbatch.comparison import assert_close
from tests.automap.jaxpr.microbatch.refused_steps import REFUSED
from tests.automap.jaxpr.microbatch.separable_steps import SEPARABLE
from tests.automap.jaxpr.microbatch.small_steps import ARGS


# Neighbours in the batch are in different microbatches here, halves of the batch are not.
NEIGHBOURS = "pairs_in_one_microbatch"
BY_HALVES = frozenset({"half_of_the_batch", "halves_against_each_other", "groups_of_samples"})
# One of each way that an order of the samples goes: along positions, cut from known values, read
# by number, joined, put back, and with a second loop.
DEFAULT = frozenset(
    {
        "positions_merged_with_the_batch",
        "two_towers",
        "own_label_by_iota",
        "own_row_written",
        "dropout",
        "metrics",
        "root_mean_square",
    }
)


def _call(step, args=ARGS):
    return traced_call(jax.jit(step, donate_argnums=0), args, {})


def _assert_equal(step, call, jaxpr, args=ARGS):
    got = jax.jit(jaxpr_as_fun(jaxpr))(*jax.tree.leaves(args))
    want = jax.tree.leaves(jax.jit(step)(*args))
    is_short = any(jnp.asarray(leaf).dtype == jnp.bfloat16 for leaf in want)
    # Short floats are rounded to 8 bits once per microbatch before they are added.
    rounding = 2**-6 if is_short else 2e-5
    assert_close(list(got), want, rtol=rounding, atol=rounding / 4)
    assert [a.shape for a in call.jaxpr.out_avals] == [a.shape for a in jaxpr.out_avals]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in DEFAULT else pytest.mark.slow) for n in SEPARABLE]
)
def test_separable_steps_compute_the_same(name):
    call = _call(SEPARABLE[name])
    for microbatches in (2, 4):
        if name == NEIGHBOURS:
            with pytest.raises(NotSeparableError, match="other dimensions"):
                accumulated(call, microbatches)
            continue
        _assert_equal(SEPARABLE[name], call, accumulated(call, microbatches))


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_steps_that_need_several_samples_are_refused_or_compute_the_same(name):
    call = _call(REFUSED[name])
    try:
        jaxpr = accumulated(call, 2)
    except NotSeparableError as error:
        assert "microbatches" in str(error)
    else:
        assert name in BY_HALVES
        _assert_equal(REFUSED[name], call, jaxpr)


def _loss(params, x, y):
    for a, b in params:
        normed = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        x = x + jnp.tanh(normed @ a) @ b
    return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()


def _step(params, x, y):
    value, gradients = jax.value_and_grad(_loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def _arguments(batch, width=8):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(0, 0.3, shape), jnp.float32)

    params = [(normal(width, 32), normal(32, width)) for _ in range(4)]
    return params, normal(batch, width), jnp.arange(batch) % width


def _levers(microbatches, remat=()):
    without = WithoutLeversRecord(step_seconds=1.0, peak_bytes=1, fits=False)
    return LeversRecord(
        remat=remat, microbatches=microbatches, recompute_seconds=0.0, without=without
    )


def test_with_rematerialization_of_each_microbatch():
    args = _arguments(16)
    call = _call(_step, args)
    in_parts = levered_call(call, _levers(4), {}, "any order")
    groups = block_groups(flatten(in_parts.jaxpr, {}))
    # Layers of the body of the loop.
    assert max(group.runs for group in groups) > 4
    both = _levers(4, remat_records(groups, keep_nothing(groups)))
    changed = levered_call(in_parts, both, {}, "any order")
    assert changed.own_jaxpr is call.jaxpr
    _assert_equal(_step, call, changed.jaxpr, args)
    # From the step itself the same places are found again.
    assert str(levered_call(call, both, {}, "any order").jaxpr) == str(changed.jaxpr)


def _compiled(jaxpr, args, mesh):
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    shardings = [whole for _ in jax.tree.leaves(args[0])] + [split, split]
    run = jax.jit(jaxpr_as_fun(jaxpr), in_shardings=shardings)
    return run.lower(*jax.tree.leaves(args)).compile()


def test_no_sample_moves_and_memory_falls():
    args = _arguments(8 * 512)
    call = _call(_step, args)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    plain, parts = (_compiled(j, args, mesh) for j in (call.jaxpr, accumulated(call, 8)))
    text = parts.as_text()
    assert "all-reduce" in text
    for moves in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert moves not in text
    # Eight activations of 512 x 32 floats a device are kept at once, or of 64 x 32.
    temporary = [c.memory_analysis().temp_size_in_bytes for c in (plain, parts)]
    assert temporary[1] < temporary[0] / 2


def test_numbers_of_microbatches():
    def counts(batch):
        return list(microbatch_counts(_call(_step, _arguments(batch))))

    assert counts(24) == [2, 4, 8, 24]
    assert counts(9) == [3, 9]
    assert counts(7) == [7]
    with pytest.raises(InputError, match="microbatches=5.*divisor of 24"):
        accumulated(_call(_step, _arguments(24)), 5)
    no_batch = traced_call(lambda w: w * 2, (jnp.ones(()),), {})
    assert not list(microbatch_counts(no_batch))


def _adapted(adapters, base, x, y):
    """A step that trains low-rank adapters of a stack of layers, whose own weights are frozen."""

    def loss(adapters):
        def layer(h, weights):
            own, low = weights
            return jnp.tanh(h @ own["w"] + (h @ low["a"]) @ low["b"] + own["b"]) * own["s"], None

        return ((jax.lax.scan(layer, x, (base, adapters))[0] - y) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(adapters)
    return jax.tree.map(lambda p, g: p - 0.1 * g, adapters, gradients), value


def _distilled(student, teacher, x):
    """A step whose teacher is a list of layers, with more arrays of one size than the batch has."""

    def run(layers):
        h = x
        for layer in layers:
            h = jnp.tanh(h @ layer["w"] + layer["b"])
        return h

    value, gradients = jax.value_and_grad(lambda s: ((run(s) - run(teacher)) ** 2).mean())(student)
    return jax.tree.map(lambda p, g: p - 0.1 * g, student, gradients), value


def _frozen_case(name):
    keys = iter(jax.random.split(jax.random.key(0), 32))

    def normal(*dims):
        return jax.random.normal(next(keys), dims) / 4

    if name == "adapters":
        base = {"w": normal(6, 16, 16), "b": normal(6, 16), "s": normal(6, 16)}
        adapters = {"a": normal(6, 16, 2), "b": normal(6, 2, 16)}
        return _adapted, (adapters, base, normal(8, 16), normal(8, 16))
    layers = [{"w": normal(16, 16), "b": normal(16)} for _ in range(6)]
    return _distilled, (layers[:2], layers[2:], normal(8, 16))


@pytest.mark.parametrize("name", ["adapters", "teacher"])
def test_frozen_weights_are_not_the_batch_though_more_arrays_have_their_leading_size(name):
    step, args = _frozen_case(name)
    call = _call(step, args)
    assert list(microbatch_counts(call)) == [2, 4, 8]
    for microbatches in (2, 8):
        _assert_equal(step, call, accumulated(call, microbatches), args)
    with pytest.raises(InputError, match="batch of 8 samples cannot be divided"):
        accumulated(call, 3)


def test_frozen_weights_may_be_as_wide_as_the_batch_is_large():
    step, (student, teacher, _) = _frozen_case("teacher")
    args = student, teacher, jax.random.normal(jax.random.key(1), (16, 16))
    call = _call(step, args)
    assert list(microbatch_counts(call)) == [2, 4, 8, 16]
    for microbatches in (2, 16):
        in_parts = accumulated(call, microbatches)
        _assert_equal(step, call, in_parts, args)
        assert microbatches in [eqn.params.get("length") for eqn in in_parts.jaxpr.eqns]


def test_frozen_weights_as_wide_as_the_batch_may_be_a_part_of_its_argument():
    step, (student, teacher, _) = _frozen_case("teacher")
    x = jax.random.normal(jax.random.key(1), (16, 16))

    def with_teacher(student, batch):
        return step(student, batch["teacher"], batch["x"])

    args = student, {"teacher": teacher, "x": x}
    call = _call(with_teacher, args)
    assert list(microbatch_counts(call)) == [2, 4, 8, 16]
    in_parts = accumulated(call, 4)
    _assert_equal(with_teacher, call, in_parts, args)
    assert 4 in [eqn.params.get("length") for eqn in in_parts.jaxpr.eqns]


def test_caches_that_serving_carries_for_each_request_are_of_the_batch():
    def decode(weights, caches, token, position):
        x = weights["embedding"][token]
        written = []
        for layer, cache in zip(weights["layers"], caches, strict=True):
            cache = cache.at[:, position].set(x @ layer)
            scores = jnp.einsum("bd,btd->bt", x, cache)
            x = x + jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), cache)
            written.append(cache)
        return x @ weights["embedding"].T, written

    keys = iter(jax.random.split(jax.random.key(0), 8))
    weights = {
        "embedding": jax.random.normal(next(keys), (32, 8)),
        "layers": [jax.random.normal(next(keys), (8, 8)) for _ in range(2)],
    }
    caches = [jax.random.normal(next(keys), (12, 5, 8)) for _ in range(2)]
    args = weights, caches, jnp.arange(12) % 7, jnp.int32(3)
    call = traced_call(jax.jit(decode, donate_argnums=1), args, {})
    assert list(microbatch_counts(call)) == [2, 4, 12]
    for microbatches in (2, 3, 12):
        got = jax.jit(jaxpr_as_fun(accumulated(call, microbatches)))(*jax.tree.leaves(args))
        assert_close(got, jax.tree.leaves(jax.jit(decode)(*args)), rtol=1e-5, atol=1e-6)

    # All of the requests in the state, as where the next token is drawn from the last logits.
    def drawn(weights, state):
        logits, caches = decode(weights, state["caches"], state["token"], state["position"])
        token, position = logits.argmax(-1), state["position"] + 1
        return {"caches": caches, "token": token, "position": position}, token

    state = {"caches": caches, "token": args[2], "position": args[3]}
    call = traced_call(jax.jit(drawn, donate_argnums=1), (weights, state), {})
    got = jax.jit(jaxpr_as_fun(accumulated(call, 3)))(*jax.tree.leaves((weights, state)))
    wanted = jax.tree.leaves(jax.jit(drawn)(weights, state))
    assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    # State that all requests share is none of theirs, however large it is.
    counted = (weights, [*caches, jnp.zeros(12)], *args[2:])

    def shared(weights, caches, token, position):
        logits, written = decode(weights, caches[:2], token, position)
        return logits, [*written, caches[2] + logits.sum()]

    call = traced_call(jax.jit(shared, donate_argnums=1), counted, {})
    with pytest.raises(NotSeparableError):
        accumulated(call, 2)


def test_a_step_beside_frozen_weights_that_needs_its_batch_whole_is_refused_for_that():
    def step(w, base, x):
        def loss(w):
            h = jnp.tanh(x @ base["w"][0] + base["b"][0]) @ w
            return ((h - h.mean(0)) ** 2).mean()

        return w - 0.1 * jax.grad(loss)(w)

    base = {"w": jnp.ones((6, 16, 16)), "b": jnp.ones((6, 16))}
    with pytest.raises(NotSeparableError, match="sum or a mean over the whole batch"):
        accumulated(_call(step, (jnp.ones((16, 4)), base, jnp.ones((8, 16)))), 2)


def _spread(w, batch):
    losses = ((batch["x"] @ w - batch["y"]) ** 2).mean(1)
    return (losses * batch["weights"]).sum(), {"spread": losses.std(), "each": losses}


def _updated_beside_the_losses(w, batch, mask):
    """What it returns for each sample is taken for an update of the samples' weights."""
    (_, metrics), gradient = jax.value_and_grad(_spread, has_aux=True)(w, batch)
    return w - 0.1 * mask * gradient, metrics


def _updated(w, batch, mask):
    updated, metrics = _updated_beside_the_losses(w, batch, mask)
    return updated, metrics["spread"]


@pytest.mark.parametrize(
    ("step", "width", "mask"),
    [(_updated_beside_the_losses, 6, jnp.ones(())), (_updated, 16, jnp.ones((16, 4)))],
    ids=["state as large as the batch", "weights as wide as the batch is large"],
)
def test_sizes_of_some_arrays_of_the_batch_alone_are_no_reason_for_a_refusal(step, width, mask):
    batch = {"x": jnp.ones((16, width)), "y": jnp.ones((16, 4)), "weights": jnp.ones(16)}
    # Donated arguments alone would be the state.
    call = traced_call(jax.jit(step), (jnp.ones((width, 4)), batch, mask), {})
    with pytest.raises(NotSeparableError, match=r"sub at .*\(_spread\): ") as raised:
        accumulated(call, 2)
    assert "cannot be traced" not in str(raised.value)


def test_a_step_of_one_batch_only_names_the_arrays_that_cannot_have_another_size():
    def step(w, x, y):
        return w - 0.1 * jax.grad(lambda w: ((x.reshape(8, 2, 8) @ w - y) ** 2).mean())(w)

    call = _call(step, (jnp.ones((8, 4)), jnp.ones((8, 16)), jnp.ones((8, 2, 4))))
    match = r"4 samples instead of 8 in \[1\], \[2\]: "
    with pytest.raises(NotSeparableError, match=match) as raised:
        accumulated(call, 2)
    assert raised.type is NotSeparableError


@pytest.mark.parametrize("form", ["memory", "projection"])
def test_of_several_sizes_that_divide_the_batch_is_that_with_most_products_in_the_loop(form):
    """A step is also a sum over what a frozen memory holds, of which nothing is a sample."""

    def answered(memory, x):
        if form == "projection":
            return x @ memory["keys"].T @ memory["keys"]
        return jax.nn.sigmoid(x @ memory["keys"].T) @ memory["values"]

    def step(w, memory, x, y):
        gradient = jax.grad(lambda w: ((answered(memory, x) @ w - y) ** 2).mean())(w)
        return w - 0.1 * gradient

    rng = np.random.default_rng(0)
    shapes = (16, 4), (12, 16), (12, 16), (9, 16), (9, 4)
    w, keys, values, x, y = (jnp.asarray(rng.normal(0, 0.3, s), jnp.float32) for s in shapes)
    args = (w, {"keys": keys, "values": values}, x, y)
    call = _call(step, args)
    assert list(microbatch_counts(call)) == [3, 9]
    _assert_equal(step, call, accumulated(call, 3), args)
    with pytest.raises(InputError, match="9 samples"):
        accumulated(call, 7)


def test_a_step_without_products_and_without_loops_says_so():
    call = _call(lambda w, a, b: w - a.sum() - b.sum(), (jnp.ones(3), jnp.ones(4), jnp.ones(6)))
    with pytest.raises(NotSeparableError, match="gains nothing from microbatches"):
        accumulated(call, 2)


@pytest.mark.parametrize("hard_coded", [False, True])
def test_requests_that_a_step_carries_whole_are_its_batch(hard_coded):
    """It returns nothing besides them, and has a table of more rows."""

    def decode(table, state):
        scores = state["x"] @ table.T
        if hard_coded:
            scores = scores.reshape(6, -1)
        drawn = jnp.argmax(scores, 1)
        return {"x": jnp.tanh(state["x"] + table[drawn]), "drawn": drawn.astype(jnp.int32)}

    rng = np.random.default_rng(0)
    table, x = (jnp.asarray(rng.normal(0, 1, s), jnp.float32) for s in ((11, 4), (6, 4)))
    args = table, {"x": x, "drawn": jnp.zeros(6, jnp.int32)}
    call = traced_call(jax.jit(decode), args, {})
    if hard_coded:
        with pytest.raises(NotSeparableError, match=r"instead of 6 in \[1\]\['drawn'\]"):
            accumulated(call, 2)
        return
    got = jax.jit(jaxpr_as_fun(accumulated(call, 3)))(*jax.tree.leaves(args))
    assert_close(got, jax.tree.leaves(jax.jit(decode)(*args)), rtol=1e-5, atol=1e-6)
