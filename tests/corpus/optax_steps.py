"""Steps under Optax' less usual optimizers and losses, on one small network in plain JAX."""

import jax
import jax.numpy as jnp
import optax
from optax import contrib


def _network():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "hidden": {"w": jax.random.normal(keys[0], (16, 32)) / 4, "b": jnp.zeros(32)},
        "out": {"w": jax.random.normal(keys[1], (32, 8)) / 6, "b": jnp.zeros(8)},
    }
    x = jax.random.normal(keys[2], (32, 16))
    return params, {"x": x, "y": jnp.arange(32) % 8}


def _loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["hidden"]["w"] + params["hidden"]["b"])
    logits = hidden @ params["out"]["w"] + params["out"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def _with(optimizer):
    """The step of Optax' first page."""
    params, batch = _network()

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(_loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, optimizer.init(params), batch)


def lbfgs():
    """L-BFGS with its zoom line search, which evaluates the loss in a loop and keeps value and
    gradient.
    """
    params, batch = _network()
    solver = optax.lbfgs()

    @jax.jit
    def step(params, opt_state, batch):
        def value_fn(params):
            return _loss(params, batch)

        value, grad = optax.value_and_grad_from_state(value_fn)(params, state=opt_state)
        updates, opt_state = solver.update(
            grad, opt_state, params, value=value, grad=grad, value_fn=value_fn
        )
        return optax.apply_updates(params, updates), opt_state, value

    return step, (params, solver.init(params), batch)


def adafactor():
    """Adafactor with factored second moments."""
    return _with(optax.adafactor(1e-2, min_dim_size_to_factor=8))


def accumulated():
    """Gradients of two calls accumulated by `MultiSteps` before AdamW moves the parameters."""
    return _with(optax.MultiSteps(optax.adamw(1e-2), every_k_schedule=2))


def schedule_free():
    """Schedule-free AdamW, whose state holds another copy of the parameters."""
    return _with(contrib.schedule_free_adamw(1e-2, warmup_steps=2))


def sharpness_aware():
    """Sharpness-aware minimization, its inner step in the optimizer."""
    params, batch = _network()
    optimizer = contrib.sam(
        optax.adam(1e-2),
        optax.chain(contrib.normalize(), optax.sgd(0.05)),
        sync_period=2,
        opaque_mode=True,
    )

    @jax.jit
    def step(params, opt_state, batch):
        def grad_fn(params, _):
            return jax.grad(_loss)(params, batch)

        grads = grad_fn(params, 0)
        updates, opt_state = optimizer.update(grads, opt_state, params, grad_fn=grad_fn)
        return optax.apply_updates(params, updates), opt_state

    return step, (params, optimizer.init(params), batch)


def muon():
    """Muon: momentum made orthogonal by five products of Newton and Schulz."""
    return _with(contrib.muon(1e-2))


def several_optimizers():
    """One optimizer for matrices and one for biases, with hyperparameters in the state, and
    parameters averaged.
    """
    labels = {"hidden": {"w": "adam", "b": "sgd"}, "out": {"w": "adam", "b": "sgd"}}
    parts = {
        "adam": optax.inject_hyperparams(optax.adam)(
            learning_rate=optax.cosine_decay_schedule(1e-2, 10)
        ),
        "sgd": optax.sgd(1e-2, momentum=0.9),
    }
    optimizer = optax.chain(
        optax.adaptive_grad_clip(0.1), optax.partition(parts, labels), optax.ema(0.9)
    )
    return _with(optimizer)


def private():
    """Gradients of each example clipped, and noise of the state's key added: DP-SGD."""
    params, batch = _network()
    optimizer = contrib.dpsgd(0.1, l2_norm_clip=1.0, noise_multiplier=0.5, seed=1)

    def one_loss(params, x, y):
        return _loss(params, {"x": x[None], "y": y[None]})

    @jax.jit
    def step(params, opt_state, batch):
        grads = jax.vmap(jax.grad(one_loss), (None, 0, 0))(params, batch["x"], batch["y"])
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return step, (params, optimizer.init(params), batch)


def plateau():
    """Lookahead-free Adam scaled down where the loss stalls, which the update is told."""
    params, batch = _network()
    optimizer = optax.chain(optax.adam(1e-2), contrib.reduce_on_plateau(patience=1, factor=0.5))

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(_loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, optimizer.init(params), batch)
