"""What the traced form of a step returns, when there are objects of libraries among its arguments
or results.

    returned   the result, with the tree of its arrays in the place of each object
    updated    the arguments, with the arrays that the step has changed in place and None elsewhere
    recipe     how the step's own result is made of these; it holds no array, so it is part of the
               structure

Paths of `returned` are those of the step's own result. What was changed in place at the path `p` of
an argument has the path `updated` + p, by which old and new version are known.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jax.tree_util import register_pytree_with_keys_class


UPDATED: Final = "updated"


@dataclass(frozen=True)
class LibraryObjects:
    """Objects of one library, by the leaves of a tree that they are, and what `Library.split` gave
    beside arrays.

    `library` is the number of the library in the step's list.
    """

    library: int
    leaves: tuple[int, ...]
    rest: Hashable


@dataclass(frozen=True)
class Recipe:
    """How a result is put together.

    `tree` has the result's objects as leaves, which are in `held`, or in `same` if they are objects
    that the step was given: (leaf, number among all that it was given). `changes` has the new rest
    of each library's objects that the step was given, None if it is as it was.
    """

    tree: Any
    held: tuple[LibraryObjects, ...]
    same: tuple[tuple[int, int], ...]
    changes: tuple[Hashable, ...]


@dataclass(frozen=True)
class _Prefix:
    """A key of which a path shows the text alone."""

    text: str

    def __str__(self) -> str:
        """What `jax.tree_util.keystr` shows."""
        return self.text


@register_pytree_with_keys_class
@dataclass(frozen=True)
class TracedResult:
    """A traced form's result; `updated` are positional and keyword arguments."""

    returned: Any
    updated: tuple[Sequence[Any], Mapping[str, Any]]
    recipe: Recipe

    @property
    def has_objects(self) -> bool:
        """Whether there are any in the result, or among what the step was given."""
        return bool(self.recipe.held or self.recipe.changes)

    def tree_flatten_with_keys(self) -> tuple[Any, Recipe]:
        """The result, then the arguments by position, then those by name."""
        positional, named = self.updated
        prefix = _Prefix(UPDATED)
        # Nothing before the paths of the result, so that they are those of the step's own.
        return ((_Prefix(""), self.returned), (prefix, positional), (prefix, named)), self.recipe

    @classmethod
    def tree_unflatten(cls, recipe: Recipe, children: Sequence[Any]) -> "TracedResult":
        """The same with other leaves."""
        returned, positional, named = children
        return cls(returned, (positional, named), recipe)
