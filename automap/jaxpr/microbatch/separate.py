"""A traced step -> its program in microbatches.

    trace at B, trace at B/m (one sample: `automap.jaxpr.microbatch.shrink`) -> flatten -> align ->
    separate -> schedule

Separated first with factors that are known only after the loop kept back; where that does not do,
with a second loop for gradients that need a sum over the whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
from jax import numpy as jnp
from jax.extend import core

from automap.errors import InputError, NotSeparableError
from automap.jax_compat import has_ordered_effects, open_jaxpr
from automap.jaxpr.flatten import Level, flatten
from automap.jaxpr.microbatch.batch import batch_leaves, other_call
from automap.jaxpr.microbatch.build import elements, fresh
from automap.jaxpr.microbatch.equations import separate_equation
from automap.jaxpr.microbatch.pairs import LevelPair, align
from automap.jaxpr.microbatch.program import Joined, Layout, MicroProgram, Parts, Slice, schedule
from automap.jaxpr.microbatch.separation import Late, Separation, Setting
from automap.jaxpr.microbatch.shrink import one_sample
from automap.jaxpr.microbatch.status import Batched, Known, Partial, Status
from automap.step.call import TracedCall


# The fewest samples that code treats as a batch.
SMALLEST = 2

# A level -> one with the same results, and the number of the step's leaf that each of its inputs is
# (a part of).
Rewrite = Callable[[Level], tuple[Level, Sequence[int]]]


def as_it_is(level: Level) -> tuple[Level, Sequence[int]]:
    """The level itself."""
    return level, range(len(level.invars))


def separate(call: TracedCall, microbatches: int, rewritten: Rewrite = as_it_is) -> MicroProgram:
    """The program of a traced step in at least two microbatches.

    `rewritten` gives both traces other equations of the same results first; inputs and outputs of
    the program are those of the rewritten trace.

    Raises `InputError` for a number of microbatches that is not possible, `NotSeparableError` for a
    step that needs all samples at once.
    """
    if microbatches < 2:
        raise InputError(f"microbatches={microbatches} is not possible; give at least 2")
    if has_ordered_effects(open_jaxpr(call.jaxpr)[0]):
        raise NotSeparableError(
            "the step has side effects in a fixed order, which microbatches would repeat; remove "
            "them"
        )
    leaves = batch_leaves(call)
    pair, sources = _traces(call, leaves, microbatches, rewritten)
    batch = tuple(n for n, source in enumerate(sources) if source in leaves)
    try:
        return _program(pair, batch, microbatches, "scale")
    except NotSeparableError:
        return _program(pair, batch, microbatches, "second loop")


def _traces(
    call: TracedCall, batch: tuple[int, ...], microbatches: int, rewritten: Rewrite
) -> tuple[LevelPair, Sequence[int]]:
    """The step with the whole batch and with one microbatch, and which leaves its inputs are of."""
    size = call.jaxpr.in_avals[batch[0]].shape[0]
    if size % microbatches:
        raise InputError(
            f"microbatches={microbatches}: the batch of {size} samples cannot be divided; give a "
            f"divisor of {size}"
        )
    samples = size // microbatches
    if samples == 1:
        samples = SMALLEST if size != SMALLEST else SMALLEST + 1
    full, sources = rewritten(flatten(call.jaxpr, {}))
    other, _ = rewritten(flatten(other_call(call, batch, samples).jaxpr, {}))
    pair = align(full, other)
    if size == microbatches:
        pair = align(full, one_sample(full, other, size, samples))
    return pair, sources


def _program(pair: LevelPair, batch: Sequence[int], microbatches: int, late: Late) -> MicroProgram:
    invars = pair.full.invars
    limit = max(elements(invars[n].aval) for n in batch)
    index = open_jaxpr(jax.make_jaxpr(lambda i: i)(jnp.int32(0)))[0].invars[0]
    separation = Separation(
        pair, Setting(microbatches, limit, late), separate_equation, fresh(index)
    )
    inputs: list[Status] = [Known(source=_source(var.aval.dtype)) for var in invars]
    for number in batch:
        inputs[number] = Batched(0, 1, is_whole=True)
    separation.run(inputs)
    joins, outputs = _outputs(separation)
    made = schedule(
        Parts(
            separation.known,
            separation.loop,
            separation.sites,
            list(separation.sums.values()),
            joins,
            outputs,
        )
    )
    return MicroProgram(
        microbatches=microbatches,
        index=separation.index,
        inputs=tuple(invars),
        constants=pair.full.constvars,
        values=pair.full.consts,
        slices=tuple(Slice(invars[n], pair.micro.invars[n]) for n in batch),
        before=made.before,
        passes=made.passes,
        after=made.after,
        outputs=tuple(outputs),
        layouts={
            separation.atom(var): Layout(status.dim, status.outer)
            for var, status in separation.status.items()
            if isinstance(status, Batched)
        },
        parts={
            separation.atom(var): status.op
            for var, status in separation.status.items()
            if isinstance(status, Partial)
        },
    )


def _outputs(separation: Separation) -> tuple[list[Joined], list[Any]]:
    """Outputs per sample, and the atoms of all outputs, which are known after the loop."""
    joins: dict[Any, Joined] = {}
    outputs = []
    equations = separation.pair.full.equations
    for atom in separation.pair.full.outvars:
        outputs.append(atom)
        if isinstance(atom, core.Literal):
            continue
        status = separation.read(atom)
        if not isinstance(status, Batched):
            # An input that is an output has no equation, but is known as it is.
            separation.finished(atom, equations[-1].eqn if equations else None)
        elif not status.is_whole and atom not in joins:
            whole = atom if status.scale is None else fresh(atom)
            joins[atom] = Joined(whole, separation.atom(atom), Layout(status.dim, status.outer))
            if status.scale is not None:
                separation.scaled(whole, status.scale, atom, equations[-1].eqn)
    return list(joins.values()), outputs


def _source(dtype: Any) -> Literal["data", "parameters"]:
    """Whether an input that is not the batch may be a parameter; keys and counters are none."""
    return "parameters" if jnp.issubdtype(dtype, jnp.inexact) else "data"
