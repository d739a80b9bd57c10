"""Attention in blocks, whose scores are never stored: by the kernel that people use on a platform.

    TPU        JAX's kernel of Pallas, forward and both backward calls (blocks of 128: a length that
               they do not divide is written out)
    CUDA       cuDNN; its backward pass runs the forward call again, which keeps what it needs
    elsewhere  written out: two products and a softmax

    l_t = log of the sum over s of exp(scale q_t k_s),  p_ts = exp(scale q_t k_s - l_t)

l is what the backward pass makes p of again, on any platform (Dao 2023). Which platform it is is
decided when the step is lowered, so that one step is planned for all of them.
                                                                        -> in: `flash_attention`
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
from jax import lax, numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as tpu

from automap.jax_compat import cudnn_assumed


AttentionBy = Literal["written", "flash"]

_BLOCK = 128
_BLOCKS = (512, 256, _BLOCK)  # the largest that divides the length

Kept = tuple[jax.Array, ...]


def flash_attention(q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool) -> jax.Array:
    """[B, T, heads, d] of queries [B, T, heads, d] and keys and values [B, S, key heads, d].

    Key heads divide heads; queries are scaled already. Computes in the type of its operands, with
    sums in float32.
    """
    return _attend(is_causal, q, k, v)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(is_causal, q, k, v):
    return _forward(is_causal, q, k, v)[0]


def _forward(is_causal, q, k, v):
    forms = {"default": partial(_written, is_causal=is_causal)}
    if _has_blocks(q, k):
        forms["tpu"] = partial(_pallas, is_causal=is_causal)
    if _is_cudnn_type(q):
        forms["cuda"] = partial(_cudnn, is_causal=is_causal)
    o, total = lax.platform_dependent(q, k, v, **forms)
    return o, (q, k, v, o, total)


def _backward(is_causal, kept, do):
    q, k, _, _, _ = kept
    forms = {"default": partial(_written_gradients, is_causal=is_causal)}
    if _has_blocks(q, k):
        forms["tpu"] = partial(_pallas_gradients, is_causal=is_causal)
    if _is_cudnn_type(q):
        forms["cuda"] = partial(_cudnn_gradients, is_causal=is_causal)
    return tuple(lax.platform_dependent(*kept, do, **forms))


_attend.defvjp(_forward, _backward)


def _has_blocks(q: jax.Array, k: jax.Array) -> bool:
    return q.shape[1] % _BLOCK == k.shape[1] % _BLOCK == 0


def _is_cudnn_type(q: jax.Array) -> bool:
    return q.dtype in (jnp.bfloat16, jnp.float16) and q.shape[-1] % 8 == 0


def _written(
    q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool
) -> tuple[jax.Array, jax.Array]:
    """(o, l [B, heads, T] float32)."""
    scores = _scores(q, k, is_causal=is_causal)
    total = jax.nn.logsumexp(scores, axis=-1)
    p = jnp.exp(scores - total[..., None]).astype(v.dtype)
    o = jnp.einsum("bkgts,bskd->btkgd", p, v).reshape(q.shape)
    return o, total.reshape(total.shape[0], -1, total.shape[-1])


def _written_gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    o: jax.Array,
    total: jax.Array,
    do: jax.Array,
    *,
    is_causal: bool,
) -> Kept:
    scores = _scores(q, k, is_causal=is_causal)
    p = jnp.exp(scores - total.reshape(scores.shape[:-1])[..., None])
    grouped = do.reshape(*do.shape[:2], k.shape[2], -1, do.shape[-1])
    dv = jnp.einsum("bkgts,btkgd->bskd", p.astype(do.dtype), grouped)
    inner = (do.astype(jnp.float32) * o.astype(jnp.float32)).sum(-1)
    inner = inner.transpose(0, 2, 1).reshape(scores.shape[:-1])
    dp = jnp.einsum("btkgd,bskd->bkgts", grouped, v).astype(jnp.float32)
    ds = (p * (dp - inner[..., None])).astype(q.dtype)
    dq = jnp.einsum("bkgts,bskd->btkgd", ds, k).reshape(q.shape)
    dk = jnp.einsum("bkgts,btkgd->bskd", ds, q.reshape(grouped.shape))
    return dq, dk, dv


def _scores(q: jax.Array, k: jax.Array, *, is_causal: bool) -> jax.Array:
    """[B, key heads, queries of each, T, S] float32."""
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k).astype(jnp.float32)
    if not is_causal:
        return scores
    t, s = scores.shape[-2:]
    return jnp.where(jnp.arange(s) > jnp.arange(t)[:, None], -jnp.inf, scores)


def _heads_first(q: jax.Array, *others: jax.Array) -> list[jax.Array]:
    """[B, heads, length, d] of each; the kernel of TPUs has a key head for each query head."""
    groups = [q.shape[2] // x.shape[2] for x in others]
    repeated = [jnp.repeat(x, n, axis=2) if n > 1 else x for x, n in zip(others, groups)]
    return [x.transpose(0, 2, 1, 3) for x in (q, *repeated)]


def _block_sizes(q: jax.Array, k: jax.Array) -> tpu.BlockSizes:
    rows, keys = (next(n for n in _BLOCKS if x.shape[1] % n == 0) for x in (q, k))
    return tpu.BlockSizes(
        block_b=1,
        **dict.fromkeys(("block_q", "block_q_major_dkv", "block_q_dkv", "block_q_dq"), rows),
        **dict.fromkeys(("block_k_major", "block_k", "block_k_major_dkv", "block_k_dkv"), keys),
        **dict.fromkeys(("block_k_major_dq", "block_k_dq"), keys),
    )


def _pallas(
    q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool
) -> tuple[jax.Array, jax.Array]:
    sizes = _block_sizes(q, k)
    # The face of JAX's kernel does not give the sums: its own forward rule does.
    o, kept = tpu._flash_attention_fwd(
        *_heads_first(q, k, v), None, None, False, is_causal, 1.0, sizes, False
    )
    *_, sums, highest = kept
    return o.transpose(0, 2, 1, 3), highest + jnp.log(sums)


def _pallas_gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    o: jax.Array,
    total: jax.Array,
    do: jax.Array,
    *,
    is_causal: bool,
) -> Kept:
    queries, keys, values, o, do = _heads_first(q, k, v, o, do)
    # exp(s - highest) / sum is exp(s - l) / 1.
    kept = (queries, keys, values, None, None, o, jnp.ones_like(total), total)
    gradients = tpu._flash_attention_bwd(
        False, is_causal, 1.0, _block_sizes(q, k), False, kept, do
    )[:3]
    dq, dk, dv = (x.transpose(0, 2, 1, 3) for x in gradients)
    return dq, *(dx.reshape(*x.shape[:3], -1, x.shape[-1]).sum(3) for dx, x in ((dk, k), (dv, v)))


def _attend_by_cudnn(*, is_causal: bool) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.dot_product_attention(
            q, k, v, scale=1.0, is_causal=is_causal, implementation="cudnn", return_residual=True
        )

    return attend


def _cudnn(
    q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool
) -> tuple[jax.Array, jax.Array]:
    # Traced wherever the step is, lowered for CUDA alone.
    with cudnn_assumed():
        o, total = _attend_by_cudnn(is_causal=is_causal)(q, k, v)
    return o, total.transpose(0, 2, 1).astype(jnp.float32)


def _cudnn_gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    o: jax.Array,
    total: jax.Array,
    do: jax.Array,
    *,
    is_causal: bool,
) -> Kept:
    del o, total
    with cudnn_assumed():
        _, pullback, _ = jax.vjp(_attend_by_cudnn(is_causal=is_causal), q, k, v, has_aux=True)
        return tuple(pullback(do))
