"""Fingerprint of a step's equations: the SHA-256 of a text without addresses, names or traces
(`jaxpr_sha256` in plan files).

Per flat jaxpr: avals of parameters and constants, then per equation the primitive, its operands
(variables by order of first appearance, literals by value), its parameters and the avals of its
results. Two processes that trace the same step with the same JAX get the same text; constants count
by aval, not by value.
"""

from collections.abc import Callable, Iterator
from functools import cache
import hashlib
import re
from typing import Any

from jax.extend import core
from jax.sharding import NamedSharding
import numpy as np

from automap.jax_compat import open_jaxpr
from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.step.user_constraints import constraint_text, is_constraint


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|(?<=id=)[0-9]+")
# Closures of the differentiation rules, which a traced step no longer uses.
_IGNORED = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "name", "debug_info"})


def jaxpr_sha256(flat: FlatJaxpr) -> str:
    """Hexadecimal SHA-256 of a step, equal in every process that traces the same one."""
    digest = hashlib.sha256()
    for line in _jaxpr_lines(flat):
        digest.update(line.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def program_sha256(jaxpr: Any, note: str) -> str:
    """Hexadecimal SHA-256 of a program that is a part of a step, and of a note about it."""
    return hashlib.sha256(f"{note}; {_jaxpr_text(jaxpr)}".encode()).hexdigest()


def _jaxpr_lines(flat: FlatJaxpr) -> Iterator[str]:
    # A variable is known by when it first appears; JAX's own names and counts differ by trace.
    number = {var: n for n, var in enumerate((*flat.constvars, *flat.invars))}
    yield f"{flat.name} {[_aval(v) for v in flat.constvars]} {[_aval(v) for v in flat.invars]}"
    for equation in flat.equations:
        yield _equation_line(equation, number)
        for body in equation.bodies:
            yield from _jaxpr_lines(body.flat)
    yield f"-> {[_atom(atom, number) for atom in flat.outvars]}"


def _equation_line(equation: Equation, number: dict[Any, int]) -> str:
    eqn = equation.eqn
    operands = [_atom(atom, number) for atom in eqn.invars]
    # Numbers instead of names: those of variables differ from trace to trace.
    for var in eqn.outvars:
        number.setdefault(var, len(number))
    rewritten = _IGNORED.union(body.parameter for body in equation.bodies)
    if is_constraint(eqn):
        # The mesh and its devices are the plan's in the end.
        params = {"axes": constraint_text(eqn)}
    else:
        params = {k: _text(v) for k, v in sorted(eqn.params.items()) if k not in rewritten}
    return f"{eqn.primitive.name} {operands} {params} {[_aval(v) for v in eqn.outvars]}"


def _atom(atom: Any, number: dict[Any, int]) -> str:
    if isinstance(atom, core.Literal):
        return f"{_text(atom.val)}:{_aval(atom)}"
    return f"v{number[atom]}"


def _aval(atom: Any) -> str:
    return _aval_text(atom.aval)


@cache
def _aval_text(aval: Any) -> str:
    return f"{aval.str_short()}{'*' if getattr(aval, 'weak_type', False) else ''}"


def _text(value: Any) -> str:
    """A parameter's text, equal in every process."""
    if value is None or isinstance(value, (bool, int, float, complex, str, np.dtype)):
        return repr(value)
    for kind, render in _RENDERERS:
        if isinstance(value, kind):
            return render(value)
    if hasattr(value, "eqns"):
        return _jaxpr_text(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", repr(value))


def _jaxpr_text(jaxpr: Any) -> str:
    """An inner jaxpr of an equation that is not taken apart, such as a shard_map's."""
    inner, _ = open_jaxpr(jaxpr)
    number = {var: n for n, var in enumerate((*inner.constvars, *inner.invars))}
    lines = [str([_aval(var) for var in number])]
    for eqn in inner.eqns:
        lines.append(_equation_line(Equation(path="", eqn=eqn, bodies=()), number))
    return "; ".join((*lines, str([_atom(atom, number) for atom in inner.outvars])))


def _array_text(array: Any) -> str:
    values = np.asarray(array)
    if values.ndim == 0:
        return repr(values.item())
    return f"{values.dtype}{values.shape}{hashlib.sha256(values.tobytes()).hexdigest()}"


_RENDERERS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (tuple, lambda v: f"{type(v).__name__}({', '.join(map(_text, v))})"),
    (list, lambda v: f"[{', '.join(map(_text, v))}]"),
    ((set, frozenset), lambda v: f"{{{', '.join(sorted(map(_text, v)))}}}"),
    (dict, lambda v: f"{{{', '.join(sorted(f'{_text(k)}: {_text(x)}' for k, x in v.items()))}}}"),
    ((np.ndarray, np.generic), _array_text),
    # What differentiation writes beside constraints: on axes of type Auto it says nothing, its mesh
    # less.
    (NamedSharding, lambda v: f"NamedSharding({v.spec})"),
)
