"""A small Keras model on its JAX backend, in a loop of its own by the stateless API.

On one device: python -m examples.keras_jax.plain
Under a plan:  python -m examples.keras_jax.planned
"""

from collections.abc import Sequence
import os


os.environ["KERAS_BACKEND"] = "jax"

import jax  # noqa: E402
import keras  # noqa: E402

import automap  # noqa: E402
from examples.parts.checkpoints import Checkpoints  # noqa: E402
from examples.parts.options import log_progress, read_options  # noqa: E402
from examples.parts.text import VOCABULARY, Text  # noqa: E402


WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 2, 64
RATE = keras.optimizers.schedules.CosineDecay(0.0, 190, warmup_target=3e-3, warmup_steps=10)


def make_model() -> keras.Model:
    """Bytes to the scores of those that come next."""
    given = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(given)
    for _ in range(LAYERS):
        normed = keras.layers.LayerNormalization()(x)
        mixed = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(
            normed, normed, use_causal_mask=True
        )
        x = keras.layers.LayerNormalization()(keras.layers.add([x, mixed]))
        wide = keras.layers.Dense(4 * WIDTH, activation="gelu")(x)
        x = keras.layers.add([x, keras.layers.Dense(WIDTH)(wide)])
    return keras.Model(given, keras.layers.Dense(VOCABULARY)(x))


def make_training():
    """The first state, the step and the evaluation of a new model."""
    keras.utils.set_random_seed(0)
    model, optimizer = make_model(), keras.optimizers.AdamW(RATE)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def init():
        kinds = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        return tuple([variable.value for variable in kind] for kind in kinds)

    def loss_of(trained, others, batch):
        logits, others = model.stateless_call(trained, others, batch["bytes"], training=True)
        return loss(batch["next"], logits), others

    @automap.parallelize
    def train_step(state, batch):
        trained, others, moments = state
        (loss, others), grads = jax.value_and_grad(loss_of, has_aux=True)(trained, others, batch)
        trained, moments = optimizer.stateless_apply(moments, grads, trained)
        return (trained, others, moments), loss

    return init, train_step, jax.jit(lambda state, batch: loss_of(*state[:2], batch)[0])


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the losses."""
    options, text = read_options(arguments), Text(length=LENGTH)
    checkpoints, losses = Checkpoints(options.checkpoint), []
    init, train_step, evaluate = make_training()
    state = train_step.init(init)
    start, state = checkpoints.restore(state)
    for number in range(start, options.steps):
        state, loss = train_step(state, text.batch(number))
        losses.append(float(loss))
        if (number + 1) % options.every == 0:
            held_out = [float(evaluate(state, batch)) for batch in text.held_out()]
            log_progress(number + 1, losses[-1], sum(held_out) / len(held_out), float(RATE(number)))
            checkpoints.save(number + 1, state)
    checkpoints.close()
    return losses


if __name__ == "__main__":
    main()
