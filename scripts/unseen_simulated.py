"""Steps of `scripts.unseen_later` that simulate, look up, sample or solve."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from scripts.memory_targets import Target, array
from scripts.unseen_targets import indices, mean_square, optimized, random_key, standardized


def bayesian_regression() -> Target:
    """The evidence of 64 linear models of 256 features, by factors of their precisions."""
    tasks, points, d, features = 64, 512, 32, 256

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        phi = jnp.cos(x @ params["w"] + params["b"])
        precision, noise = jnp.exp(params["precision"]), jnp.exp(params["noise"])
        gram = noise * jnp.einsum("tpf,tpg->tfg", phi, phi) + precision * jnp.eye(features)
        factor = jnp.linalg.cholesky(gram)
        right = noise * jnp.einsum("tpf,tp->tf", phi, y)
        half = jax.scipy.linalg.solve_triangular(factor, right[..., None], lower=True)[..., 0]
        diagonal = jnp.diagonal(factor, axis1=1, axis2=2)
        fit = 0.5 * (half**2).sum(-1) - jnp.log(diagonal).sum(-1)
        return -(fit + 0.5 * features * jnp.log(precision)).mean()

    params = {"w": array(d, features), "b": array(features), "precision": array(), "noise": array()}
    return optimized(loss, optax.adam(1e-3), params, array(tasks, points, d), array(tasks, points))


def nucleus_sampling() -> Target:
    """64 tokens of 128 sequences from the likeliest that make 0.9 of the probability."""
    batch, tokens, d, vocabulary = 128, 64, 512, 16384

    def step(params: Any, key: jax.Array, first: jax.Array) -> jax.Array:
        def sampled(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            hidden, token = carry
            x = params["embedding"][token]
            gates = jax.nn.sigmoid(x @ params["xg"] + hidden @ params["hg"])
            update, reset = jnp.split(gates, 2, -1)
            new = jnp.tanh(x @ params["xn"] + (reset * hidden) @ params["hn"])
            hidden = update * hidden + (1 - update) * new
            probabilities = jax.nn.softmax(hidden @ params["embedding"].T)
            ordered = jnp.sort(probabilities, axis=-1)[:, ::-1]
            before = jnp.cumsum(ordered, -1) - ordered
            least = jnp.where(before < 0.9, ordered, 2.0).min(-1, keepdims=True)
            logits = jnp.where(probabilities >= least, jnp.log(probabilities), -jnp.inf)
            token = jax.random.categorical(key, logits).astype(jnp.int32)
            return (hidden, token), token

        start = (jnp.zeros((batch, d)), first)
        return jax.lax.scan(sampled, start, jax.random.split(key, tokens))[1]

    params = {
        "embedding": array(vocabulary, d),
        "xg": array(d, 2 * d),
        "hg": array(d, 2 * d),
        "xn": array(d, d),
        "hn": array(d, d),
    }
    return step, (params, random_key(), indices(batch))


def linear_recurrence() -> Target:
    """Layers of complex linear recurrences by an associative scan, with gated outputs."""
    batch, length, d, state, depth = 32, 1024, 128, 64, 4

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = x
        for w in params:
            decay = jnp.exp(-jnp.exp(w["decay"]) + 1j * w["angle"])
            driven = standardized(h).astype(jnp.complex64) @ jax.lax.complex(w["br"], w["bi"])

            def joined(left: Any, right: Any) -> Any:
                return left[0] * right[0], right[0] * left[1] + right[1]

            over = jnp.broadcast_to(decay, driven.shape)
            states = jax.lax.associative_scan(joined, (over, driven), axis=1)[1]
            out = (states @ jax.lax.complex(w["cr"], w["ci"])).real
            h = h + jax.nn.gelu(out) * jax.nn.sigmoid(out @ w["gate"])
        return mean_square(h, y)

    layer = {
        "decay": array(state),
        "angle": array(state),
        "br": array(d, state),
        "bi": array(d, state),
        "cr": array(state, d),
        "ci": array(state, d),
        "gate": array(d, d),
    }
    x = array(batch, length, d)
    return optimized(loss, optax.adamw(1e-3), [layer] * depth, x, x)


def point_convolution() -> Target:
    """Convolutions of point clouds: weights of 16 neighbours by a network of where they lie."""
    clouds, points, neighbours, d, depth = 16, 1024, 16, 64, 3

    def loss(params: Any, where: jax.Array, x: jax.Array, near: jax.Array, y: Any) -> jax.Array:
        def gathered(values: jax.Array) -> jax.Array:
            return jax.vmap(lambda v, i: v[i])(values, near)

        offset = gathered(where) - where[:, :, None]
        for w in params["layers"]:
            weights = jax.nn.relu(offset @ w["first"]) @ w["second"]
            summed = jnp.einsum("cpnd,cpnk->cpdk", gathered(x), weights)
            x = jax.nn.relu(standardized(summed.reshape(*x.shape[:2], -1) @ w["mix"]) + x)
        logits = x.max(1) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    layer = {"first": array(3, 32), "second": array(32, 8), "mix": array(8 * d, d)}
    params = {"layers": [layer] * depth, "out": array(d, 40)}
    near = indices(clouds, points, neighbours)
    batch = (array(clouds, points, 3), array(clouds, points, d), near, indices(clouds))
    return optimized(loss, optax.adam(1e-3), params, *batch)


def blended_layers() -> Target:
    """Colours of 65,536 rays from 48 sorted layers each, blended front to back."""
    rays, layers, hidden = 65536, 48, 64

    def loss(params: Any, depth: jax.Array, features: jax.Array, y: jax.Array) -> jax.Array:
        h = jax.nn.relu(features @ params["in"])
        out = h @ params["out"]
        order = jnp.argsort(depth, axis=-1)
        out = jnp.take_along_axis(out, order[..., None], axis=1)
        alpha = jax.nn.sigmoid(out[..., 0])
        through = jnp.cumprod(1 - alpha + 1e-6, axis=-1)
        before = jnp.concatenate([jnp.ones((rays, 1)), through[:, :-1]], -1)
        colour = (jax.nn.sigmoid(out[..., 1:]) * (alpha * before)[..., None]).sum(1)
        return mean_square(colour, y)

    params = {"in": array(8, hidden), "out": array(hidden, 4)}
    batch = (array(rays, layers), array(rays, layers, 8), array(rays, 3))
    return optimized(loss, optax.adam(1e-3), params, *batch)


def adapted_tasks() -> Target:
    """Three steps of learnt rates on each of 64 tasks, and the loss that is left."""
    tasks, shots, d, hidden = 64, 32, 64, 256

    def network(w: Any, x: jax.Array) -> jax.Array:
        h = jnp.tanh(x @ w["a"])
        return (jnp.tanh(h @ w["b"]) @ w["c"])[..., 0]

    def loss(params: Any, x: jax.Array, y: jax.Array, later: jax.Array, then: Any) -> jax.Array:
        def one_task(x: jax.Array, y: jax.Array, later: jax.Array, then: jax.Array) -> jax.Array:
            w = params["w"]
            for _ in range(3):
                slope = jax.grad(lambda w: mean_square(network(w, x), y))(w)
                w = jax.tree.map(lambda p, r, g: p - r * g, w, params["rate"], slope)
            return mean_square(network(w, later), then)

        return jax.vmap(one_task)(x, y, later, then).mean()

    w = {"a": array(d, hidden), "b": array(hidden, hidden), "c": array(hidden, 1)}
    x, y = array(tasks, shots, d), array(tasks, shots)
    return optimized(loss, optax.adam(1e-3), {"w": w, "rate": w}, x, y, x, y)


def field_interactions() -> Target:
    """Clicks from 39 fields: looked-up rows, their products in pairs, and a network."""
    batch, fields, rows, d = 8192, 39, 200_000, 16

    def loss(params: Any, ids: jax.Array, y: jax.Array) -> jax.Array:
        embedded = params["table"][ids]
        first = params["bias"][ids].sum(-1)
        total = embedded.sum(1)
        pairs = 0.5 * (total**2 - (embedded**2).sum(1)).sum(-1)
        h = embedded.reshape(batch, fields * d)
        for w in params["network"]:
            h = jax.nn.relu(h @ w)
        logits = first + pairs + (h @ params["out"])[:, 0]
        return optax.sigmoid_binary_cross_entropy(logits, y).mean()

    params = {
        "table": array(rows, d),
        "bias": array(rows),
        "network": [array(fields * d, 512), array(512, 512), array(512, 256)],
        "out": array(256, 1),
    }
    return optimized(loss, optax.adagrad(1e-2), params, indices(batch, fields), array(batch))


def heat_inversion() -> Target:
    """Conductivities of 64 plates from what 100 steps of heat flow leave, derived through them."""
    plates, side, times = 64, 128, 100

    def loss(params: Any, start: jax.Array, y: jax.Array) -> jax.Array:
        conductivity = jax.nn.sigmoid(params["conductivity"])

        @jax.checkpoint
        def flow(heat: jax.Array, _: None) -> tuple[jax.Array, None]:
            around = sum(jnp.roll(heat, s, axis) for s in (-1, 1) for axis in (1, 2))
            return heat + 0.2 * conductivity * (around - 4 * heat), None

        left = jax.lax.scan(flow, start, None, length=times)[0]
        roughness = (jnp.diff(conductivity, axis=0) ** 2).mean()
        return mean_square(left, y) + 0.01 * roughness

    params = {"conductivity": array(side, side)}
    fields = array(plates, side, side)
    return optimized(loss, optax.adam(1e-2), params, fields, fields)


def learnt_forces() -> Target:
    """Forces of 512 atoms from a pair energy that is learnt, along ten steps of motion."""
    atoms, kinds, hidden = 512, 16, 64

    def energy(params: Any, where: jax.Array) -> jax.Array:
        offset = where[:, None] - where[None]
        distance = jnp.sqrt((offset**2).sum(-1) + 1e-3)
        waves = jnp.exp(-((distance[..., None] - jnp.linspace(0, 4, kinds)) ** 2))
        return (jnp.tanh(waves @ params["in"]) @ params["out"]).sum()

    def loss(params: Any, where: jax.Array, speed: jax.Array, y: jax.Array) -> jax.Array:
        def move(carry: Any, _: None) -> tuple[Any, None]:
            where, speed = carry
            speed = speed - 0.01 * jax.grad(energy, argnums=1)(params, where)
            return (where + 0.01 * speed, speed), None

        where, _ = jax.lax.scan(move, (where, speed), None, length=10)[0]
        return mean_square(where, y)

    params = {"in": array(kinds, hidden), "out": array(hidden, 1)}
    x = array(atoms, 3)
    return optimized(loss, optax.adam(1e-3), params, x, x, x)


def residual_codes() -> Target:
    """Frames of sound as sums of entries of four books, whose means move with what chose them."""
    frames, d, hidden, books, entries = 16384, 128, 512, 4, 1024

    def step(params: Any, codes: Any, state: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            z = jax.nn.gelu(x @ params["a"]) @ params["b"]
            rest, total, moved = z, jnp.zeros_like(z), []
            for book in codes:
                distance = (book**2).sum(-1) - 2 * rest @ book.T
                chosen = jnp.argmin(distance, -1)
                found = book[chosen]
                count = jax.ops.segment_sum(jnp.ones(frames), chosen, entries)
                summed = jax.ops.segment_sum(jax.lax.stop_gradient(rest), chosen, entries)
                moved.append(0.99 * book + 0.01 * summed / jnp.maximum(count, 1)[:, None])
                rest, total = rest - found, total + found
            through = z + jax.lax.stop_gradient(total - z)
            made = jax.nn.gelu(through @ params["c"]) @ params["d"]
            return mean_square(made, x) + 0.25 * mean_square(z, total), moved

        (value, moved), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optax.adam(1e-3).update(gradients, state, params)
        return optax.apply_updates(params, updates), moved, state, value

    params = {
        "a": array(d, hidden),
        "b": array(hidden, d),
        "c": array(d, hidden),
        "d": array(hidden, d),
    }
    state = jax.eval_shape(optax.adam(1e-3).init, params)
    return step, (params, [array(entries, d)] * books, state, array(frames, d))
