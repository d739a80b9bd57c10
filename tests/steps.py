"""Small train steps shared by tests, with abstract arguments and their analysed problem."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from automap.choices import Layers
from automap.program.problem import Problem
from automap.program.problem_build import build_problem
from hlo_tools.read.proto import decode_module


def _array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _adam(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(state, batch):
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
        params = jax.tree.map(
            lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), state["params"], m, v
        )
        return {"params": params, "m": m, "v": v}, value

    return step


def mlp(batch=16, width=32, hidden=64):
    """Two layers: x W1 relu W2."""
    params = {"w1": _array(width, hidden), "w2": _array(hidden, width)}

    def loss(p, b):
        return jnp.mean((jax.nn.relu(b["x"] @ p["w1"]) @ p["w2"] - b["y"]) ** 2)

    data = {"x": _array(batch, width), "y": _array(batch, width)}
    return _adam(loss), ({"params": params, "m": params, "v": params}, data)


def decoder(layers=2, width=64, heads=8, hidden=128, vocab=256, batch=16, length=32):
    """A tied-embedding decoder with separate q, k, v."""
    square = _array(width, width)
    layer = {
        "norm1": _array(width),
        "norm2": _array(width),
        "q": square,
        "k": square,
        "v": square,
        "o": square,
        "up": _array(width, hidden),
        "down": _array(hidden, width),
    }
    params = {"embedding": _array(vocab, width), "layers": [dict(layer) for _ in range(layers)]}

    def norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def attention(p, x):
        split = lambda w: (x @ w).reshape(batch, length, heads, -1)  # noqa: E731
        scores = jnp.einsum("bqhd,bkhd->bhqk", split(p["q"]), split(p["k"]))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), split(p["v"]))
        return mixed.reshape(x.shape) @ p["o"]

    def loss(p, b):
        x = p["embedding"][b["tokens"]]
        for layer in p["layers"]:
            x = x + attention(layer, norm(x, layer["norm1"]))
            x = x + jax.nn.relu(norm(x, layer["norm2"]) @ layer["up"]) @ layer["down"]
        scores = jax.nn.log_softmax(x @ p["embedding"].T)
        return -jnp.mean(jnp.take_along_axis(scores, b["labels"][..., None], -1))

    tokens = _array(batch, length, dtype="int32")
    state = {"params": params, "m": params, "v": params}
    return _adam(loss), (state, {"tokens": tokens, "labels": tokens})


def problem_of(
    step: Callable[..., Any], args: tuple[Any, ...], layers: Layers = "folded"
) -> Problem:
    """Analyse a step whose first argument is its state."""
    lowered = jax.jit(step, keep_unused=True).lower(*args)
    leaves, _ = jax.tree_util.tree_flatten_with_path(args)
    n_state = len(jax.tree.leaves(args[0]))
    return build_problem(
        decode_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()),
        paths=[jax.tree_util.keystr(path) for path, _ in leaves],
        state_map={i: i for i in range(n_state)},
        donated=frozenset(range(n_state)),
        layers=layers,
    )


def shapes_of(problem: Problem) -> list[tuple[int, ...]]:
    """Shapes of the inputs of a problem without random keys."""
    return [problem.graph.values[value].dims for value in problem.graph.inputs]


def images(batch=8, size=32, channels=8):
    """Convolutions with strides and dilation, pools, a shortcut and a transposed convolution."""
    kernel = _array(3, 3, channels, channels)
    params = {
        "stem": _array(5, 5, 3, channels),
        "down": kernel,
        "dilated": kernel,
        "up": kernel,
        "point": _array(1, 1, channels, channels),
    }

    def convolve(x, w, stride=1, dilation=1):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            "SAME",
            rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def loss(p, b):
        x = jnp.tanh(convolve(b["images"], p["stem"]))
        x = jnp.tanh(convolve(x, p["down"], stride=2) + convolve(x, p["point"], stride=2))
        x = x + jnp.tanh(convolve(x, p["dilated"], dilation=2))
        pooled = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        y = jax.lax.conv_transpose(pooled, p["up"], (2, 2), "SAME")
        return jnp.mean((x * y) ** 2)

    return _adam(loss), (
        {"params": params, "m": params, "v": params},
        {"images": _array(batch, size, size, 3)},
    )


def decode(layers=2, batch=8, length=64, heads=8, head=128):
    """One token more of attention layers that are scanned, and their caches [layers, batch, length,
    heads, head].
    """
    width, cache = heads * head, _array(layers, batch, length, heads, head)
    state = {"keys": cache, "values": cache}

    def step(state, weights, x, position):
        def layer(x, of):
            weight, *caches = of
            q, *new = jnp.split((x @ weight).reshape(batch, 3, heads, head), 3, 1)
            keys, values = (
                jax.lax.dynamic_update_slice(c, n, (0, position, 0, 0))
                for c, n in zip(caches, new, strict=True)
            )
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, keys)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values)
            return x + mixed.reshape(batch, width), (keys, values)

        x, (keys, values) = jax.lax.scan(layer, x, (weights, state["keys"], state["values"]))
        return {"keys": keys, "values": values}, x

    weights = _array(layers, width, 3 * width)
    return step, (state, weights, _array(batch, width), _array(dtype="int32"))
