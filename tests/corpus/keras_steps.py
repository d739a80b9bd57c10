"""Steps of Keras with its JAX backend: the stateless API, as its guide of custom loops."""

import os


os.environ["KERAS_BACKEND"] = "jax"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402


def _train_step(model, optimizer, loss_fn, metric):
    def compute_loss_and_updates(trainable, non_trainable, x, y):
        y_pred, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
        return loss_fn(y, y_pred), (y_pred, non_trainable)

    grad_fn = jax.value_and_grad(compute_loss_and_updates, has_aux=True)

    @jax.jit
    def train_step(state, data):
        trainable, non_trainable, optimizer_variables, metric_variables = state
        x, y = data
        (loss, (y_pred, non_trainable)), grads = grad_fn(trainable, non_trainable, x, y)
        trainable, optimizer_variables = optimizer.stateless_apply(
            optimizer_variables, grads, trainable
        )
        metric_variables = metric.stateless_update_state(metric_variables, y, y_pred)
        return (trainable, non_trainable, optimizer_variables, metric_variables), loss

    optimizer.build(model.trainable_variables)
    state = tuple(
        [v.value for v in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
            metric.variables,
        )
    )
    return train_step, state


def convolutions():
    """Images through convolutions, batch norm and dropout, whose seed is a variable."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(2),
            keras.layers.SeparableConv2D(16, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.3, seed=1),
            keras.layers.Dense(8),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = keras.metrics.SparseCategoricalAccuracy()
    step, state = _train_step(model, keras.optimizers.Adam(1e-3), loss, metric)
    x = jax.random.normal(jax.random.key(0), (16, 12, 12, 3))
    return step, (state, (x, jnp.arange(16) % 8))


def attention():
    """Tokens through an embedding, attention and layer norm, under AdamW with a schedule and
    clipping.
    """
    keras.utils.set_random_seed(1)
    inputs = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(64, 32)(inputs)
    x = keras.layers.LayerNormalization()(
        x + keras.layers.MultiHeadAttention(4, 8)(x, x, use_causal_mask=True)
    )
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(32, activation="gelu")(x))
    model = keras.Model(inputs, keras.layers.Dense(64)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    schedule = keras.optimizers.schedules.CosineDecay(
        1e-3, 100, warmup_steps=10, warmup_target=1e-3
    )
    optimizer = keras.optimizers.AdamW(schedule, global_clipnorm=1.0)
    metric = keras.metrics.SparseCategoricalAccuracy()
    step, state = _train_step(model, optimizer, loss, metric)
    tokens = jax.random.randint(jax.random.key(1), (16, 17), 0, 64)
    return step, (state, (tokens[:, :-1], tokens[:, 1:]))
