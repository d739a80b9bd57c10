"""Two traces of a step, at batch B and at batch B/m, equation by equation.

They must have the same equations in the same order, reading the same values: then one is the other but
for its shapes, its literals and the parameters made from them.   -> in: `align`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend import core
from jax.extend.source_info_util import summarize

from automap.errors import NotSeparableError
from automap.jaxpr.flatten import Equation, Level


@dataclass(frozen=True, slots=True)
class Pair:
    """An equation of both traces."""

    full: Equation
    micro: Equation
    bodies: tuple["LevelPair", ...]


@dataclass(frozen=True, slots=True)
class LevelPair:
    """A level of both traces; `micro_of` maps the variables of the first to those of the second."""

    full: Level
    micro: Level
    pairs: tuple[Pair, ...]
    micro_of: dict[Any, Any]


def align(full: Level, micro: Level) -> LevelPair:
    """Both traces together. Raises `NotSeparableError` where they differ in more than shapes."""
    micro_of: dict[Any, Any] = {}
    micro_of.update(_zipped(full.invars, micro.invars, full.equations))
    micro_of.update(_zipped(full.constvars, micro.constvars, full.equations))
    if len(full.equations) != len(micro.equations):
        raise _differ(full.equations, f"{len(full.equations)} and {len(micro.equations)} equations")
    pairs = []
    for a, b in zip(full.equations, micro.equations):
        names = a.eqn.primitive.name, b.eqn.primitive.name
        if names[0] != names[1]:
            raise _differ((a,), f"{names[0]} and {names[1]}")
        for x, y in _zipped(a.eqn.invars, b.eqn.invars, (a,)):
            if isinstance(x, core.Literal) != isinstance(y, core.Literal):
                raise _differ((a,), "an operand is a number in one of them only")
            if not isinstance(x, core.Literal) and micro_of[x] is not y:
                raise _differ((a,), "it reads another value")
        micro_of.update(_zipped(a.eqn.outvars, b.eqn.outvars, (a,)))
        bodies = tuple(align(x.level, y.level) for x, y in _zipped(a.bodies, b.bodies, (a,)))
        pairs.append(Pair(a, b, bodies))
    for x, y in _zipped(full.outvars, micro.outvars, full.equations):
        is_same = isinstance(y, core.Literal) if isinstance(x, core.Literal) else micro_of[x] is y
        if not is_same:
            raise _differ(full.equations[-1:], "it returns another value")
    return LevelPair(full, micro, tuple(pairs), micro_of)


def source_line(equation: Equation) -> str:
    """The user's line that an equation comes from, "" if unknown."""
    infos = (equation.eqn.source_info, *equation.callers)
    return next(filter(None, map(summarize, infos)), "")


def _zipped(a: Any, b: Any, near: tuple[Equation, ...]) -> Iterator[tuple[Any, Any]]:
    if len(a) != len(b):
        raise _differ(near, f"{len(a)} and {len(b)} values")
    return zip(a, b)


def _differ(near: tuple[Equation, ...], what: str) -> NotSeparableError:
    found = near[0] if near else None
    op = f"{found.eqn.primitive.name} at {source_line(found)}: " if found else ""
    return NotSeparableError(
        f"{op}the step computes something else with a smaller batch ({what}); it cannot be run in "
        "microbatches if its code depends on the size of the batch"
    )
