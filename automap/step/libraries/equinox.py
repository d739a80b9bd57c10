"""Equinox: modules are trees whose leaves may be anything; arrays are traced, all else is static.

That is what `eqx.filter_jit` does with all that a function is given and returns, and what is done
here with modules in the arguments of any other step. Modules are immutable: nothing is written
back.
"""

from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any

import jax


class EquinoxLibrary:
    """Equinox, by its public functions; see `Library`."""

    def __init__(self, equinox: ModuleType) -> None:
        self._equinox = equinox
        # The class of what `filter_jit` returns has no public name.
        self._jitted = type(equinox.filter_jit(_nothing))

    def is_jitted(self, function: Callable[..., Any]) -> bool:
        """Whether it is of `eqx.filter_jit`."""
        return isinstance(function, self._jitted)

    def jitted_function(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """None: leaves are static by what they are."""
        return None

    @property
    def splits_everything(self) -> bool:
        """What `filter_jit` jits takes values that are no arrays anywhere."""
        return True

    def is_object(self, value: Any) -> bool:
        """Whether a value is a module."""
        return isinstance(value, self._equinox.Module)

    def split(self, objects: Sequence[Any]) -> tuple[Sequence[Any], Hashable]:
        """Arrays and the rest, as `eqx.partition`."""
        arrays, rest = self._equinox.partition(list(objects), self._is_array)
        # With the types of the leaves: 1, 1.0 and True are equal, but trace differently.
        leaves, tree = jax.tree.flatten(rest)
        return arrays, (tree, tuple((type(leaf), leaf) for leaf in leaves))

    def merge(self, trees: Sequence[Any], rest: Any) -> Sequence[Any]:
        """Both together, as `eqx.combine`."""
        tree, leaves = rest
        return self._equinox.combine(list(trees), tree.unflatten(leaf for _, leaf in leaves))

    def changed(
        self, objects: Sequence[Any], trees: Sequence[Any], rest: Any
    ) -> tuple[Sequence[Any], Hashable]:
        """Nothing ever is."""
        return [None for _ in objects], None

    def update(self, objects: Sequence[Any], trees: Sequence[Any], rest: Any) -> None:
        """Nothing to do."""

    def _is_array(self, leaf: Any) -> bool:
        return self._equinox.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _nothing() -> None:
    """A function to jit."""
