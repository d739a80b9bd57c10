"""Steps of ejkernel: losses whose kernels copy their rows themselves, and decoding."""

from ejkernel.kernels._pallas.tpu.fused_cross_entropy import fused_cross_entropy
from ejkernel.kernels._pallas.tpu.fused_kl_divergence import fused_kl_divergence
from ejkernel.kernels._pallas.tpu.gated_delta_rule import gated_delta_rule
import jax
import jax.numpy as jnp
import optax

from tests.corpus.interpreted import for_device


def _trained(loss_of, params, *batch):
    optimizer = optax.sgd(0.1)

    @jax.jit
    @for_device("tpu", copies_itself=True)
    def step(params, state, *batch):
        loss, grads = jax.value_and_grad(loss_of)(params, *batch)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    return step, (params, optimizer.init(params), *batch)


def cross_entropy():
    """A classifier of many classes; padded rows count for nothing."""
    params = jax.random.normal(jax.random.key(0), (64, 512)) / 8
    x = jax.random.normal(jax.random.key(1), (2048, 64))
    labels = jax.random.randint(jax.random.key(2), (2048,), 0, 512).at[::7].set(-100)

    def loss_of(params, x, labels):
        return fused_cross_entropy(x @ params, labels, block_m=128, block_v=256)[0]

    return _trained(loss_of, params, x, labels)


def distillation():
    """A student's logits against a teacher's."""
    params, teacher = (jax.random.normal(jax.random.key(n), (64, 512)) / 8 for n in (0, 1))
    x = jax.random.normal(jax.random.key(2), (2048, 64))

    def loss_of(params, teacher, x):
        return fused_kl_divergence(x @ params, x @ teacher, block_m=128, block_v=256)

    return _trained(loss_of, params, teacher, x)


def gated_delta():
    """Decoding: one position more of linear attention with a gated delta rule."""
    heads, d = 2, 64
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "qkv": jax.random.normal(keys[0], (3, 64, heads, d)) / 8,
        "gates": jax.random.normal(keys[1], (2, 64, heads)) / 8,
    }

    @jax.jit
    @for_device("tpu")
    def step(memory, params, x):
        q, k, v = jnp.einsum("bsd,ndhe->nbshe", x, params["qkv"])
        beta, decay = jnp.einsum("bsd,ndh->nbsh", x, params["gates"])
        gates = jax.nn.sigmoid(beta), -jax.nn.softplus(decay)
        out, memory = gated_delta_rule(q, k, v, *gates, initial_state=memory)
        return memory, out

    memory = jax.random.normal(keys[2], (8, heads, d, d)) / 8
    return step, (memory, params, jax.random.normal(keys[3], (8, 1, 64)))
