"""A step's microbatches as loops: the program of `separate` as equations, its loops as `lax.scan`.

Sums over microbatches are accumulated in float32 where the step has a shorter type, and cast back
at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax, numpy as jnp
from jax.extend import core
from jax.extend.core import jaxpr_as_fun

from automap.jax_compat import new_jaxpr
from automap.jaxpr.microbatch.build import emit, join_parts, split_parts, variables
from automap.jaxpr.microbatch.dependence import Operator
from automap.jaxpr.microbatch.program import MicrobatchProgram, Pass, Sum


# Sums of shorter floats are kept in this many bits.
FULL_BITS = 32

_Values = dict[Any, Any]
COMBINE: Mapping[Operator, Callable[[Any, Any], Any]] = {
    "add": lax.add,
    "and": lax.bitwise_and,
    "max": lax.max,
    "min": lax.min,
    "mul": lax.mul,
    "or": lax.bitwise_or,
}


def run(program: MicrobatchProgram, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a program for the step's flat inputs; to be traced."""
    values: _Values = dict(zip(program.inputs, inputs, strict=True))
    values.update(zip(program.constants, program.values, strict=True))
    values.update(evaluate(program.before, values))
    # What needs a finished sum runs after the loop that makes it, and may feed another loop.
    for loop_pass in program.passes:
        values.update(_looped(program, loop_pass, values))
        values.update(evaluate(loop_pass.middle, values))
    values.update(evaluate(program.after, values))
    return [a.val if isinstance(a, core.Literal) else values[a] for a in program.outputs]


def evaluate(eqns: Sequence[Any], values: Mapping[Any, Any]) -> _Values:
    """All results of equations, by variable, given the values they need."""
    defined = {var for eqn in eqns for var in eqn.outvars}
    # In the order of their first use, so that equal programs are built alike.
    used = {atom: None for eqn in eqns for atom in variables(eqn.invars) if atom not in defined}
    results = [v for eqn in eqns for v in eqn.outvars if not isinstance(v, core.DropVar)]
    function = jaxpr_as_fun(new_jaxpr("microbatched step", list(used), results, eqns))
    return dict(zip(results, function(*(values[var] for var in used)), strict=True))


def _looped(program: MicrobatchProgram, loop_pass: Pass, values: _Values) -> _Values:
    """The results of one loop over the microbatches."""
    # Sums are carried; of what every microbatch computes alike the last one's result is taken.
    added = [s for s in loop_pass.sums if s.operator != "last"]
    repeats = [s for s in loop_pass.sums if s.operator == "last"]
    cut = [
        split_parts(values[s.whole], dim=0, outer=s.outer, parts=program.microbatches)
        for s in program.slices
    ]
    # int32 whatever x64 says: the index of the loop has this type in the program.
    numbers = jnp.arange(program.microbatches, dtype=jnp.int32)

    start = [neutral(s.operator, s.total.aval) for s in added]
    before = [core.Var(jax.typeof(total)) for total in start]
    additions, sums = _additions(loop_pass, added, before)

    def microbatch(totals: list[Any], numbered: tuple[Any, list[Any]]) -> tuple[Any, Any]:
        number, slices = numbered
        here = {**values, program.index: number, **dict(zip(before, totals, strict=True))}
        here.update(zip((s.part for s in program.slices), slices, strict=True))
        here.update(evaluate((*loop_pass.loop, *additions), here))
        stacked = [here[s.term] for s in repeats], [here[j.part] for j in loop_pass.joins]
        return [here[var] for var in sums], stacked

    totals, (repeated, parts) = lax.scan(microbatch, start, (numbers, cut))
    results = {s.total: t.astype(s.total.aval.dtype) for s, t in zip(added, totals)}
    results.update((s.total, stack[-1]) for s, stack in zip(repeats, repeated))
    for join, part in zip(loop_pass.joins, parts):
        sample_dimension = join.sample_dimension
        results[join.whole] = join_parts(
            part, dim=sample_dimension.dim, outer=sample_dimension.outer or 1
        )
    return results


def _additions(
    loop_pass: Pass, added: Sequence[Sum], before: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Equations that add a microbatch's terms to the totals `before` it, and the new totals.

    Each has the name of what makes its term: what adds up gradients is of the backward pass too.
    """
    origins = {var: eqn for eqn in loop_pass.loop for var in eqn.outvars}
    eqns: list[Any] = []
    sums = []
    for sum_, total in zip(added, before, strict=True):

        def add(so_far: Any, term: Any, operator: Operator = sum_.operator) -> Any:
            return COMBINE[operator](so_far, term.astype(so_far.dtype))

        sums += emit(add, [total, sum_.term], eqns, origins[sum_.term])
    return eqns, sums


def neutral(operator: Operator, aval: Any) -> jax.Array:
    """What a sum, a product or a largest element starts from."""
    dtype = aval.dtype
    is_bool = jnp.issubdtype(dtype, jnp.bool_)
    if operator == "add":
        is_short = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < FULL_BITS
        return jnp.zeros(aval.shape, jnp.float32 if is_short else dtype)
    if operator in ("max", "min"):
        if jnp.issubdtype(dtype, jnp.inexact):
            limits = (-jnp.inf, jnp.inf)
        else:
            limits = (False, True) if is_bool else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
        return jnp.full(aval.shape, limits[operator == "min"], dtype)
    # "and" and "or" of integers are of their bits.
    others = {"and": True if is_bool else -1, "mul": 1, "or": 0}
    return jnp.full(aval.shape, others[operator], dtype)
