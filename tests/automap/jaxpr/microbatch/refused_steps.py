"""Small steps that need several samples at once after the parameters have been applied."""

import jax
from jax import lax, numpy as jnp

from tests.automap.jaxpr.microbatch.small_steps import (
    BATCH,
    TABLE,
    WIDTH,
    cross_entropy,
    plain,
    trained,
)


REFUSED = {}


@trained(REFUSED)
def batch_norm(w, x, y):
    z = x @ w
    return cross_entropy((z - z.mean(0)) / jnp.sqrt(z.var(0) + 1e-5), y).mean()


@trained(REFUSED)
def centred(w, x, y):
    z = x @ w
    return ((z - z.mean(0, keepdims=True)) ** 4).mean()


@trained(REFUSED)
def contrastive(w, x, y):
    z = x @ w
    return cross_entropy(z @ z.T, jnp.arange(x.shape[0])).mean()


@trained(REFUSED)
def contrast_of_data_with_model(w, x, y):
    return jax.nn.logsumexp((x @ w) @ x.T, axis=1).mean()


@trained(REFUSED)
def pairwise_distances(w, x, y):
    z = x @ w
    return jnp.exp(-((z[:, None] - z[None]) ** 2).sum(-1)).mean()


@trained(REFUSED)
def rolled(w, x, y):
    z = x @ w
    return (z * jnp.roll(z, 1, 0)).mean()


@trained(REFUSED)
def flipped(w, x, y):
    z = x @ w
    return (z * z[::-1]).mean()


@trained(REFUSED)
def sorted_losses(w, x, y):
    return (jnp.sort(cross_entropy(x @ w, y)) * jnp.arange(x.shape[0])).sum()


@trained(REFUSED)
def running_sum(w, x, y):
    return (jnp.cumsum(x @ w, 0) ** 2).mean()


@trained(REFUSED)
def softmax_over_the_batch(w, x, y):
    return (jax.nn.softmax(x @ w, 0) * x).sum()


@trained(REFUSED)
def hardest_samples(w, x, y):
    return lax.top_k(cross_entropy(x @ w, y), 3)[0].mean()


@trained(REFUSED)
def median(w, x, y):
    return jnp.median((x @ w).sum(1))


@trained(REFUSED)
def largest_loss(w, x, y):
    return cross_entropy(x @ w, y).max()


@trained(REFUSED)
def first_sample(w, x, y):
    z = x @ w
    return (z * z[0]).mean()


@trained(REFUSED)
def first_half(w, x, y):
    return (x @ w)[: BATCH // 2].mean()


@trained(REFUSED)
def half_of_the_batch(w, x, y):
    return (x @ w)[: x.shape[0] // 2].mean()


@trained(REFUSED)
def halves_against_each_other(w, x, y):
    a, b = jnp.split(x @ w, 2)
    return (a * b).mean()


@trained(REFUSED)
def neighbours(w, x, y):
    z = x @ w
    return ((z[1:] - z[:-1]) ** 2).mean()


@trained(REFUSED)
def groups_of_samples(w, x, y):
    z = (x @ w).reshape(2, -1, WIDTH)
    return (z.mean(1) ** 2).mean()


@trained(REFUSED)
def other_sample_by_index(w, x, y):
    z = x @ w
    return (z * z[(jnp.arange(x.shape[0]) + 1) % x.shape[0]]).mean()


@trained(REFUSED)
def sample_by_label(w, x, y):
    z = x @ w
    return (z * z[y]).mean()


@trained(REFUSED)
def labels_backwards(w, x, y):
    z = jax.nn.log_softmax(x @ w)
    return -z[jnp.arange(x.shape[0])[::-1], y].mean()


@trained(REFUSED)
def strided_positions(w, x, y):
    z = jax.nn.log_softmax(x @ w)
    return -z[jnp.arange(x.shape[0]) // 2 * 2, y].mean()


@trained(REFUSED)
def written_to_samples(w, x, y):
    z = x @ w
    return (jnp.zeros_like(z).at[y].add(z) ** 2).mean()


@trained(REFUSED)
def segments(w, x, y):
    return (jax.ops.segment_sum(x @ w, y, x.shape[0]) ** 2).mean()


@trained(REFUSED)
def written_twice(w, x, y):
    return (w.at[y].set(x @ w) ** 2).mean()


@trained(REFUSED)
def padded_batch(w, x, y):
    z = jnp.pad(x @ w, ((1, 0), (0, 0)))
    return (z[:-1] * (x @ w)).mean()


@trained(REFUSED)
def window_over_samples(w, x, y):
    return (lax.reduce_window(x @ w, 0.0, lax.add, (2, 1), (1, 1), "SAME") ** 2).mean()


@trained(REFUSED)
def convolution_over_samples(w, x, y):
    z = (x @ w).T[None]
    kernel = w[:3].reshape(3, 1, 6)[:, 0].T[None].repeat(6, 0)
    return (lax.conv_general_dilated(z, kernel, (1,), "SAME") ** 2).mean()


@trained(REFUSED)
def recurrent_over_samples(w, x, y):
    return lax.scan(lambda h, row: (jnp.tanh(h @ w + row), None), jnp.zeros(WIDTH), x)[0].sum()


@trained(REFUSED)
def to_the_power_of_the_batch(w, x, y):
    return ((x @ w) ** x.shape[0]).mean()


@trained(REFUSED)
def batch_in_code(w, x, y):
    return (x.reshape(BATCH, 2, 3) @ w[:3]).mean()


@trained(REFUSED)
def branch_on_the_batch(w, x, y):
    z = x @ w
    return (jnp.sin(z) if x.shape[0] == BATCH else jnp.cos(z)).mean()


@trained(REFUSED)
def loop_over_the_batch(w, x, y):
    return sum(jnp.tanh(x[i] @ w).sum() for i in range(x.shape[0]))


@trained(REFUSED)
def trips_by_the_batch(w, x, y):
    return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=x.shape[0])[0].mean()


@trained(REFUSED)
def branch_on_the_mean(w, x, y):
    z = x @ w
    return lax.cond(z.mean() > 0, lambda h: h**2, lambda h: h, z).mean()


@trained(REFUSED)
def nonlinear_sum_in_scan(w, x, y):
    def body(total, s):
        return total + jnp.tanh((x @ w * s).sum()), None

    return lax.scan(body, 0.0, TABLE)[0]


@trained(REFUSED)
def carry_of_means(w, x, y):
    def body(h, s):
        return jnp.tanh(h @ w - h.mean(0) * s), None

    return lax.scan(body, x, TABLE)[0].mean()


@plain(REFUSED)
def until_all_are_large(w, x, y):
    return w, lax.while_loop(lambda z: z.max() < 3, lambda z: 2 * jnp.abs(z) + 0.1, x @ w)


@plain(REFUSED)
def weighted_by_rank(w, x, y):
    return w, jnp.argsort((x @ w).sum(1))


@trained(REFUSED)
def decorrelated(w, x, y):
    z = x @ w
    return (
        jnp.linalg.slogdet(z.T @ z + jnp.eye(WIDTH))[1]
        + (z @ jnp.linalg.inv(z.T @ z + jnp.eye(6))).sum()
    )


@trained(REFUSED)
def shuffled_by_the_model(w, x, y):
    z = x @ w
    return (z * x[jnp.argsort(z[:, 0])]).mean()


@plain(REFUSED)
def divided_by_a_count(w, x, y):
    return w, y // jnp.maximum(1, (x @ w > 0).sum())


@plain(REFUSED)
def whole_numbers_in_scan(w, x, y):
    return w, lax.scan(lambda c, s: (c + (x @ w > s).sum() // 3, None), 0, jnp.arange(3.0))[0]
