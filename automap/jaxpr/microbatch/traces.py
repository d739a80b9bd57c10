"""Two traces of a step, at batch B and at batch B/m, equation by equation.

They must have the same equations in the same order, reading the same values: then one is the other
but for its shapes, its literals and the parameters made from them.             -> in: `align`

At size 1 code takes other ways (nothing to index, nothing to broadcast), so that its trace is
unlike that of a batch. So the trace of one sample is computed: every size in a trace of n samples
is a + c n; two traces give a and c, and a + c is the size at one sample.       -> in: `one_sample`
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from jax.extend import core
from jax.extend.source_info_util import summarize
import numpy as np

from automap.errors import NotSeparableError
from automap.jax_compat import rebuild_jaxpr
from automap.jaxpr.flatten import Equation, FlatJaxpr


@dataclass(frozen=True, slots=True)
class EquationPair:
    """An equation of both traces."""

    full: Equation
    micro: Equation
    bodies: tuple["JaxprPair", ...]


@dataclass(frozen=True, slots=True)
class JaxprPair:
    """A flat jaxpr of both traces; `micro_variable` maps the variables of the first to those of the
    second.
    """

    full: FlatJaxpr
    micro: FlatJaxpr
    pairs: tuple[EquationPair, ...]
    micro_variable: dict[Any, Any]


def align(full: FlatJaxpr, micro: FlatJaxpr) -> JaxprPair:
    """Both traces together. Raises `NotSeparableError` where they differ in more than shapes."""
    micro_variable: dict[Any, Any] = {}
    micro_variable.update(_zipped(full.invars, micro.invars, full.equations))
    micro_variable.update(_zipped(full.constvars, micro.constvars, full.equations))
    if len(full.equations) != len(micro.equations):
        raise _differ(full.equations, f"{len(full.equations)} and {len(micro.equations)} equations")
    pairs = []
    for a, b in zip(full.equations, micro.equations):
        names = a.eqn.primitive.name, b.eqn.primitive.name
        if names[0] != names[1]:
            raise _differ((a,), f"{names[0]} and {names[1]}")
        # Equal primitives on other values would be another computation.
        for x, y in _zipped(a.eqn.invars, b.eqn.invars, (a,)):
            if isinstance(x, core.Literal) != isinstance(y, core.Literal):
                raise _differ((a,), "an operand is a number in one of them only")
            if not isinstance(x, core.Literal) and micro_variable[x] is not y:
                raise _differ((a,), "it reads another value")
        micro_variable.update(_zipped(a.eqn.outvars, b.eqn.outvars, (a,)))
        bodies = tuple(align(x.flat, y.flat) for x, y in _zipped(a.bodies, b.bodies, (a,)))
        pairs.append(EquationPair(a, b, bodies))
    for x, y in _zipped(full.outvars, micro.outvars, full.equations):
        is_same = (
            isinstance(y, core.Literal) if isinstance(x, core.Literal) else micro_variable[x] is y
        )
        if not is_same:
            raise _differ(full.equations[-1:], "it returns another value")
    return JaxprPair(full, micro, tuple(pairs), micro_variable)


def source_line(equation: Equation) -> str:
    """The user's line that an equation comes from, "" if unknown."""
    infos = (equation.eqn.source_info, *equation.callers)
    return next(filter(None, map(summarize, infos)), "")


def _zipped(a: Any, b: Any, near: tuple[Equation, ...]) -> Iterator[tuple[Any, Any]]:
    if len(a) != len(b):
        raise _differ(near, f"{len(a)} and {len(b)} values")
    return zip(a, b)


def _differ(near: tuple[Equation, ...], what: str) -> NotSeparableError:
    first = near[0] if near else None
    op = f"{first.eqn.primitive.name} at {source_line(first)}: " if first else ""
    return NotSeparableError(
        f"{op}the step computes something else with a smaller batch ({what}); it cannot be run in "
        "microbatches if its code depends on the size of the batch"
    )


def one_sample(
    full: FlatJaxpr, other: FlatJaxpr, full_samples: int, other_samples: int
) -> FlatJaxpr:
    """The flat jaxpr of a trace of one sample, of jaxprs that are aligned (`align`).

    Raises `NotSeparableError` for a size that would not be an integer, or negative.
    """
    return _Line(full_samples, other_samples).at_one_sample(full, other)


@dataclass(frozen=True, slots=True)
class _Line:
    """The two numbers of samples."""

    full: int
    other: int

    def at_one(self, full: Any, other: Any) -> Any:
        """A parameter at one sample; as in the other trace if it is no size."""
        sizes = int, np.integer
        if isinstance(full, sizes) and isinstance(other, sizes) and not isinstance(full, bool):
            # The line through (n, size) of both traces, at n = 1.
            size, rest = divmod((full - other) * (1 - self.other), self.full - self.other)
            # A size that is no line in n comes from code that looks at the size of the batch.
            if rest:
                raise NotSeparableError(
                    f"a size of {full} with {self.full} samples and of {other} with {self.other} "
                    "does not grow with them; the step cannot be run in microbatches of one sample"
                )
            return int(other + size)
        # Exactly tuples and lists: dimension numbers and the like are their own types.
        for kind in (tuple, list):
            if type(full) is kind and type(other) is kind and len(full) == len(other):
                return kind(self.at_one(a, b) for a, b in zip(full, other))
        return other

    def var(self, full: Any, other: Any) -> Any:
        """A variable of the shape at one sample."""
        shape = self.at_one(tuple(full.aval.shape), tuple(other.aval.shape))
        if min(shape, default=0) < 0:
            raise NotSeparableError(
                f"an array of shape {full.aval.shape} with {self.full} samples would have shape "
                f"{shape} with one; the step cannot be run in microbatches of one sample"
            )
        return core.Var(other.aval.update(shape=shape))

    def at_one_sample(self, full: FlatJaxpr, other: FlatJaxpr) -> FlatJaxpr:
        """A flat jaxpr whose variables, parameters and bodies are those of one sample."""
        new_variables: dict[Any, Any] = {}

        def made(a: Any, b: Any) -> list[Any]:
            new = [self.var(x, y) for x, y in zip(a, b, strict=True)]
            new_variables.update(zip(b, new))
            return new

        def read(atoms: Any) -> list[Any]:
            return [a if isinstance(a, core.Literal) else new_variables[a] for a in atoms]

        invars, constvars = made(full.invars, other.invars), made(full.constvars, other.constvars)
        equations = []
        for a, b in zip(full.equations, other.equations, strict=True):
            params = {n: self.at_one(a.eqn.params.get(n), v) for n, v in b.eqn.params.items()}
            inputs = read(b.eqn.invars)
            outputs = made(a.eqn.outvars, b.eqn.outvars)
            eqn = b.eqn.replace(invars=inputs, outvars=outputs, params=params)
            bodies = tuple(
                replace(y, flat=self.at_one_sample(x.flat, y.flat))
                for x, y in zip(a.bodies, b.bodies)
            )
            equations.append(replace(b, eqn=eqn, bodies=bodies))
        outvars = read(other.outvars)
        eqns = [equation.eqn for equation in equations]
        original = rebuild_jaxpr(
            other.original, constvars, other.consts, outvars, eqns, invars=invars
        )
        return replace(
            other,
            original=original,
            constvars=tuple(constvars),
            equations=tuple(equations),
            outvars=tuple(outvars),
        )
