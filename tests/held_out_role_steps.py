"""Steps with the role of each leaf, as `tests.role_steps`, that the rule of
`hlo_tools.analyses.roles` was not designed on.
"""

from collections.abc import Callable

from flax import nnx
import jax
from jax import lax
import jax.numpy as jnp
import optax

from tests.role_steps import (
    BATCH,
    DATA,
    HIDDEN,
    INPUT,
    KEY,
    OPT,
    PARAM,
    PARAMS,
    RNG,
    STATE,
    WIDTH,
    Case,
    array,
    loss,
    net,
    one_update,
    roles_of_optimizer,
    state_of,
    with_optimizer,
)


def lbfgs() -> Case:
    """A line search evaluates the loss in the update."""
    optimizer = optax.lbfgs(memory_size=3)

    def step(state, batch):
        of_batch = lambda p: loss(p, batch)  # noqa: E731
        found, grads = optax.value_and_grad_from_state(of_batch)(state["p"], state=state["o"])
        updates, opt = optimizer.update(
            grads, state["o"], state["p"], value=found, grad=grads, value_fn=of_batch
        )
        return {"p": optax.apply_updates(state["p"], updates), "o": opt}, found

    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer)}
    return step, (state_of(optimizer), DATA), (truth, INPUT)


def preconditioned() -> Case:
    """A shampoo-like optimizer of matrices: statistics of each side, and their inverse roots every
    ten steps.
    """

    def step(state, batch):
        found, g = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(
            state["w"]
        )
        left, right = state["left"] + g @ g.T, state["right"] + g.T @ g

        def root(m):
            values, vectors = jnp.linalg.eigh(m + 1e-3 * jnp.eye(WIDTH))
            return vectors * values**-0.25 @ vectors.T

        roots = lax.cond(
            state["n"] % 10 == 0,
            lambda: (root(left), root(right)),
            lambda: (state["p_left"], state["p_right"]),
        )
        momentum = 0.9 * state["m"] + roots[0] @ g @ roots[1]
        return {
            "w": state["w"] - 0.1 * momentum,
            "m": momentum,
            "left": left,
            "right": right,
            "p_left": roots[0],
            "p_right": roots[1],
            "n": state["n"] + 1,
        }, found

    square = array(WIDTH, WIDTH)
    names = ("w", "m", "left", "right", "p_left", "p_right")
    state = dict.fromkeys(names, square) | {"n": array(dtype="int32")}
    return step, (state, DATA), (dict.fromkeys(names, OPT) | {"w": PARAM, "n": STATE}, INPUT)


def three_updates() -> Case:
    """Proximal policy optimization: advantages of the old policy first, then an unrolled loop."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def step(state, batch):
        old = net(state["p"], batch["x"])
        aim = (batch["y"] - old) / (jnp.std(batch["y"] - old) + 1e-6)

        def value(p, x, old, aim):
            ratio = jnp.exp(net(p, x) - old)
            return -jnp.mean(jnp.minimum(ratio * aim, jnp.clip(ratio, 0.8, 1.2) * aim))

        params, opt, norms = state["p"], state["o"], []
        for n in range(3):
            part = slice(2 * n, 2 * n + 2)
            grads = jax.grad(value)(params, batch["x"][part], old[part], aim[part])
            updates, opt = optimizer.update(grads, opt, params)
            params = optax.apply_updates(params, updates)
            norms.append(optax.tree.norm(grads))
        return {"p": params, "o": opt}, jnp.stack(norms)

    return (
        step,
        (state_of(optimizer), DATA),
        ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT),
    )


def inner_loop_of_episodes() -> Case:
    """A whole loop of training: episodes in an environment, then epochs, all in `fori_loop`."""
    optimizer = optax.adam(1e-3)

    def episode(carry, _):
        params, env, obs, done, key = carry
        key, draw = jax.random.split(key)
        action = net(params, obs) + jax.random.normal(draw, obs.shape)
        env = jnp.where(done[:, None] > 0, 0.0, 0.9 * env + action)
        done = (jnp.abs(env).max(-1) > 3).astype(jnp.float32)
        return (params, env, env, done, key), (obs, action, done)

    def value(p, seen):
        obs, action, done = seen
        return jnp.mean((1 - done)[..., None] * (net(p, obs) - action) ** 2)

    def one(state):
        start = (state["p"], state["env"], state["obs"], state["done"], state["key"])
        (_, env, obs, done, key), seen = lax.scan(episode, start, None, 4)

        def epoch(carry, _):
            params, opt = carry
            found, grads = jax.value_and_grad(value)(params, seen)
            updates, opt = optimizer.update(grads, opt)
            return (optax.apply_updates(params, updates), opt), found

        (params, opt), _ = lax.scan(epoch, (state["p"], state["o"]), None, 2)
        return {"p": params, "o": opt, "env": env, "obs": obs, "done": done, "key": key}

    def step(state):
        return lax.fori_loop(0, 5, lambda _, s: one(s), state)

    square = array(BATCH, WIDTH)
    state = state_of(optimizer) | {"env": square, "obs": square, "done": array(BATCH), "key": KEY}
    truth = {
        "p": PARAM,
        "o": roles_of_optimizer(optimizer),
        "env": STATE,
        "obs": STATE,
        "done": STATE,
        "key": RNG,
    }
    return step, (state,), (truth,)


def unrolled_episodes() -> Case:
    """The same environment twice, with an update after each: the second episode is played by new
    parameters.
    """
    optimizer = optax.adam(1e-3)

    def step(state, noise):
        params, opt, env = state["p"], state["o"], state["env"]
        for n in range(2):
            action = net(params, env) + noise[n]
            new = 0.9 * env + jnp.tanh(action)
            grads = jax.grad(lambda p: jnp.mean((net(p, env) - action) ** 2 * new**2))(params)  # noqa: B023
            updates, opt = optimizer.update(grads, opt)
            params, env = optax.apply_updates(params, updates), new
        return {"p": params, "o": opt, "env": env}

    state = state_of(optimizer) | {"env": array(BATCH, WIDTH)}
    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer), "env": STATE}
    return step, (state, array(2, BATCH, WIDTH)), (truth, INPUT)


def copied_target() -> Case:
    """The target is the network of a hundred steps ago, copied before the update; double
    Q-learning, twice a step.
    """
    optimizer = optax.rmsprop(1e-3)

    def step(state, batch):
        params, opt, target = state["p"], state["o"], state["target"]
        is_due = state["n"] % 100 == 0
        target = jax.tree.map(lambda t, p: jnp.where(is_due, p, t), target, params)
        for n in range(2):
            half = {k: v[4 * n : 4 * n + 4] for k, v in batch.items()}
            best = jnp.argmax(net(params, half["y"]), -1)
            aim = jnp.take_along_axis(net(target, half["y"]), best[:, None], -1)
            grads = jax.grad(lambda p: jnp.mean((net(p, half["x"]) - aim) ** 2))(params)  # noqa: B023
            updates, opt = optimizer.update(grads, opt)
            params = optax.apply_updates(params, updates)
        return {"p": params, "o": opt, "target": target, "n": state["n"] + 1}

    state = state_of(optimizer) | {"target": PARAMS, "n": array(dtype="int32")}
    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer), "target": PARAM, "n": STATE}
    return step, (state, DATA), (truth, INPUT)


def nnx_batch_norm() -> Case:
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(WIDTH, HIDDEN, rngs=rngs)
            self.norm = nnx.BatchNorm(HIDDEN, rngs=rngs)
            self.last = nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.relu(self.norm(self.first(x))))

    model = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    graph, params, stats = nnx.split(model, nnx.Param, nnx.BatchStat)
    params, stats = nnx.to_pure_dict(params), nnx.to_pure_dict(stats)
    optimizer = optax.adamw(1e-3)

    def step(state, batch):
        def value(p):
            built = nnx.merge(graph, p, state["stats"])
            found = jnp.mean((built(batch["x"]) - batch["y"]) ** 2)
            return found, nnx.to_pure_dict(nnx.state(built, nnx.BatchStat))

        params, opt, stats = state["p"], state["o"], state["stats"]
        (found, stats), grads = jax.value_and_grad(value, has_aux=True)(params)
        updates, opt = optimizer.update(grads, opt, params)
        return {"p": optax.apply_updates(params, updates), "o": opt, "stats": stats}, found

    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer, params), "stats": STATE}
    return step, (state_of(optimizer, params) | {"stats": stats}, DATA), (truth, INPUT)


def scaled_loss() -> Case:
    """Mixed precision with a scale of the loss that is halved where a gradient is not finite."""
    optimizer = optax.adam(1e-3)

    def step(state, batch):
        def value(p):
            small = jax.tree.map(lambda x: x.astype(jnp.bfloat16), p)
            return loss(small, batch).astype(jnp.float32) * state["scale"]

        found, grads = jax.value_and_grad(value)(state["p"])
        grads = jax.tree.map(lambda g: g / state["scale"], grads)
        is_finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        updates, opt = optimizer.update(grads, state["o"])
        new = {"p": optax.apply_updates(state["p"], updates), "o": opt}
        old = {"p": state["p"], "o": state["o"]}
        new = jax.tree.map(lambda a, b: jnp.where(is_finite, a, b), new, old)
        scale = jnp.where(is_finite, state["scale"] * 1.001, state["scale"] / 2)
        return new | {"scale": scale}, found

    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer), "scale": STATE}
    return step, (state_of(optimizer) | {"scale": array()}, DATA), (truth, INPUT)


def masked_update() -> Case:
    """Frozen by a mask in the state, of numbers for one matrix and of booleans for another."""

    def step(state, batch):
        found, grads = jax.value_and_grad(loss)(state["p"], batch)
        w1 = state["p"]["w1"] - 0.1 * grads["w1"] * state["mask"]
        w2 = jnp.where(state["flags"], state["p"]["w2"], state["p"]["w2"] - 0.1 * grads["w2"])
        params = state["p"] | {"w1": w1, "w2": w2}
        return {"p": params, "mask": state["mask"], "flags": state["flags"]}, found

    state = {"p": PARAMS, "mask": array(WIDTH, HIDDEN), "flags": array(HIDDEN, WIDTH, dtype="bool")}
    return step, (state, DATA), ({"p": PARAM, "mask": OPT, "flags": OPT}, INPUT)


def frozen_by_labels() -> Case:
    """optax freezes one layer: its update is zero."""
    labels = {"w1": "frozen", "b1": "trained", "w2": "trained"}
    optimizer = optax.multi_transform(
        {"frozen": optax.set_to_zero(), "trained": optax.adam(1e-3)}, labels
    )
    return with_optimizer(optimizer)


def sharpness_aware() -> Case:
    """The second gradient is taken at parameters that the first one has moved."""
    optimizer = optax.adam(1e-3)

    def step(state, batch):
        first = jax.grad(loss)(state["p"], batch)
        norm = optax.tree.norm(first)
        moved = jax.tree.map(lambda p, g: p + 0.05 * g / norm, state["p"], first)
        found, grads = jax.value_and_grad(loss)(moved, batch)
        updates, opt = optimizer.update(grads, state["o"])
        return {"p": optax.apply_updates(state["p"], updates), "o": opt}, found

    return (
        step,
        (state_of(optimizer), DATA),
        ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT),
    )


def balanced_experts() -> Case:
    """A bias of the router that follows how many tokens each expert got; no gradient reaches it."""

    def step(state, batch):
        def value(p):
            scores = jax.nn.softmax(batch["x"] @ p["router"])
            _, chosen = lax.top_k(scores + state["bias"], 1)
            taken = jax.nn.one_hot(chosen[:, 0], 4)
            out = jnp.einsum("be,bd,edf->bf", scores * taken, batch["x"], p["experts"])
            return jnp.mean((out - batch["y"]) ** 2), taken.sum(0)

        (found, load), grads = jax.value_and_grad(value, has_aux=True)(state["p"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["p"], grads)
        bias = state["bias"] + 0.01 * jnp.sign(load.mean() - load)
        return {"p": params, "bias": bias}, found

    params = {"router": array(WIDTH, 4), "experts": array(4, WIDTH, WIDTH)}
    return step, ({"p": params, "bias": array(4)}, DATA), ({"p": PARAM, "bias": STATE}, INPUT)


def whole_state_answered() -> Case:
    """Inference that returns its parameters unchanged, with a counter, beside the answer."""

    def step(state, x):
        return state | {"n": state["n"] + 1}, net(state["p"], x)

    state = {"p": PARAMS, "n": array(dtype="int32")}
    return step, (state, DATA["x"]), ({"p": PARAM, "n": STATE}, INPUT)


def accumulated_with_optax() -> Case:
    optimizer = optax.MultiSteps(optax.adam(1e-3), every_k_schedule=2)
    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer)}
    return one_update(optimizer), (state_of(optimizer), DATA), (truth, INPUT)


def unrolled_accumulation() -> Case:
    optimizer = optax.adamw(1e-3)

    def step(state, batch):
        total = jax.tree.map(jnp.zeros_like, state["p"])
        for n in range(4):
            part = {k: v[2 * n : 2 * n + 2] for k, v in batch.items()}
            total = jax.tree.map(jnp.add, total, jax.grad(loss)(state["p"], part))
        updates, opt = optimizer.update(total, state["o"], state["p"])
        return {"p": optax.apply_updates(state["p"], updates), "o": opt}

    return (
        step,
        (state_of(optimizer), DATA),
        ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT),
    )


def injected() -> Case:
    """The rate is a leaf of the state, and nothing changes it."""
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)
    return with_optimizer(optimizer)


HELD_OUT: dict[str, Callable[[], Case]] = {
    "momentum": lambda: with_optimizer(optax.sgd(0.1, momentum=0.9)),
    "adamw": lambda: with_optimizer(optax.adamw(1e-3)),
    "lamb": lambda: with_optimizer(optax.lamb(1e-3)),
    "lbfgs": lbfgs,
    "muon": lambda: with_optimizer(optax.contrib.muon(1e-3)),
    "masked": lambda: with_optimizer(
        optax.masked(optax.adam(1e-3), {"w1": True, "b1": False, "w2": True})
    ),
    "multisteps": accumulated_with_optax,
    "injected": injected,
    "frozen by labels": frozen_by_labels,
    "apply if finite": lambda: with_optimizer(optax.apply_if_finite(optax.adam(1e-3), 3)),
    "preconditioned": preconditioned,
    "three updates": three_updates,
    "inner loop of episodes": inner_loop_of_episodes,
    "unrolled episodes": unrolled_episodes,
    "copied target": copied_target,
    "batch norm of nnx": nnx_batch_norm,
    "scaled loss": scaled_loss,
    "masked update": masked_update,
    "sharpness aware": sharpness_aware,
    "balanced experts": balanced_experts,
    "whole state answered": whole_state_answered,
    "unrolled accumulation": unrolled_accumulation,
}
