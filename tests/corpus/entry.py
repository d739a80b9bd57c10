"""One step of the corpus: a training step (or one of inference, of sampling) of a public library,
with arguments.

Each entry's function returns `(step, args)` or `(step, args, kwargs)`: the step as the library's
documentation writes it, jitted the way that shows, with small arrays that are the same at every
call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import importlib
from typing import Any


@dataclass(frozen=True)
class Call:
    """A step and its arguments."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A row of the corpus.

    `library` is the distribution's name, `module` a file of this folder, `function` one in it.
    `carried` are positions of the arguments that the first results replace in the next call; none
    if the step changes them in place.
    """

    library: str
    module: str
    function: str
    kind: str
    carried: tuple[int, ...] = (0,)

    @property
    def name(self) -> str:
        """What tests and the table call it."""
        return f"{self.module.removesuffix('_steps')}:{self.function}"

    def make(self) -> Call:
        """The step with new arguments, equal at every call. Imports the library."""
        made = getattr(importlib.import_module(f"tests.corpus.{self.module}"), self.function)()
        step, args, *kwargs = made
        return Call(step, tuple(args), kwargs[0] if kwargs else {})
