"""Steps of JAX MD: atoms that are moved, and energies that are learned from forces."""

from flax import nnx
import jax
import jax.numpy as jnp
from jax_md import energy, minimize, partition, simulate, space
import optax


_BOX = 6.0


def _positions(count):
    side = round(count ** (1 / 3))
    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(side) * (_BOX / side)] * 3), -1).reshape(-1, 3)
    return grid + 0.1 * jax.random.normal(jax.random.key(0), grid.shape)


def fire():
    """Ten steps of FIRE on soft spheres in a periodic box, all pairs."""
    displacement, shift = space.periodic(_BOX)
    init, apply = minimize.fire_descent(energy.soft_sphere_pair(displacement, sigma=1.4), shift)

    @jax.jit
    def step(state):
        return jax.lax.fori_loop(0, 10, lambda i, state: apply(state), state)

    return step, (init(_positions(64)),)


def langevin():
    """Five steps of a Langevin thermostat on Lennard-Jones atoms with a neighbour list that is
    updated.
    """
    displacement, shift = space.periodic(_BOX)
    neighbor_fn, energy_fn = energy.lennard_jones_neighbor_list(
        displacement, _BOX, format=partition.OrderedSparse
    )
    init, apply = simulate.nvt_langevin(energy_fn, shift, dt=1e-3, kT=0.5)
    positions = _positions(64)
    neighbors = neighbor_fn.allocate(positions, extra_capacity=8)
    state = init(jax.random.key(1), positions, neighbor=neighbors)

    @jax.jit
    def step(state, neighbors):
        def one(i, carry):
            state, neighbors = carry
            neighbors = neighbors.update(state.position)
            return apply(state, neighbor=neighbors), neighbors

        return jax.lax.fori_loop(0, 5, one, (state, neighbors))

    return step, (state, neighbors)


def learned_potential():
    """A Behler-Parrinello network fitted to energies and forces: a gradient of a gradient."""
    displacement, _ = space.periodic(_BOX)
    model = energy.behler_parrinello(displacement, key=jax.random.key(2), mlp_sizes=(16, 16)).model
    graph, params = nnx.split(model)
    optimizer = optax.adam(1e-3)
    frames = _positions(8)[None] + 0.1 * jax.random.normal(jax.random.key(3), (8, 8, 3))
    truth = energy.soft_sphere_pair(displacement, sigma=3.5)
    energies, forces = jax.vmap(truth)(frames), -jax.vmap(jax.grad(truth))(frames)

    def predicted(params, frame):
        return nnx.merge(graph, params)(frame)

    def loss_fn(params, frames, energies, forces):
        value, grad = jax.vmap(jax.value_and_grad(predicted, argnums=1), in_axes=(None, 0))(
            params, frames
        )
        return jnp.mean((value - energies) ** 2) + jnp.mean((grad + forces) ** 2)

    @jax.jit
    def step(params, opt_state, frames, energies, forces):
        loss, grads = jax.value_and_grad(loss_fn)(params, frames, energies, forces)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, optimizer.init(params), frames, energies, forces)
