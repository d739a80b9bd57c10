"""What is known of the elements of a value, and which operations are linear in their operands.

Zeros are what sums over samples may start from, and what does not change when a factor is held
back. Positions along the batch come from an iota and pass the way jnp's indexing takes them:
i < 0 is false, so select(i < 0, i, i + size) is i.       -> in: `result_elements`, `index_columns`

A factor that is known only after the loop, and a sum that is not finished, pass an operation f if

    f(s x, y) = s f(x, y)      and      f(x_0 + x_1, y) = f(x_0, y) + f(x_1, y)

for the marked operands x; an operand that may be marked but is not must be zero.
                                                                           -> in: `check_linear`
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax import numpy as jnp
from jax.extend import core
import numpy as np

from automap.jaxpr.microbatch.dependence import (
    Batched,
    Dependence,
    Known,
    KnownElements,
    Refusal,
    differing_dims,
)


_MOVES = frozenset(
    "broadcast_in_dim copy copy_p expand_dims reshape slice squeeze stop_gradient transpose".split()
)
# The widest position an index type must hold.
_INDEX_BYTES = 4


def literal_elements(literal: core.Literal) -> KnownElements:
    """Whether a literal is zero or one."""
    try:
        value = np.asarray(literal.val)
    except TypeError:  # a random key
        return KnownElements.NONE
    if value.dtype == object or not value.size:
        return KnownElements.NONE
    return (
        KnownElements.ZERO
        if not value.any()
        else KnownElements.ONE
        if bool(np.all(value == 1))
        else KnownElements.NONE
    )


def result_elements(full: Any, micro: Any, operands: Sequence[Dependence]) -> KnownElements:
    """What is known of the first result of an equation."""
    name = full.primitive.name
    operand_elements = [
        KnownElements.NONE if not isinstance(s, Known | Batched) else s.elements for s in operands
    ]
    if name == "iota":
        return _iota(full, micro)
    if name == "convert_element_type":
        return _converted(full, operand_elements[0])
    if name in _MOVES:
        is_kept = operand_elements[0] is not KnownElements.INDEX or _keeps_positions(
            full, micro, operands[0]
        )
        return operand_elements[0] if is_kept else KnownElements.NONE
    # jnp wraps negative indices: positions are never below zero, so the wrapped branch is not
    # taken.
    if name == "lt" and operand_elements == [KnownElements.INDEX, KnownElements.ZERO]:
        return KnownElements.ZERO
    if name == "select_n" and operand_elements[0] is KnownElements.ZERO:
        return operand_elements[1]
    if name in ("select_n", "concatenate", "stack", "pad"):
        cases = operand_elements[1:] if name == "select_n" else operand_elements
        return (
            KnownElements.ZERO
            if all(elements is KnownElements.ZERO for elements in cases)
            else KnownElements.NONE
        )
    if name in ("add", "add_any", "sub", "neg", "reduce_sum"):
        return (
            KnownElements.ZERO
            if all(elements is KnownElements.ZERO for elements in operand_elements)
            else KnownElements.NONE
        )
    return KnownElements.NONE


def index_columns(full: Any, operands: Sequence[Dependence]) -> frozenset[int]:
    """The columns of a concatenation of indices that hold positions along the batch."""
    columns = set[int]()
    if full.primitive.name == "concatenate":
        last = len(full.outvars[0].aval.shape) - 1
        at = 0
        for atom, dependence in zip(full.invars, operands):
            width = atom.aval.shape[last] if full.params["dimension"] == last else 0
            if (
                isinstance(dependence, Batched)
                and dependence.elements is KnownElements.INDEX
                and dependence.dim != last
            ):
                columns |= set(range(at, at + width))
            at += width
    return frozenset(columns)


def _iota(full: Any, micro: Any) -> KnownElements:
    try:
        dims = differing_dims(full.params["shape"], micro.params["shape"])
    except Refusal:
        return KnownElements.NONE
    dtype = full.outvars[0].aval.dtype
    is_index = jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= _INDEX_BYTES
    return (
        KnownElements.INDEX
        if dims == [full.params["dimension"]] and is_index
        else KnownElements.NONE
    )


def _converted(full: Any, elements: KnownElements) -> KnownElements:
    dtype = full.outvars[0].aval.dtype
    is_number = jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
    is_index = jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= _INDEX_BYTES
    if elements is KnownElements.INDEX:
        return elements if is_index else KnownElements.NONE
    return elements if is_number else KnownElements.NONE


def _keeps_positions(full: Any, micro: Any, operand: Dependence) -> bool:
    """Whether what grows with the batch is one dimension before and after, of the same size.

    A slice of positions may be others, so it does not.
    """
    if full.primitive.name in ("slice", "reshape") and isinstance(operand, Batched):
        return False
    try:
        before = differing_dims(full.invars[0].aval.shape, micro.invars[0].aval.shape)
        after = differing_dims(full.outvars[0].aval.shape, micro.outvars[0].aval.shape)
    except Refusal:
        return False
    if len(before) != 1 or len(after) != 1 or full.primitive.name == "slice":
        return False
    shapes = full.invars[0].aval.shape, full.outvars[0].aval.shape
    if full.primitive.name == "reshape":
        kept = [tuple(n for n in shape if n != 1) for shape in shapes]
        return kept[0] == kept[1]
    return shapes[0][before[0]] == shapes[1][after[0]]


# The operands an operation is linear in, together.
_JOINTLY: Mapping[str, slice] = {
    **dict.fromkeys(("add", "add_any", "sub", "concatenate", "stack"), slice(None)),
    "dynamic_update_slice": slice(0, 2),
    "pad": slice(0, 2),
    "scatter-add": slice(0, 3, 2),
    "scatter_add": slice(0, 3, 2),
    "select_n": slice(1, None),
    **dict.fromkeys(
        """
            broadcast_in_dim copy copy_p cumsum div dynamic_slice expand_dims gather imag
            name neg real reduce_precision reduce_sum reduce_window_sum reshape rev
            select_and_scatter_add slice split squeeze transpose unstack
        """.split(),
        slice(0, 1),
    ),
}
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
    # From a float to an integer it rounds, and to a truth value it forgets the size.
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
