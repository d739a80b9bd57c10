"""What is known of the elements a value has: zeros, and positions along the batch.

Zeros are what sums over samples may start from, and what does not change when a factor is kept back.
Positions come from an iota and pass the way jnp's indexing takes them: i < 0 is false, so
select(i < 0, i, i + size) is i.                                            -> in: `fact_of`, `columns_of`
"""

from collections.abc import Sequence
from typing import Any

from jax import numpy as jnp
from jax.extend import core
import numpy as np

from automap.jaxpr.microbatch.status import Batched, Fact, Known, Refusal, Status, grown


_MOVES = frozenset(
    "broadcast_in_dim copy copy_p expand_dims reshape slice squeeze stop_gradient transpose".split()
)
# The widest position an index type must hold.
_INDEX_BYTES = 4


def literal_fact(literal: core.Literal) -> Fact:
    """Whether a literal is zero or one."""
    try:
        value = np.asarray(literal.val)
    except TypeError:  # a random key
        return Fact.NONE
    if value.dtype == object or not value.size:
        return Fact.NONE
    return Fact.ZERO if not value.any() else Fact.ONE if bool(np.all(value == 1)) else Fact.NONE


def fact_of(full: Any, micro: Any, operands: Sequence[Status]) -> Fact:
    """What is known of the first result of an equation."""
    name = full.primitive.name
    facts = [Fact.NONE if not isinstance(s, Known | Batched) else s.fact for s in operands]
    if name == "iota":
        return _iota(full, micro)
    if name == "convert_element_type":
        return _converted(full, facts[0])
    if name in _MOVES:
        is_kept = facts[0] is not Fact.INDEX or _keeps_positions(full, micro, operands[0])
        return facts[0] if is_kept else Fact.NONE
    if name == "lt" and facts == [Fact.INDEX, Fact.ZERO]:
        return Fact.ZERO
    if name == "select_n" and facts[0] is Fact.ZERO:
        return facts[1]
    if name in ("select_n", "concatenate", "stack", "pad"):
        cases = facts[1:] if name == "select_n" else facts
        return Fact.ZERO if all(fact is Fact.ZERO for fact in cases) else Fact.NONE
    if name in ("add", "add_any", "sub", "neg", "reduce_sum"):
        return Fact.ZERO if all(fact is Fact.ZERO for fact in facts) else Fact.NONE
    return Fact.NONE


def columns_of(full: Any, operands: Sequence[Status]) -> frozenset[int]:
    """The columns of a concatenation of indices that hold positions along the batch."""
    columns = set[int]()
    if full.primitive.name == "concatenate":
        last = len(full.outvars[0].aval.shape) - 1
        at = 0
        for atom, status in zip(full.invars, operands):
            width = atom.aval.shape[last] if full.params["dimension"] == last else 0
            if isinstance(status, Batched) and status.fact is Fact.INDEX and status.dim != last:
                columns |= set(range(at, at + width))
            at += width
    return frozenset(columns)


def _iota(full: Any, micro: Any) -> Fact:
    try:
        dims = grown(full.params["shape"], micro.params["shape"])
    except Refusal:
        return Fact.NONE
    dtype = full.outvars[0].aval.dtype
    is_index = jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= _INDEX_BYTES
    return Fact.INDEX if dims == [full.params["dimension"]] and is_index else Fact.NONE


def _converted(full: Any, fact: Fact) -> Fact:
    dtype = full.outvars[0].aval.dtype
    is_number = jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
    is_index = jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= _INDEX_BYTES
    if fact is Fact.INDEX:
        return fact if is_index else Fact.NONE
    return fact if is_number else Fact.NONE


def _keeps_positions(full: Any, micro: Any, operand: Status) -> bool:
    """Whether what grows with the batch is one dimension before and after, of the same size.

    A slice of positions may be others, so it does not.
    """
    if full.primitive.name in ("slice", "reshape") and isinstance(operand, Batched):
        return False
    try:
        before = grown(full.invars[0].aval.shape, micro.invars[0].aval.shape)
        after = grown(full.outvars[0].aval.shape, micro.outvars[0].aval.shape)
    except Refusal:
        return False
    if len(before) != 1 or len(after) != 1 or full.primitive.name == "slice":
        return False
    shapes = full.invars[0].aval.shape, full.outvars[0].aval.shape
    if full.primitive.name == "reshape":
        kept = [tuple(n for n in shape if n != 1) for shape in shapes]
        return kept[0] == kept[1]
    return shapes[0][before[0]] == shapes[1][after[0]]
