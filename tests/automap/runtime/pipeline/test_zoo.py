"""The models of the zoo, in stages, beside the step on one device: three steps with SGD and with
AdamW.

With SGD all parameters are compared. AdamW divides a gradient by its own size, so where the true
gradient is 0 (the biases of keys in attention) rounding becomes a whole step: there, its first
moments are compared, which are linear in the gradients, and parameters within a few of its steps of
3e-4.
"""

from dataclasses import dataclass, replace
from itertools import product

from flax import nnx
import jax
from jax import numpy as jnp
import optax
import pytest

from automap.jaxpr.flatten import flatten
from automap.step.step import traced_call
from models import bert, gpt, moe, t5
from models.training import cross_entropy, random_batch, train_step
from tests.automap.runtime.pipeline.running import (
    Running,
    assert_same,
    assert_trained_alike,
    even_cuts,
    record,
)


class GroupNormNet(nnx.Module):
    """A residual network with group norm; the second block halves the image."""

    def __init__(self, *, rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norms = nnx.List([nnx.GroupNorm(8, num_groups=4, rngs=rngs) for _ in range(3)])
        self.convs = nnx.List([nnx.Conv(8, 8, (3, 3), rngs=rngs) for _ in range(3)])
        self.output = nnx.Linear(8, 16, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs):
            x = x + conv(jax.nn.relu(norm(x)))
        return self.output(x.mean((1, 2)))


def labelled(model, batch):
    return cross_entropy(model(batch["images"]), batch["labels"]).mean()


IMAGES = {"images": ((16, 8, 8, 3), "float32"), "labels": ((16,), "int32")}
TOKENS = {"tokens": ((16, 8), "int32"), "targets": ((16, 8), "int32")}
PAIRS = {name: ((16, 8), "int32") for name in ("encoder_tokens", "decoder_tokens", "targets")}
SMALL = {"d_model": 16, "heads": 2, "vocab": 32}
GPT = replace(gpt.TINY, depth=4, positions=8, **SMALL)
T5 = replace(t5.TINY, depth=2, d_ff=32, **SMALL)
BERT = replace(bert.TINY, depth=4, positions=8, **SMALL)
MOE = replace(moe.TINY, depth=4, positions=8, experts=4, **SMALL)
MASKED = {**TOKENS, "masked": ((16, 8), "bool")}


@dataclass(frozen=True)
class Case:
    """A model with its loss and batch; `trips` are (loop, trip) after which four stages end, two
    after the second.
    """

    build: object
    loss: object
    shapes: dict
    trips: tuple[tuple[int, int], ...] = ()


MODELS = {
    "gpt": Case(lambda rngs: gpt.Gpt(GPT, rngs=rngs), gpt.loss, TOKENS),
    "gpt remat": Case(
        lambda rngs: gpt.Gpt(replace(GPT, remat="layer"), rngs=rngs), gpt.loss, TOKENS
    ),
    "gpt scanned": Case(
        lambda rngs: gpt.Gpt(replace(GPT, layers="scanned"), rngs=rngs), gpt.loss, TOKENS,
        ((0, 1), (0, 2), (0, 3)),
    ),
    "t5": Case(lambda rngs: t5.T5(T5, rngs=rngs), t5.loss, PAIRS),
    "t5 scanned": Case(
        lambda rngs: t5.T5(replace(T5, layers="scanned"), rngs=rngs), t5.loss, PAIRS,
        ((0, 1), (1, 1), (1, 2)),
    ),
    "bert": Case(lambda rngs: bert.Bert(BERT, rngs=rngs), bert.loss, MASKED),
    "group norm": Case(lambda rngs: GroupNormNet(rngs=rngs), labelled, IMAGES),
    "moe": Case(lambda rngs: moe.Moe(MOE, rngs=rngs), moe.loss, TOKENS),
}  # fmt: skip
STAGES = {2: (2, 6), 4: (2, 2, 1, 2)}
GROUPS = (2, 4)
"""Devices of two groups of two interleaved stages each."""
CASES = [
    *product((2, 4), ("sgd", "adamw"), ("gpipe", "1f1b")),
    *((stages, optimizer, "zero-bubble") for stages in (2, 4) for optimizer in ("sgd", "adamw")),
    *((4, optimizer, "interleaved") for optimizer in ("sgd", "adamw")),
]


def plan_cuts(model: Case, made, stages: int) -> list[str]:
    """Where the stages end: after products, or for scanned layers after trips of their loops."""
    if not model.trips:
        return even_cuts(made.step, made.args, stages)
    level = flatten(traced_call(made.step, made.args).jaxpr, {})
    loops = [e.path for e in level.equations if e.eqn.primitive.name == "scan"]
    chosen = model.trips if stages == 4 else model.trips[1:2]
    return [f"{loops[loop]}#{trip}" for loop, trip in chosen]


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "optimizer", "schedule"), CASES)
@pytest.mark.parametrize("name", MODELS)
def test_three_steps_equal_those_on_one_device(name, optimizer, stages, schedule):
    model = MODELS[name]
    # A stage of six devices takes six parts of a microbatch of twelve.
    devices = GROUPS if schedule == "interleaved" else STAGES[stages]
    chosen = optax.sgd(0.1) if optimizer == "sgd" else optax.adamw(3e-4, weight_decay=0.01)
    microbatches = 2 if stages == 4 else 4
    shapes = model.shapes
    if stages == 2:
        shapes = {n: ((48, *shape[1:]), dtype) for n, (shape, dtype) in shapes.items()}
    made = train_step(model.build, model.loss, shapes, optimizer=chosen)
    state = made.init(jax.random.key(0))
    cuts = plan_cuts(model, made, stages)
    run = Running(made.step, made.args, record(devices, cuts, microbatches, schedule))
    single = jax.jit(made.step.__wrapped__)
    mine, theirs = jax.tree.map(jnp.copy, state), state
    for seed in range(3):
        batch = random_batch(made.args[1], seed)
        mine, results = run(mine, batch)
        theirs, wanted = single(theirs, batch)
        assert_same(results, wanted, rtol=1e-5, atol=1e-5)
        assert_trained_alike(optimizer, seed + 1, mine, theirs)
