"""The jitted functions of a pipeline's programs. A stage's loop programs are those of its own share
of a microbatch.

    loop(totals, i, parts, fixed, received) -> (totals + terms, made)
                                      replica j of r computes microbatch i r + j of M r
    start() -> totals [parts, ..], most with a part for each replica
    finish(totals) -> sums over the replicas

The shardings of all results of a stage of replicas are given: a process that holds nothing of the
stage has to know them too. Where XLA chooses them, the processes that hold the stage send them to
the others at the first call                                      -> in: `BroadcastShardings`
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
from jax import lax, numpy as jnp
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.jaxpr.microbatch import Pass
from automap.jaxpr.microbatch.build import join_parts
from automap.jaxpr.microbatch.loops import COMBINE, evaluate, neutral
from automap.runtime.pipeline.numbered import Numbered
from automap.runtime.pipeline.pinned import StagePins
from automap.runtime.pipeline.places import WHOLE, StagePlace, SumForm, TransferForm
from automap.runtime.pipeline.programs import LoopProgram
from automap.runtime.processes import absent, gathered, process_numbers, where_held


_REDUCE: Mapping[str, Callable[[Any], Any]] = {
    "add": lambda x: x.sum(0),
    "and": lambda x: lax.reduce_and(x, [0]),
    "last": lambda x: x[0],
    "max": lambda x: x.max(0),
    "min": lambda x: x.min(0),
    "mul": lambda x: x.prod(0),
    "or": lambda x: lax.reduce_or(x, [0]),
}


def transfer_form(numbers: Numbered, value: int) -> TransferForm:
    """How a value of a microbatch travels."""
    var, program = numbers.variables[value], numbers.program
    if var in program.sample_dimensions:
        return TransferForm(program.sample_dimensions[var], None)
    return TransferForm(None, program.parts[var]) if var in program.parts else WHOLE


def loop_function(
    numbers: Numbered,
    sweep: Pass,
    program: LoopProgram,
    place: StagePlace,
    forms: Sequence[SumForm],
    pins: StagePins | None,
) -> Any:
    """The jitted `loop` of a program; `forms` are of its sums."""
    var, axes = numbers.variables, place.replica_axes
    eqns: Sequence[Any] = [sweep.loop[n] for n in program.equations]
    eqns = eqns if pins is None else pins.pin_loop_program(eqns)
    sums = [sweep.sums[n] for n in program.sums]
    received = [(var[v], transfer_form(numbers, v)) for v in program.received]
    made = [(var[v], transfer_form(numbers, v)) for v in program.made]
    step_wide = [var[v] for v in (*program.parts, *program.fixed)]

    def local(number: Any, parts: Any, fixed: Any, arrived: Any) -> Any:
        values = dict(zip(step_wide, (*parts, *fixed), strict=True))
        # Inside of `shard_map`: everything here is one replica's own share, without its axes.
        replica = lax.axis_index(axes).astype("int32")
        values[numbers.program.index] = number * place.replicas + replica
        both = zip(received, arrived, strict=True)
        values.update((v, form.resume(x, axes)) for (v, form), x in both)
        values.update(evaluate(eqns, values))
        return [values[each.term][None] for each in sums], [
            form.pack(values[v], axes) for v, form in made
        ]

    # Replicas by hand, so that their terms of a sum stay apart; other axes are the partitioner's.
    # No `check_vma`: the equations were traced outside of `shard_map`, and do not say what varies.
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

    # The totals are donated: a microbatch adds to them in place.
    def run(totals: Any, *given: Any) -> Any:
        terms, made = by_replica(*given)
        added = []
        for each, form, total, x in zip(sums, forms, totals, terms, strict=True):
            term = form.term(x.astype(total.dtype), place)
            added.append(term if each.operator == "last" else COMBINE[each.operator](total, term))
        return added, made

    run.__name__ = f"{program.stage_pass.kind}_of_stage_{program.stage_pass.stage}"
    totals = [form.sharding(place) for form in forms]
    sent = [place.sent(form) for _, form in made]
    laid = [
        Format(Layout.AUTO, sharding) if chooses_layout(numbers, program, v) else sharding
        for v, sharding in zip(program.made, sent, strict=True)
    ]
    return _on(place, jax.jit(run, donate_argnums=0, out_shardings=(totals, laid)), sent)


def chooses_layout(numbers: Numbered, program: LoopProgram, value: int) -> bool:
    """Whether the compiler chooses how a value that a program makes lies in memory: what stays on
    its stage, whose programs take it as it lies, so that nothing is copied to another order and
    back. Keys have an order of their own.
    """
    dtype = numbers.variables[value].aval.dtype
    return value in program.stays and not jnp.issubdtype(dtype, jax.dtypes.extended)


def start_function(
    sweep: Pass, program: LoopProgram, place: StagePlace, forms: Sequence[SumForm]
) -> Any:
    """The jitted `start`: what totals begin with."""

    def start() -> list[jax.Array]:
        totals = []
        for number, form in zip(program.sums, forms, strict=True):
            each = sweep.sums[number]
            aval = each.total.aval
            first = (
                jnp.zeros(aval.shape, aval.dtype)
                if each.operator == "last"
                else neutral(each.operator, aval)
            )
            totals.append(jnp.broadcast_to(first, (form.parts(place), *first.shape)))
        return totals

    shardings = [form.sharding(place) for form in forms]
    return _on(place, jax.jit(start, out_shardings=shardings))


def finish_function(
    sweep: Pass, program: LoopProgram, place: StagePlace, shardings: Sequence[NamedSharding | None]
) -> Any:
    """The jitted `finish`: sums over the replicas in the types of the step."""

    def finish(totals: Sequence[jax.Array]) -> list[jax.Array]:
        each = [sweep.sums[n] for n in program.sums]
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
    eqns = eqns if pins is None else pins.pin_once_program(eqns)

    def once(*given: jax.Array) -> list[jax.Array]:
        values = dict(zip(inputs, given, strict=True))
        values.update(evaluate(eqns, values))
        return [values[v] for v in outputs]

    run = jax.jit(once, out_shardings=list(shardings), donate_argnums=tuple(donated))
    return _on(place, run, shardings)


def join_function(numbers: Numbered, value: int, place: StagePlace) -> Any:
    """Jitted: the parts of an output in all microbatches -> the output, whole."""
    form = transfer_form(numbers, value)
    layout = form.layout

    def join(parts: Sequence[jax.Array]) -> jax.Array:
        if layout is None:
            return parts[-1]
        stack = jnp.stack([form.unpack(part) for part in parts])
        return join_parts(stack, dim=layout.dim, outer=layout.outer or 1)

    return _on(place, jax.jit(join, out_shardings=place.whole))


@cache
def part_function(place: StagePlace, samples: int) -> Any:
    """Jitted: a batch input that is whole on a stage, a microbatch's number -> its part."""

    def part(x: jax.Array, number: int) -> jax.Array:
        return lax.dynamic_slice_in_dim(x, number * samples, samples)

    return _on(place, jax.jit(part, out_shardings=place.whole))


def _on(place: StagePlace, run: Any, chosen: Sequence[NamedSharding | None] = ()) -> Any:
    """`run` in all processes; the shardings of results that are not `chosen` here are broadcast.

    On an abstract mesh it is the jitted function itself, which is compiled elsewhere.
    """
    if isinstance(place.mesh, AbstractMesh):
        return run
    is_shared = len(process_numbers(place.everyone)) > 1
    if is_shared and any(sharding is None for sharding in chosen):
        return BroadcastShardings(run, place.mesh, place.everyone)
    return where_held(run, place.devices)


class BroadcastShardings:
    """A jitted function on `mesh`, which the processes of all `devices` call alike; `mesh` may be
    in some of them. XLA chooses the shardings of its results; processes that hold none of its
    devices receive them at the first call.

    They are sent as numbers, for each dimension of a result and each axis of the mesh: 0 if the
    axis does not split the dimension, n if it is the n-th of those that do.
    """

    def __init__(self, run: Any, mesh: Mesh, devices: Sequence[Any]) -> None:
        holders = process_numbers(mesh.devices.flat)
        self._shapes = run
        is_here = jax.process_index() in holders
        self._run = where_held(run, mesh.devices.flat) if is_here else None
        self._settle = where_held(
            jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec())),
            mesh.devices.flat,
        )
        self._mesh, self._devices = mesh, devices
        self._source = process_numbers(devices).index(holders[0])
        self._shardings: list[NamedSharding] | None = None

    def __call__(self, *args: Any) -> Any:
        """The results; absent arrays, with their shardings, in processes that hold nothing of
        them.
        """
        # Processes without devices of the mesh run nothing: they learn the shapes by tracing alone.
        made = self._shapes.eval_shape(*args) if self._run is None else self._run(*args)
        leaves, tree = jax.tree.flatten(made)
        if self._run is not None:
            leaves = [self._settled(x) for x in leaves]
        if self._shardings is None:
            self._shardings = self._exchanged(leaves)
        if self._run is None:
            pairs = zip(leaves, self._shardings, strict=True)
            leaves = [absent(aval, sharding) for aval, sharding in pairs]
        return tree.unflatten(leaves)

    def _settled(self, x: jax.Array) -> jax.Array:
        """Whole, if what XLA chose cannot be said in axes of the mesh."""
        return x if isinstance(x.sharding, NamedSharding) else self._settle(x)

    def _exchanged(self, leaves: Sequence[Any]) -> list[NamedSharding]:
        axes = self._mesh.axis_names
        # One row for each dimension of each result: all processes know how many there are.
        numbers = np.zeros((sum(x.ndim for x in leaves), len(axes)), np.int32)
        if self._run is not None:
            dims = [dim for x in leaves for dim in _axes_of_dims(x)]
            for row, dim_axes in zip(numbers, dims, strict=True):
                for n, axis in enumerate(dim_axes):
                    row[axes.index(axis)] = n + 1
        rows = iter(gathered(self._devices, numbers)[self._source])
        return [
            NamedSharding(self._mesh, PartitionSpec(*(_entry(next(rows), axes) for _ in x.shape)))
            for x in leaves
        ]


def _axes_of_dims(x: jax.Array) -> list[tuple[str, ...]]:
    assert isinstance(x.sharding, NamedSharding)  # noqa: S101 - they are settled
    entries = (*x.sharding.spec, *(None,) * (x.ndim - len(x.sharding.spec)))
    return [(e,) if isinstance(e, str) else tuple(e or ()) for e in entries]


def _entry(row: np.ndarray, axes: Sequence[str]) -> tuple[str, ...] | None:
    order = sorted((n, axis) for n, axis in zip(row.tolist(), axes, strict=True) if n)
    return tuple(axis for _, axis in order) or None
