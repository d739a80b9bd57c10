"""Steps of Equinox: `filter_jit` on modules that hold functions, recurrent ones, and those with a
state.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


def mlp():
    """The step of Equinox' first page; its model holds its activation."""
    model = eqx.nn.MLP(8, 1, 64, 2, key=jax.random.key(0))
    optim = optax.sgd(1e-2, momentum=0.9)
    x = jax.random.normal(jax.random.key(1), (32, 8))

    @eqx.filter_value_and_grad
    def loss(model, x, y):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    @eqx.filter_jit
    def make_step(model, opt_state, x, y):
        value, grads = loss(model, x, y)
        updates, opt_state = optim.update(grads, opt_state, model)
        return eqx.apply_updates(model, updates), opt_state, value

    return make_step, (
        model,
        optim.init(eqx.filter(model, eqx.is_array)),
        x,
        x.sum(1, keepdims=True),
    )


class _RNN(eqx.Module):
    hidden_size: int
    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear
    bias: jax.Array

    def __init__(self, in_size, out_size, hidden_size, *, key):
        first, second = jax.random.split(key)
        self.hidden_size = hidden_size
        self.cell = eqx.nn.GRUCell(in_size, hidden_size, key=first)
        self.linear = eqx.nn.Linear(hidden_size, out_size, use_bias=False, key=second)
        self.bias = jnp.zeros(out_size)

    def __call__(self, input):
        def f(carry, inp):
            return self.cell(inp, carry), None

        out, _ = jax.lax.scan(f, jnp.zeros((self.hidden_size,)), input)
        return jax.nn.sigmoid(self.linear(out) + self.bias)


def recurrent():
    """Equinox' example of spirals: a GRU scanned over time, vmapped over the batch."""
    model = _RNN(2, 1, 16, key=jax.random.key(0))
    optim = optax.adam(3e-3)
    x = jnp.cumsum(jax.random.normal(jax.random.key(1), (32, 12, 2)), 1)

    @eqx.filter_value_and_grad
    def compute_loss(model, x, y):
        pred_y = jax.vmap(model)(x)[:, 0]
        return -jnp.mean(y * jnp.log(pred_y) + (1 - y) * jnp.log(1 - pred_y))

    @eqx.filter_jit
    def make_step(model, opt_state, x, y):
        loss, grads = compute_loss(model, x, y)
        updates, opt_state = optim.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, loss

    y = (jnp.arange(32) % 2).astype(jnp.float32)
    return make_step, (model, optim.init(eqx.filter(model, eqx.is_inexact_array)), x, y)


class _WithState(eqx.Module):
    norm1: eqx.nn.BatchNorm
    spectral: eqx.nn.SpectralNorm[eqx.nn.Linear]
    norm2: eqx.nn.BatchNorm
    linear2: eqx.nn.Linear

    def __init__(self, key):
        first, second, third = jax.random.split(key, 3)
        self.norm1 = eqx.nn.BatchNorm(input_size=4, axis_name="batch", mode="ema")
        self.spectral = eqx.nn.SpectralNorm(
            layer=eqx.nn.Linear(4, 32, key=first), weight_name="weight", key=second
        )
        self.norm2 = eqx.nn.BatchNorm(input_size=32, axis_name="batch", mode="ema")
        self.linear2 = eqx.nn.Linear(32, 4, key=third)

    def __call__(self, x, state):
        x, state = self.norm1(x, state)
        x, state = self.spectral(x, state)
        x, state = self.norm2(jax.nn.relu(x), state)
        return self.linear2(x), state


def batch_norm():
    """Equinox' example of stateful layers, batch and spectral norm: the state goes through."""
    model, state = eqx.nn.make_with_state(_WithState)(jax.random.key(0))
    optim = optax.adam(1e-3)
    x = jax.random.normal(jax.random.key(1), (32, 4))

    def compute_loss(model, state, xs, ys):
        batch_model = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        pred_ys, state = batch_model(xs, state)
        return jnp.mean((pred_ys - ys) ** 2), state

    @eqx.filter_jit
    def make_step(model, state, opt_state, xs, ys):
        grads, state = eqx.filter_grad(compute_loss, has_aux=True)(model, state, xs, ys)
        updates, opt_state = optim.update(grads, opt_state)
        return eqx.apply_updates(model, updates), state, opt_state

    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
    return make_step, (model, state, opt_state, x, jnp.sin(x))


def partitioned():
    """A convolutional model split by `eqx.partition` for plain `jax.jit`, with only its last layer
    trained.
    """
    key = jax.random.key(0)
    first, second = jax.random.split(key)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 8, 3, key=first),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(72, 10, key=second),
        ]
    )
    trained = jax.tree.map(lambda _: False, model)
    trained = eqx.tree_at(lambda m: (m[-1].weight, m[-1].bias), trained, replace=(True, True))
    params, static = eqx.partition(model, trained)
    frozen, static = eqx.partition(static, eqx.is_array)
    optim = optax.adam(1e-2)
    images = jax.random.normal(key, (16, 1, 8, 8))

    @jax.jit
    def make_step(params, opt_state, frozen, images, labels):
        def loss(params):
            logits = jax.vmap(eqx.combine(params, frozen, static))(images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = optim.update(grads, opt_state)
        return eqx.apply_updates(params, updates), opt_state, value

    return make_step, (params, optim.init(params), frozen, images, jnp.arange(16) % 10)


class _Attend(eqx.Module):
    norm1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, size, heads, *, key):
        first, second = jax.random.split(key)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(size), eqx.nn.LayerNorm(size)
        self.attention = eqx.nn.MultiheadAttention(heads, size, key=first)
        self.mlp = eqx.nn.MLP(size, size, 2 * size, 1, jax.nn.gelu, key=second)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x, *, key):
        h = jax.vmap(self.norm1)(x)
        x = x + self.attention(h, h, h)
        h = jax.vmap(self.mlp)(jax.vmap(self.norm2)(x))
        return x + self.dropout(h, key=key)


class _ViT(eqx.Module):
    patches: eqx.nn.Conv2d
    position: jax.Array
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, *, key):
        keys = jax.random.split(key, 4)
        self.patches = eqx.nn.Conv2d(3, 32, 4, 4, key=keys[0])
        self.position = 0.02 * jax.random.normal(keys[1], (4, 32))
        self.blocks = [_Attend(32, 4, key=k) for k in keys[1:3]]
        self.head = eqx.nn.Linear(32, 10, key=keys[3])

    def __call__(self, image, key):
        x = self.patches(image).reshape(32, -1).T + self.position
        for block, key in zip(self.blocks, jax.random.split(key, 2), strict=True):
            x = block(x, key=key)
        return self.head(x.mean(0))


def vision_transformer():
    """A small vision transformer, each image with a key of its own, donated."""
    model = _ViT(key=jax.random.key(0))
    optim = optax.adamw(1e-3)
    images = jax.random.normal(jax.random.key(1), (16, 3, 8, 8))

    @eqx.filter_jit(donate="all-except-first")
    def make_step(batch, carry):
        images, labels, keys = batch
        model, opt_state = carry

        @eqx.filter_value_and_grad
        def loss(model):
            logits = jax.vmap(model)(images, keys)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, grads = loss(model)
        updates, opt_state = optim.update(grads, opt_state, eqx.filter(model, eqx.is_array))
        return (eqx.apply_updates(model, updates), opt_state), value

    carry = (model, optim.init(eqx.filter(model, eqx.is_array)))
    return make_step, (
        (images, jnp.arange(16) % 10, jax.random.split(jax.random.key(2), 16)),
        carry,
    )
