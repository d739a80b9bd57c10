"""Models of sequences other than language of `scripts.unseen_steps`."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from scripts.memory_targets import Target, array, trained
from scripts.unseen_targets import indices, mean_square


def hyena() -> Target:
    """Gated convolutions as long as the sequence, by Fourier transforms of damped waves."""
    batch, length, d = 16, 1024, 256

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for w in params:
            a, b, v = jnp.split(x @ w["in"], 3, -1)
            time = jnp.arange(length)[:, None]
            kernel = jnp.sin(time * w["frequency"]) * jnp.exp(-time * jax.nn.softplus(w["decay"]))
            spectrum = jnp.fft.rfft(kernel, 2 * length, axis=0)
            v = jnp.fft.rfft(v * b, 2 * length, axis=1) * spectrum[None]
            v = jnp.fft.irfft(v, 2 * length, axis=1)[:, :length]
            x = x + (v * a) @ w["out"]
        return mean_square(x, y)

    layer = {
        "in": array(d, 3 * d),
        "out": array(d, d),
        "frequency": array(d),
        "decay": array(d),
    }
    return trained(loss, [layer] * 3, array(batch, length, d), array(batch, length, d))


def diagonal_state_space() -> Target:
    """S5: complex diagonal recurrences by associative scans."""
    batch, length, d, states, depth = 16, 512, 256, 128, 4

    def joined(left: Any, right: Any) -> Any:
        return right[0] * left[0], right[0] * left[1] + right[1]

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        rate = -jnp.exp(w["real"]) + 1j * w["imaginary"]
        decay = jnp.exp(rate * jnp.exp(w["step"]))
        entered = (x @ w["in"]).astype(jnp.complex64)
        decays = jnp.broadcast_to(decay, entered.shape)
        _, state = jax.lax.associative_scan(joined, (decays, entered), axis=1)
        out = state.real @ w["out"] + state.imag @ w["out_imaginary"] + x * w["skip"]
        return x + jax.nn.gelu(out), None

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return mean_square(jax.lax.scan(layer, x, params)[0], y)

    params = {
        "real": array(depth, states),
        "imaginary": array(depth, states),
        "step": array(depth, states),
        "in": array(depth, d, states),
        "out": array(depth, states, d),
        "out_imaginary": array(depth, states, d),
        "skip": array(depth, d),
    }
    return trained(loss, params, array(batch, length, d), array(batch, length, d))


def _gated_recurrence(w: Any, x: jax.Array) -> jax.Array:
    """The states of a gated recurrent layer over time."""

    def cell(h: jax.Array, entered: jax.Array) -> tuple[jax.Array, jax.Array]:
        from_state, from_input = jnp.split(h @ w["h"], 3, -1), jnp.split(entered, 3, -1)
        reset, update = (jax.nn.sigmoid(i + s) for i, s in zip(from_input[:2], from_state[:2]))
        new = jnp.tanh(from_input[2] + reset * from_state[2])
        h = (1 - update) * new + update * h
        return h, h

    start = jnp.zeros((x.shape[0], w["h"].shape[0]))
    _, states = jax.lax.scan(cell, start, jnp.swapaxes(x @ w["in"], 0, 1))
    return jnp.swapaxes(states, 0, 1)


def recurrent_speech() -> Target:
    """Recurrent layers in both directions behind a strided convolution, with the loss of CTC."""
    batch, length, features, d, vocabulary, letters = 64, 400, 80, 512, 512, 50

    def loss(
        params: Any, sound: jax.Array, text: jax.Array, padding: jax.Array, text_padding: jax.Array
    ) -> jax.Array:
        h = jax.lax.conv_general_dilated(
            sound, params["in"], (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
        h = jax.nn.relu(h)
        for w in params["layers"]:
            back = _gated_recurrence(w["back"], h[:, ::-1])[:, ::-1]
            both = jnp.concatenate([_gated_recurrence(w["on"], h), back], -1)
            h = jax.nn.relu(both @ w["joined"])
        return optax.ctc_loss(h @ params["head"], padding, text, text_padding).mean()

    cell = {"in": array(d, 3 * d), "h": array(d, 3 * d)}
    layer = {"on": cell, "back": cell, "joined": array(2 * d, d)}
    params = {"in": array(5, features, d), "layers": [layer] * 2, "head": array(d, vocabulary)}
    return trained(
        loss,
        params,
        array(batch, length, features),
        indices(batch, letters),
        array(batch, length // 2),
        array(batch, letters),
    )


def hidden_markov() -> Target:
    """A hidden Markov model of 256 states, its likelihood by a scan of summed exponentials."""
    batch, length, states, d = 128, 256, 256, 512

    def loss(params: Any, x: jax.Array) -> jax.Array:
        emitted = jax.nn.log_softmax(jax.nn.relu(x @ params["a"]) @ params["b"])
        transition = jax.nn.log_softmax(params["transition"])

        @jax.checkpoint
        def forward(alpha: jax.Array, emitted: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.logsumexp(alpha[:, :, None] + transition[None], 1) + emitted, None

        later = jnp.swapaxes(emitted[:, 1:], 0, 1)
        alpha, _ = jax.lax.scan(forward, emitted[:, 0], later)
        return -jax.nn.logsumexp(alpha, -1).mean()

    params = {"a": array(64, d), "b": array(d, states), "transition": array(states, states)}
    return trained(loss, params, array(batch, length, 64))


def neural_ode() -> Target:
    """Twenty steps of Runge and Kutta in a scan, with Adam written out."""
    batch, d, hidden, steps = 512, 128, 512, 20
    h = 1 / steps

    def slope(params: Any, z: jax.Array, time: jax.Array) -> jax.Array:
        timed = jnp.concatenate([z, jnp.broadcast_to(time, (*z.shape[:-1], 1))], -1)
        return jnp.tanh(timed @ params["a"] + params["bias"]) @ params["b"]

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def advanced(z: jax.Array, time: jax.Array) -> tuple[jax.Array, None]:
            k1 = slope(params, z, time)
            k2 = slope(params, z + h / 2 * k1, time + h / 2)
            k3 = slope(params, z + h / 2 * k2, time + h / 2)
            k4 = slope(params, z + h * k3, time + h)
            return z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return mean_square(jax.lax.scan(advanced, x, jnp.arange(steps) / steps)[0], y)

    def step(params: Any, m: Any, v: Any, count: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        count = count + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradients)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradients)

        def updated(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            scale = jnp.sqrt(v / (1 - 0.999**count)) + 1e-8
            return p - 1e-3 * (m / (1 - 0.9**count)) / scale

        return jax.tree.map(updated, params, m, v), m, v, count, value

    params = {"a": array(d + 1, hidden), "bias": array(hidden), "b": array(hidden, d)}
    x = array(batch, d)
    return step, (params, params, params, indices(), x, x)
