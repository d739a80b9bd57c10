"""A step that is given, brings along or returns objects of libraries, as a function of trees of
arrays.

    arguments -> objects split in arrays and a rest          -> in: `TracedForm.enter`
    traced:      objects made of both; the step called; its result and what it has changed split
                                                             -> in: `TracedForm.traced_result`
    result    -> objects made of it, changes written back    -> in: `TracedForm.leave`

All that is no array goes through one static keyword, so that JAX traces again when it changes.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax

from automap.step.arguments import BoundArgument, Identity
from automap.step.libraries import Library
from automap.step.traced_result import LibraryObjects, Recipe, TracedResult


STATIC: Final = "automap_static"
"""The keyword of what is no array."""


@dataclass(frozen=True)
class Rest:
    """What is static in a call: `tree` has all arguments with objects as leaves; `by_position` and
    `by_name` are static arguments, (position or name, type, value); `constants` are what the step
    brings along.
    """

    tree: Any
    held: tuple[LibraryObjects, ...]
    by_position: tuple[tuple[int, type, Any], ...]
    by_name: tuple[tuple[str, type, Any], ...]
    constants: tuple[Identity, ...]


@dataclass(frozen=True)
class _Objects:
    """Objects of one library that a traced step was given, and what they were made of."""

    held: LibraryObjects
    trees: Sequence[Any]
    made: Sequence[Any]


@dataclass(frozen=True)
class TracedForm:
    """The form of one step; `positional` and `named` are what is bound to `function`."""

    function: Callable[..., Any]
    positional: tuple[BoundArgument, ...]
    named: tuple[BoundArgument, ...]
    libraries: tuple[Library, ...]
    takes_all: int | None = field(default=None)

    def enter(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        static_positions: frozenset[int],
        static_names: frozenset[str],
    ) -> tuple[tuple[Any, ...], dict[str, Any], Rest, tuple[Sequence[Any], ...]]:
        """Trees of arrays by position and by name, what is static, and the objects of each of its
        `held`.
        """
        bound = {b.name: b.value for b in (*self.positional, *self.named) if b.is_argument}
        given = {**bound, **kwargs}
        traced = tuple(None if i in static_positions else arg for i, arg in enumerate(args))
        traced_names = {n: value for n, value in given.items() if n not in static_names}
        leaves, tree = self._objects_as_leaves((traced, traced_names), len(traced))
        split, held, objects = self._split(leaves)
        positional, named = tree.unflatten(split)
        rest = Rest(
            tree,
            held,
            tuple((i, type(args[i]), args[i]) for i in sorted(static_positions) if i < len(args)),
            tuple((n, type(given[n]), given[n]) for n in sorted(static_names) if n in given),
            tuple(Identity(b.value) for b in (*self.positional, *self.named) if not b.is_argument),
        )
        return positional, named, rest, objects

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The step on trees of arrays, to be traced.

        Returns its own result where no objects are among arguments and result, else an
        `TracedResult`.
        """
        traced_result = self.traced_result(args, kwargs)
        return traced_result if traced_result.has_objects else traced_result.returned

    def traced_result(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TracedResult:
        """What `call` is made of, whatever there is."""
        rest: Rest = kwargs[STATIC]
        named = {name: value for name, value in kwargs.items() if name != STATIC}
        leaves = rest.tree.flatten_up_to((args, named))
        given = []
        for held in rest.held:
            trees = [leaves[i] for i in held.leaves]
            made = self.libraries[held.library].merge(trees, held.rest)
            for i, value in zip(held.leaves, made, strict=True):
                leaves[i] = value
            given.append(_Objects(held, trees, made))
        positional, named = rest.tree.unflatten(leaves)
        result = self._called(list(positional), dict(named), rest)
        changed = [
            self.libraries[o.held.library].changed(o.made, o.trees, o.held.rest) for o in given
        ]
        updates: list[Any] = [None] * len(leaves)
        for objects, (trees, _) in zip(given, changed, strict=True):
            for i, value in zip(objects.held.leaves, trees, strict=True):
                updates[i] = value
        # An object that comes back is the caller's own, updated, not a copy of it.
        same = {id(x): n for n, x in enumerate(x for o in given for x in o.made)}
        returned, recipe = self._returned(result, same, tuple(now for _, now in changed))
        return TracedResult(returned, rest.tree.unflatten(updates), recipe)

    def leave(self, rest: Rest, objects: Sequence[Sequence[Any]], traced_result: Any) -> Any:
        """The step's own result, of what `call` returned; `objects`, the caller's, are updated."""
        if not isinstance(traced_result, TracedResult):
            return traced_result
        updates = rest.tree.flatten_up_to(traced_result.updated)
        for held, given, change in zip(
            rest.held, objects, traced_result.recipe.changes, strict=True
        ):
            trees = [updates[i] for i in held.leaves]
            self.libraries[held.library].update(given, trees, change)
        recipe = traced_result.recipe
        leaves = recipe.tree.flatten_up_to(traced_result.returned)
        for held in recipe.held:
            trees = [leaves[i] for i in held.leaves]
            made = self.libraries[held.library].merge(trees, held.rest)
            for i, value in zip(held.leaves, made, strict=True):
                leaves[i] = value
        everything = [x for given in objects for x in given]
        for leaf, number in recipe.same:
            leaves[leaf] = everything[number]
        return recipe.tree.unflatten(leaves)

    def _called(self, positional: list[Any], named: dict[str, Any], rest: Rest) -> Any:
        for i, _, value in rest.by_position:
            positional[i] = value
        named.update((name, value) for name, _, value in rest.by_name)
        # Traced values of bound arguments have come back under their names.
        first = [named.pop(b.name) if b.is_argument else b.value for b in self.positional]
        fixed = {b.name: b.value for b in self.named if not b.is_argument}
        return self.function(*first, *positional, **{**fixed, **named})

    def _returned(
        self, result: Any, given: Mapping[int, int], changes: tuple[Hashable, ...]
    ) -> tuple[Any, Recipe]:
        """The result's trees, and how it is made of them; `given` are numbers of objects by
        identity.
        """
        if self.takes_all is None:
            leaves, tree = jax.tree.flatten(result, is_leaf=self._is_object)
        else:
            # The library splits whatever there is: the result is one leaf.
            leaves, tree = [result], jax.tree.structure(0)
        same = tuple((i, given[id(x)]) for i, x in enumerate(leaves) if id(x) in given)
        # Their arrays are among the updates: they are not returned twice.
        for i, _ in same:
            leaves[i] = None
        split, held, _ = self._split(leaves)
        return tree.unflatten(split), Recipe(tree, held, same, changes)

    def _split(
        self, leaves: Sequence[Any]
    ) -> tuple[list[Any], tuple[LibraryObjects, ...], tuple[Sequence[Any], ...]]:
        """The leaves with trees in the place of objects, and the objects of each library."""
        split, held, objects = list(leaves), [], []
        # All objects of a library are split together, so that what they share stays shared.
        owners = [self._owner(leaf) for leaf in leaves]
        for number, library in enumerate(self.libraries):
            own = tuple(i for i, owner in enumerate(owners) if owner == number)
            if own:
                own_objects = [leaves[i] for i in own]
                trees, rest = library.split(own_objects)
                for i, tree in zip(own, trees, strict=True):
                    split[i] = tree
                held.append(LibraryObjects(number, own, rest))
                objects.append(own_objects)
        return split, tuple(held), tuple(objects)

    def _objects_as_leaves(self, arguments: Any, positional: int) -> tuple[list[Any], Any]:
        if self.takes_all is None:
            return jax.tree.flatten(arguments, is_leaf=self._is_object)
        # Every argument is one object then.
        traced, named = arguments
        tree = jax.tree.structure(((0,) * positional, dict.fromkeys(named, 0)))
        return [*traced, *(named[name] for name in sorted(named))], tree

    def _is_object(self, value: Any) -> bool:
        return self._owner(value) is not None

    def _owner(self, value: Any) -> int | None:
        if self.takes_all is not None:
            return self.takes_all
        for number, library in enumerate(self.libraries):
            if library.is_object(value):
                return number
        return None
