"""Scalars that are spread over like tensors which the plan splits differently: `mu / (1 - b1 ** t)`
of several kernels.

XLA makes one tensor of such broadcasts, gives it the sharding of one of its uses, and exchanges it
for the others (the partitioner before Shardy, and Shardy in jaxlib 0.6). Spread whole, each use
slices it, which costs nothing, as a slice of a broadcast is a smaller broadcast. The place of such
a pin is `<site>:spread<j>`, the equation's operand j.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

from automap.jax_compat import open_jaxpr, weak_shape


def spread_number(operands: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int | None:
    """Which operand of an equation is the scalar that is spread over its result; None if that is
    not plain.
    """
    scalars = [number for number, shape in enumerate(operands) if not shape]
    # With two scalars, or none of the result's shape, XLA has nothing to share.
    is_plain = len(scalars) == 1 and result in operands
    return scalars[0] if is_plain else None


def spread_aval(scalar: Any, shape: tuple[int, ...]) -> Any:
    """The aval of a scalar's tensor of a shape."""
    return _spreading(scalar, shape).outvars[0].aval


def spread(scalar: Any, shape: tuple[int, ...], eqn: Any) -> Any:
    """The equation that spreads a scalar, named like the one that uses it."""
    made = _spreading(scalar.aval, shape)
    return made.replace(
        invars=[scalar], outvars=[core.Var(made.outvars[0].aval)], source_info=eqn.source_info
    )


def _spreading(scalar: Any, shape: tuple[int, ...]) -> Any:
    traced = jax.make_jaxpr(lambda x: lax.broadcast_in_dim(x, shape, ()))(weak_shape(scalar))
    (eqn,) = open_jaxpr(traced)[0].eqns
    return eqn
