"""Flax NNX: modules, optimizers, metrics and random streams are graphs of Variables, which a step
changes in place.

`nnx.split` of all objects of a call together keeps what they share; inside the trace `nnx.merge`
makes objects of their own, on which the step runs; what it has changed in them is written to the
caller's by `nnx.update`. That is what `nnx.jit` does; any other function is treated likewise, so
that it does what it does when it is not jitted.
"""

from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any

import jax

from automap.errors import InputError


class NnxLibrary:
    """`flax.nnx`, by its public functions; see `Library`."""

    def __init__(self, nnx: ModuleType) -> None:
        self._nnx = nnx
        # The class of what `nnx.jit` returns has no public name.
        self._jitted = type(nnx.jit(_nothing))

    def is_jitted(self, function: Callable[..., Any]) -> bool:
        """Whether it is of `nnx.jit`."""
        return isinstance(function, self._jitted)

    def jitted_function(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """What `nnx.jit` gave its options to."""
        return getattr(function, "jitted_fn", None)

    @property
    def splits_everything(self) -> bool:
        """What is no object is a tree of arrays, as for `jax.jit`."""
        return False

    def is_object(self, value: Any) -> bool:
        """Whether a value is a module, optimizer, metric, ... or a Variable by itself.

        A State is split as what it is, a tree, so that its Variables are not taken by themselves.
        """
        return isinstance(value, (self._nnx.Pytree, self._nnx.Variable, self._nnx.State))

    def split(self, objects: Sequence[Any]) -> tuple[Sequence[Any], Hashable]:
        """Nested dicts of arrays, and the definition of the graph."""
        # A State is a tree of arrays already; a place is kept for it, so that numbers stay.
        graphs = [None if self._is_state(x) else x for x in objects]
        definition, state = self._nnx.split(tuple(graphs))
        arrays = self._nnx.to_pure_dict(state)
        trees = [
            x if g is None else arrays.get(i, {}) for i, (x, g) in enumerate(zip(objects, graphs))
        ]
        return trees, (definition, tuple(g is not None for g in graphs))

    def merge(self, trees: Sequence[Any], rest: Any) -> Sequence[Any]:
        """Objects with new Variables, which share what the split ones shared."""
        definition, are_graphs = rest
        arrays = {i: tree for i, tree in enumerate(trees) if are_graphs[i]}
        merged = self._nnx.merge(definition, arrays)
        return [new if is_graph else tree for new, tree, is_graph in zip(merged, trees, are_graphs)]

    def changed(
        self, objects: Sequence[Any], trees: Sequence[Any], rest: Any
    ) -> tuple[Sequence[Any], Hashable]:
        """Arrays that are no longer the given ones; the rest changes with `train()` and
        `eval()`.
        """
        now, rest_now = self.split(objects)
        for before, after in zip(trees, now, strict=True):
            if jax.tree.structure(before) != jax.tree.structure(after):
                raise InputError(
                    "the step adds Variables to an nnx object, or removes some, which a plan has "
                    "no place for; make them before the first call"
                )
        _, are_graphs = rest
        # None where an array is the very same one: what is not changed is not returned.
        changed = [
            jax.tree.map(_new, before, after) if is_graph else None
            for before, after, is_graph in zip(trees, now, are_graphs, strict=True)
        ]
        return changed, None if rest_now == rest else rest_now

    def update(self, objects: Sequence[Any], trees: Sequence[Any], rest: Any) -> None:
        """The new arrays, in the caller's Variables; new plain attributes, in its modules."""
        for given, tree in zip(objects, trees, strict=True):
            # `nnx.update` would write a None into a Variable.
            values = _without_none(tree)
            if values is not None:
                self._nnx.update(given, values)
        if rest is not None:
            arrays, _ = self.split(objects)
            for given, now in zip(objects, self.merge(arrays, rest), strict=True):
                self._set_attributes(given, now)

    def _set_attributes(self, given: Any, now: Any) -> None:
        """The attributes that are neither arrays nor objects, of all modules of a graph."""
        pairs = zip(self._nnx.iter_graph(given), self._nnx.iter_graph(now), strict=True)
        for (_, old), (_, new) in pairs:
            if not isinstance(old, self._nnx.Pytree):
                continue
            for name, value in vars(new).items():
                is_plain = isinstance(value, bool | int | float | str | None)
                if is_plain and not name.startswith("_") and getattr(old, name, value) != value:
                    setattr(old, name, value)

    def _is_state(self, value: Any) -> bool:
        return isinstance(value, self._nnx.State)


def _new(before: Any, after: Any) -> Any | None:
    return None if after is before else after


def _without_none(tree: Any) -> Any | None:
    """A nested dict without the leaves that are None, None if nothing is left."""
    if not isinstance(tree, dict):
        return tree
    kept = {key: _without_none(value) for key, value in tree.items()}
    return {key: value for key, value in kept.items() if value is not None} or None


def _nothing() -> None:
    """A function to jit."""
