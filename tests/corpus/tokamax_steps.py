"""Steps of tokamax: attention, a loss and a gated layer as kernels of TPUs and of Triton."""

from absl import flags
import jax
import jax.numpy as jnp
import optax
import tokamax

from tests.corpus.interpreted import for_device


# tokamax reads absl's flags, which it would parse from the command that runs the steps.
flags.FLAGS.mark_as_parsed()


def _trained(loss_of, params, platform, *batch):
    optimizer = optax.adam(1e-3)

    @jax.jit
    @for_device(platform)
    def step(params, state, *batch):
        loss, grads = jax.value_and_grad(loss_of)(params, *batch)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    return step, (params, optimizer.init(params), *batch)


def _weights(**shapes):
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {n: jax.random.normal(k, s) / 16 for k, (n, s) in zip(keys, shapes.items())}


def attention():
    """A layer of attention with fewer key heads, by the splash kernel of TPUs."""
    heads, kv_heads, d = 4, 2, 128
    params = _weights(q=(64, heads, d), kv=(2, 64, kv_heads, d), o=(heads, d, 64))

    def loss_of(params, x, y):
        q = jnp.einsum("bsd,dhe->bshe", x, params["q"])
        k, v = jnp.einsum("bsd,ndhe->nbshe", x, params["kv"])
        h = tokamax.dot_product_attention(q, k, v, is_causal=True, implementation="mosaic_tpu")
        return jnp.mean((x + jnp.einsum("bshe,hed->bsd", h, params["o"]) - y) ** 2)

    x, y = (jax.random.normal(jax.random.key(n), (8, 128, 64)) for n in (1, 2))
    return _trained(loss_of, params, "tpu", x, y)


def triton_block():
    """A transformer's block with Triton's norm, attention and gated layer, on GPUs."""
    heads, d = 2, 64
    params = _weights(
        scale=(64,), offset=(64,), qkv=(3, 64, heads, d), o=(heads, d, 64),
        glu=(64, 2, 128), down=(128, 64),
    )  # fmt: skip

    def loss_of(params, x, y):
        h = tokamax.layer_norm(x, params["scale"], params["offset"], implementation="triton")
        q, k, v = jnp.einsum("bsd,ndhe->nbshe", h, params["qkv"])
        h = tokamax.dot_product_attention(q, k, v, is_causal=True, implementation="triton")
        x = x + jnp.einsum("bshe,hed->bsd", h, params["o"])
        h = tokamax.gated_linear_unit(
            x, params["glu"], activation=jax.nn.swish, implementation="triton"
        )
        return jnp.mean((x + h @ params["down"] - y) ** 2)

    x, y = (jax.random.normal(jax.random.key(n), (8, 64, 64)) for n in (1, 2))
    return _trained(loss_of, params, "gpu", x, y)


def experts():
    """Experts over rows sorted by expert, as Triton's ragged product."""
    n_experts = 4
    params = _weights(up=(n_experts, 64, 128), down=(n_experts, 128, 64))

    def loss_of(params, x, sizes, y):
        h = tokamax.ragged_dot(x, params["up"], sizes, implementation="triton")
        h = jax.nn.gelu(h)
        return jnp.mean(
            (tokamax.ragged_dot(h, params["down"], sizes, implementation="triton") - y) ** 2
        )

    x, y = (jax.random.normal(jax.random.key(n), (256, 64)) for n in (1, 2))
    sizes = jnp.array([64, 128, 0, 64], jnp.int32)
    return _trained(loss_of, params, "gpu", x, sizes, y)
