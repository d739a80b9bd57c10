"""A train step from a Flax model: forward, loss, backward and AdamW, with nothing allocated.

The state is a plain tree, `{"params": ..., "opt": ...}`, with "stats" beside them for a model that
keeps running statistics (batch norm). With dtype "bfloat16" the forward and the backward pass
compute in bfloat16, while the stored parameters, their gradients, the statistics and the optimizer
state stay float32; softmaxes and losses are float32 always. A model with dropout draws from the key
`batch["rng"]`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flax import nnx
import jax
from jax import numpy as jnp
import numpy as np
import optax

from automap.errors import InputError


DType = Literal["float32", "bfloat16"]
Shapes = Mapping[str, tuple[tuple[int, ...], str]]
State = dict[str, Any]
Batch = dict[str, Any]
# What `automap plan module:function` expects: a step and its abstract arguments.
Target = tuple[Callable[..., Any], tuple[State, Batch]]

# Every vocabulary and every label set of the zoo has at least this many entries.
SMALLEST_VOCABULARY = 10
MASKED_FRACTION = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep:
    """One training step of one model.

    Attributes:
        step: jitted `(state, batch) -> (state, {"loss": scalar})`, donating the state.
        args: abstract `(state, batch)`, trees of `jax.ShapeDtypeStruct`.
        init: `rng -> state`, concrete; may itself be traced, so parameters can be born sharded.
    """

    step: Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]
    args: tuple[State, Batch]
    init: Callable[[jax.Array], State]

    @property
    def target(self) -> Target:
        """`(step, args)`."""
        return self.step, self.args


def adamw() -> optax.GradientTransformation:
    """AdamW at a constant rate, the zoo's optimizer: float32 moments, all parameters decayed."""
    return optax.adamw(learning_rate=3e-4, weight_decay=0.01)


def train_step(
    build: Callable[[nnx.Rngs], nnx.Module],
    loss: Callable[[Any, Batch], jax.Array],
    shapes: Shapes,
    *,
    dtype: DType = "float32",
    optimizer: optax.GradientTransformation | None = None,
) -> TrainStep:
    """Put model, loss and optimizer (AdamW if none is given) together.

    Args:
        build: makes the model from its random streams; traced abstractly, never run here.
        loss: scalar float32 loss of a model on a batch.
        shapes: shape and dtype of every batch leaf, by name; "key" is the dtype of a random key.
        dtype: what the forward and the backward pass compute in.
        optimizer: any optax transformation.

    Raises:
        InputError: an unknown dtype.
    """
    check_choice("dtype", dtype, get_args(DType))
    optimizer = adamw() if optimizer is None else optimizer
    # Traced once for both the graph and the shapes: a deep model takes a while to build.
    model = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    graphdef = nnx.graphdef(model)

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        def batch_loss(params: State) -> tuple[jax.Array, State]:
            model = nnx.merge(graphdef, _cast(params, dtype), state.get("stats", {}))
            return loss(model, _cast(batch, dtype)), _statistics(model)

        gradient = jax.value_and_grad(batch_loss, has_aux=True)
        (value, stats), grads = gradient(state["params"])
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, **stats}, {"loss": value}

    def init(rng: jax.Array) -> State:
        model = build(nnx.Rngs(rng))
        params = _parameters(model)
        return {"params": params, "opt": optimizer.init(params), **_statistics(model)}

    batch = {name: _abstract(*leaf) for name, leaf in shapes.items()}
    params = _parameters(model)
    state = {
        "params": params,
        "opt": jax.eval_shape(optimizer.init, params),
        **_statistics(model),
    }
    return TrainStep(step=jax.jit(step, donate_argnums=0), args=(state, batch), init=init)


def _parameters(model: nnx.Module) -> State:
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def _statistics(model: nnx.Module) -> State:
    """The running statistics of a model under "stats", nothing if it has none."""
    stats = nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))
    return {"stats": stats} if stats else {}


def _abstract(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    """A batch leaf; the dtype "key" is that of a random key."""
    return jax.ShapeDtypeStruct(shape, jax.random.key(0).dtype if dtype == "key" else dtype)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Per-position softmax cross-entropy, [...] float32, of logits [..., classes] and targets
    [...].
    """
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), targets)


def random_batch(batch: Batch, seed: int) -> Batch:
    """A concrete batch of the shapes of `batch`, valid for every model of the zoo.

    Integers are tokens or labels below `SMALLEST_VOCABULARY`, booleans mark `MASKED_FRACTION` of
    the positions, floats are standard normal, keys are made from the seed.
    """
    rng = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(seed)
        if jnp.issubdtype(leaf.dtype, jnp.bool_):
            values = rng.random(leaf.shape) < MASKED_FRACTION
        elif jnp.issubdtype(leaf.dtype, jnp.integer):
            values = rng.integers(SMALLEST_VOCABULARY, size=leaf.shape)
        else:
            values = rng.standard_normal(leaf.shape)
        return jnp.asarray(values, dtype=leaf.dtype)

    return jax.tree.map(draw, batch)


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise InputError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise InputError(f"{name}={value!r} is not known; choose one of {', '.join(allowed)}")


def check_size(name: str, value: int, *, at_most: int | None = None) -> None:
    """Raise InputError unless `value` is an integer from 1 to `at_most`."""
    allowed = "a positive integer" if at_most is None else f"an integer from 1 to {at_most}"
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < 1 or (at_most is not None and value > at_most):
        raise InputError(f"{name}={value!r} is not possible; give {allowed}")


def check_rate(name: str, value: float) -> None:
    """Raise InputError unless `value` is a number from 0 up to but not including 1."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < 1:
        raise InputError(f"{name}={value!r} is not possible; give a number from 0 to below 1")


def _cast(tree: Any, dtype: DType) -> Any:
    """Floating leaves in `dtype`; tokens, labels and masks as they are."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )
