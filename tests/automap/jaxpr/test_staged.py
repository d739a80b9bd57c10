"""Steps in stages, with merged operators or streams, compute what they computed."""

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import pytest

from automap.errors import PlanError
from automap.jax_compat import call_attributes, stream_call
from automap.jaxpr.flatten import flatten
from automap.jaxpr.staged import StageSites, staged


def _flat(step, *args):
    return flatten(jax.jit(step).trace(*args).jaxpr, {})


def _sites(flat, primitive):
    return [e.path for e in flat.equations if e.eqn.primitive.name == primitive]


def _merged(sites):
    return StageSites(groups=tuple((site,) for site in sites), is_merged=True)


def _at_once(*groups):
    return StageSites(groups=tuple(map(tuple, groups)), is_merged=False)


def _convolution(x, w, stride, padding):
    return lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


WINDOWS = {
    "1x1 and 3x3": (1, "SAME", [(1, 1), (3, 3)]),
    "equal": (1, "SAME", [(3, 3), (3, 3)]),
    "factorized": (1, "SAME", [(1, 3), (3, 1), (1, 1)]),
    "5x5, 1x1, 3x3": (1, "SAME", [(5, 5), (1, 1), (3, 3)]),
    "stride 2, SAME": (2, "SAME", [(3, 3), (5, 5), (1, 1)]),
    "stride 2, VALID": (2, "VALID", [(3, 3), (3, 3)]),
    "even windows": (1, "SAME", [(2, 2), (4, 4), (3, 2)]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_of_one_image_are_one_with_equal_numbers(name):
    stride, padding, windows = WINDOWS[name]
    x = _normal(0, 2, 9, 8, 3)
    weights = [_normal(n + 1, *window, 3, 4 + n) for n, window in enumerate(windows)]

    def step(x, weights):
        return [jnp.tanh(_convolution(x, w, stride, padding)) for w in weights]

    flat = _flat(step, x, weights)
    run = staged(flat, [_merged(_sites(flat, "conv_general_dilated"))], on_streams=False)
    made = jax.jit(run)(x, *weights)
    for got, expected in zip(made, step(x, weights), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    text = str(jax.make_jaxpr(run)(x, *weights))
    assert text.count("conv_general_dilated[") == 1


def test_products_of_one_operand_are_one_with_equal_numbers():
    x, weights = _normal(0, 2, 5, 8), [_normal(n, 8, 3 + n) for n in range(3)]

    def step(x, weights):
        # The last weight is made behind the first product: it has to come before the merged one.
        first = x @ weights[0]
        return first, x @ weights[1], x @ (weights[2] * 2)

    flat = _flat(step, x, weights)
    run = staged(flat, [_merged(_sites(flat, "dot_general"))], on_streams=False)
    for got, expected in zip(run(x, *weights), step(x, weights), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert str(jax.make_jaxpr(run)(x, *weights)).count("dot_general[") == 1


def test_equations_stand_in_the_order_of_the_stages():
    def step(x):
        return jnp.sin(x), jnp.cos(x), jnp.exp(jnp.tan(x))

    flat = _flat(step, 1.0)
    (sine,), (cosine,), (exponential,) = (_sites(flat, name) for name in ("sin", "cos", "exp"))
    run = staged(flat, [_at_once([site]) for site in (exponential, cosine, sine)], on_streams=False)
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(run)(1.0).eqns]
    assert names == ["tan", "exp", "cos", "sin"]


@pytest.mark.parametrize("what", ["two operands", "other primitives", "absent", "dependent"])
def test_what_cannot_be_merged_is_refused(what):
    x, y, w = _normal(0, 4, 4), _normal(1, 4, 4), _normal(2, 4, 4)
    steps = {
        "two operands": lambda x, y, w: (x @ w, y @ w),
        "other primitives": lambda x, y, w: (x @ w, jnp.sin(x)),
        "absent": lambda x, y, w: (x @ w, x @ y),
        "dependent": lambda x, y, w: (x @ (x @ w),),
    }
    flat = _flat(steps[what], x, y, w)
    sites = _sites(flat, "dot_general") + _sites(flat, "sin")
    sites = [*sites, "99"] if what == "absent" else sites
    with pytest.raises(PlanError, match="plan again|reads another"):
        staged(flat, [_merged(sites)], on_streams=False)


def test_a_step_with_effects_is_refused():
    def step(x):
        jax.debug.print("{}", x, ordered=True)
        return x

    with pytest.raises(PlanError, match="effects"):
        staged(_flat(step, 1.0), [], on_streams=False)


needs_streams = pytest.mark.skipif(
    stream_call() is None, reason="this JAX calls nothing on streams"
)


def _calls(run, *args):
    """Of each call on a stream its stage, its stream and the primitives inside, in their order."""
    return [
        (
            int(attributes["_scheduling_group_id"]),
            int(attributes["_xla_stream_annotation"]),
            [inner.primitive.name for inner in eqn.params["jaxpr"].eqns],
        )
        for eqn in jax.make_jaxpr(run)(*args).eqns
        if "_xla_stream_annotation" in (attributes := call_attributes(eqn.params))
    ]


@needs_streams
def test_groups_are_calls_on_streams_whose_edges_are_where_values_are_written():
    x, a, b, c = _normal(0, 8, 8), _normal(1, 8, 4), _normal(2, 8, 6), _normal(3, 4, 6)

    def step(x, a, b, c):
        # A prologue of the first, a chain of two; what is made of both at once is a kernel of both.
        first = jnp.tanh(jnp.sin(x) @ a) @ c
        second = jnp.exp(x @ b) * 2.0
        return first + second, (first * second).sum()

    flat = _flat(step, x, a, b, c)
    one, chain, other = _sites(flat, "dot_general")
    run = staged(flat, [_at_once([one, chain], [other])], on_streams=True)
    assert _calls(run, x, a, b, c) == [
        (0, 1, ["sin", "dot_general", "tanh", "dot_general"]),
        (0, 2, ["dot_general"]),
    ]
    for got, expected in zip(jax.jit(run)(x, a, b, c), step(x, a, b, c), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def _norm(x, scale):
    return (x - scale) * (lax.rsqrt(scale * scale + 1e-3) * scale)


def _both(y, b):
    return jnp.sin(y) @ b + y


# What is made of two products, and the primitives of each one's call.
BEHIND = {
    # The concatenation makes its operands as it reads.
    "a norm that one kernel reads": (
        lambda x, a, b, s: jnp.concatenate([_norm(x @ a, s), _norm(x @ b, s)], axis=1),
        [["dot_general"], ["dot_general"]],
    ),
    # Libraries add a bias and cut off below zero themselves.
    "a bias and ReLU": (
        lambda x, a, b, s: jnp.concatenate([jax.nn.relu(x @ a + s), jnp.sin(x @ b + s)], axis=1),
        [["dot_general", "add", "max"], ["dot_general", "add"]],
    ),
    # A product loads the first one's sine, so it is written; and the second one's product as well.
    "what a product loads": (
        lambda x, a, b, s: jnp.sin(x @ a) @ b + jnp.sin(x @ b),
        [["dot_general", "sin"], ["dot_general"]],
    ),
    # Written, but the product is read besides: one result, of which both are made.
    "what a product loads and another reads": (
        lambda x, a, b, s: _both(x @ a, b) + x @ b,
        [["dot_general"], ["dot_general"]],
    ),
}


@needs_streams
@pytest.mark.parametrize("name", BEHIND)
def test_a_call_ends_with_what_is_written_anyway(name):
    step, bodies = BEHIND[name]
    args = (*(_normal(n, 8, 8) for n in range(3)), jnp.linspace(0.5, 1.5, 8))
    flat = _flat(step, *args)
    readers = [e.path for e in flat.equations if e.eqn.primitive.name == "dot_general"]
    firsts = [p for p in readers if flat.equations[int(p)].eqn.invars[0] is flat.invars[0]][:2]
    later = [_at_once([p]) for p in (*readers, *_sites(flat, "concatenate")) if p not in firsts]
    run = staged(flat, [_at_once([firsts[0]], [firsts[1]]), *later], on_streams=True)
    names = [
        [n for n in own if n not in ("reshape", "broadcast_in_dim")]
        for *_, own in _calls(run, *args)
    ]
    assert names == bodies
    np.testing.assert_allclose(jax.jit(run)(*args)[0], step(*args), rtol=1e-5, atol=1e-5)


@needs_streams
def test_what_several_groups_load_or_make_of_the_same_stands_before_them_once():
    x, a, b = _normal(0, 8, 8), _normal(1, 8, 8), _normal(2, 8, 8)

    def step(x, a, b):
        # The ReLU is written twice and computed once; sine and cosine are one kernel of XLA's.
        return jax.nn.relu(x) @ a, jax.nn.relu(x) @ b, jnp.sin(x) @ a, jnp.cos(x) @ b

    flat = _flat(step, x, a, b)
    sites = _sites(flat, "dot_general")
    run = staged(flat, [_at_once(*([site] for site in sites))], on_streams=True)
    assert [names for *_, names in _calls(run, x, a, b)] == [["dot_general"]] * 4
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(run)(x, a, b).eqns]
    assert sorted(names[:3]) == ["cos", "max", "sin"]
    for got, expected in zip(jax.jit(run)(x, a, b), step(x, a, b), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@needs_streams
def test_an_image_is_padded_once_for_all_groups_whose_padding_is_uneven():
    x, a, b = _normal(0, 2, 8, 8, 3), _normal(1, 3, 3, 3, 4), _normal(2, 5, 5, 3, 4)

    def step(x, a, b):
        return [_convolution(x, w, 2, "SAME") for w in (a, 2 * a, b)]

    flat = _flat(step, x, a, b)
    sites = _sites(flat, "conv_general_dilated")
    run = staged(flat, [_at_once(*([site] for site in sites))], on_streams=True)
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(run)(x, a, b).eqns]
    # By one pixel at the end for both: what is left is even, none of 3x3 and one around of 5x5.
    assert names.count("pad") == 1
    for got, expected in zip(jax.jit(run)(x, a, b), step(x, a, b), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@needs_streams
def test_a_later_stage_keeps_its_own_and_shares_what_both_groups_need():
    x, a, b = _normal(0, 8, 8), _normal(1, 8, 8), _normal(2, 8, 8)

    def step(x, a, b):
        both = jnp.cos(x)
        left, right = both @ a, both @ b
        return (left @ b) @ (right @ a), jnp.sin(left)

    flat = _flat(step, x, a, b)
    sites = _sites(flat, "dot_general")
    stages = [_at_once([sites[0]], [sites[1]]), _at_once([sites[2]], [sites[3]])]
    run = staged(flat, stages, on_streams=True)
    assert _calls(run, x, a, b) == [
        (0, 1, ["dot_general"]),
        (0, 2, ["dot_general"]),
        (1, 1, ["dot_general"]),
        (1, 2, ["dot_general"]),
    ]
    for got, expected in zip(jax.jit(run)(x, a, b), step(x, a, b), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@needs_streams
def test_a_loop_in_a_stage_is_an_order_only():
    x, a = _normal(0, 8, 8), _normal(1, 8, 8)

    def step(x, a):
        return lax.fori_loop(0, 3, lambda _, y: y @ a, x), x @ a

    flat = _flat(step, x, a)
    (loop,) = _sites(flat, "scan") or _sites(flat, "while")
    run = staged(flat, [_at_once([loop], _sites(flat, "dot_general"))], on_streams=True)
    assert not _calls(run, x, a)
    for got, expected in zip(run(x, a), step(x, a), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@needs_streams
def test_a_users_sharding_in_a_group_is_left_out_on_one_device():
    x, a, b = _normal(0, 8, 8), _normal(1, 8, 8), _normal(2, 8, 8)
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    whole = NamedSharding(mesh, PartitionSpec("data"))

    def step(x, a, b):
        return jnp.tanh(lax.with_sharding_constraint(x @ a, whole)), x @ b

    flat = _flat(step, x, a, b)
    one, other = _sites(flat, "dot_general")
    run = staged(flat, [_at_once([one], [other])], on_streams=True)
    assert [names for *_, names in _calls(run, x, a, b)] == [
        ["dot_general", "optimization_barrier", "tanh"],
        ["dot_general"],
    ]


@needs_streams
def test_what_reads_merged_results_stands_behind_them_and_not_in_a_call():
    x, a, b = _normal(0, 8, 8), _normal(1, 8, 8), _normal(2, 8, 8)

    def step(x, a, b):
        left, right = jnp.tanh(x @ a), jnp.sin(x @ b)
        return left @ a, right @ b

    flat = _flat(step, x, a, b)
    sites = _sites(flat, "dot_general")
    stages = [_merged(sites[:2]), _at_once([sites[2]], [sites[3]])]
    run = staged(flat, stages, on_streams=True)
    assert _calls(run, x, a, b) == [(1, 1, ["dot_general"]), (1, 2, ["dot_general"])]
    for got, expected in zip(jax.jit(run)(x, a, b), step(x, a, b), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@needs_streams
def test_a_call_cuts_its_part_out_of_merged_results():
    x, a, b = _normal(0, 8, 8), _normal(1, 8, 8), _normal(2, 8, 8)

    def step(x, a, b):
        left, right = x @ a, x @ b
        return jnp.tanh(left) @ a, jnp.tanh(x) @ b, right

    flat = _flat(step, x, a, b)
    sites = _sites(flat, "dot_general")
    stages = [_merged(sites[:2]), _at_once([sites[2]], [sites[3]])]
    run = staged(flat, stages, on_streams=True)
    assert [names for *_, names in _calls(run, x, a, b)] == [
        ["slice", "tanh", "dot_general"],
        ["tanh", "dot_general"],
    ]
    for got, expected in zip(jax.jit(run)(x, a, b), step(x, a, b), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@needs_streams
def test_a_group_has_one_result_whatever_is_read_of_it():
    x, a, b = _normal(0, 8, 8), _normal(1, 8, 8), _normal(2, 8, 4)

    def step(x, a, b):
        # Of the first, both results are read; what is made of the second in several ways is not.
        left = x @ a
        both = (left @ b, jnp.tanh(left).sum())
        right = jnp.sin(x @ b)
        return both, (right * 2).sum(axis=0), (right * 3).sum(axis=1)

    flat = _flat(step, x, a, b)
    first, second, other = _sites(flat, "dot_general")
    run = staged(flat, [_at_once([first, second], [other])], on_streams=True)
    jaxpr = jax.make_jaxpr(run)(x, a, b)
    calls = [e for e in jaxpr.eqns if "_xla_stream_annotation" in call_attributes(e.params)]
    assert [[var.aval.shape for var in eqn.outvars] for eqn in calls] == [[(8, 12)], [(8, 4)]]
    made = jax.tree.leaves(jax.jit(run)(x, a, b))
    for got, expected in zip(made, jax.tree.leaves(step(x, a, b)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
