"""What makes two calls of a step the same to JAX: trees, shapes, types, weak types and static
values.

A signature is made at every call, so it costs one pass over the leaves and its hash is computed
once.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax


# Of an array: shape, type and whether the type is weak, as JAX has them (numpy's int64 is int32
# unless `jax_enable_x64` is set). Of a static value: its type and itself.
LeafKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """A key for what was made for one kind of call; `rest` is what belongs to no leaf."""

    tree: Any
    leaves: tuple[LeafKey, ...]
    rest: Hashable = None
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `TypeError` for a static value without a hash."""
        # Once: a signature is looked up in several caches, and a tree's hash is not cheap.
        object.__setattr__(self, "_hash", hash((self.tree, self.leaves, self.rest)))

    def __hash__(self) -> int:
        """The hash of all of it."""
        return self._hash


def leaf_keys(leaves: Sequence[Any], static: Iterable[int] = ()) -> tuple[LeafKey, ...]:
    """The key of every leaf, those of numbers `static` by value."""
    # Most calls have no static leaves, and this is done at every call.
    by_value = frozenset(static)
    if not by_value:
        return tuple(map(array_key, leaves))
    return tuple(
        (type(leaf), leaf) if number in by_value else array_key(leaf)
        for number, leaf in enumerate(leaves)
    )


def array_key(leaf: Any) -> LeafKey:
    """Shape, type and weak type of an array, a `jax.ShapeDtypeStruct` or a number.

    A leaf that is none of these has a key that no other has: tracing it says what is wrong with it.
    """
    if isinstance(leaf, jax.Array):
        # Random keys have no weak types.
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    try:
        aval = jax.typeof(leaf)
    except (TypeError, ValueError):
        return type(leaf), id(leaf)
    return aval.shape, aval.dtype, bool(getattr(aval, "weak_type", False))
