"""Functions that take the options of `automap.config` as keywords: their signatures and docstrings.

A function is written with `**options: Unpack[OptionKeywords]`, which type checkers and editors
read, and decorated with `with_options`, so that `help` and `inspect.signature` show every option
with its default and its sentence, as the command does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import inspect
import textwrap
from typing import Any, Final, TypedDict, TypeVar

from automap.choices import Option
from automap.config import OptionKeywords


Function = TypeVar("Function", bound=Callable[..., Any])

_COLUMNS: Final = 100
_ENTRY: Final = " " * 4
_CONTINUED: Final = " " * 8


class JitKeywords(TypedDict, total=False):
    """Options of `jax.jit` for a step that is not jitted; see there."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    keep_unused: bool
    inline: bool
    compiler_options: Mapping[str, Any] | None


class ParallelizeKeywords(OptionKeywords, JitKeywords, total=False):
    """What `automap.parallelize` takes besides its own keywords."""


def with_options(
    options: Sequence[Option], *, own: Sequence[Option] = (), rest: str | None = None
) -> Callable[[Function], Function]:
    """Decorator: the signature has `options` in the place of `**options`, the docstring too.

    `own` are options that the function has as parameters of its own, whose sentences are wanted
    alone; `rest` is the name under which the signature goes on to take any keyword.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        signature = signature.replace(parameters=[*_parameters(signature, options, rest)])
        # What `inspect.signature` and editors ask for; the function itself still takes `**options`.
        attributes = vars(function)
        attributes["__signature__"] = signature
        function.__doc__ = _docstring(inspect.getdoc(function) or "", (*own, *options))
        return function

    return decorate


def _parameters(
    signature: inspect.Signature, options: Sequence[Option], rest: str | None
) -> Iterator[inspect.Parameter]:
    for parameter in signature.parameters.values():
        # The options stand where `**options` stood, so that what comes before keeps its place.
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield parameter
            continue
        for option in options:
            default = parameter.empty if option.is_required else option.default
            yield inspect.Parameter(
                option.name, parameter.KEYWORD_ONLY, default=default, annotation=option.type
            )
        if rest is not None:
            yield inspect.Parameter(rest, parameter.VAR_KEYWORD, annotation=Any)


def _docstring(text: str, options: Sequence[Option]) -> str:
    """A docstring with an entry for each option in the place of the entry `**options`."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"{_ENTRY}**options:"))
    # The entry may go on over several indented lines.
    end = first + 1
    while lines[end : end + 1] and lines[end].startswith(_CONTINUED):
        end += 1
    entries = (line for option in options for line in _entry(option))
    return "\n".join((*lines[:first], *entries, *lines[end:]))


def _entry(option: Option) -> list[str]:
    return textwrap.wrap(
        f"{option.name}: {option.text('python')}.",
        width=_COLUMNS - len(_ENTRY),
        initial_indent=_ENTRY,
        subsequent_indent=_CONTINUED,
        # A path or a spec that is broken could not be copied.
        break_long_words=False,
        break_on_hyphens=False,
    )
