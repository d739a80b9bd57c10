"""Steps of OTT: optimal transport inside of a loss, differentiated implicitly, and a flow that is
learned.
"""

from flax import nnx
import jax
import jax.numpy as jnp
import optax
from ott.geometry import pointcloud
from ott.neural.methods import flow_matching, monge_gap
from ott.neural.networks import potentials
from ott.neural.networks.velocity_field import mlp
from ott.solvers import linear
from ott.tools import sinkhorn_divergence


def gradient_flow():
    """Points moved by the gradient of the Sinkhorn divergence to others, as OTT's tutorial of
    gradient flows.
    """
    key, other = jax.random.split(jax.random.key(0))
    x = jax.random.normal(key, (64, 4))
    y = 0.5 * jax.random.normal(other, (64, 4)) + 1.0

    def cost(x, y):
        value, _ = sinkhorn_divergence.sinkdiv(
            x, y, epsilon=0.1, solve_kwargs={"max_iterations": 100}
        )
        return value

    @jax.jit
    def step(x, y):
        value, grad = jax.value_and_grad(cost)(x, y)
        return x - 5.0 * grad, value

    return step, (x, y)


def sinkhorn_map():
    """A map fitted by the Sinkhorn divergence, kept near optimal by its Monge gap; an MLP of linen
    in a TrainState.
    """
    key = jax.random.key(1)
    source = jax.random.normal(key, (64, 4))
    batch = {"source": source, "target": jnp.roll(source, 1, 0) * 0.5 + 1.0}
    model = potentials.PotentialMLP(dim_hidden=[32, 32], is_potential=False)
    state = model.create_train_state(key, optax.adam(1e-3), 4)

    def loss_fn(params, apply_fn, batch):
        mapped = apply_fn({"params": params}, batch["source"])
        fit, _ = sinkhorn_divergence.sinkdiv(mapped, batch["target"], epsilon=0.1)
        gap = monge_gap.monge_gap_from_samples(batch["source"], mapped, epsilon=0.1)
        return fit + 0.1 * gap

    @jax.jit
    def step(state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(state.params, state.apply_fn, batch)
        return state.apply_gradients(grads=grads), loss

    return step, (state, batch)


def flow_matching_in_place():
    """A velocity field of nnx, updated in place by OTT's own step."""
    model = mlp.MLP(4, hidden_dims=[32, 32], rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    key = jax.random.key(2)
    x0 = jax.random.normal(key, (64, 4))
    batch = flow_matching.interpolate_samples(key, x0, jnp.roll(x0, 1, 0) + 2.0)
    return nnx.jit(flow_matching.flow_matching_step), (model, optimizer, batch)


def low_rank_sinkhorn():
    """A low-rank transport between two clouds, and what the cost's gradient does to the first."""
    key = jax.random.key(3)
    x = jax.random.normal(key, (64, 8))
    y = jax.random.normal(jax.random.fold_in(key, 1), (48, 8)) + 1.0

    def cost(x, y):
        geom = pointcloud.PointCloud(x, y, epsilon=0.05)
        return linear.solve(geom, rank=4, max_iterations=50).reg_ot_cost

    @jax.jit
    def step(x, y):
        value, grad = jax.value_and_grad(cost)(x, y)
        return x - 2.0 * grad, value

    return step, (x, y)
