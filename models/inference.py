"""An inference step from a Flax model: the forward pass alone, with nothing allocated.

The state is a plain tree, `{"params": ...}`, with "stats" beside them for a model that keeps
running statistics (batch norm), which an inference step only reads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from flax import nnx
import jax

from models.training import Batch, DType, Shapes, State, check_choice


# What `automap plan module:function` expects: a step and its abstract arguments.
Target = tuple[Callable[..., Any], tuple[State, Batch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceStep:
    """One forward pass of one model.

    Attributes:
        step: jitted `(state, batch) -> results`.
        args: abstract `(state, batch)`, trees of `jax.ShapeDtypeStruct`.
        init: `rng -> state`, concrete.
    """

    step: Callable[[State, Batch], Any]
    args: tuple[State, Batch]
    init: Callable[[jax.Array], State]

    @property
    def target(self) -> Target:
        """`(step, args)`."""
        return self.step, self.args


def inference_step(
    build: Callable[[nnx.Rngs], nnx.Module],
    apply: Callable[[Any, Batch], Any],
    shapes: Shapes,
    *,
    dtype: DType = "float32",
) -> InferenceStep:
    """Put a model and a batch together.

    Args:
        build: makes the model from its random streams; traced abstractly, never run here.
        apply: results of a model on a batch.
        shapes: shape and dtype of every batch leaf, by name.
        dtype: what floating parameters, statistics and batch are stored and computed in.

    Raises:
        InputError: an unknown dtype.
    """
    check_choice("dtype", dtype, get_args(DType))

    def make(rngs: nnx.Rngs) -> nnx.Module:
        model = build(rngs)
        # Batch norm reads its running statistics, dropout does nothing.
        model.eval()
        return model

    # Shapes depend on no key, and counting keys of a trace takes time that grows with its square.
    abstract = nnx.eval_shape(lambda: make(_OneKey()))
    graphdef = nnx.graphdef(abstract)

    def step(state: State, batch: Batch) -> Any:
        return apply(nnx.merge(graphdef, state["params"], state.get("stats", {})), batch)

    def init(rng: jax.Array) -> State:
        return _cast(_state(make(nnx.Rngs(rng))), dtype)

    batch = {name: jax.ShapeDtypeStruct(*leaf) for name, leaf in shapes.items()}
    args = jax.eval_shape(lambda tree: _cast(tree, dtype), (_state(abstract), batch))
    return InferenceStep(step=jax.jit(step), args=args, init=init)


def _cast(tree: Any, dtype: DType) -> Any:
    """Floating leaves in `dtype`."""
    is_float = jax.numpy.floating
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jax.numpy.issubdtype(leaf.dtype, is_float) else leaf,
        tree,
    )


def _state(model: nnx.Module) -> State:
    """Parameters, and running statistics if there are any."""
    kinds = {"params": nnx.Param, "stats": nnx.BatchStat}
    state = {name: nnx.to_pure_dict(nnx.state(model, kind)) for name, kind in kinds.items()}
    return {name: tree for name, tree in state.items() if tree}


class _OneKey(nnx.Rngs):
    """Random streams that give one key over and over: for shapes."""

    def __init__(self) -> None:
        """No stream, so no count of keys."""

    def params(self) -> jax.Array:
        """The key of parameters."""
        return jax.random.key(0)
