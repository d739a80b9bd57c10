"""A step of Penzai: a model of named axes whose parameters are unbound for `jax.jit`."""

import jax
import jax.numpy as jnp
import optax
from penzai import pz
from penzai.models import simple_mlp


def named_axes():
    """Parameters frozen as values, bound again inside the step, as Penzai's guide of gradients."""
    model = simple_mlp.MLP.from_config(jax.random.key(0), feature_sizes=[8, 32, 4], name="mlp")
    unbound, params = pz.unbind_params(model, freeze=True)
    optimizer = optax.adam(1e-3)
    x = jax.random.normal(jax.random.key(1), (32, 8))

    def loss_fn(params, x, y):
        bound = pz.bind_variables(unbound, params)
        logits = bound(pz.nx.wrap(x).tag("batch", "features")).unwrap("batch", "features")
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, optimizer.init(params), x, jnp.arange(32) % 4)
