"""A mixture of experts in place of a feed-forward: a gate, and two ways to bring tokens to experts.

The gate sends every token to two experts and adds their outputs, weighted by the gate (GShard,
Lepikhin et al. 2020, algorithm 1). The ways:

    einsum    a group of tokens (here: a sequence) has room for C of them in each expert; one-hot
              tensors [group, token, expert, C] bring tokens there and back; the rest is cut
    sorted    all tokens, each twice, are sorted by expert and multiplied by `jax.lax.ragged_dot`

The balance loss, experts * sum_e (share of first choices)_e * (mean gate)_e, is 1 if all experts
get equally many tokens: GShard's times experts**2, as in Switch (Fedus et al. 2021).
"""

from dataclasses import dataclass
import math
from typing import Literal

from flax import nnx
import jax
from jax import numpy as jnp


Dispatch = Literal["einsum", "sorted"]
# One of each for the first and the second expert of the tokens.
Pair = tuple[jax.Array, jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Sizes of a mixture; `room` is the capacity over an even share, 2 * tokens / experts."""

    d_model: int
    d_ff: int
    experts: int
    room: float
    dispatch: Dispatch


class Experts(nnx.Module):
    """A gate, and kernels [experts, d_model, d_ff] up and [experts, d_ff, d_model] down."""

    def __init__(self, config: ExpertsConfig, *, rngs: nnx.Rngs):
        """Draw the parameters from `rngs`."""
        self.config = config
        init = nnx.initializers.lecun_normal(batch_axis=(0,))
        sizes = (config.experts, config.d_model, config.d_ff)
        self.gate = nnx.Linear(config.d_model, config.experts, use_bias=False, rngs=rngs)
        self.up = nnx.Param(init(rngs.params(), sizes))
        self.down = nnx.Param(init(rngs.params(), (sizes[0], sizes[2], sizes[1])))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, S, d_model] from x [B, S, d_model], and the balance loss."""
        gates = jax.nn.softmax(self.gate(x).astype(jnp.float32))
        chosen = top_two(gates)
        masks = tuple(jax.nn.one_hot(expert, self.config.experts) for expert in chosen)
        first, second = ((gates * mask).sum(-1) for mask in masks)
        weights = (first / (first + second), second / (first + second))
        share = masks[0].mean((0, 1))
        balance = self.config.experts * (share * gates.mean((0, 1))).sum()
        if self.config.dispatch == "einsum":
            return self._einsum(x, masks, weights), balance
        return self._sorted(x, chosen, weights), balance

    def _einsum(self, x: jax.Array, masks: Pair, weights: Pair) -> jax.Array:
        even = 2 * x.shape[1] / self.config.experts
        combine = combine_tensor(masks, weights, math.ceil(self.config.room * even))
        dispatch = (combine > 0).astype(x.dtype)
        y = jnp.einsum("gsec,gsm->egcm", dispatch, x)
        y = jax.nn.gelu(jnp.einsum("egcm,emf->egcf", y, self.up[...]))
        y = jnp.einsum("egcf,efm->egcm", y, self.down[...])
        return jnp.einsum("gsec,egcm->gsm", combine.astype(x.dtype), y)

    def _sorted(self, x: jax.Array, chosen: Pair, weights: Pair) -> jax.Array:
        tokens = x.reshape(-1, x.shape[-1])
        experts = jnp.concatenate([expert.reshape(-1) for expert in chosen])
        order = jnp.argsort(experts)
        sizes = (experts[:, None] == jnp.arange(self.config.experts)).sum(0, dtype=jnp.int32)
        y = jnp.take(tokens, order % len(tokens), axis=0)
        y = jax.nn.gelu(jax.lax.ragged_dot(y, self.up[...], sizes))
        y = jax.lax.ragged_dot(y, self.down[...], sizes)
        y = jnp.take(y, jnp.argsort(order), axis=0).reshape(2, *x.shape)
        return jnp.einsum("nbs,nbsm->bsm", jnp.stack(weights).astype(x.dtype), y)


def top_two(gates: jax.Array) -> Pair:
    """The experts [...] with the largest and the second largest of gates [..., experts]."""
    first = gates.argmax(-1)
    is_first = first[..., None] == jnp.arange(gates.shape[-1])
    return first, jnp.where(is_first, -1.0, gates).argmax(-1)


def combine_tensor(masks: Pair, weights: Pair, capacity: int) -> jax.Array:
    """[G, S, experts, capacity]: the weight of a token, at the place it has in an expert.

    Masks [G, S, experts] are one-hot, weights are [G, S]. Places are given to the first choices in
    the order of the tokens, then to the second ones; a token beyond the capacity has none.
    """
    before = masks[0].sum(1, keepdims=True)
    parts = []
    for mask, weight, taken in zip(masks, weights, (0.0, before), strict=True):
        place = ((jnp.cumsum(mask, axis=1) - 1 + taken) * mask).sum(-1).astype(jnp.int32)
        weighted = weight[..., None] * mask
        parts.append(jnp.einsum("gse,gsc->gsec", weighted, jax.nn.one_hot(place, capacity)))
    return parts[0] + parts[1]
