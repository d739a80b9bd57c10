"""Which arguments of a call options of `jax.jit` mean, by position and by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
import inspect
from typing import Any, Literal


@dataclass(frozen=True)
class Chosen:
    """Arguments by number, a negative one counted from the last of a call, and by name."""

    numbers: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    def positions(self, arguments: int) -> frozenset[int]:
        """Which of as many positional arguments."""
        inside = (n for n in self.numbers if -arguments <= n < arguments)
        return frozenset(n % arguments for n in inside)

    def without_first(self, count: int) -> "Chosen":
        """The same for a function with its first arguments bound."""
        kept = (n if n < 0 else n - count for n in self.numbers if n < 0 or n >= count)
        return Chosen(frozenset(kept), self.names)


def chosen_arguments(
    function: Callable[..., Any], options: Mapping[str, Any], kind: Literal["static", "donate"]
) -> Chosen:
    """What `<kind>_argnums` and `<kind>_argnames` choose; each one says the other, as for
    `jax.jit`.
    """
    numbers = set(_several(options.get(f"{kind}_argnums")))
    names = set(_several(options.get(f"{kind}_argnames")))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    either = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return Chosen(
        frozenset(numbers | {either.index(name) for name in names if name in either}),
        frozenset(names | {either[n] for n in numbers if 0 <= n < len(either)}),
    )


def _several(given: Any) -> Iterable[Any]:
    if given is None:
        return ()
    return (given,) if isinstance(given, int | str) else given
