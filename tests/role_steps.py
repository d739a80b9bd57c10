"""Small steps and the role of each of their leaves, written down from what the code means.

Each function gives (step, arguments, truth); `truth` is a tree of roles that is a prefix of the
arguments. The rule of `hlo_tools.analyses.roles` was designed on `DESIGNED`; `HELD_OUT` was written
before it and looked at after.
"""

from collections.abc import Callable
from typing import Any

from flax import linen
import jax
from jax import lax
import jax.numpy as jnp
import optax

from hlo_tools.analyses.roles import Role


PARAM, OPT, STATE, INPUT, RNG = Role.PARAMETER, Role.OPTIMIZER, Role.STATE, Role.BATCH, Role.RNG
Case = tuple[Callable[..., Any], tuple[Any, ...], Any]

WIDTH, HIDDEN, BATCH = 16, 32, 8


def array(*dims: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


PARAMS = {"w1": array(WIDTH, HIDDEN), "b1": array(HIDDEN), "w2": array(HIDDEN, WIDTH)}
DATA = {"x": array(BATCH, WIDTH), "y": array(BATCH, WIDTH)}
KEY = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)


def net(p, x):
    return jax.nn.tanh(x @ p["w1"] + p["b1"]) @ p["w2"]


def loss(p, b):
    return jnp.mean((net(p, b["x"]) - b["y"]) ** 2)


def one_update(optimizer, value=loss):
    """`(state, batch) -> state, loss` with one update of any optax optimizer."""

    def step(state, batch):
        found, grads = jax.value_and_grad(value)(state["p"], batch)
        updates, opt = optimizer.update(grads, state["o"], state["p"])
        return {"p": optax.apply_updates(state["p"], updates), "o": opt}, found

    return step


def state_of(optimizer, params=None):
    params = PARAMS if params is None else params
    return {"p": params, "o": jax.eval_shape(optimizer.init, params)}


def with_optimizer(optimizer) -> Case:
    truth = ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT)
    return one_update(optimizer), (state_of(optimizer), DATA), truth


def roles_of_optimizer(optimizer, params=None):
    """Counters are other state, all else is the optimizer's."""
    return jax.tree.map(
        lambda leaf: OPT if leaf.dtype.kind == "f" else STATE,
        state_of(optimizer, params)["o"],
    )


def two_updates() -> Case:
    """An unrolled loop over two halves of the batch."""
    optimizer = optax.adam(1e-3)
    once = one_update(optimizer)

    def step(state, batch):
        for n in range(2):
            half = jax.tree.map(lambda x: x[4 * n : 4 * n + 4], batch)  # noqa: B023
            state, found = once(state, half)
        return state, found

    return (
        step,
        (state_of(optimizer), DATA),
        ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT),
    )


def scanned_steps() -> Case:
    """A whole inner loop of updates."""
    optimizer = optax.adamw(1e-3)
    once = one_update(optimizer)

    def step(state, batches):
        return lax.scan(once, state, batches)

    many = jax.tree.map(lambda x: array(3, *x.shape), DATA)
    return (
        step,
        (state_of(optimizer), many),
        ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT),
    )


def accumulated_in_scan() -> Case:
    optimizer = optax.adam(1e-3)

    def step(state, batches):
        def add(total, batch):
            grads = jax.grad(loss)(state["p"], batch)
            return jax.tree.map(jnp.add, total, grads), None

        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, state["p"]), batches)
        updates, opt = optimizer.update(total, state["o"], state["p"])
        return {"p": optax.apply_updates(state["p"], updates), "o": opt}

    many = jax.tree.map(lambda x: array(3, *x.shape), DATA)
    return (
        step,
        (state_of(optimizer), many),
        ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT),
    )


def update_in_cond() -> Case:
    """The update is made only where the loss is finite."""
    optimizer = optax.adam(1e-3)

    def step(state, batch):
        found, grads = jax.value_and_grad(loss)(state["p"], batch)

        def update(state):
            updates, opt = optimizer.update(grads, state["o"], state["p"])
            return {"p": optax.apply_updates(state["p"], updates), "o": opt}

        return lax.cond(jnp.isfinite(found), update, lambda s: s, state), found

    return (
        step,
        (state_of(optimizer), DATA),
        ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT),
    )


def linen_batch_norm() -> Case:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.BatchNorm(use_running_average=False)(linen.Dense(HIDDEN)(x))
            return linen.Dense(WIDTH)(linen.relu(x))

    model, optimizer = Net(), optax.sgd(0.1, momentum=0.9)

    def step(state, batch):
        def value(params):
            out, new = model.apply(
                {"params": params, "batch_stats": state["stats"]}, batch["x"], mutable="batch_stats"
            )
            return jnp.mean((out - batch["y"]) ** 2), new["batch_stats"]

        (found, stats), grads = jax.value_and_grad(value, has_aux=True)(state["p"])
        updates, opt = optimizer.update(grads, state["o"])
        params = optax.apply_updates(state["p"], updates)
        return {"p": params, "o": opt, "stats": stats}, found

    variables = jax.eval_shape(model.init, jax.random.key(0), DATA["x"])
    state = state_of(optimizer, variables["params"]) | {"stats": variables["batch_stats"]}
    return step, (state, DATA), ({"p": PARAM, "o": OPT, "stats": STATE}, INPUT)


def exponential_average() -> Case:
    """An average of the parameters that nothing reads but its own update."""
    optimizer = optax.sgd(0.1)

    def step(state, batch):
        new, found = one_update(optimizer)(state, batch)
        average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, state["average"], new["p"])
        return new | {"average": average}, found

    return (
        step,
        (state_of(optimizer) | {"average": PARAMS}, DATA),
        ({"p": PARAM, "o": OPT, "average": OPT}, INPUT),
    )


def adversarial() -> Case:
    """Two networks with two optimizers, one trained against the other, one after the other."""
    optimizer = optax.adam(1e-3)

    def step(state, batch):
        def of_critic(critic):
            fake = net(state["g"]["p"], batch["x"])
            return jnp.mean(net(critic, fake)) - jnp.mean(net(critic, batch["y"]))

        def of_maker(maker, critic):
            return -jnp.mean(net(critic, net(maker, batch["x"])))

        def updated(of, grads):
            updates, opt = optimizer.update(grads, of["o"])
            return {"p": optax.apply_updates(of["p"], updates), "o": opt}

        first, grads = jax.value_and_grad(of_critic)(state["d"]["p"])
        critic = updated(state["d"], grads)
        second, grads = jax.value_and_grad(of_maker)(state["g"]["p"], critic["p"])
        return {"d": critic, "g": updated(state["g"], grads)}, (first, second)

    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer)}
    both = {"d": state_of(optimizer), "g": state_of(optimizer)}
    return step, (both, DATA), ({"d": truth, "g": truth}, INPUT)


def target_network() -> Case:
    """A slow copy of the network that makes the targets."""
    optimizer = optax.adam(1e-3)

    def step(state, batch):
        aim = net(state["target"], batch["y"])
        found, grads = jax.value_and_grad(lambda p: jnp.mean((net(p, batch["x"]) - aim) ** 2))(
            state["p"]
        )
        updates, opt = optimizer.update(grads, state["o"])
        params = optax.apply_updates(state["p"], updates)
        target = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, state["target"], params)
        return {"p": params, "o": opt, "target": target}, found

    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer), "target": PARAM}
    return step, (state_of(optimizer) | {"target": PARAMS}, DATA), (truth, INPUT)


def low_rank() -> Case:
    """Adapters beside a frozen network that the state carries."""
    optimizer = optax.adam(1e-3)
    adapters = {"a": array(WIDTH, 4), "b": array(4, WIDTH)}

    def step(state, batch):
        def value(adapters):
            out = net(state["base"], batch["x"]) + batch["x"] @ adapters["a"] @ adapters["b"]
            return jnp.mean((out - batch["y"]) ** 2)

        found, grads = jax.value_and_grad(value)(state["p"])
        updates, opt = optimizer.update(grads, state["o"])
        params = optax.apply_updates(state["p"], updates)
        return {"p": params, "o": opt, "base": state["base"]}, found

    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer, adapters), "base": PARAM}
    return step, (state_of(optimizer, adapters) | {"base": PARAMS}, DATA), (truth, INPUT)


def recurrent_state() -> Case:
    """The hidden state goes on from batch to batch, and is reset where an episode is done."""

    def step(state, batch):
        def value(p):
            kept = state["h"] * (1 - state["done"])[:, None]
            h = jnp.tanh(batch["x"] @ p["w1"] + kept @ p["u"] + p["b1"])
            return jnp.mean((h @ p["w2"] - batch["y"]) ** 2), h

        (found, h), grads = jax.value_and_grad(value, has_aux=True)(state["p"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["p"], grads)
        return {"p": params, "h": h, "done": batch["done"].astype(jnp.float32)}, found

    params = PARAMS | {"u": array(HIDDEN, HIDDEN)}
    state = {"p": params, "h": array(BATCH, HIDDEN), "done": array(BATCH)}
    batch = DATA | {"done": array(BATCH, dtype="bool")}
    return step, (state, batch), ({"p": PARAM, "h": STATE, "done": STATE}, INPUT)


def constant_reward() -> Case:
    """Episodes whose reward does not depend on what is done: of zero gradient, the policy's
    parameters are some all the same.
    """
    optimizer = optax.adam(1e-3)

    def step(state, batch):
        def value(p):
            end, _ = lax.scan(lambda x, _: (jnp.tanh(x + net(p, x)), None), state["env"], None, 3)
            return jnp.mean((batch["x"] * p["scale"] - batch["y"]) ** 2), end

        (found, end), grads = jax.value_and_grad(value, has_aux=True)(state["p"])
        updates, opt = optimizer.update(grads, state["o"])
        return {"p": optax.apply_updates(state["p"], updates), "o": opt, "env": end}, found

    params = PARAMS | {"scale": array(WIDTH)}
    truth = {"p": PARAM, "o": roles_of_optimizer(optimizer, params), "env": STATE}
    state = state_of(optimizer, params)
    return step, (state | {"env": array(BATCH, WIDTH)}, DATA), (truth, INPUT)


def fitted_forces() -> Case:
    """The forward pass is itself a gradient, in a loop: forces of a learned energy, with remat."""

    def step(state, batch):
        def loss(p):
            def move(x, _):
                forces = jax.vmap(jax.grad(lambda x: net(p, x).sum()))(x)
                return x - 0.1 * forces, None

            end, _ = lax.scan(jax.checkpoint(move), batch["x"], None, 3)
            return jnp.mean((end - batch["y"]) ** 2)

        found, grads = jax.value_and_grad(loss)(state["p"])
        updates, opt = optimizer.update(grads, state["o"])
        return {"p": optax.apply_updates(state["p"], updates), "o": opt}, found

    optimizer = optax.adam(1e-3)
    return (
        step,
        (state_of(optimizer), DATA),
        ({"p": PARAM, "o": roles_of_optimizer(optimizer)}, INPUT),
    )


def cached_decoding() -> Case:
    """One token of a decoder with a cache of keys."""

    def step(params, cache, x):
        query = x @ params["q"]
        cache = lax.dynamic_update_slice(cache, (x @ params["k"])[:, None], (0, 3, 0))
        scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", query, cache))
        return cache, jnp.einsum("bt,btd->bd", scores, cache) @ params["out"]

    square = array(WIDTH, WIDTH)
    params = {"q": square, "k": square, "out": array(WIDTH, HIDDEN)}
    return step, (params, array(BATCH, 12, WIDTH), array(BATCH, WIDTH)), (PARAM, STATE, INPUT)


DESIGNED: dict[str, Callable[[], Case]] = {
    "sgd": lambda: with_optimizer(optax.sgd(0.1)),
    "adam": lambda: with_optimizer(optax.adam(1e-3)),
    "adafactor": lambda: with_optimizer(optax.adafactor(1e-3)),
    "lion": lambda: with_optimizer(optax.lion(1e-3)),
    "two updates": two_updates,
    "scanned steps": scanned_steps,
    "accumulated in a scan": accumulated_in_scan,
    "update in cond": update_in_cond,
    "batch norm of linen": linen_batch_norm,
    "exponential average": exponential_average,
    "adversarial": adversarial,
    "target network": target_network,
    "low rank": low_rank,
    "recurrent state": recurrent_state,
    "constant reward": constant_reward,
    "fitted forces": fitted_forces,
    "cached decoding": cached_decoding,
}
