"""A step of Rax: learning to rank lists of different lengths, with linen."""

import flax.linen as nn
from flax.training.train_state import TrainState
import jax
import jax.numpy as jnp
import optax
import rax


class _Scorer(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(32)(x)))[..., 0]


def listwise():
    """A softmax over lists and a loss of all pairs, masked."""
    features = jax.random.normal(jax.random.key(0), (16, 12, 8))
    labels = (jnp.arange(16 * 12).reshape(16, 12) % 5).astype(jnp.float32)
    mask = jnp.arange(12) < 4 + jnp.arange(16)[:, None] % 8
    model = _Scorer()
    params = jax.jit(model.init)(jax.random.key(1), features)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adagrad(0.1))

    @jax.jit
    def train_step(state, batch):
        def loss_fn(params):
            scores = state.apply_fn(params, batch["features"])
            softmax = rax.softmax_loss(scores, batch["labels"], where=batch["mask"])
            pairs = rax.pairwise_logistic_loss(scores, batch["labels"], where=batch["mask"])
            return softmax + pairs

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return train_step, (state, {"features": features, "labels": labels, "mask": mask})
