"""Steps of Flax: linen with a `TrainState`, and nnx in place, functional and with metrics."""

from typing import Any

from flax import nnx
import flax.linen as nn
from flax.training import train_state
import jax
import jax.numpy as jnp
import optax


class _TrainState(train_state.TrainState):
    batch_stats: Any


class _Images(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for features in (16, 16):
            x = nn.Conv(features, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
            x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(8)(x.reshape(len(x), -1))


def linen_batch_norm():
    """Flax's guide of batch norm: running statistics beside the parameters in a `TrainState`."""
    model = _Images()
    x = jax.random.normal(jax.random.key(0), (16, 8, 8, 3))
    batch = {"image": x, "label": jnp.arange(16) % 8}
    variables = model.init(jax.random.key(1), x, train=False)
    state = _TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax.sgd(0.1, momentum=0.9, nesterov=True),
    )

    @jax.jit
    def train_step(state, batch):
        def loss_fn(params):
            logits, updates = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                x=batch["image"],
                train=True,
                mutable=["batch_stats"],
            )
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
            return loss, (logits, updates)

        (loss, (logits, updates)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        state = state.apply_gradients(grads=grads)
        state = state.replace(batch_stats=updates["batch_stats"])
        metrics = {"loss": loss, "accuracy": jnp.mean(jnp.argmax(logits, -1) == batch["label"])}
        return state, metrics

    return train_step, (state, batch)


class _KeyedState(train_state.TrainState):
    key: jax.Array


class _Encoder(nn.Module):
    @nn.compact
    def __call__(self, tokens, training):
        x = nn.Embed(64, 32)(tokens)
        for _ in range(2):
            h = nn.LayerNorm()(x)
            mask = nn.make_causal_mask(tokens)
            x = x + nn.MultiHeadDotProductAttention(
                4, dropout_rate=0.1, deterministic=not training
            )(h, h, mask=mask)
            h = nn.Dense(64)(nn.LayerNorm()(x))
            x = x + nn.Dropout(0.1, deterministic=not training)(nn.Dense(32)(nn.gelu(h)))
        return nn.Dense(64)(nn.LayerNorm()(x))


def linen_dropout():
    """A small language model with dropout as Flax's guide has it: the key in the state, folded with
    its step.
    """
    model = _Encoder()
    tokens = jax.random.randint(jax.random.key(0), (16, 17), 0, 64)
    params = model.init(jax.random.key(1), tokens[:, :-1], training=False)["params"]
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-4))
    state = _KeyedState.create(apply_fn=model.apply, params=params, key=jax.random.key(2), tx=tx)

    @jax.jit
    def train_step(state, tokens):
        dropout_key = jax.random.fold_in(key=state.key, data=state.step)

        def loss_fn(params):
            logits = state.apply_fn(
                {"params": params}, tokens[:, :-1], training=True, rngs={"dropout": dropout_key}
            )
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return train_step, (state, tokens)


class _Classifier(nn.Module):
    @nn.compact
    def __call__(self, tokens, lengths):
        x = nn.Embed(64, 16)(tokens)
        forward, backward = nn.RNN(nn.LSTMCell(16)), nn.RNN(nn.GRUCell(16))
        x = nn.Bidirectional(forward, backward)(x, seq_lengths=lengths)
        last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], 1)[:, 0]
        return nn.Dense(2)(last)


def linen_lstm():
    """Texts of different lengths through a bidirectional LSTM and GRU; state and metrics in one
    dictionary.
    """
    model = _Classifier()
    tokens = jax.random.randint(jax.random.key(0), (16, 12), 0, 64)
    lengths = 4 + jnp.arange(16) % 8
    params = jax.jit(model.init)(jax.random.key(1), tokens, lengths)
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=params, tx=optax.adagrad(0.1)
    )

    @jax.jit
    def train_step(state, tokens, lengths, labels):
        def loss_fn(params):
            logits = state.apply_fn(params, tokens, lengths)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss}

    return train_step, (state, tokens, lengths, jnp.arange(16) % 2)


class _Half(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.Dense(64, dtype=jnp.bfloat16)(x))
        return nn.Dense(8, dtype=jnp.float32)(x)


def linen_mixed_precision():
    """bfloat16 layers with a dynamic loss scale, which skips an update that overflows."""
    from flax.training import dynamic_scale

    model = _Half()
    x = jax.random.normal(jax.random.key(0), (16, 32))
    params = jax.jit(model.init)(jax.random.key(1), x)
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.lion(1e-4))

    @jax.jit
    def train_step(carry, x, labels):
        state, scale = carry

        def loss_fn(params):
            logits = state.apply_fn(params, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        scale, is_finite, loss, grads = scale.value_and_grad(loss_fn)(state.params)
        updated = state.apply_gradients(grads=grads)
        kept = jax.tree.map(
            lambda new, old: jnp.where(is_finite, new, old), updated.params, state.params
        )
        return (updated.replace(params=kept), scale), loss

    scale = dynamic_scale.DynamicScale(growth_interval=2)
    return train_step, ([state, scale], x, jnp.arange(16) % 8)


class _CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 16, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.linear = nnx.Linear(16 * 4 * 4, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        return self.linear(self.dropout(x).reshape(len(x), -1))


def _digits():
    images = jax.random.normal(jax.random.key(0), (16, 8, 8, 1))
    return {"image": images, "label": jnp.arange(16) % 10}


def _digits_loss(model, batch):
    logits = model(batch["image"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
    return loss, logits


def nnx_in_place():
    """The step of Flax's MNIST tutorial: model, optimizer and metrics are updated in place, nothing
    is returned.
    """
    model = _CNN(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(5e-3, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))

    @nnx.jit
    def train_step(model, optimizer, metrics, batch):
        grad_fn = nnx.value_and_grad(_digits_loss, has_aux=True)
        (loss, logits), grads = grad_fn(model, batch)
        metrics.update(loss=loss, logits=logits, labels=batch["label"])
        optimizer.update(model, grads)

    return train_step, (model, optimizer, metrics, _digits())


def nnx_functional():
    """The same model and optimizer split for `jax.jit` and merged inside, as nnx' guide of
    performance.
    """
    model = _CNN(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(5e-3, 0.9), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    @jax.jit
    def train_step(state, batch):
        model, optimizer = nnx.merge(graph, state)
        (loss, _), grads = nnx.value_and_grad(_digits_loss, has_aux=True)(model, batch)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return train_step, (state, _digits())


def nnx_split():
    """Parameters apart from the rest by nnx' filters, optax on the former."""
    model = _CNN(nnx.Rngs(0))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adam(1e-3)

    @jax.jit
    def train_step(params, carry, batch):
        opt_state, rest = carry

        def loss_fn(params):
            model = nnx.merge(graph, params, rest, copy=True)
            loss, _ = _digits_loss(model, batch)
            return loss, nnx.state(model, nnx.Not(nnx.Param))

        (loss, rest), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), [opt_state, rest], loss

    return train_step, (params, [optimizer.init(params), rest], _digits())


class _Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.linear = nnx.Linear(32, 32, rngs=rngs)

    def __call__(self, x):
        return x + jax.nn.gelu(self.linear(self.norm(x)))


class _Deep(nnx.Module):
    def __init__(self, rngs):
        @nnx.vmap(in_axes=0, out_axes=0)
        def create(rngs):
            return _Block(rngs)

        self.blocks = create(rngs.fork(split=4))
        self.out = nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def forward(block, x):
            return block(x)

        return self.out(forward(self.blocks, x))


def nnx_scan():
    """Four blocks stacked by `nnx.vmap` and run by `nnx.scan`, updated in place."""
    model = _Deep(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-2), wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(0), (16, 32))

    @nnx.jit
    def train_step(model, optimizer, x, y):
        def loss_fn(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    return train_step, (model, optimizer, x, jnp.arange(16) % 8)
