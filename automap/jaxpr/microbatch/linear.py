"""Which operations are linear in some of their operands together.

A factor that is known only after the loop, and a sum that is not finished, pass an operation f if

    f(s x, y) = s f(x, y)      and      f(x_0 + x_1, y) = f(x_0, y) + f(x_1, y)

for the marked operands x; an operand that may be marked but is not must be zero.     -> in: `check_linear`
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax import numpy as jnp

from automap.jaxpr.microbatch.status import Refusal


# The operands an operation is linear in, together.
_JOINTLY: Mapping[str, slice] = {
    **dict.fromkeys(("add", "add_any", "sub", "concatenate", "stack"), slice(None)),
    "dynamic_update_slice": slice(0, 2),
    "pad": slice(0, 2),
    "scatter-add": slice(0, 3, 2),
    "scatter_add": slice(0, 3, 2),
    "select_n": slice(1, None),
    **dict.fromkeys(
        (
            "broadcast_in_dim", "copy", "copy_p", "cumsum", "div", "dynamic_slice", "expand_dims",
            "gather", "imag", "name", "neg", "real", "reduce_precision", "reduce_sum", "reduce_window_sum", "reshape",
            "rev", "select_and_scatter_add", "slice", "split", "squeeze", "transpose", "unstack",
        ),
        slice(0, 1),
    ),
}  # fmt: skip
# Those linear in each of their two operands alone.
PRODUCTS = frozenset({"conv_general_dilated", "dot_general", "mul"})


def check_linear(eqn: Any, marks: Sequence[bool], zeros: Sequence[bool]) -> None:
    """Refuse an equation that is not linear in its marked operands. Raises `Refusal`.

    `zeros` says which operands are known to be zero.
    """
    name = eqn.primitive.name
    numbers = range(len(marks))
    if name in PRODUCTS:
        is_linear = sum(marks) <= 1
    elif name == "convert_element_type":
        kinds = [jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in (*eqn.invars, *eqn.outvars)]
        is_linear = kinds[1] or not kinds[0] and eqn.outvars[0].aval.dtype != bool
    elif name == "gather" and not _fills_linearly(eqn):
        is_linear = False
    elif name == "div" and not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
        # Integers are rounded.
        is_linear = False
    elif name in _JOINTLY:
        joint = set(numbers[_JOINTLY[name]])
        is_linear = all((marks[n] or zeros[n]) if n in joint else not marks[n] for n in numbers)
    else:
        is_linear = False
    if not is_linear:
        raise Refusal("it is not linear in a sum over the batch that is not finished there")


def _fills_linearly(eqn: Any) -> bool:
    """Whether a gather out of bounds gives zero, or NaN, which any sum and product keeps."""
    fill = eqn.params["fill_value"]
    return fill == 0 if fill is not None else jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
