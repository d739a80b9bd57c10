"""A traced step -> its program in microbatches.

    trace at B, trace at B/m (one sample: `automap.jaxpr.microbatch.traces`) -> flatten -> align ->
    separate -> schedule

Separated first with factors that are known only after the loop kept back; where that does not do,
with a second loop for gradients that need a sum over the whole batch.

The arguments do not say which arrays hold the samples: frozen weights, of a base model under
adapters or of a teacher, are no state either, and caches of requests are. The batch is the leading
size (`automap.jaxpr.microbatch.batches`) along which the step can be separated with most of its
products in the loops, at least half of them; of several with as many, the one that most arrays
share                                                               -> in: `_most_in_loops`
Weights may be as wide as the batch is large. A step that cannot be traced with another size of all
arrays of a size is separated along those of all but one argument or part of one, or along the state
of that size too                                                    -> in: `_separated`
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import jax
from jax import numpy as jnp
from jax.extend import core

from automap.errors import InputError, NotSeparableError
from automap.jax_compat import has_ordered_effects, open_jaxpr, weak_shape
from automap.jaxpr.flatten import FlatJaxpr, flatten
from automap.jaxpr.microbatch.batches import (
    Leaves,
    candidates,
    carried,
    sample_count,
    with_state,
    without_one_part,
)
from automap.jaxpr.microbatch.build import element_count, new_variable
from automap.jaxpr.microbatch.dependence import Batched, Dependence, Known, Partial
from automap.jaxpr.microbatch.equations import separate_equation
from automap.jaxpr.microbatch.program import (
    JoinedOutput,
    MicrobatchProgram,
    SampleDimension,
    SeparatedStep,
    Slice,
    order_equations,
)
from automap.jaxpr.microbatch.separation import LateSums, Separation, Setting
from automap.jaxpr.microbatch.traces import JaxprPair, align, one_sample
from automap.step.call import TracedCall


# The fewest samples that code treats as a batch.
SMALLEST = 2
_PRODUCTS: Final = frozenset({"conv_general_dilated", "dot_general", "ragged_dot"})
# Of its products in the loops, for a step to gain from microbatches.
_LEAST_SHARE: Final = 0.5
# Of the arrays that have been taken for the batch, in a message.
_MOST_NAMED: Final = 3

# Which samples of the batch are a microbatch: a run of them, or every m-th one, so that each part
# of a batch that is split in runs has its share of every microbatch.
SampleOrder = Literal["runs", "every m-th"]

# A flat jaxpr -> one with the same results, and the number of the step's leaf that each of its
# inputs is (a part of).
Rewrite = Callable[[FlatJaxpr], tuple[FlatJaxpr, Sequence[int]]]


# A step's program if these leaves of its call are its batch.
_Along = Callable[[Leaves], MicrobatchProgram]


class _NotTracedError(NotSeparableError):
    """The step cannot be traced with another number of samples."""


def as_it_is(flat: FlatJaxpr) -> tuple[FlatJaxpr, Sequence[int]]:
    """The jaxpr itself."""
    return flat, range(len(flat.invars))


def separate(
    call: TracedCall,
    microbatches: int,
    rewritten: Rewrite = as_it_is,
    order: SampleOrder = "runs",
) -> MicrobatchProgram:
    """The program of a traced step in at least two microbatches.

    `rewritten` gives both traces other equations of the same results first; inputs and outputs of
    the program are those of the rewritten trace. `order` says which samples are a microbatch.

    Raises `InputError` for a number of microbatches that is not possible, `NotSeparableError` for a
    step that needs all samples at once.
    """
    if microbatches < 2:
        raise InputError(f"microbatches={microbatches} is not possible; give at least 2")
    # Microbatches would repeat them, as prints in an order that the user relies on.
    if has_ordered_effects(open_jaxpr(call.jaxpr)[0]):
        raise NotSeparableError(
            "the step has side effects in a fixed order, which microbatches would repeat; remove "
            "them"
        )
    groups = candidates(call)

    def along(leaves: Leaves) -> MicrobatchProgram:
        return _separated_along(call, leaves, microbatches, rewritten, order)

    if len(groups) == 1:
        try:
            return _separated(call, groups[0], along)
        except (InputError, NotSeparableError):
            if not carried(call):
                raise
    else:
        separated, refusals = _most_in_loops(call, groups, along)
        if separated is not None:
            return separated[1]
        if not carried(call):
            gains_nothing = NotSeparableError(
                "most products of the step, or all of it, are computed without the samples; it "
                "gains nothing from microbatches"
            )
            raise refusals.get(batch_leaves(call), gains_nothing)
    return _separated(call, batch_leaves(call), along)


def _separated(call: TracedCall, leaves: Leaves, along: _Along) -> MicrobatchProgram:
    """The program if these leaves are the batch; if the step cannot be traced so, that with the
    state of that size besides, or with those of all but one argument or part of one, which has its
    products in the loops.

    Raises the refusal that says most of the step if there is none: of those with which it can be
    traced, that of the most leaves.
    """
    try:
        return along(leaves)
    except _NotTracedError as error:
        not_traced = error
    refusals: dict[Leaves, NotSeparableError] = {}
    for other in (*with_state(call, leaves), *without_one_part(call, leaves)):
        try:
            program = along(other)
        except _NotTracedError:
            # That some arrays of the batch cannot have another size than the rest says nothing.
            continue
        except NotSeparableError as refusal:
            refusals.setdefault(other, refusal)
            continue
        if _share_in_loops(program) >= _LEAST_SHARE:
            return program
    if refusals:
        raise refusals[max(refusals, key=len)]
    raise NotSeparableError(str(not_traced)) from not_traced


def _separated_along(
    call: TracedCall,
    leaves: Leaves,
    microbatches: int,
    rewritten: Rewrite,
    order: SampleOrder,
) -> MicrobatchProgram:
    pair, sources = _traces(call, leaves, microbatches, rewritten)
    batch = tuple(n for n, source in enumerate(sources) if source in leaves)
    samples = pair.micro.invars[batch[0]].aval.shape[0]
    outer = samples if order == "every m-th" else 1
    try:
        # One loop is cheaper than two, so the second way is for steps that need it.
        return _program(pair, batch, microbatches, outer, "scale")
    except NotSeparableError:
        return _program(pair, batch, microbatches, outer, "second loop")


def _traces(
    call: TracedCall, batch: tuple[int, ...], microbatches: int, rewritten: Rewrite
) -> tuple[JaxprPair, Sequence[int]]:
    """The step with the whole batch and with one microbatch, and which leaves its inputs are of."""
    size = sample_count(call, batch)
    if size % microbatches:
        raise InputError(
            f"microbatches={microbatches}: the batch of {size} samples cannot be divided; give a "
            f"divisor of {size}"
        )
    samples = size // microbatches
    # A trace at one sample takes other ways through the user's code; see `one_sample`.
    if samples == 1:
        samples = SMALLEST if size != SMALLEST else SMALLEST + 1
    full, sources = rewritten(flatten(call.jaxpr, {}))
    other, _ = rewritten(flatten(other_call(call, batch, samples).jaxpr, {}))
    pair = align(full, other)
    if size == microbatches:
        pair = align(full, one_sample(full, other, size, samples))
    return pair, sources


def _program(
    pair: JaxprPair, batch: Sequence[int], microbatches: int, order: int, late: LateSums
) -> MicrobatchProgram:
    invars = pair.full.invars
    # What is made of data may be computed whole up to this size: no memory is lost beside the
    # batch.
    limit = max(element_count(invars[n].aval) for n in batch)
    index = open_jaxpr(jax.make_jaxpr(lambda i: i)(jnp.int32(0)))[0].invars[0]
    separation = Separation(
        pair, Setting(microbatches, limit, order, late), separate_equation, new_variable(index)
    )
    inputs: list[Dependence] = [Known(source=_source(var.aval.dtype)) for var in invars]
    for number in batch:
        inputs[number] = Batched(0, order, is_whole=True)
    separation.run(inputs)
    joins, outputs = _outputs(separation)
    made = order_equations(
        SeparatedStep(
            separation.known,
            separation.loop,
            separation.sites,
            list(separation.sums.values()),
            joins,
            outputs,
        )
    )
    return MicrobatchProgram(
        microbatches=microbatches,
        index=separation.index,
        inputs=tuple(invars),
        constants=pair.full.constvars,
        values=pair.full.consts,
        slices=tuple(Slice(invars[n], pair.micro.invars[n], order) for n in batch),
        before=made.before,
        passes=made.passes,
        after=made.after,
        outputs=tuple(outputs),
        sample_dimensions={
            separation.atom(var): SampleDimension(dependence.dim, dependence.outer)
            for var, dependence in separation.dependence.items()
            if isinstance(dependence, Batched)
        },
        parts={
            separation.atom(var): dependence.op
            for var, dependence in separation.dependence.items()
            if isinstance(dependence, Partial)
        },
    )


def _outputs(separation: Separation) -> tuple[list[JoinedOutput], list[Any]]:
    """Outputs per sample, and the atoms of all outputs, which are known after the loop."""
    joins: dict[Any, JoinedOutput] = {}
    outputs = []
    equations = separation.pair.full.equations
    for atom in separation.pair.full.outvars:
        outputs.append(atom)
        if isinstance(atom, core.Literal):
            continue
        dependence = separation.read(atom)
        if not isinstance(dependence, Batched):
            # An input that is an output has no equation, but is known as it is.
            separation.finish(atom, equations[-1].eqn if equations else None)
        elif not dependence.is_whole and atom not in joins:
            whole = atom if dependence.scale is None else new_variable(atom)
            joins[atom] = JoinedOutput(
                whole, separation.atom(atom), SampleDimension(dependence.dim, dependence.outer)
            )
            if dependence.scale is not None:
                separation.multiply_after(whole, dependence.scale, atom, equations[-1].eqn)
    return list(joins.values()), outputs


def _source(dtype: Any) -> Literal["data", "parameters"]:
    """Whether an input that is not the batch may be a parameter; keys and counters are none."""
    return "parameters" if jnp.issubdtype(dtype, jnp.inexact) else "data"


def batch_leaves(call: TracedCall) -> Leaves:
    """Numbers of a call's leaves that hold one entry per sample in their first dimension, or are as
    large there by chance.

    Raises `InputError` if there are none.
    """
    groups = candidates(call)
    if len(groups) == 1 and not carried(call):
        return groups[0]

    def along(leaves: Leaves) -> MicrobatchProgram:
        size = sample_count(call, leaves)
        fewest = next((n for n in range(2, size + 1) if size % n == 0), 2)
        return _separated_along(call, leaves, fewest, as_it_is, "runs")

    separated, refusals = _most_in_loops(call, groups, along)
    if separated is None:
        separated, _ = _most_in_loops(call, carried(call), along)
    if separated is not None:
        return separated[0]
    # Of a step that may carry its batch as state the other arrays are weights, most likely.
    return _first_traced(call, carried(call) or list(refusals) or groups)


def _most_in_loops(
    call: TracedCall, groups: Sequence[Leaves], along: _Along
) -> tuple[tuple[Leaves, MicrobatchProgram] | None, dict[Leaves, Exception]]:
    """The first of these groups with most products in its loops, and its program; None if none
    has half of them there. And why the step is not separated along others.
    """
    most, best = 0.0, None
    refusals: dict[Leaves, Exception] = {}
    for leaves in groups:
        try:
            program = _separated(call, leaves, along)
        except (InputError, NotSeparableError) as refusal:
            refusals[leaves] = refusal
            continue
        share = _share_in_loops(program)
        if share >= _LEAST_SHARE and share > most:
            most, best = share, (leaves, program)
        if share == 1.0:
            break
    return best, refusals


def _share_in_loops(program: MicrobatchProgram) -> float:
    """The part of a step's products that is computed for each sample: small along weights that only
    a part of the step is computed with, as the members of an ensemble. 0 without a loop.
    """
    inside = sum(_products(one.loop) for one in program.passes)
    outside = sum(_products(one.middle) for one in program.passes)
    outside += _products((*program.before, *program.after))
    if not program.passes:
        return 0.0
    return inside / (inside + outside) if inside + outside else 1.0


def _products(eqns: Iterable[Any]) -> int:
    """How many matrix products and convolutions equations have, and their bodies."""
    count = 0
    for eqn in eqns:
        count += eqn.primitive.name in _PRODUCTS
        for value in eqn.params.values():
            for body in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(body, (core.Jaxpr, core.ClosedJaxpr)):
                    count += _products(open_jaxpr(body)[0].eqns)
    return count


def _first_traced(call: TracedCall, groups: Sequence[Leaves]) -> Leaves:
    """The first of them with another size of which the step can be traced, which most likely are
    the batch of a step that cannot be separated; else the first.
    """
    for leaves in groups:
        size = sample_count(call, leaves)
        try:
            other_call(call, leaves, SMALLEST if size != SMALLEST else SMALLEST + 1)
        except NotSeparableError:
            continue
        return leaves
    return groups[0]


def other_call(call: TracedCall, batch: tuple[int, ...], samples: int) -> TracedCall:
    """A call with another number of samples in its batch.

    Raises `NotSeparableError` if the step cannot be traced with it.
    """
    size = sample_count(call, batch)
    arrays = [weak_shape(aval) for aval in call.jaxpr.in_avals]
    for number in batch:
        whole = arrays[number]
        shape = (samples, *whole.shape[1:])
        arrays[number] = jax.ShapeDtypeStruct(shape, whole.dtype, weak_type=whole.weak_type)
    try:
        return call.with_arrays(arrays)
    except InputError as error:
        raise _NotTracedError(
            f"the step cannot be traced with {samples} samples instead of {size} in "
            f"{_named(call, batch)}: {error}; it cannot be run in microbatches if its code depends "
            "on the size of the batch"
        ) from error


def _named(call: TracedCall, leaves: Leaves) -> str:
    more = len(leaves) - _MOST_NAMED
    named = ", ".join(call.paths[leaf] for leaf in leaves[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named
