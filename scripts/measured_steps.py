"""Steps that `scripts.measure_steps` runs on a GPU: whole models of the zoo, strangers written in
plain JAX, and the small steps of `scripts.memory_steps`, of which each has one kind of operation.

They are halved by their names (`scripts.halves`): what is fitted is fitted on the first half.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp

from automap.program import load_target
from scripts.halves import is_held_out
from scripts.memory_steps import STEPS
from scripts.memory_targets import Target, array, trained


Group = Literal["model", "stranger", "small"]
Half = Literal["fitted", "judged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step by the target that makes it and its options."""

    group: Group
    target: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The function and its options, in few words."""
        function = self.target.rpartition(":")[2]
        return " ".join((function, *(f"{key}={value}" for key, value in self.options)))

    @property
    def half(self) -> Half:
        """Nothing may be fitted on the judged half."""
        return "judged" if is_held_out(self.target) else "fitted"

    def load(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The step, jitted, and its abstract arguments."""
        step, args = load_target(self.target, dict(self.options))
        return (step if hasattr(step, "lower") else jax.jit(step)), tuple(args)


def _model(target: str, **options: str) -> Case:
    return Case(group="model", target=f"models.{target}", options=tuple(options.items()))


_SCANNED: Final[Mapping[str, str]] = {"layers": "scanned"}
_HALF: Final[Mapping[str, str]] = {"dtype": "bfloat16"}
MODELS: Final = (
    _model("gpt:gpt_124m", batch="16", **_SCANNED, **_HALF),
    _model("gpt:gpt_124m", batch="16", attention="flash", **_SCANNED, **_HALF),
    _model("gpt:gpt_124m", batch="32", remat="layer", **_SCANNED, **_HALF),
    _model("gpt:gpt_124m", batch="4"),
    _model("t5:t5_base", batch="8", **_SCANNED),
    _model("t5:t5_base", batch="4", **_SCANNED, **_HALF),
    _model("bert:bert_48", batch="4", **_SCANNED),
    _model("vit:vit_b16", batch="64", **_SCANNED),
    _model("vit:vit_b16", batch="128", **_SCANNED, **_HALF),
    _model("moe:moe_8x", batch="2", **_SCANNED, **_HALF),
    _model("llama:llama_1b", batch="2", seq="1024", **_SCANNED, **_HALF),
    _model("llama:llama_1b", batch="2", seq="2048", attention="flash", **_SCANNED, **_HALF),
    _model("mlp:mlp", batch="4096"),
    _model("alexnet:alexnet", batch="256"),
    _model("vgg:vgg_19", batch="64"),
    _model("resnet:resnet_50", batch="64"),
    _model("resnet:resnet_50", batch="128", **_HALF),
    _model("inception:inception_v3", batch="64"),
    _model("nmt:nmt", batch="64", steps="scanned"),
    _model("rnnlm:rnnlm", batch="64", steps="scanned"),
    _model("rnntc:rnntc", batch="64", steps="scanned"),
    _model("mamba:mamba_130m", batch="2"),
    _model("dlrm:dlrm_kaggle"),
)


# --- strangers: none of them is like a model of the zoo in how it is written ---------------------


def _adam(loss: Callable[..., jax.Array], params: Any, *batch: Any) -> Target:
    """A step of Adam, written out."""

    def step(params: Any, m: Any, v: Any, *batch: Any) -> Any:
        value, g = jax.value_and_grad(loss)(params, *batch)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, m, v)
        return params, m, v, value

    return jax.jit(step, donate_argnums=(0, 1, 2)), (params, params, params, *batch)


def _rms(x: jax.Array, g: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g


def _loss_of(logits: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -chosen.mean()


def encoder(dtype: str = "float32", batch: str = "32") -> Target:
    """Sixteen layers of attention without a mask, in a loop; all is in one precision."""
    kind, b = jnp.dtype(dtype), int(batch)
    depth, d, heads, ff, s, vocab = 16, 768, 12, 3072, 384, 20000
    layers = {n: array(depth, d, d, dtype=kind) for n in "qkvo"}
    layers |= {"u": array(depth, d, ff, dtype=kind), "w": array(depth, ff, d, dtype=kind)}
    layers |= {n: array(depth, d, dtype=kind) for n in ("g1", "g2")}
    params = {
        "table": array(vocab, d, dtype=kind),
        "layers": layers,
        "head": array(d, vocab, dtype=kind),
    }

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        y = _rms(x, w["g1"])
        q, k, v = ((y @ w[n]).reshape(b, s, heads, d // heads) for n in "qkv")
        a = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(d // heads))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(b, s, d) @ w["o"]
        return x + jax.nn.gelu(_rms(x, w["g2"]) @ w["u"]) @ w["w"], None

    def loss(p: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(layer, p["table"][tokens], p["layers"])
        return _loss_of(x @ p["head"], labels)

    tokens = array(b, s, dtype=jnp.int32)
    return _adam(loss, params, tokens, tokens)


def mixer() -> Target:
    """Eight layers that mix tokens and channels by dense layers, apart, in bfloat16 copies."""
    b, s, d = 128, 196, 768
    widths = {"t1": (s, 384), "t2": (384, s), "c1": (d, 3072), "c2": (3072, d), "g": (d,)}
    params = [{n: array(*shape) for n, shape in widths.items()} for _ in range(8)]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for full in params:
            w = jax.tree.map(lambda part: part.astype(jnp.bfloat16), full)
            y = _rms(x, w["g"]).swapaxes(1, 2)
            x = x + (jax.nn.gelu(y @ w["t1"]) @ w["t2"]).swapaxes(1, 2)
            x = x + jax.nn.gelu(_rms(x, w["g"]) @ w["c1"]) @ w["c2"]
        return jnp.square(x.astype(jnp.float32)).mean()

    return _adam(loss, params, array(b, s, d, dtype=jnp.bfloat16))


def autoencoder() -> Target:
    """Convolutions down and transposed convolutions up, 128 images of 128 x 128."""
    widths = (3, 64, 128, 256, 512)
    params = {
        "down": [array(4, 4, i, o) for i, o in zip(widths, widths[1:])],
        "up": [array(4, 4, o, i) for i, o in zip(widths, widths[1:])][::-1],
    }
    numbers = ("NHWC", "HWIO", "NHWC")

    def loss(p: Any, image: jax.Array) -> jax.Array:
        x = image
        for w in p["down"]:
            x = jax.nn.silu(
                jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers)
            )
        for w in p["up"]:
            x = jnp.tanh(jax.lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=numbers))
        return jnp.square(x - image).mean()

    return _adam(loss, params, array(128, 128, 128, 3))


def graph() -> Target:
    """Four rounds of messages over a million edges between 100,000 nodes."""
    nodes, edges, d = 100_000, 1_000_000, 128
    params = [{"m": array(2 * d, d), "u": array(2 * d, d)} for _ in range(4)]

    def loss(params: Any, x: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
        for p in params:
            message = jax.nn.relu(jnp.concatenate([x[source], x[target]], -1) @ p["m"])
            summed = jax.ops.segment_sum(message, target, num_segments=nodes)
            x = x + jax.nn.relu(jnp.concatenate([x, summed], -1) @ p["u"])
        return jnp.square(x).mean()

    ends = array(edges, dtype=jnp.int32)
    return _adam(loss, params, array(nodes, d), ends, ends)


def gated_decoder() -> Target:
    """Twelve layers with grouped attention, causal, rotary angles left out, gated products."""
    b, s, d, heads, groups, ff, vocab = 4, 2048, 2048, 16, 4, 5632, 32000
    half, size = jnp.bfloat16, d // heads
    layers = {
        "q": array(12, d, d, dtype=half),
        "k": array(12, d, groups * size, dtype=half),
        "v": array(12, d, groups * size, dtype=half),
        "o": array(12, d, d, dtype=half),
        "a": array(12, d, ff, dtype=half),
        "b": array(12, d, ff, dtype=half),
        "c": array(12, ff, d, dtype=half),
        "g": array(12, d, dtype=half),
    }
    params = {"table": array(vocab, d, dtype=half), "layers": layers}

    @jax.checkpoint
    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        y = _rms(x, w["g"])
        q = (y @ w["q"]).reshape(b, s, heads, size)
        k, v = ((y @ w[n]).reshape(b, s, groups, size) for n in "kv")
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, s, d) @ w["o"]
        y = _rms(x, w["g"])
        return x + (jax.nn.silu(y @ w["a"]) * (y @ w["b"])) @ w["c"], None

    def loss(p: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(layer, p["table"][tokens], p["layers"])
        return _loss_of((x @ p["table"].T).astype(jnp.float32), labels)

    tokens = array(b, s, dtype=jnp.int32)
    return _adam(loss, params, tokens, tokens)


def gated_recurrence() -> Target:
    """Three gated recurrent layers of 1024 over 128 steps of 256 sequences."""
    b, s, d = 256, 128, 1024
    params = [{"w": array(d, 3 * d), "u": array(d, 3 * d)} for _ in range(3)]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for p in params:

            def cell(h: jax.Array, wx: jax.Array, p: Any = p) -> tuple[jax.Array, jax.Array]:
                uh = h @ p["u"]
                r = jax.nn.sigmoid(wx[:, :d] + uh[:, :d])
                z = jax.nn.sigmoid(wx[:, d : 2 * d] + uh[:, d : 2 * d])
                n = jnp.tanh(wx[:, 2 * d :] + r * uh[:, 2 * d :])
                h = z * h + (1 - z) * n
                return h, h

            _, x = jax.lax.scan(cell, jnp.zeros((b, d)), x @ p["w"])
        return jnp.square(x).mean()

    return _adam(loss, params, array(s, b, d))


def long_convolution() -> Target:
    """Four layers of convolutions as long as the sequence, by Fourier transforms."""
    b, s, d = 8, 4096, 768
    params = [{"h": array(s, d), "i": array(d, 3 * d), "o": array(d, d)} for _ in range(4)]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for p in params:
            u, v, w = jnp.split(x @ p["i"], 3, -1)
            f = jnp.fft.rfft(u * v, 2 * s, axis=1) * jnp.fft.rfft(p["h"], 2 * s, axis=0)
            x = x + (jnp.fft.irfft(f, 2 * s, axis=1)[:, :s] * w) @ p["o"]
        return jnp.square(x).mean()

    return _adam(loss, params, array(b, s, d))


def recommender() -> Target:
    """Twenty tables of 200,000 rows, bags of ten rows, a tower of dense layers."""
    b, d, n = 8192, 64, 20
    params = {
        "tables": array(n, 200_000, d),
        "tower": [array(n * d, 1024), array(1024, 512), array(512, 1)],
    }

    def loss(p: Any, rows: jax.Array, y: jax.Array) -> jax.Array:
        bags = jax.vmap(lambda table, r: table[r].sum(1))(p["tables"], rows)
        x = bags.swapaxes(0, 1).reshape(b, n * d)
        for w in p["tower"][:-1]:
            x = jax.nn.relu(x @ w)
        return jnp.logaddexp(0.0, -y * (x @ p["tower"][-1])[:, 0]).mean()

    return trained(loss, params, array(n, b, 10, dtype=jnp.int32), array(b))


STRANGERS: Final = (
    encoder,
    mixer,
    autoencoder,
    graph,
    gated_decoder,
    gated_recurrence,
    long_convolution,
    recommender,
)
CASES: Final[tuple[Case, ...]] = (
    *(Case(group="stranger", target=f"{__name__}:{make.__name__}") for make in STRANGERS),
    Case(
        group="stranger",
        target=f"{__name__}:encoder",
        options=(("dtype", "bfloat16"), ("batch", "64")),
    ),
    *MODELS,
    *(Case(group="small", target=f"scripts.memory_steps:{make.__name__}") for make in STEPS),
)
