"""What a step brings along: the `self` of a method or of a callable object, and what
`functools.partial` binds.

Each is an argument of its own name if its leaves are JAX arrays, or if it holds an object of a
library: then it is sharded like any other argument, and an nnx module in it is trained. Else it is
a constant, as under `jax.jit`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import inspect
from typing import Any

import jax

from automap.step.libraries import Library


@dataclass(frozen=True)
class Identity:
    """A constant as part of a signature: equal to itself alone."""

    value: Any

    def __eq__(self, other: object) -> bool:
        """Whether both are of one object."""
        return isinstance(other, Identity) and other.value is self.value

    def __hash__(self) -> int:
        """The object's."""
        return id(self.value)


@dataclass(frozen=True)
class Bound:
    """A value that is bound to a parameter of a step; `name` is the parameter's."""

    name: str
    value: Any
    is_argument: bool


@dataclass(frozen=True)
class Peeled:
    """A function with what was around it: bound by position and by name, and the number of the
    library that jitted it.
    """

    function: Callable[..., Any]
    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    library: int | None


def peeled(given: Callable[..., Any], libraries: Sequence[Library]) -> Peeled:
    """The function inside methods, partials and callable objects."""
    function: Any = given
    positional, named, jitted_by = (), {}, None
    while True:
        for number, library in enumerate(libraries):
            jitted_by = number if library.is_jitted(function) else jitted_by
        if all(hasattr(function, name) for name in ("func", "args", "keywords")):
            positional = (*function.args, *positional)
            named = {**function.keywords, **named}
            function = function.func
        elif hasattr(function, "__func__") and hasattr(function, "__self__"):
            positional = (function.__self__, *positional)
            function = function.__func__
        elif _is_callable_object(function) and is_argument(function, libraries):
            positional = (function, *positional)
            function = type(function).__call__
        else:
            return Peeled(function, positional, named, jitted_by)


def bound_values(
    function: Callable[..., Any],
    positional: Sequence[Any],
    named: Mapping[str, Any],
    libraries: Sequence[Library],
) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
    """What is bound to a function by position and by name."""
    names = [*_parameters(function), *(f"bound_{i}" for i in range(len(positional)))]
    return (
        tuple(Bound(n, v, is_argument(v, libraries)) for n, v in zip(names, positional)),
        tuple(Bound(n, v, is_argument(v, libraries)) for n, v in named.items()),
    )


def is_argument(value: Any, libraries: Sequence[Library]) -> bool:
    """Whether a bound value is traced rather than constant."""
    if holds_object(value, libraries):
        return True
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(x, (jax.Array, jax.ShapeDtypeStruct)) for x in leaves)


def holds_object(tree: Any, libraries: Sequence[Library]) -> bool:
    """Whether there are objects of libraries in a tree."""

    def is_object(x: Any) -> bool:
        return any(library.is_object(x) for library in libraries)

    return any(map(is_object, jax.tree.leaves(tree, is_leaf=is_object)))


def _is_callable_object(function: Any) -> bool:
    is_function = inspect.isroutine(function) or isinstance(function, type)
    return not is_function and inspect.isfunction(getattr(type(function), "__call__", None))


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names of parameters that can be given by position, as many as are known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in by_position]
