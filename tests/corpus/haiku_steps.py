"""Steps of Haiku: transformed functions, with a state of moving averages, and over time."""

from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax


class _TrainingState(NamedTuple):
    params: hk.Params
    state: hk.State
    opt_state: optax.OptState


class _AveragedState(NamedTuple):
    params: hk.Params
    avg_params: hk.Params
    opt_state: optax.OptState


def resnet():
    """A residual network with batch norm, as Haiku's example of ImageNet keeps it: params, state,
    optimizer.
    """

    def forward(images):
        x = hk.Conv2D(8, 3)(images)
        for channels, stride in ((8, 1), (16, 2)):
            x = hk.nets.ResNet.BlockGroup(
                channels=channels,
                num_blocks=1,
                stride=stride,
                bn_config={"create_scale": True, "create_offset": True, "decay_rate": 0.9},
                resnet_v2=True,
                bottleneck=False,
                use_projection=True,
            )(x, True, False)
        return hk.Linear(10)(x.mean((1, 2)))

    model = hk.without_apply_rng(hk.transform_with_state(forward))
    images = jax.random.normal(jax.random.key(0), (16, 8, 8, 3))
    params, state = jax.jit(model.init)(jax.random.key(1), images)
    optimizer = optax.chain(
        optax.trace(0.9, nesterov=True), optax.scale_by_schedule(lambda n: -0.1)
    )

    def loss_fn(params, state, batch):
        logits, state = model.apply(params, state, batch["images"])
        labels = hk.one_hot(batch["labels"], 10)
        l2 = 0.5 * sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))
        return optax.softmax_cross_entropy(logits, labels).mean() + 1e-4 * l2, state

    @jax.jit
    def train_step(train_state, batch):
        params, state, opt_state = train_state
        grads, state = jax.grad(loss_fn, has_aux=True)(params, state, batch)
        updates, opt_state = optimizer.update(grads, opt_state)
        return _TrainingState(optax.apply_updates(params, updates), state, opt_state)

    batch = {"images": images, "labels": jnp.arange(16) % 10}
    return train_step, (_TrainingState(params, state, optimizer.init(params)), batch)


def lstm():
    """Characters through a stack of LSTMs unrolled in a scan, with averaged parameters for
    evaluation.
    """

    def forward(tokens):
        core = hk.DeepRNN([hk.Embed(32, 16), hk.LSTM(16), jax.nn.relu, hk.LSTM(16), hk.Linear(32)])
        logits, _ = hk.dynamic_unroll(core, tokens, core.initial_state(tokens.shape[1]))
        return logits

    network = hk.without_apply_rng(hk.transform(forward))
    tokens = jax.random.randint(jax.random.key(0), (13, 16), 0, 32)
    params = jax.jit(network.init)(jax.random.key(1), tokens[:-1])
    optimizer = optax.adam(1e-3)

    def loss(params, tokens):
        logits = network.apply(params, tokens[:-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]).mean()

    @jax.jit
    def update(state, tokens):
        grads = jax.grad(loss)(state.params, tokens)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        averaged = optax.incremental_update(params, state.avg_params, step_size=0.001)
        return _AveragedState(params, averaged, opt_state)

    return update, (_AveragedState(params, params, optimizer.init(params)), tokens)


def transformer():
    """A decoder in the way of Haiku's example: the key is split in the step, metrics beside the
    state.
    """

    def forward(tokens):
        x = hk.Embed(64, 32)(tokens) + hk.get_parameter(
            "position", (16, 32), init=hk.initializers.TruncatedNormal(0.02)
        )
        mask = jnp.tril(jnp.ones((1, 1, 16, 16)))
        for _ in range(2):
            h = hk.LayerNorm(-1, True, True)(x)
            h = hk.MultiHeadAttention(
                4, 8, w_init=hk.initializers.VarianceScaling(0.5), model_size=32
            )(h, h, h, mask=mask)
            x = x + hk.dropout(hk.next_rng_key(), 0.1, h)
            h = hk.LayerNorm(-1, True, True)(x)
            h = hk.Linear(32)(jax.nn.gelu(hk.Linear(128)(h)))
            x = x + hk.dropout(hk.next_rng_key(), 0.1, h)
        return hk.Linear(64)(hk.LayerNorm(-1, True, True)(x))

    model = hk.transform(forward)
    tokens = jax.random.randint(jax.random.key(0), (16, 17), 0, 64)
    params = jax.jit(model.init)(jax.random.key(1), tokens[:, :-1])
    optimizer = optax.chain(optax.clip_by_global_norm(0.25), optax.adam(2e-4, b1=0.9, b2=0.99))

    @jax.jit
    def update(state, tokens):
        rng, next_rng = jax.random.split(state["rng"])

        def loss_fn(params):
            logits = model.apply(params, rng, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state["params"])
        updates, opt_state = optimizer.update(grads, state["opt_state"])
        new = {
            "params": optax.apply_updates(state["params"], updates),
            "rng": next_rng,
            "opt_state": opt_state,
            "step": state["step"] + 1,
        }
        return new, {"loss": loss, "step": new["step"]}

    state = {
        "params": params,
        "opt_state": optimizer.init(params),
        "rng": jax.random.key(2),
        "step": jnp.zeros([], jnp.int32),
    }
    return update, (state, tokens)


def vq_vae():
    """Codes of a vector quantizer moved by averages of what was assigned to them: state that no
    gradient trains.
    """

    def forward(x):
        z = hk.nets.MLP([32, 8])(x)
        quantizer = hk.nets.VectorQuantizerEMA(8, 16, commitment_cost=0.25, decay=0.9)
        quantized = quantizer(z, True)
        return hk.nets.MLP([32, 16])(quantized["quantize"]), quantized["loss"]

    model = hk.without_apply_rng(hk.transform_with_state(forward))
    x = jax.random.normal(jax.random.key(0), (32, 16))
    params, state = jax.jit(model.init)(jax.random.key(1), x)
    optimizer = optax.adam(1e-3)

    def loss_fn(params, state, x):
        (made, extra), state = model.apply(params, state, x)
        return jnp.mean((made - x) ** 2) + extra, state

    @jax.jit
    def step(train_state, x):
        params, state, opt_state = train_state
        (loss, state), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, state, x)
        updates, opt_state = optimizer.update(grads, opt_state)
        return _TrainingState(optax.apply_updates(params, updates), state, opt_state), loss

    return step, (_TrainingState(params, state, optimizer.init(params)), x)
