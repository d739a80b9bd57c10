"""Small steps of which each has one kind of operation whose memory a compiler decides: tiles,
layouts, workspaces. `python -m scripts.compare_memory` holds predictions of them against compilers.

Each function returns `(step, args)`, with about a GiB in one tensor, so that what is allocated
besides is seen. They are halved by their names (`scripts.halves`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scripts.memory_layers import (
    bool_masks,
    convolution_few_channels,
    convolutions,
    coordinates,
    cross_entropies,
    depthwise,
    dropout,
    factorized,
    fft_images,
    fft_rows,
    last_of_one,
    masked_attention,
    max_pooling,
    narrow_heads,
    normalized,
    odd_einsum,
    odd_elementwise,
    recurrence,
    small_dense,
    small_matrices,
    spectral_mixing,
    stacked_layers,
    wide_heads,
)
from scripts.memory_targets import Target, array, trained


# --- orders -------------------------------------------------------------------------------------


def top_k_of_rows() -> Target:
    """The 64 greatest of rows of 8192."""
    return (lambda x: jax.lax.top_k(x, 64)), (array(32768, 8192),)


def top_k_of_vocabulary() -> Target:
    """The 8 greatest of 50,257 logits, which are made by a product."""

    def step(x: jax.Array, w: jax.Array) -> Any:
        return jax.lax.top_k(x @ w, 8)

    return step, (array(4096, 512), array(512, 50257))


def top_k_of_experts() -> Target:
    """A router: two of 16 experts for each token, weighted."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        gate, index = jax.lax.top_k(jax.nn.softmax(x @ w), 2)
        return jnp.sum(gate * jnp.sin(index))

    return trained(loss, array(256, 16), array(1048576, 256))


def top_k_gradient() -> Target:
    """The gradient of a mean of the greatest."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.top_k(jnp.tanh(x * w), 16)[0])

    return trained(loss, array(4096), array(32768, 4096))


def sorted_rows() -> Target:
    """Rows of 2048 in order."""
    return (lambda x: jnp.sort(x, axis=1)), (array(65536, 2048),)


def sorted_columns() -> Target:
    """Columns in order: the dimension that is not the last one."""
    return (lambda x: jnp.sort(x, axis=0)), (array(4096, 32768),)


def argsorted() -> Target:
    """The places of the sorted."""
    return (lambda x: jnp.argsort(x, axis=1)), (array(65536, 2048),)


def median_loss() -> Target:
    """The gradient of a median over rows."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.median(jnp.tanh(x * w), axis=1))

    return trained(loss, array(2048), array(65536, 2048))


def nucleus() -> Target:
    """Nucleus sampling: sorted, summed up, cut."""

    def step(logits: jax.Array) -> jax.Array:
        order = jnp.sort(jax.nn.softmax(logits), axis=1)
        kept = jnp.cumsum(order, axis=1) > 0.1
        return jnp.sum(jnp.where(kept, order, 0.0), axis=1)

    return step, (array(8192, 32000),)


# --- cumulative operations ----------------------------------------------------------------------


def cumulative_last() -> Target:
    """A running sum along the last dimension."""
    return (lambda x: jnp.cumsum(x, axis=1)), (array(65536, 4096),)


def cumulative_first() -> Target:
    """A running sum along the first dimension."""
    return (lambda x: jnp.cumsum(x, axis=0)), (array(4096, 65536),)


def cumulative_middle() -> Target:
    """A running sum along the middle dimension."""
    return (lambda x: jnp.cumsum(x, axis=1)), (array(64, 4096, 1024),)


def cumulative_maximum() -> Target:
    """A running maximum, and its gradient."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.cummax(x * w, axis=1))

    return trained(loss, array(4096), array(32768, 4096))


def cumulative_product() -> Target:
    """A running product along time, as in discounts."""
    return (lambda x: jnp.cumprod(x, axis=1)), (array(8192, 512, 64),)


def discounted_returns() -> Target:
    """An associative scan over time."""

    def step(x: jax.Array) -> jax.Array:
        def joined(a: Any, b: Any) -> Any:
            return a[0] * b[0], a[1] * b[0] + b[1]

        decay = jnp.full(x.shape, 0.99)
        return jax.lax.associative_scan(joined, (decay, x), axis=1)[1]

    return step, (array(2048, 512, 256),)


def positions_in_experts() -> Target:
    """The place of each token in its expert's queue, from one-hot codes."""

    def step(choice: jax.Array) -> jax.Array:
        one_hot = jax.nn.one_hot(choice, 64, dtype=jnp.int32)
        return jnp.sum(jnp.cumsum(one_hot, axis=0) * one_hot, axis=1)

    return step, (array(4194304, dtype=jnp.int32),)


# --- rows looked up and added -------------------------------------------------------------------


def scatter_narrow() -> Target:
    """Rows added to a table of 64 columns."""

    def step(table: jax.Array, index: jax.Array, rows: jax.Array) -> jax.Array:
        return table.at[index].add(rows)

    return step, (
        array(4000000, 64),
        array(1000000, dtype=jnp.int32),
        array(1000000, 64),
    )


def scatter_wide() -> Target:
    """Rows added to a table of 512 columns."""

    def step(table: jax.Array, index: jax.Array, rows: jax.Array) -> jax.Array:
        return table.at[index].add(rows)

    return step, (array(500000, 512), array(400000, dtype=jnp.int32), array(400000, 512))


def scatter_to_zeros() -> Target:
    """A sum of edges' messages at their nodes."""

    def step(messages: jax.Array, target: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(messages, target, num_segments=200000)

    return step, (array(4000000, 48), array(4000000, dtype=jnp.int32))


def histogram() -> Target:
    """Counts: single numbers added."""

    def step(bins: jax.Array) -> jax.Array:
        return jnp.zeros(1000000).at[bins].add(1.0)

    return step, (array(64000000, dtype=jnp.int32),)


def embedding() -> Target:
    """An embedding of 300 columns, trained."""

    def loss(table: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(table[index]))

    return trained(loss, array(1000000, 300), array(500000, dtype=jnp.int32))


def edge_messages() -> Target:
    """A graph network's layer: look-ups of both ends, a product, a sum at the target."""

    def loss(w: jax.Array, nodes: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
        messages = jnp.tanh(jnp.concatenate([nodes[source], nodes[target]], axis=1) @ w)
        return jnp.mean(jax.ops.segment_sum(messages, target, num_segments=100000) ** 2)

    edges = array(2000000, dtype=jnp.int32)
    return trained(loss, array(192, 96), array(100000, 96), edges, edges)


def permuted_rows() -> Target:
    """Rows taken in another order."""
    return (lambda x, i: x[i]), (array(2000000, 80), array(2000000, dtype=jnp.int32))


STEPS: tuple[Callable[[], Target], ...] = (
    top_k_of_rows,
    top_k_of_vocabulary,
    top_k_of_experts,
    top_k_gradient,
    sorted_rows,
    sorted_columns,
    argsorted,
    median_loss,
    nucleus,
    cumulative_last,
    cumulative_first,
    cumulative_middle,
    cumulative_maximum,
    cumulative_product,
    discounted_returns,
    positions_in_experts,
    scatter_narrow,
    scatter_wide,
    scatter_to_zeros,
    histogram,
    embedding,
    edge_messages,
    permuted_rows,
    odd_einsum,
    odd_elementwise,
    narrow_heads,
    wide_heads,
    last_of_one,
    coordinates,
    small_matrices,
    small_dense,
    bool_masks,
    stacked_layers,
    fft_rows,
    fft_images,
    spectral_mixing,
    convolution_few_channels,
    convolutions,
    depthwise,
    max_pooling,
    factorized,
    dropout,
    recurrence,
    normalized,
    cross_entropies,
    masked_attention,
)
