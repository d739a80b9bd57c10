"""Small steps that can be computed in microbatches, each with what is special about it."""

import jax
from jax import lax, numpy as jnp

from tests.automap.jaxpr.microbatch.small_steps import (
    SAMPLE_WEIGHTS,
    TABLE,
    WIDTH,
    W,
    cross_entropy,
    plain,
    trained,
)


SEPARABLE = {}


@trained(SEPARABLE)
def mean_loss(w, x, y):
    return cross_entropy(x @ w, y).mean()


@trained(SEPARABLE)
def sum_loss(w, x, y):
    return cross_entropy(jnp.tanh(x @ w), y).sum()


@trained(SEPARABLE)
def divided_by_the_batch(w, x, y):
    return cross_entropy(x @ w / x.shape[0], y).sum() / x.shape[0] ** 2


@trained(SEPARABLE)
def masked_mean(w, x, y):
    mask = y > 2
    return (cross_entropy(x @ w, y) * mask).sum() / mask.sum()


@trained(SEPARABLE)
def weighted_by_the_model(w, x, y):
    weight = jax.nn.sigmoid(lax.stop_gradient(x @ w[:, 0]))
    return (cross_entropy(x @ w, y) * weight).sum() / weight.sum()


@trained(SEPARABLE)
def root_mean_square(w, x, y):
    return jnp.sqrt(jnp.mean(jax.nn.relu(x @ w) ** 2))


@trained(SEPARABLE)
def log_mean_exp(w, x, y):
    return jnp.log(jnp.mean(jnp.exp(cross_entropy(x @ w, y))))


@trained(SEPARABLE)
def scaled_loss_through_remat_and_scan(w, x, y):
    layer = jax.checkpoint(lambda h, s: (jnp.tanh(h @ w) * s, None))
    return jnp.sqrt(jnp.mean(lax.scan(layer, x, TABLE)[0] ** 2))


@trained(SEPARABLE)
def own_label_by_iota(w, x, y):
    return -jax.nn.log_softmax(x @ w)[jnp.arange(x.shape[0]), y].mean()


@trained(SEPARABLE)
def own_row_written(w, x, y):
    z = jnp.zeros_like(x).at[jnp.arange(x.shape[0]), y].set(1.0)
    return jnp.mean((x @ w - z) ** 2)


@trained(SEPARABLE)
def embedding(w, x, y):
    return jnp.mean((w[y] + w[jnp.minimum(y + 1, 5)] @ w) * x)


@trained(SEPARABLE)
def tied_embedding_in_scan(w, x, y):
    def body(h, s):
        return jnp.tanh(h @ w.T + w[y] * s), h.sum(-1)

    h, sums = lax.scan(body, x, TABLE)
    return (h**2).mean() + sums.mean()


@trained(SEPARABLE)
def attention_inside_a_sample(w, x, y):
    z = (x @ w).reshape(-1, 3, 2)
    scores = jax.nn.softmax(jnp.einsum("bid,bjd->bij", z, z))
    mixed = jnp.einsum("bij,bjd->bid", scores, z).reshape(-1, 6)
    return mixed.mean() + (z**2).mean()


@trained(SEPARABLE)
def positions_merged_with_the_batch(w, x, y):
    z = jnp.stack([x, 2 * x], 1).reshape(-1, WIDTH) @ w
    return (jnp.tanh(z).reshape(-1, 2, WIDTH)[:, 1] ** 2).mean()


@trained(SEPARABLE)
def positions_before_the_batch(w, x, y):
    z = jnp.stack([x, 2 * x], 0).reshape(-1, WIDTH) @ w
    halves = jnp.tanh(z).reshape(2, -1, WIDTH)
    return (halves[0] * halves[1] + TABLE).mean()


@trained(SEPARABLE)
def two_towers(w, x, y):
    z = jnp.tanh(jnp.concatenate([x, x[:, ::-1]]) @ w)
    a, b = jnp.split(z, 2)
    return ((a - b) ** 2).mean() + (z[: x.shape[0]] * x).mean()


@trained(SEPARABLE)
def weights_for_two_towers(w, x, y):
    z = jnp.tanh(jnp.concatenate([x, -x]) @ w)
    return (z.sum(1) * SAMPLE_WEIGHTS[: 2 * x.shape[0]]).mean()


@trained(SEPARABLE)
def weights_by_number_of_the_sample(w, x, y):
    return ((x @ w).sum(1) * jnp.arange(x.shape[0])).sum() + (x @ w).max(1).sum()


@trained(SEPARABLE)
def dropout(w, x, y):
    keep = jax.random.bernoulli(jax.random.key(5), 0.5, x.shape)
    return jnp.where(keep, jnp.tanh(x @ w) / 0.5, 0).mean()


@trained(SEPARABLE)
def dropout_in_scan(w, x, y):
    def body(h, key):
        keep = jax.random.bernoulli(key, 0.5, h.shape)
        return jnp.where(keep, jnp.tanh(h @ w) / 0.5, 0), None

    return lax.scan(jax.checkpoint(body), x, jax.random.split(jax.random.key(6), 3))[0].sum()


@trained(SEPARABLE)
def key_per_sample(w, x, y):
    keys = jax.random.split(jax.random.key(7), x.shape[0])
    noise = jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(keys)
    return ((x @ w) * noise).mean()


@trained(SEPARABLE)
def samples_mixed_before_the_model(w, x, y):
    order = jax.random.permutation(jax.random.key(8), x.shape[0])
    mixed = 0.3 * x + 0.7 * x[order]
    return (cross_entropy(mixed @ w, y) + cross_entropy(mixed @ w, y[order])).mean()


@trained(SEPARABLE)
def data_normalized_over_the_batch(w, x, y):
    return cross_entropy((x - x.mean(0)) / x.std(0) @ w, y).mean()


@trained(SEPARABLE)
def time_loop(w, x, y):
    def cell(h, column):
        h = jnp.tanh(h @ w + column[:, None])
        return h, h

    last, all_h = lax.scan(cell, jnp.zeros_like(x), x.T)
    return cross_entropy(last, y).mean() + all_h.mean()


@trained(SEPARABLE)
def counted_loop_and_branches(w, x, y):
    z = lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w) + i, x)
    z = lax.cond(w[0, 0] > 0, lambda h: h * 2, lambda h: jnp.zeros_like(h), z @ w)
    z = lax.switch(jnp.int32(1), [jnp.sin, lambda h: h + x, jnp.cos], z)
    return lax.stop_gradient(z).mean() * (x @ w).mean(1).sum()


@trained(SEPARABLE)
def gradient_through_branches(w, x, y):
    z = lax.cond(w[0, 0] > 0, lambda h: (h @ w) ** 2, lambda h: jnp.sin(h @ w) + 1, x)
    return z.mean() + lax.cond(w[0, 1] > 0, lambda h: h.sum(), lambda h: 0.0, z)


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * jnp.cos(x), -0.01, 0.01),))


@trained(SEPARABLE)
def custom_gradient(w, x, y):
    return clipped(x @ w).mean() + jax.nn.gelu(x @ w).mean()


@trained(SEPARABLE)
def order_inside_a_sample(w, x, y):
    z = x @ w
    parts = jnp.sort(z, 1).cumsum(1), lax.top_k(z, 2)[0].sum(1, keepdims=True), z[:, ::-1]
    return sum((part * TABLE).mean() for part in parts) + lax.cummax(z, axis=1).mean()


@trained(SEPARABLE)
def convolution_and_pool(w, x, y):
    image = jnp.pad(x.reshape(-1, 6, 1, 1) * TABLE, ((0, 0), (1, 1), (0, 0), (0, 0)))
    z = lax.conv_general_dilated(
        image, w[:3].reshape(3, 1, 6, 1), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    pooled = lax.reduce_window(z, -jnp.inf, lax.max, (1, 2, 1, 1), (1, 2, 1, 1), "VALID")
    return (pooled**2).mean()


@trained(SEPARABLE)
def grouped_convolution(w, x, y):
    z = lax.conv_general_dilated(
        x.reshape(-1, 3, 2) @ w[:2],
        w.reshape(3, 2, 6),
        (1,),
        "SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=3,
    )
    return (z**2).mean()


@trained(SEPARABLE)
def balanced_choices(w, x, y):
    gates = jax.nn.softmax(x @ w)
    share = jax.nn.one_hot(gates.argmax(1), WIDTH).mean(0)
    return cross_entropy(gates, y).mean() + (share * gates.mean(0)).sum()


@trained(SEPARABLE)
def product_of_two_means(w, x, y):
    return (x @ w).mean() * cross_entropy(x @ w, y).mean()


@trained(SEPARABLE)
def regularized(w, x, y):
    return cross_entropy(x @ w, y).mean() + 0.1 * (w**2).sum() + jnp.abs(w).max()


@trained(SEPARABLE)
def loss_is_a_largest_element(w, x, y):
    return cross_entropy(x @ w, y).mean() + lax.stop_gradient((x @ w).max())


@trained(SEPARABLE)
def pairs_in_one_microbatch(w, x, y):
    z = (x @ w).reshape(-1, 2 * WIDTH)
    return (z[:, 0] * z[:, WIDTH]).mean()


@plain(SEPARABLE)
def clipped_by_norm(w, x, y):
    gradient = jax.grad(lambda w: cross_entropy(x @ w, y).mean())(w)
    norm = jnp.sqrt((gradient**2).sum())
    return w - gradient * jnp.minimum(1.0, 0.01 / norm), {"norm": norm}


@plain(SEPARABLE)
def gradient_per_sample(w, x, y):
    def loss(w, x, y):
        return -jax.nn.log_softmax(x @ w)[y]

    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(w, x, y)
    norms = jnp.sqrt((gradients**2).sum((1, 2), keepdims=True))
    return w - (gradients / jnp.maximum(1.0, norms)).mean(0), norms


@plain(SEPARABLE)
def metrics(w, x, y):
    z = x @ w
    right = z.argmax(1) == y
    return w * (1 + z.mean()), {
        "all": right.all(),
        "any": right.any(),
        "right": right.sum(),
        "share": right.mean(),
        "largest": z.max(),
        "smallest": z.min(0),
        "product": jnp.prod(1 + 0.1 * z, axis=0),
        "per sample": z,
        "loss of each": jnp.full(x.shape[0], (z**2).mean()),
        "scaled": z * z.sum(),
        "transposed": z.T,
        "labels": y,
        "size": x.shape[0],
        "batch": x,
        "counts": jnp.zeros(6, int).at[y].add(1),
    }


@plain(SEPARABLE)
def short_floats(w, x, y):
    half = w.astype(jnp.bfloat16)
    gradient = jax.grad(lambda w: (jnp.tanh(x.astype(jnp.bfloat16) @ w) ** 2).mean())(half)
    return w - gradient.astype(w.dtype), gradient


@plain(SEPARABLE)
def inner_loop_on_one_batch(w, x, y):
    def update(w, _):
        return w - 0.1 * W, (x @ w).sum(1)

    return lax.scan(update, w, None, length=2)


@trained(SEPARABLE)
def constant_in_a_branch(w, x, y):
    rows = jnp.arange(float(x.size)).reshape(x.shape)
    z = lax.cond(w[0, 0] > 9, lambda h: rows, lambda h: h * 2, x)
    return ((z @ w) ** 2).mean()


@plain(SEPARABLE)
def whole_numbers(w, x, y):
    counts = (x @ w > 0).sum(0)
    return w, {"half": counts // 2, "share": counts / x.shape[0], "mixed": y * counts.sum()}
