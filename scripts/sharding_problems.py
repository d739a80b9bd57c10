"""Generated train steps for the sharding agent to learn on: families of models at random sizes.

    dense          layers of one width, or of widths that change
    transformer    attention and feed-forward blocks, unrolled or scanned, decoder or encoder
    experts        a transformer whose feed-forward blocks are mixtures of experts (GShard's form)
    convolution    a stack of convolutions and a classifier
    recurrent      an LSTM over a sequence, with a vocabulary
    tables         embedding tables, a perceptron and products between them
    program        a chain of products, sums and transposes of random shapes

Sizes are drawn over decades, some that few axes divide; parameters are float32, activations float32
or bfloat16, the optimizer plain, with momentum, or Adam. No model of the zoo is among them. The
same seed makes the same step                                              -> in: `generated_step`
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import jax
from jax import lax, numpy as jnp


Shapes = dict[str, tuple[int, ...]]
Loss = Callable[[Mapping[str, Any], Any], jax.Array]
_F32 = jnp.float32


def _size(rng: Random, least: int, most: int) -> int:
    """A size over decades: most are multiples of a power of two, some of nothing much."""
    size = int(least * (most / least) ** rng.random())
    multiple = rng.choice((1, 4, 16, 64, 128, 128))
    return max(size // multiple * multiple, least)


def _mean_square(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x.astype(_F32)))


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale


def _dense(rng: Random, dtype: Any) -> tuple[Shapes, Shapes, Loss]:
    batch, depth = _size(rng, 32, 16384), rng.randint(1, 5)
    widths = [_size(rng, 64, 16384)] * (depth + 1)
    if rng.random() < 0.5:
        widths = [_size(rng, 64, 16384) for _ in range(depth + 1)]
    shapes = {f"w{i}": pair for i, pair in enumerate(zip(widths, widths[1:]))}
    shapes |= {f"b{i}": (width,) for i, width in enumerate(widths[1:])}

    def loss(params, x):
        x = x.astype(dtype)
        for i in range(depth):
            x = jax.nn.relu(x @ params[f"w{i}"].astype(dtype) + params[f"b{i}"].astype(dtype))
        return _mean_square(x)

    return shapes, {"x": (batch, widths[0])}, loss


def _attention(p: Mapping[str, Any], x: jax.Array, causal: bool) -> jax.Array:  # noqa: FBT001
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[name]) for name in ("q", "k", "v"))
    scores = jnp.einsum("bshk,bthk->bhst", q, k).astype(_F32)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    weights = jax.nn.softmax(scores).astype(x.dtype)
    mixed = jnp.einsum("bhst,bthk->bshk", weights, v)
    return x + jnp.einsum("bshk,hkd->bsd", mixed, p["o"])


def _experts(p: Mapping[str, Any], x: jax.Array) -> jax.Array:
    b, s, d = x.shape
    n = p["router"].shape[1]
    gates = jax.nn.softmax((x @ p["router"]).astype(_F32))
    chosen = jax.nn.one_hot(gates.argmax(-1), n)
    capacity = max(2 * s // n, 1)
    # Places in an expert's queue, one sequence being one group.
    place = (jnp.cumsum(chosen, 1) - 1) * chosen
    taken = jax.nn.one_hot(place.sum(-1).astype(jnp.int32), capacity)
    sent = jnp.einsum("bse,bsc->bsec", chosen, taken).astype(x.dtype)
    inside = jnp.einsum("bsec,bsd->ebcd", sent, x)
    hidden = jax.nn.relu(jnp.einsum("ebcd,edf->ebcf", inside, p["up"]))
    outside = jnp.einsum("ebcf,efd->ebcd", hidden, p["down"])
    back = jnp.einsum("bsec,ebcd->bsd", sent, outside)
    return x + back * gates.max(-1)[..., None].astype(x.dtype)


def _transformer(rng: Random, dtype: Any, *, experts: bool = False):
    head, heads = rng.choice((32, 64, 128)), rng.choice((4, 6, 8, 12, 16, 32))
    width = head * heads if rng.random() < 0.7 else _size(rng, 256, 4096)
    inner = rng.choice((2, 4, 4)) * width
    batch, seq = _size(rng, 8, 512), rng.choice((128, 256, 512, 1024, 2048))
    vocabulary = rng.choice((0, 1000, 32_000, 32_128, 50_257))
    depth, scanned, causal = rng.choice((2, 4, 12, 24)), True, rng.random() < 0.5
    if depth <= 2 and rng.random() < 0.5:
        scanned = False
    block: Shapes = {name: (width, heads, head) for name in ("q", "k", "v")}
    block |= {"o": (heads, head, width), "norm": (width,)}
    if experts:
        n = rng.choice((4, 8, 16, 64))
        block |= {"router": (width, n), "up": (n, width, inner), "down": (n, inner, width)}
    else:
        block |= {"up": (width, inner), "down": (inner, width)}
    if scanned:
        shapes = {name: (depth, *shape) for name, shape in block.items()}
    else:
        shapes = {f"{name}{i}": s for i in range(depth) for name, s in block.items()}
    if vocabulary:
        shapes |= {"table": (vocabulary, width)}

    def layer(x, p):
        p = {name: array.astype(dtype) for name, array in p.items()}
        x = _attention(p, _normed(x, p["norm"]), causal)
        if experts:
            return _experts(p, x)
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    def loss(params, x):
        ids = x
        if vocabulary:
            x = params["table"].astype(dtype)[ids]
        x = x.astype(dtype)
        if scanned:
            layers = {name: params[name] for name in block}
            x, _ = lax.scan(lambda x, p: (layer(x, p), None), x, layers)
        else:
            for i in range(depth):
                x = layer(x, {name: params[f"{name}{i}"] for name in block})
        if not vocabulary:
            return _mean_square(x)
        logits = (x @ params["table"].astype(dtype).T).astype(_F32)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)
        return -jnp.mean(picked)

    inputs = {"ids": (batch, seq)} if vocabulary else {"x": (batch, seq, width)}
    return shapes, inputs, loss


def _convolution(rng: Random, dtype: Any) -> tuple[Shapes, Shapes, Loss]:
    batch, side = _size(rng, 32, 2048), rng.choice((16, 32, 56, 112, 224))
    channels = [3]
    for _ in range(rng.randint(2, 5)):
        channels.append(min(rng.choice((32, 48, 64, 96, 128)) * len(channels), 512))
    classes, hidden = rng.choice((10, 100, 1000)), _size(rng, 128, 8192)
    shapes: Shapes = {f"c{i}": (3, 3, *pair) for i, pair in enumerate(zip(channels, channels[1:]))}
    shapes |= {"f": (channels[-1] * 16, hidden), "g": (hidden, classes)}
    dims = ("NHWC", "HWIO", "NHWC")

    def loss(params, x):
        x = x.astype(dtype)
        for i in range(len(channels) - 1):
            kernel = params[f"c{i}"].astype(dtype)
            stride = 2 if x.shape[1] > 8 else 1
            x = lax.conv_general_dilated(x, kernel, (stride,) * 2, "SAME", dimension_numbers=dims)
            x = jax.nn.relu(x)
        b, size = x.shape[0], x.shape[1] // 4
        x = x[:, : 4 * size, : 4 * size].reshape(b, 4, size, 4, size, -1).mean((2, 4))
        x = jax.nn.relu(x.reshape(b, -1) @ params["f"].astype(dtype))
        return _mean_square(x @ params["g"].astype(dtype))

    return shapes, {"x": (batch, side, side, 3)}, loss


def _recurrent(rng: Random, dtype: Any) -> tuple[Shapes, Shapes, Loss]:
    width, inner = _size(rng, 128, 4096), _size(rng, 128, 4096)
    batch, seq, vocabulary = _size(rng, 32, 1024), rng.choice((16, 40)), _size(rng, 1000, 64000)
    shapes = {
        "table": (vocabulary, width),
        "w": (width, 4 * inner),
        "u": (inner, 4 * inner),
        "out": (inner, vocabulary),
    }

    def loss(params, ids):
        p = {name: array.astype(dtype) for name, array in params.items()}

        def cell(state, x):
            h, c = state
            i, f, o, g = jnp.split(x @ p["w"] + h @ p["u"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((batch, inner), dtype)
        _, hs = lax.scan(cell, (zero, zero), p["table"][ids].swapaxes(0, 1))
        return _mean_square(jax.nn.log_softmax((hs @ p["out"]).astype(_F32)))

    return shapes, {"ids": (batch, seq)}, loss


def _tables(rng: Random, dtype: Any) -> tuple[Shapes, Shapes, Loss]:
    n, width, batch = rng.randint(2, 6), rng.choice((16, 32, 64, 128)), _size(rng, 512, 65536)
    hidden = _size(rng, 128, 4096)
    rows = [_size(rng, 1000, 10_000_000) for _ in range(n)]
    shapes: Shapes = {f"t{i}": (count, width) for i, count in enumerate(rows)}
    shapes |= {"a": (n * width, hidden), "b": (hidden, hidden), "c": (hidden, 1)}

    def loss(params, ids):
        parts = [params[f"t{i}"][ids[:, i] % rows[i]].astype(dtype) for i in range(n)]
        x = jnp.concatenate(parts, -1)
        for name in ("a", "b"):
            x = jax.nn.relu(x @ params[name].astype(dtype))
        return _mean_square(x @ params["c"].astype(dtype))

    return shapes, {"ids": (batch, n)}, loss


def _program(rng: Random, dtype: Any) -> tuple[Shapes, Shapes, Loss]:
    batch, width = _size(rng, 64, 8192), _size(rng, 64, 4096)
    steps: list[str] = [rng.choice("mmmstr") for _ in range(rng.randint(3, 7))]
    shapes: Shapes = {}
    now = width
    for i, step in enumerate(steps):
        if step == "m":
            shapes[f"w{i}"] = (now, now := _size(rng, 64, 8192))
        elif step == "s":
            shapes[f"w{i}"] = (now,)
    shapes = shapes or {"w0": (width,)}

    def loss(params, x):
        x = x.astype(dtype)
        for i, step in enumerate(steps):
            if step == "m":
                x = jnp.tanh(x @ params[f"w{i}"].astype(dtype))
            elif step == "s":
                x = x * params[f"w{i}"].astype(dtype)
            elif step == "t":
                x = x + jnp.matmul(x @ x.T, x) / x.shape[0]
            else:
                x = jax.nn.softmax(x, -1)
        if all(step not in "ms" for step in steps):
            x = x * params["w0"].astype(dtype)
        return _mean_square(x)

    return shapes, {"x": (batch, width)}, loss


def _mixture(rng: Random, dtype: Any):
    return _transformer(rng, dtype, experts=True)


FAMILIES = (
    # (chance, family)
    (3, _dense),
    (6, _transformer),
    (3, _mixture),
    (3, _convolution),
    (2, _recurrent),
    (2, _tables),
    (2, _program),
)


def _updated(name: str, state: Any, grads: Any) -> Any:
    params = state["params"]
    if name == "plain":
        return {"params": jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)}
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    if name == "momentum":
        return {"params": jax.tree.map(lambda p, m: p - 1e-3 * m, params, m), "m": m}
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
    new = jax.tree.map(lambda p, m, v: p - 1e-3 * m * lax.rsqrt(v + 1e-8), params, m, v)
    return {"params": new, "m": m, "v": v}


def generated_step(seed: int) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """A step and its abstract arguments, as the planner takes them."""
    rng = Random(seed)
    (family,) = rng.choices([f for _, f in FAMILIES], [chance for chance, _ in FAMILIES])
    dtype = rng.choice((jnp.float32, jnp.bfloat16, jnp.bfloat16))
    optimizer = rng.choice(("plain", "momentum", "adam", "adam"))
    shapes, inputs, loss = family(rng, dtype)
    params = {name: jax.ShapeDtypeStruct(shape, _F32) for name, shape in shapes.items()}
    ((input_name, input_shape),) = inputs.items()
    batch = jax.ShapeDtypeStruct(input_shape, jnp.int32 if input_name == "ids" else _F32)
    moments = {"plain": "", "momentum": "m", "adam": "mv"}[optimizer]

    def step(state, batch):
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        return _updated(optimizer, state, grads), value

    return step, ({"params": params, **dict.fromkeys(moments, params)}, batch)
