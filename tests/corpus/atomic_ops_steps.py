"""Steps of atomic-ops: gated delta networks, whose forward and backward passes are kernels."""

from atomic_gdn2.config import make_cfg
from atomic_gdn2.training.model import init_model, model_fwd
from atomic_ops.configs import KAGGLE_SMALL
from atomic_ops.gdn2_pipeline import gdn2_pallas_forward_trainable
import jax
import jax.numpy as jnp
import optax

from tests.corpus.interpreted import IS_COMPILED, for_device


def gated_delta():
    """One layer of `atomic_ops` trained on values that it is to predict."""
    d, heads = 128, 2
    keys = jax.random.split(jax.random.key(0), 8)
    names = ("q", "k", "v", "w", "b", "g")
    params = {n: jax.random.normal(k, (d, heads * d)) / 64 for n, k in zip(names, keys)}
    optimizer = optax.adam(1e-3)

    def loss_of(params, x, y):
        q, k, v, w, b, g = ((x @ params[name]).reshape(*x.shape[:2], heads, d) for name in names)
        b, g = jax.nn.sigmoid(b), -jax.nn.softplus(g)
        out, _ = gdn2_pallas_forward_trainable(q, k, v, w, b, g, d**-0.5, config=KAGGLE_SMALL)
        return jnp.mean((out.mean(2) - y) ** 2)

    @jax.jit
    @for_device("tpu")
    def step(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    x, y = (jax.random.normal(key, (8, 128, d)) for key in keys[6:])
    return step, (params, optimizer.init(params), x, y)


def blocked():
    """The language model of `atomic_gdn2`, with its training step's choice of what is finite."""
    heads, d_head = 2, 128
    params = init_model(jax.random.key(0), 64, heads, d_head, n_layers=1, vocab=32)
    optimizer = optax.adamw(1e-3)

    def loss_of(params, tokens):
        config = make_cfg(interpret=not IS_COMPILED.get())
        logits = model_fwd(params, tokens, config, heads, d_head)[:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    @jax.jit
    @for_device("tpu")
    def step(params, state, tokens):
        loss, grads = jax.value_and_grad(loss_of)(params, tokens)
        norm = optax.global_norm(grads)
        is_good = jnp.isfinite(loss) & jnp.isfinite(norm)
        updates, new_state = optimizer.update(grads, state, params)
        new_params = optax.apply_updates(params, updates)

        def keep(new, old):
            return jax.tree.map(lambda a, b: jnp.where(is_good, a, b), new, old)

        return keep(new_params, params), keep(new_state, state), loss, norm

    tokens = jax.random.randint(jax.random.key(1), (8, 128), 0, 32)
    return step, (params, optimizer.init(params), tokens)
