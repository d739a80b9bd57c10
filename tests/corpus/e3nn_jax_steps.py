"""A step of e3nn-jax: an equivariant network over neighbours, modules of flax linen."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class _Layer(nn.Module):
    target: str

    @nn.compact
    def __call__(self, features, positions, senders, receivers):
        between = e3nn.IrrepsArray("1o", positions[receivers] - positions[senders])
        harmonics = e3nn.spherical_harmonics([0, 1, 2], between, normalize=True)
        messages = e3nn.concatenate(
            [features[senders], e3nn.tensor_product(features[senders], harmonics)]
        ).regroup()
        lengths = e3nn.norm(between).array
        radial = e3nn.bessel(lengths[:, 0], 6, 3.0)
        weights = e3nn.flax.MultiLayerPerceptron((16, messages.irreps.num_irreps), jax.nn.silu)(
            radial
        )
        messages = messages * weights
        summed = e3nn.scatter_sum(messages, dst=receivers, output_size=len(positions))
        target = e3nn.Irreps(self.target)
        gates = e3nn.Irreps(f"{target.filter(drop='0e').num_irreps}x0e")
        mixed = e3nn.flax.Linear(target.filter(keep="0e") + gates + target.filter(drop="0e"))(
            summed
        )
        return e3nn.gate(mixed)


class _Network(nn.Module):
    @nn.compact
    def __call__(self, positions, senders, receivers, graph, graphs):
        features = e3nn.IrrepsArray("0e", jnp.ones((len(positions), 1)))
        features = _Layer("16x0e + 8x1o")(features, positions, senders, receivers)
        features = _Layer("16x0e + 8x1o")(features, positions, senders, receivers)
        energies = e3nn.flax.Linear("0e")(features)
        return e3nn.scatter_sum(energies, dst=graph, output_size=graphs).array[:, 0]


def message_passing():
    """Energies of small clouds of points by two layers of tensor products with harmonics."""
    graphs, nodes = 8, 4
    key = jax.random.key(0)
    positions = jax.random.normal(key, (graphs * nodes, 3))
    within = jnp.array([(i, j) for i in range(nodes) for j in range(nodes) if i != j])
    edges = (within[None] + nodes * jnp.arange(graphs)[:, None, None]).reshape(-1, 2)
    graph = jnp.repeat(jnp.arange(graphs), nodes)
    batch = (positions, edges[:, 0], edges[:, 1], graph, jnp.linspace(-1.0, 1.0, graphs))
    model = _Network()
    params = jax.jit(model.init, static_argnums=5)(key, *batch[:-1], graphs)
    optimizer = optax.adam(1e-2)

    def loss_fn(params, batch):
        *graph, energies = batch
        return jnp.mean((model.apply(params, *graph, graphs) - energies) ** 2)

    @jax.jit
    def update(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return update, (params, optimizer.init(params), batch)
