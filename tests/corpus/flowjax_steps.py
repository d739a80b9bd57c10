"""Steps of FlowJAX: the library's own training step, which takes the optimizer and the loss by
keyword.
"""

import equinox as eqx
from flowjax.distributions import Normal
from flowjax.flows import block_neural_autoregressive_flow, masked_autoregressive_flow
from flowjax.train.losses import ElboLoss, MaximumLikelihoodLoss
from flowjax.train.train_utils import step
import jax
import jax.numpy as jnp
import optax
import paramax


def _called(flow, loss, *rest):
    """FlowJAX' own step, with arguments and results in one order."""
    params, static = eqx.partition(
        flow, eqx.is_inexact_array, is_leaf=lambda leaf: isinstance(leaf, paramax.NonTrainable)
    )
    optimizer = optax.adam(1e-3)

    @eqx.filter_jit
    def train_step(params, opt_state, *rest):
        return step(params, static, *rest, optimizer=optimizer, opt_state=opt_state, loss_fn=loss)

    return train_step, (params, optimizer.init(params), *rest)


def masked_autoregressive():
    """A masked autoregressive flow of four layers, stacked by the library and scanned."""
    flow = masked_autoregressive_flow(
        jax.random.key(0), base_dist=Normal(jnp.zeros(4)), flow_layers=4, nn_width=16, nn_depth=1
    )
    x = jax.random.normal(jax.random.key(1), (32, 4)) * 0.5 + 1.0
    return _called(flow, MaximumLikelihoodLoss(), x, None, jax.random.key(2))


def block_autoregressive():
    """A block neural autoregressive flow, conditioned on a variable."""
    flow = block_neural_autoregressive_flow(
        jax.random.key(0),
        base_dist=Normal(jnp.zeros(4)),
        cond_dim=2,
        nn_block_dim=4,
        flow_layers=1,
        nn_depth=1,
        invert=True,
    )
    x = jax.random.normal(jax.random.key(1), (32, 4))
    return _called(flow, MaximumLikelihoodLoss(), x, x[:, :2], jax.random.key(2))


def variational():
    """A flow fitted to a density by the evidence lower bound: it has no data, only a key."""

    def target(x):
        return -0.5 * jnp.sum((x - 1.0) ** 2) - jnp.sum(jnp.sin(3 * x))

    flow = masked_autoregressive_flow(
        jax.random.key(0),
        base_dist=Normal(jnp.zeros(4)),
        flow_layers=2,
        nn_width=16,
        nn_depth=1,
        invert=False,
    )
    return _called(flow, ElboLoss(target, 32), jax.random.key(2))
