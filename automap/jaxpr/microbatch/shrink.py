"""What the trace of one sample would be, from two traces of more.

At size 1 code takes other ways (nothing to index, nothing to broadcast), so that its trace is unlike that of a
batch.  Every size in a trace of n samples is a + c n; two traces give a and c, and a + c is the size
at one sample.                                                                   -> in: `_Line.at_one`
"""

from dataclasses import dataclass, replace
from typing import Any

from jax.extend import core
import numpy as np

from automap.errors import NotSeparableError
from automap.jax_compat import rebuild_jaxpr
from automap.jaxpr.flatten import Level


def one_sample(full: Level, other: Level, full_samples: int, other_samples: int) -> Level:
    """The level of a trace of one sample, of levels that are aligned (`align`).

    Raises `NotSeparableError` for a size that would not be an integer, or negative.
    """
    return _Line(full_samples, other_samples).level(full, other)


@dataclass(frozen=True, slots=True)
class _Line:
    """The two numbers of samples."""

    full: int
    other: int

    def at_one(self, full: Any, other: Any) -> Any:
        """A parameter at one sample; as in the other trace if it is no size."""
        sizes = int, np.integer
        if isinstance(full, sizes) and isinstance(other, sizes) and not isinstance(full, bool):
            size, rest = divmod((full - other) * (1 - self.other), self.full - self.other)
            if rest:
                raise NotSeparableError(
                    f"a size of {full} with {self.full} samples and of {other} with {self.other} "
                    "does not grow with "
                    "them; the step cannot be run in microbatches of one sample"
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
                f"{shape} with one; the "
                "step cannot be run in microbatches of one sample"
            )
        return core.Var(other.aval.update(shape=shape))

    def level(self, full: Level, other: Level) -> Level:
        """A level whose variables, parameters and bodies are those of one sample."""
        var_of: dict[Any, Any] = {}

        def made(a: Any, b: Any) -> list[Any]:
            new = [self.var(x, y) for x, y in zip(a, b, strict=True)]
            var_of.update(zip(b, new))
            return new

        def read(atoms: Any) -> list[Any]:
            return [a if isinstance(a, core.Literal) else var_of[a] for a in atoms]

        invars, constvars = made(full.invars, other.invars), made(full.constvars, other.constvars)
        equations = []
        for a, b in zip(full.equations, other.equations, strict=True):
            params = {n: self.at_one(a.eqn.params.get(n), v) for n, v in b.eqn.params.items()}
            inputs = read(b.eqn.invars)
            outputs = made(a.eqn.outvars, b.eqn.outvars)
            eqn = b.eqn.replace(invars=inputs, outvars=outputs, params=params)
            bodies = tuple(
                replace(y, level=self.level(x.level, y.level)) for x, y in zip(a.bodies, b.bodies)
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
