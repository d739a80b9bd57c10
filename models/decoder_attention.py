"""Causal attention as one kernel: a custom call forward and one backward, which a rule is given.

    p = softmax over s <= t of q_t k_s;  o_t = sum over s of p_ts v_s
    l_t = log of the sum over s of exp(q_t k_s), which the backward pass makes p of again
    dv = p' do;  ds = p (do v' - rowsum(do o));  dq = ds k;  dk = ds' q   (Dao 2023, algorithm 2)

The calls stand for any library's kernel (cuDNN's, FlashAttention's, one of Pallas): a step is
lowered with them where none of these is installed, and cannot be run. `forward` and `backward` say
what they compute. Queries are [b, t, k, g, d] of key heads k with g queries each, keys and values
[b, s, k, d]                                                              -> in: `attention_rules`
"""

from collections.abc import Mapping
from typing import Final

import jax
from jax import numpy as jnp


FORWARD: Final = "attention_forward"
BACKWARD: Final = "attention_backward"


def attention_rules(forward_efficiency: float, backward_efficiency: float) -> Mapping[str, str]:
    """Rules of both kernels, at fractions of the device's peak.

    Of the t s pairs half are read: two products forward are 2 * 2 / 2 flops for each element of
    the iteration space, and five backward 2 * 5 / 2.
    """
    return {
        FORWARD: "btkgd,bskd,bskd->btkgd,btkg replicate=t,s,d flops=2btskgd "
        f"efficiency={forward_efficiency}",
        BACKWARD: "btkgd,bskd,bskd,btkgd,btkg,btkgd->btkgd,bskd,bskd "
        f"replicate=t,s,d flops=5btskgd efficiency={backward_efficiency}",
    }


def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What the kernel computes: (o [b, t, k, g, d], l [b, t, k, g] float32)."""
    scores = _scores(q, k)
    total = jax.nn.logsumexp(scores, axis=-1)
    p = jnp.exp(scores - total[..., None]).astype(v.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", p, v), total.transpose(0, 3, 1, 2)


def backward(
    q: jax.Array, k: jax.Array, v: jax.Array, o: jax.Array, total: jax.Array, do: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What the kernel computes: the gradients of q, k and v."""
    p = jnp.exp(_scores(q, k) - total.transpose(0, 2, 3, 1)[..., None])
    dv = jnp.einsum("bkgts,btkgd->bskd", p.astype(do.dtype), do)
    inner = (do.astype(jnp.float32) * o.astype(jnp.float32)).sum(-1).transpose(0, 2, 3, 1)
    dp = jnp.einsum("btkgd,bskd->bkgts", do, v, preferred_element_type=jnp.float32)
    ds = (p * (dp - inner[..., None])).astype(q.dtype)
    dq = jnp.einsum("bkgts,bskd->btkgd", ds, k)
    dk = jnp.einsum("bkgts,btkgd->bskd", ds, q)
    return dq, dk, dv


@jax.custom_vjp
def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """o [b, t, k, g, d] by the kernel; queries are scaled already."""
    return _kept(q, k, v)[0]


def written_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same, written out: two products, and a softmax between them that is stored."""
    p = jax.nn.softmax(_scores(q, k), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", p, v)


def _scores(q: jax.Array, k: jax.Array) -> jax.Array:
    """[b, k, g, t, s] float32, minus infinity where s > t."""
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(jnp.float32)
    t, s = scores.shape[-2:]
    return jnp.where(jnp.arange(s) > jnp.arange(t)[:, None], -jnp.inf, scores)


def _kept(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    made = jax.eval_shape(forward, q, k, v)
    o, total = jax.ffi.ffi_call(FORWARD, made)(q, k, v)
    return o, (q, k, v, o, total)


def _gradients(
    kept: tuple[jax.Array, ...], do: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    made = jax.eval_shape(backward, *kept, do)
    return tuple(jax.ffi.ffi_call(BACKWARD, made)(*kept, do))  # type: ignore[return-value]


attention.defvjp(_kept, _gradients)
