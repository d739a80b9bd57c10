"""Dynamic slices that stay inside: their starts clamped before the op does it.

When a dynamic slice is split, the partitioner slices its result once more at a start of each
device's own, and XLA merges the two by adding the starts. The first start is clamped to the operand
by the op's semantics, which a sum of starts forgets (jaxlib 0.10; 0.12 merges correctly); a start
that is inside already has nothing to forget.
"""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import core
import numpy as np

from automap.jax_compat import open_jaxpr


def clamped(eqn: Any) -> Iterator[Any]:
    """An equation, after the clamps of its starts if it is a dynamic slice."""
    if eqn.primitive.name != "dynamic_slice":
        yield eqn
        return
    operand, *starts = eqn.invars
    sizes = zip(operand.aval.shape, eqn.params["slice_sizes"], strict=True)
    for dim, (whole, size) in enumerate(sizes):
        start = starts[dim]
        if not isinstance(start, core.Literal):
            starts[dim] = core.Var(start.aval)
            clamp = _clamp(start.aval.dtype, whole - size)
            yield clamp.replace(
                invars=[clamp.invars[0], start, clamp.invars[2]],
                outvars=[starts[dim]],
                source_info=eqn.source_info,
            )
    yield eqn.replace(invars=[operand, *starts])


def _clamp(dtype: np.dtype, last: int) -> Any:
    """The equation x = clamp(0, start, last); its variables are to be replaced."""
    highest = np.array(min(last, np.iinfo(dtype).max), dtype)
    zero = np.zeros((), dtype)
    traced = jax.make_jaxpr(lambda start: jax.lax.clamp(zero, start, highest))(
        jax.ShapeDtypeStruct((), dtype)
    )
    (eqn,) = open_jaxpr(traced)[0].eqns
    return eqn
