"""One step of the corpus: a training step (or one of inference, of sampling) of a public library,
with arguments.

Each entry's function returns `(step, args)` or `(step, args, kwargs)`: the step as the library's
documentation writes it, jitted the way that shows, with small arrays that are the same at every
call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
import importlib
from typing import Any

import jax
import numpy as np


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
        """The step, the same one at every call, with arrays of their own that it may change or
        donate.
        """
        call = _call(self)
        args, kwargs = jax.tree.map(_copied, (call.args, call.kwargs))
        return Call(call.step, args, kwargs)


@cache
def _call(entry: Entry) -> Call:
    """Imports the library."""
    made = getattr(importlib.import_module(f"tests.corpus.{entry.module}"), entry.function)()
    step, args, *kwargs = made
    return Call(step, tuple(args), kwargs[0] if kwargs else {})


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return jax.device_put(leaf, may_alias=False) if isinstance(leaf, jax.Array) else leaf
