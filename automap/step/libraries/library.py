"""What a library must say of its objects, so that a step of it runs as it would under the library's
own jit.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol


class Library(Protocol):
    """One library that has been imported."""

    def is_jitted(self, function: Callable[..., Any]) -> bool:
        """Whether a function is what the library's own jit returns."""
        ...

    def jitted_function(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """The function of `jax.jit` inside one that `is_jitted`, if its static arguments are known
        by position.
        """
        ...

    @property
    def splits_everything(self) -> bool:
        """Whether the library's jit splits all arguments and results, not objects alone."""
        ...

    def is_object(self, value: Any) -> bool:
        """Whether a value is an object of the library, which `split` takes whole."""
        ...

    def split(self, objects: Sequence[Any]) -> tuple[Sequence[Any], Hashable]:
        """A tree of arrays for each object, with None for what is no array, and the rest of all."""
        ...

    def merge(self, trees: Sequence[Any], rest: Any) -> Sequence[Any]:
        """New objects of `split`'s trees (their leaves may be other ones, as tracers) and rest."""
        ...

    def changed(
        self, objects: Sequence[Any], trees: Sequence[Any], rest: Any
    ) -> tuple[Sequence[Any], Hashable]:
        """What a step has changed in place in objects that `merge` made of `trees` and `rest`.

        Trees of the new arrays, with None elsewhere, and the new rest, None if it is as it was.
        Raises `InputError` if the step has added or removed arrays.
        """
        ...

    def update(self, objects: Sequence[Any], trees: Sequence[Any], rest: Any) -> None:
        """Write what `changed` gave into the caller's objects."""
        ...
