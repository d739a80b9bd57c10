"""What `microbatched` takes, refuses and returns, and what its program consists of."""

from functools import partial

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from automap.errors import InputError, NotSeparableError
from automap.runtime.microbatched import microbatched
from tests.automap.jaxpr.microbatch.comparison import assert_close


WEIGHTS = {"a": jnp.eye(6), "b": jnp.linspace(0.0, 1.0, 36).reshape(6, 6)}
BATCH = {"x": jax.random.normal(jax.random.key(0), (12, 6)), "y": jnp.arange(12) % 6}


def loss(weights, batch):
    z = jax.nn.log_softmax(jnp.tanh(batch["x"] @ weights["a"]) @ weights["b"])
    return -jnp.take_along_axis(z, batch["y"][:, None], 1).mean()


def step(weights, batch, rate=0.1):
    value, gradient = jax.value_and_grad(loss)(weights, batch)
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradient), {"loss": value}


@pytest.mark.parametrize("microbatches", [2, 3, 4, 6, 12])
def test_any_divisor_of_the_batch(microbatches):
    run = microbatched(step, (WEIGHTS, BATCH), microbatches=microbatches)
    assert_close(run(WEIGHTS, BATCH), jax.jit(step)(WEIGHTS, BATCH), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("microbatches", [-1, 0, 1, 5, 24])
def test_other_numbers_are_refused(microbatches):
    with pytest.raises(InputError, match=f"microbatches={microbatches}.*give"):
        microbatched(step, (WEIGHTS, BATCH), microbatches=microbatches)


def test_abstract_arguments_and_keywords():
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (WEIGHTS, BATCH))
    run = microbatched(step, shapes[:1], {"batch": shapes[1]}, microbatches=3)
    want = jax.jit(step)(WEIGHTS, batch=BATCH)
    assert_close(run(WEIGHTS, batch=BATCH), want, rtol=1e-5, atol=1e-6)


def test_static_arguments_and_donation_are_kept():
    jitted = jax.jit(step, static_argnums=2, donate_argnums=0)
    run = microbatched(jitted, (WEIGHTS, BATCH, 0.5), microbatches=4)
    mine = jax.tree.map(jnp.copy, WEIGHTS)
    got = run(mine, BATCH, 0.5)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(mine))
    assert_close(got, step(WEIGHTS, BATCH, 0.5), rtol=1e-5, atol=1e-6)


def test_other_arguments_are_refused():
    run = microbatched(step, (WEIGHTS, BATCH), microbatches=4)
    with pytest.raises(InputError, match="call microbatched again"):
        run(WEIGHTS, jax.tree.map(lambda a: a[:8], BATCH))


def test_a_step_without_a_batch_is_refused():
    with pytest.raises(InputError, match="no argument holds a batch"):
        microbatched(lambda w, s: (w * s, s), (WEIGHTS["a"], 2.0), microbatches=2)


def test_inference():
    def infer(weights, x):
        return jnp.tanh(x @ weights["a"]) @ weights["b"][:, :3]

    run = microbatched(infer, (WEIGHTS, BATCH["x"]), microbatches=4)
    assert_close(run(WEIGHTS, BATCH["x"]), infer(WEIGHTS, BATCH["x"]), rtol=1e-5, atol=1e-6)


def test_the_message_names_what_reads_a_mean_of_the_samples_what_takes_it_and_what_to_do():
    def normalized(w, x):
        def loss(w):
            z = x @ w
            mean = z.mean(0)
            shifted = mean * 2
            return ((z - shifted) ** 2).mean()

        return w - jax.grad(loss)(w)

    first = normalized.__code__.co_firstlineno
    match = (
        rf"sub at .*test_microbatched\.py:{first + 5}:.* a sample's result depends on a sum or a "
        rf"mean over the whole batch, that of reduce_sum at .*test_microbatched\.py:{first + 3}:.*"
        "layer or group norm"
    )
    with pytest.raises(NotSeparableError, match=match):
        microbatched(normalized, (WEIGHTS["a"], BATCH["x"]), microbatches=4)


def test_a_mean_within_a_loop_over_layers_is_refused_by_its_line():
    def normalized(w, x):
        def layer(x, _):
            z = x @ w
            return z - z.mean(0), None

        return w - jax.grad(lambda w: jax.lax.scan(layer, x @ w, None, length=2)[0].sum())(w)

    with pytest.raises(NotSeparableError, match=r"at .*test_microbatched\.py:\d+.*microbatches"):
        microbatched(normalized, (WEIGHTS["a"], BATCH["x"]), microbatches=4)


def test_statistics_over_an_axis_of_vmap_are_refused_by_what_they_are():
    def normalized(w, x):
        def z(sample):
            return sample @ w - jax.lax.pmean(sample @ w, "batch")

        return w - jax.grad(lambda w: (jax.vmap(z, axis_name="batch")(x @ w) ** 2).mean())(w)

    with pytest.raises(NotSeparableError, match=r"psum at .*samples of the batch together"):
        microbatched(normalized, (WEIGHTS["a"], BATCH["x"]), microbatches=4)


def test_side_effects_per_sample_are_refused():
    def printed(w, x):
        jax.debug.print("{}", (x @ w)[0, 0])
        return w

    with pytest.raises(NotSeparableError):
        microbatched(printed, (WEIGHTS["a"], BATCH["x"]), microbatches=4)


def test_the_program_has_the_samples_in_the_loop_and_the_update_after_it():
    run = microbatched(jax.jit(step, donate_argnums=0), (WEIGHTS, BATCH), microbatches=4)
    program = run.program
    (turn,) = program.passes
    products = [eqn for eqn in turn.loop if eqn.primitive.name == "dot_general"]
    # Forward two, backward three: the data need no gradient.
    assert len(products) == 5
    backward = ["transpose(" in str(eqn.source_info.name_stack) for eqn in products]
    assert backward == [False, False, True, True, True]
    everywhere = (*program.before, *turn.middle, *program.after)
    assert not any(eqn.primitive.name == "dot_general" for eqn in everywhere)
    assert [s.operator for s in turn.sums] == ["add"] * 3
    assert sorted(s.total.aval.shape for s in turn.sums) == [(), (6, 6), (6, 6)]
    hidden = products[0].outvars[0]
    assert (hidden.aval.shape, program.sample_dimensions[hidden].dim) == ((3, 6), 0)


def test_sums_are_accumulated_in_float32():
    """256 equal gradients of 2^-8 more than 1: a sum in bfloat16 would stop at 256 and lose the
    rest.
    """

    def total(w, x):
        return w - jax.grad(lambda w: (x * w).sum())(w)

    x = jnp.full((256, 1), 1 + 2**-7, jnp.bfloat16)
    w = jnp.zeros((), jnp.bfloat16)
    run = microbatched(total, (w, x), microbatches=256)
    assert float(run(w, x)) == -258.0


def test_memory_of_activations_is_that_of_a_microbatch():
    def deep(w, x):
        def loss(w):
            h = x
            for _ in range(8):
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        return w - jax.grad(loss)(w)

    args = jnp.eye(16), jnp.ones((4096, 16))
    run = microbatched(jax.jit(deep), args, microbatches=16)
    whole, parts = (
        run.lower(*args).compile().memory_analysis().temp_size_in_bytes
        for run in (jax.jit(deep), run)
    )
    # 8 activations of 4096 x 16 floats are kept at once, or of 256 x 16, and the data twice.
    assert parts < whole / 3


def test_partial_functions_are_steps_too():
    run = microbatched(partial(step, rate=0.2), (WEIGHTS, BATCH), microbatches=2)
    got, want = run(WEIGHTS, BATCH), step(WEIGHTS, BATCH, 0.2)
    np.testing.assert_allclose(got[1]["loss"], want[1]["loss"], rtol=1e-6)
