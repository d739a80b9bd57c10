"""Three train steps of the zoo's models in microbatches equal three plain ones.

Sums over the batch associate differently, so gradients carry relative errors of some hundred
float32 roundings (2^-24 = 6e-8 each): with SGD the updates, as one vector, must agree to 1e-5, with
AdamW the first moments. Adam divides by the root of the second moment: where a gradient is zero but
for rounding (the bias of the keys in attention; its first moment is some 1e-10) its noise decides
the update, at most a learning rate of 3e-4 a step. Parameters with larger moments may differ by a
tenth of the three updates.
"""

from dataclasses import replace
import importlib
import math

from flax import nnx
import jax
from jax import numpy as jnp
from jax.extend.core import jaxpr_as_fun
import numpy as np
import optax
import pytest

from automap.errors import NotSeparableError
from automap.jaxpr.accumulate import accumulated
from automap.runtime.microbatched import microbatched
from automap.step.step import traced_call
from models import gpt, mlp
from models.training import cross_entropy, random_batch, train_step
from tests.automap.jaxpr.microbatch.comparison import assert_close


STEPS = 3
# First moments that are rounding and no more; those of parameters that matter are 1e-5 and above.
NOISE = 1e-8
SCANNED = {"layers": "scanned", "remat": "layer", "dropout": 0.1}
SLOW = [
    ("gpt", {}, 4),
    ("gpt", {"remat": "layer", "dropout": 0.1}, 2),
    ("gpt", {"layers": "scanned"}, 2),
    ("gpt", {"dtype": "bfloat16"}, 4),
    ("t5", {}, 4),
    ("t5", {"layers": "scanned"}, 2),
    ("bert", {}, 4),
    ("moe", {}, 2),
    ("moe", {}, 4),
    ("vit", {}, 4),
    ("llama", {}, 4),
    ("rnnlm", {}, 2),
    ("mamba", {}, 4),
    ("unet", {}, 2),
    ("dlrm", {}, 4),
    ("nmt", {}, 4),
    ("rnntc", {}, 4),
    ("vgg", {}, 4),
    ("alexnet", {}, 4),
    ("lenet", {}, 4),
]
CASES = [
    pytest.param("mlp", {}, 2),
    pytest.param("gpt", SCANNED, 4, marks=pytest.mark.slow),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
]


def _run(step, state, batch):
    state = jax.tree.map(jnp.copy, state)
    for _ in range(STEPS):
        state, metrics = step(state, batch)
    return jax.device_get((state, metrics["loss"]))


def _norm(tree):
    return math.sqrt(
        sum(float(np.sum(np.square(x, dtype=np.float64))) for x in jax.tree.leaves(tree))
    )


@pytest.mark.parametrize(("name", "options", "microbatches"), CASES)
def test_three_steps_with_adamw(name, options, microbatches):
    module = importlib.import_module(f"models.{name}")
    step, args = getattr(module, f"{name}_tiny")(**options)
    fields = {key: value for key, value in options.items() if key != "dtype"}
    state = module.init(replace(module.TINY, **fields), jax.random.key(0))
    batch = random_batch(args[1], 0)
    in_parts = microbatched(step, args, microbatches=microbatches)
    # In bfloat16 each microbatch's gradient is rounded to 8 bits before it is added.
    rounding = 2**-7 if options.get("dtype") == "bfloat16" else 1e-5
    _assert_like(_run(in_parts, state, batch), _run(step, state, batch), rounding)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "vit", "moe", "bert", "llama"])
def test_three_steps_with_every_second_sample_in_a_microbatch(name):
    module = importlib.import_module(f"models.{name}")
    step, args = getattr(module, f"{name}_tiny")()
    state, batch = module.init(module.TINY, jax.random.key(0)), random_batch(args[1], 0)
    call = traced_call(step, (state, batch), {})
    run, tree = jax.jit(jaxpr_as_fun(accumulated(call, 2))), jax.tree.structure(call.result)

    def in_parts(*args):
        return jax.tree.unflatten(tree, run(*jax.tree.leaves(args)))

    _assert_like(_run(in_parts, state, batch), _run(step, state, batch), 1e-5)


def _assert_like(result, expected, rounding):
    """What three steps came to, within the rounding of their gradients."""
    (got, loss), (want, want_loss) = result, expected
    np.testing.assert_allclose(loss, want_loss, rtol=rounding / 2)
    moments = want["opt"][0].mu
    error = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), got["opt"][0].mu, moments)
    assert _norm(error) <= rounding * _norm(moments)
    if rounding == 1e-5:
        beyond_noise = jax.tree.map(
            lambda a, b, m: np.where(np.abs(m) > NOISE, np.abs(a - b), 0).max(),
            got["params"],
            want["params"],
            moments,
        )
        assert max(jax.tree.leaves(beyond_noise)) <= 1e-4


class GroupNormNet(nnx.Module):
    """Two residual blocks with group norm, the second of half the size."""

    def __init__(self, *, rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norms = nnx.List([nnx.GroupNorm(8, num_groups=4, rngs=rngs) for _ in range(2)])
        self.convolutions = nnx.List(
            [nnx.Conv(8, 8, (3, 3), strides=stride, rngs=rngs) for stride in (1, 2)]
        )
        self.shortcut = nnx.Conv(8, 8, (1, 1), strides=2, rngs=rngs)
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, images):
        x = self.stem(images)
        x = x + jax.nn.relu(self.norms[0](self.convolutions[0](x)))
        x = self.shortcut(x) + jax.nn.relu(self.norms[1](self.convolutions[1](x)))
        return self.head(nnx.max_pool(x, (2, 2), (2, 2)).mean((1, 2)))


def _sgd_cases():
    images = {"images": ((8, 8, 8, 3), "float32"), "labels": ((8,), "int32")}
    tokens = {"tokens": ((8, 8), "int32"), "targets": ((8, 8), "int32"), "rng": ((), "key")}
    wide = {"images": ((8, mlp.TINY.width), "float32"), "labels": ((8,), "int32")}
    drop = replace(gpt.TINY, depth=1, dropout=0.1, layers="scanned", remat="layer")

    def masked(model, batch):
        loss = cross_entropy(model(batch["tokens"], batch["rng"]), batch["targets"])
        mask = batch["targets"] > 3
        return (loss * mask).sum() / jnp.maximum(mask.sum(), 1)

    def labelled(model, batch):
        return cross_entropy(model(batch["images"]), batch["labels"]).mean()

    def total(model, batch):
        return cross_entropy(model(batch["images"]), batch["labels"]).sum()

    clipped = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9))
    return {
        "group norm": (lambda rngs: GroupNormNet(rngs=rngs), labelled, images, optax.sgd(0.1)),
        "masked gpt": (lambda rngs: gpt.Gpt(drop, rngs=rngs), masked, tokens, optax.sgd(0.1)),
        "clipped sum": (lambda rngs: mlp.Mlp(mlp.TINY, rngs=rngs), total, wide, clipped),
    }


@pytest.mark.parametrize("microbatches", [2, 4])
@pytest.mark.parametrize(
    "name", ["group norm", pytest.param("masked gpt", marks=pytest.mark.slow), "clipped sum"]
)
def test_three_steps_with_sgd(name, microbatches):
    build, loss, shapes, optimizer = _sgd_cases()[name]
    model = train_step(build, loss, shapes, optimizer=optimizer)
    state, batch = model.init(jax.random.key(0)), random_batch(model.args[1], 0)
    in_parts = microbatched(model.step, model.args, microbatches=microbatches)
    (want, want_loss), (got, loss) = (_run(s, state, batch) for s in (model.step, in_parts))
    np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
    error, update = (
        jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), want["params"], other["params"])
        for other in (got, jax.device_get(state))
    )
    assert _norm(error) <= 1e-5 * _norm(update)


def test_metrics_in_the_state_are_the_same():
    def step(state, batch):
        def loss(w):
            z = batch["x"] @ w
            return (z**2).mean(), (z > 0).sum()

        (value, positive), gradient = jax.value_and_grad(loss, has_aux=True)(state["w"])
        metrics = {
            "steps": state["metrics"]["steps"] + 1,
            "positive": state["metrics"]["positive"] + positive,
            "loss": 0.9 * state["metrics"]["loss"] + 0.1 * value,
        }
        return {"w": state["w"] - 0.1 * gradient, "metrics": metrics}, {"loss": value}

    metrics = {"steps": jnp.int32(0), "positive": jnp.int32(0), "loss": jnp.float32(0)}
    state = {"w": jnp.eye(4), "metrics": metrics}
    batch = {"x": jax.random.normal(jax.random.key(0), (8, 4))}
    in_parts = microbatched(step, (state, batch), microbatches=4)
    want, got = (_run(s, state, batch)[0] for s in (jax.jit(step), in_parts))
    assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["resnet", pytest.param("inception", marks=pytest.mark.slow)])
def test_batch_norm_is_refused_with_its_line(name):
    step, args = getattr(importlib.import_module(f"models.{name}"), f"{name}_tiny")()
    with pytest.raises(
        NotSeparableError,
        match=r"normalization\.py:.*over the whole batch, that of reduce_sum at .*normalization",
    ):
        microbatched(step, args, microbatches=4)


def test_experts_over_the_whole_batch_are_refused():
    step, args = importlib.import_module("models.moe").moe_tiny(dispatch="sorted")
    with pytest.raises(NotSeparableError, match=r"experts\.py"):
        microbatched(step, args, microbatches=4)
