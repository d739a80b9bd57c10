"""The jitted functions of a pipeline's programs. A stage's loop programs are those of its own share
of a microbatch.

loop(totals, i, parts, fixed, received) -> (totals + terms, made)          replica j of r is microbatch i r + j of M r
start() -> totals [parts, ..], most with a part for each replica;   finish(totals) -> sums over the replicas

Where results lie is said of all of a stage of replicas: a process that holds nothing of it has to
know it too.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
from jax import lax, numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from automap.jaxpr.microbatch import Pass
from automap.jaxpr.microbatch.build import join_parts
from automap.runtime.microbatched import COMBINE, evaluate, neutral
from automap.runtime.pipeline.numbered import Numbered
from automap.runtime.pipeline.pinned import StagePins
from automap.runtime.pipeline.places import WHOLE, Form, StagePlace, SumForm
from automap.runtime.pipeline.programs import LoopProgram
from automap.runtime.pipeline.told import Told
from automap.runtime.processes import process_numbers, where_held


_REDUCE: Mapping[str, Callable[[Any], Any]] = {
    "add": lambda x: x.sum(0),
    "and": lambda x: lax.reduce_and(x, [0]),
    "last": lambda x: x[0],
    "max": lambda x: x.max(0),
    "min": lambda x: x.min(0),
    "mul": lambda x: x.prod(0),
    "or": lambda x: lax.reduce_or(x, [0]),
}


def form_of(numbers: Numbered, value: int) -> Form:
    """How a value of a microbatch travels."""
    var, program = numbers.variables[value], numbers.program
    if var in program.sample_dimensions:
        return Form(program.sample_dimensions[var], None)
    return Form(None, program.parts[var]) if var in program.parts else WHOLE


def loop_function(
    numbers: Numbered,
    turn: Pass,
    program: LoopProgram,
    place: StagePlace,
    forms: Sequence[SumForm],
    pins: StagePins | None,
) -> Any:
    """The jitted `loop` of a program; `forms` are of its sums."""
    var, axes = numbers.variables, place.replica_axes
    eqns: Sequence[Any] = [turn.loop[n] for n in program.equations]
    eqns = eqns if pins is None else pins.of_loop(eqns)
    sums = [turn.sums[n] for n in program.sums]
    received = [(var[v], form_of(numbers, v)) for v in program.received]
    made = [(var[v], form_of(numbers, v)) for v in program.made]
    step_wide = [var[v] for v in (*program.parts, *program.fixed)]

    def local(number: Any, parts: Any, fixed: Any, arrived: Any) -> Any:
        values = dict(zip(step_wide, (*parts, *fixed), strict=True))
        replica = lax.axis_index(axes).astype("int32")
        values[numbers.program.index] = number * place.replicas + replica
        both = zip(received, arrived, strict=True)
        values.update((v, form.continued(x, axes)) for (v, form), x in both)
        values.update(evaluate(eqns, values))
        return [values[each.term][None] for each in sums], [
            form.packed(values[v], axes) for v, form in made
        ]

    whole, apart = PartitionSpec(), PartitionSpec(axes)
    by_replica = jax.shard_map(
        local,
        mesh=place.mesh,
        axis_names=set(axes),
        check_vma=False,
        in_specs=(
            whole,
            [apart] * len(program.parts),
            [whole] * len(program.fixed),
            [form.spec(axes) for _, form in received],
        ),
        out_specs=([apart] * len(sums), [form.spec(axes) for _, form in made]),
    )

    def run(totals: Any, *given: Any) -> Any:
        terms, made = by_replica(*given)
        added = []
        for each, form, total, x in zip(sums, forms, totals, terms, strict=True):
            term = form.term(x.astype(total.dtype), place)
            added.append(term if each.operator == "last" else COMBINE[each.operator](total, term))
        return added, made

    run.__name__ = f"{program.role.kind}_of_stage_{program.role.stage}"
    shardings = (
        [form.sharding(place) for form in forms],
        [place.sent(form) for _, form in made],
    )
    return _on(place, jax.jit(run, donate_argnums=0, out_shardings=shardings), shardings[1])


def start_function(
    turn: Pass, program: LoopProgram, place: StagePlace, forms: Sequence[SumForm]
) -> Any:
    """The jitted `start`: what totals begin with."""

    def start() -> list[jax.Array]:
        found = []
        for number, form in zip(program.sums, forms, strict=True):
            each = turn.sums[number]
            aval = each.total.aval
            first = (
                jnp.zeros(aval.shape, aval.dtype)
                if each.operator == "last"
                else neutral(each.operator, aval)
            )
            found.append(jnp.broadcast_to(first, (form.parts(place), *first.shape)))
        return found

    shardings = [form.sharding(place) for form in forms]
    return _on(place, jax.jit(start, out_shardings=shardings))


def finish_function(
    turn: Pass, program: LoopProgram, place: StagePlace, shardings: Sequence[NamedSharding | None]
) -> Any:
    """The jitted `finish`: sums over the replicas in the types of the step."""

    def finish(totals: Sequence[jax.Array]) -> list[jax.Array]:
        each = [turn.sums[n] for n in program.sums]
        return [
            _REDUCE[s.operator](t).astype(s.total.aval.dtype)
            for s, t in zip(each, totals, strict=True)
        ]

    return _on(place, jax.jit(finish, out_shardings=list(shardings)))


def once_function(
    eqns: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    place: StagePlace,
    shardings: Sequence[NamedSharding | None],
    pins: StagePins | None,
    donated: Sequence[int] = (),
) -> Any:
    """Jitted equations that a stage computes once a step; the inputs at positions `donated` end
    there.
    """
    eqns = eqns if pins is None else pins.of_once(eqns)

    def once(*given: jax.Array) -> list[jax.Array]:
        values = dict(zip(inputs, given, strict=True))
        values.update(evaluate(eqns, values))
        return [values[v] for v in outputs]

    run = jax.jit(once, out_shardings=list(shardings), donate_argnums=tuple(donated))
    return _on(place, run, shardings)


def join_function(numbers: Numbered, value: int, place: StagePlace) -> Any:
    """Jitted: the parts of an output in all microbatches -> the output, whole."""
    form = form_of(numbers, value)
    layout = form.layout

    def join(parts: Sequence[jax.Array]) -> jax.Array:
        if layout is None:
            return parts[-1]
        stack = jnp.stack([form.unpacked(part) for part in parts])
        return join_parts(stack, dim=layout.dim, outer=layout.outer or 1)

    return _on(place, jax.jit(join, out_shardings=place.whole))


@cache
def part_function(place: StagePlace, samples: int) -> Any:
    """Jitted: a batch input that is whole on a stage, a microbatch's number -> its part."""

    def part(x: jax.Array, number: int) -> jax.Array:
        return lax.dynamic_slice_in_dim(x, number * samples, samples)

    return _on(place, jax.jit(part, out_shardings=place.whole))


def _on(place: StagePlace, run: Any, chosen: Sequence[NamedSharding | None] = ()) -> Any:
    """`run` in all processes; of results that are not `chosen` to lie in a way they have to hear."""
    is_shared = len(process_numbers(place.everyone)) > 1
    if is_shared and any(sharding is None for sharding in chosen):
        return Told(run, place.mesh, place.everyone)
    return where_held(run, place.mesh.devices.flat)
