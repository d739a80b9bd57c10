"""Arguments of a step: those it brings along, and those that options of `jax.jit` mean.

Brought along are the `self` of a method or of a callable object, and what `functools.partial`
binds. Each is an argument of its own name if its leaves are JAX arrays, or if it holds an object of
a library: then it is sharded like any other argument, and an nnx module in it is trained. Else it
is a constant, as under `jax.jit`.                  -> in: `unwrap`, `bound_arguments`

Options (`static_argnums`, `donate_argnames`, ..) choose arguments of a call by position and by
name.                                               -> in: `chosen_arguments`
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
import inspect
from typing import Any, Literal

import jax

from automap.errors import InputError
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
        # Not the value's own hash: constants need not have one.
        return id(self.value)


@dataclass(frozen=True)
class BoundArgument:
    """A value that is bound to a parameter of a step; `name` is the parameter's."""

    name: str
    value: Any
    is_argument: bool


@dataclass(frozen=True)
class Unwrapped:
    """A function with what was around it: bound by position and by name, and the number of the
    library that jitted it.
    """

    function: Callable[..., Any]
    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    library: int | None


def positional_arguments(given: Any) -> tuple[Any, ...]:
    """The positional arguments of a call that is only described. Raises `InputError` for anything
    but a tuple or a list: a dict of parameters would be read as its keys.
    """
    if isinstance(given, tuple | list):
        return tuple(given)
    raise InputError(
        f"args: got a {type(given).__name__}; allowed: the tuple of the step's positional "
        "arguments, (params, batch) for step(params, batch), or (params,) for one argument"
    )


def unwrap(given: Callable[..., Any], libraries: Sequence[Library]) -> Unwrapped:
    """The function inside methods, partials and callable objects."""
    function: Any = given
    positional, named, jitted_by = (), {}, None
    while True:
        # The innermost jit of a library is the one whose rules hold.
        for number, library in enumerate(libraries):
            jitted_by = number if library.is_jitted(function) else jitted_by
        if all(hasattr(function, name) for name in ("func", "args", "keywords")):
            positional = (*function.args, *positional)
            named = {**function.keywords, **named}
            function = function.func
        # A bound method: its object is the first argument of the function in its class.
        elif hasattr(function, "__func__") and hasattr(function, "__self__"):
            positional = (function.__self__, *positional)
            function = function.__func__
        elif _is_callable_object(function) and is_argument(function, libraries):
            positional = (function, *positional)
            function = type(function).__call__
        else:
            return Unwrapped(function, positional, named, jitted_by)


def bound_arguments(
    function: Callable[..., Any],
    positional: Sequence[Any],
    named: Mapping[str, Any],
    libraries: Sequence[Library],
) -> tuple[tuple[BoundArgument, ...], tuple[BoundArgument, ...]]:
    """What is bound to a function by position and by name."""
    names = [*_parameters(function), *(f"bound_{i}" for i in range(len(positional)))]
    return (
        tuple(BoundArgument(n, v, is_argument(v, libraries)) for n, v in zip(names, positional)),
        tuple(BoundArgument(n, v, is_argument(v, libraries)) for n, v in named.items()),
    )


def is_argument(value: Any, libraries: Sequence[Library]) -> bool:
    """Whether a bound value is traced rather than constant."""
    if holds_object(value, libraries):
        return True
    # A tree with anything but arrays is a constant, as `jax.jit` cannot trace the rest.
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


@dataclass(frozen=True)
class ArgumentChoice:
    """Arguments by number, a negative one counted from the last of a call, and by name."""

    numbers: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    def positions(self, arguments: int) -> frozenset[int]:
        """Which of as many positional arguments."""
        inside = (n for n in self.numbers if -arguments <= n < arguments)
        return frozenset(n % arguments for n in inside)

    def without_first(self, count: int) -> "ArgumentChoice":
        """The same for a function with its first arguments bound."""
        kept = (n if n < 0 else n - count for n in self.numbers if n < 0 or n >= count)
        # A negative number counts from the end, which binding first arguments does not move.
        return ArgumentChoice(frozenset(kept), self.names)


def chosen_arguments(
    function: Callable[..., Any], options: Mapping[str, Any], kind: Literal["static", "donate"]
) -> ArgumentChoice:
    """What `<kind>_argnums` and `<kind>_argnames` choose; each one says the other, as for
    `jax.jit`.
    """
    numbers = set(_several(options.get(f"{kind}_argnums")))
    names = set(_several(options.get(f"{kind}_argnames")))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    # Either option implies the other where a parameter can be given both ways.
    either = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return ArgumentChoice(
        frozenset(numbers | {either.index(name) for name in names if name in either}),
        frozenset(names | {either[n] for n in numbers if 0 <= n < len(either)}),
    )


def _several(given: Any) -> Iterable[Any]:
    if given is None:
        return ()
    return (given,) if isinstance(given, int | str) else given
