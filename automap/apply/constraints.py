"""Constraints: the places where a plan's shardings are not what propagation from the inputs gives.

Where every op can run on the shardings its operands have, and leaves its result as the plan has it, the
partitioner derives the plan by itself from the inputs.  The other places are *transitions*:

    an op needs an operand gathered or moved       -> `<site>:in<j>`   with the sharding the op runs on
    a result is scattered, sliced, gathered, moved -> `<site>:out<j>`  with the sharding the plan keeps,
                                                      and `<site>:in<j>` with that the op runs on, or the
                                                      partitioner would move the change to the operands
    a result the op leaves whole is sliced          -> `<site>:made<j>` too, with the sharding the op leaves, or
                                                      the partitioner would split the op itself

A site is an equation of the step's jaxpr (`automap.apply.reemit`), read from the op's name.  For a program
that came without its jaxpr the site is the HLO instruction's name.  A transition inside one equation
cannot be constrained and is returned as a warning.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from automap.apply.sharded_graph import AxesPerDim, ShardedGraph
from automap.cost.edges import majors
from automap.space.problem import Problem
from hlo_tools.graph import STRUCTURAL, Graph, Op
from hlo_tools.storage import Side


@dataclass(frozen=True, slots=True)
class EquationShapes:
    """Shapes of one equation's operands and results."""

    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A sharding to impose at `at`; `value` says what it is, for people."""

    at: str
    value: str
    axes: AxesPerDim


@dataclass(frozen=True, slots=True)
class _Transition:
    """`in3`, `made0` or `out0` of an op, with the axes to impose there."""

    place: str
    value: int
    axes: AxesPerDim
    is_change: bool


def derive_constraints(
    sharded: ShardedGraph,
    site_of: Callable[[Op], str | None],
    equations: Mapping[str, EquationShapes] | None,
) -> tuple[tuple[Constraint, ...], tuple[str, ...]]:
    """(constraints, warnings). `equations` is None when there is no jaxpr to check sites against."""
    found: dict[str, Constraint] = {}
    missed: dict[str, int] = {}
    graph = sharded.problem.graph
    moved = _moved_values(sharded)
    results = _results_of_sites(graph, site_of)
    for index, op in enumerate(graph.ops):
        if op.opcode in STRUCTURAL:
            continue
        for change in _transitions(sharded, index, moved):
            dims = graph.values[change.value].dims
            spot = _spot(dims, change, site_of(op), equations, results)
            if spot is None:
                missed[op.opcode] = missed.get(op.opcode, 0) + change.is_change
            elif spot.at not in found:
                what = _describe(sharded.problem, op, change.value, change.place)
                found[spot.at] = Constraint(spot.at, what, spot.axes)
    warnings = tuple(
        f"sharding changes around {opcode!r} inside one equation: {n}; the partitioner decides them"
        for opcode, n in missed.items()
        if n
    )
    return tuple(found.values()), warnings


def _axes(per_dim: AxesPerDim) -> set[str]:
    return {axis for axes in per_dim for axis in axes}


def _is_split_more(these: AxesPerDim, others: AxesPerDim) -> bool:
    """Whether some dimension is split along an axis along which the other is not."""
    return any(set(a) - set(b) for a, b in zip(these, others))


def _moved_values(sharded: ShardedGraph) -> set[int]:
    """Values that some op wants otherwise than the plan keeps them, or that are stored so.

    Propagation would carry that view back into the op that makes the value: a slice, which costs
    nothing here, may there be an exchange, and a gather may come before an op that makes a tensor smaller.
    A stored parameter is left out: it is gathered once, before it is cast or reshaped for each use.
    """
    graph, side = sharded.problem.graph, sharded.problem.storage.side
    moved = _sliced_outputs(sharded) | _gradients_of_pools(graph)
    for index, op in enumerate(graph.ops):
        if op.opcode not in STRUCTURAL:
            for value, dims in zip(op.inputs, sharded.problem.linkage.rules[index].operands):
                if graph.varies[value] and side[value] != Side.PARAMETER and value not in moved:
                    kept, run = sharded.of_value(value), sharded.as_run(index, value, majors(dims))
                    if kept != run:
                        moved.add(value)
    return moved


def _sliced_outputs(sharded: ShardedGraph) -> set[int]:
    """New state that is stored split along more axes than it is computed: a slice at the step's end."""
    graph = sharded.problem.graph
    return {
        graph.outputs[output]
        for output, source in sharded.problem.state_map.items()
        if _is_split_more(
            sharded.of_value(graph.inputs[source]), sharded.of_value(graph.outputs[output])
        )
    }


def _gradients_of_pools(graph: Graph) -> set[int]:
    """What a select-and-scatter makes whose windows overlap by half, and what is cut out of that.

    The partitioner's result is wrong where it splits the image (jaxlib 0.10 and 0.12), which no plan does.
    """
    found = set[int]()
    for op in graph.ops:
        if op.opcode == "select-and-scatter":
            windows = op.instruction.attributes.window
            if any(w.size >= 2 * w.stride for w in windows):
                found.update(op.outputs)
        elif op.opcode == "slice" and op.inputs[0] in found:
            # JAX pads the image first.
            found.update(op.outputs)
    return found


def _transitions(
    sharded: ShardedGraph, index: int, moved: Collection[int]
) -> Sequence[_Transition]:
    """Where an op's own view of a tensor is not the plan's, or a user's is not."""
    graph, rule = sharded.problem.graph, sharded.problem.linkage.rules[index]
    op, varies = graph.ops[index], graph.varies
    # Propagation does not go along windows on its own.
    is_written_out = sharded.is_written_out(index)
    slides = is_written_out or sharded.slides(index)
    results = []
    for number, (value, dims) in enumerate(zip(op.outputs, rule.results)):
        if varies[value] and dims:
            kept, run = sharded.of_value(value), sharded.as_run(index, value, majors(dims))
            if kept != run or value in moved or slides:
                if _must_be_made(sharded, index, kept, run):
                    results.append(_Transition(f"made{number}", value, run, is_change=True))
                results.append(_Transition(f"out{number}", value, kept, is_change=kept != run))
    operands = []
    for number, (value, dims) in enumerate(zip(op.inputs, rule.operands)):
        # Of a convolution that is written out all operands have to be known, constants too.
        if (varies[value] or is_written_out) and dims:
            kept, run = sharded.of_value(value), sharded.as_run(index, value, majors(dims))
            # Axes the op splits and the tensor does not are slices, which need no help.
            is_change = _is_split_more(kept, run)
            if is_change or results:
                operands.append(_Transition(f"in{number}", value, run, is_change=is_change))
    return (*operands, *results)


def _must_be_made(sharded: ShardedGraph, index: int, kept: AxesPerDim, run: AxesPerDim) -> bool:
    """Whether a result has to be pinned as its op makes it, before it is kept otherwise.

    A sum that is scattered can be left to the partitioner, but for a look-up in split rows.  What else is moved
    would be split by the op itself, and some ops the partitioner then gets wrong (overlapping windows).  Where an
    axis is idle it would split the op over that one and permute the result, and where the dimension that gets the
    parts is split already the result can be wrong (jaxlib 0.10 and 0.12: the batch of a matmul).  Convolutions that
    are written out are known by this pin.
    """
    summed = sharded.summed_axes(index)
    scattered = [summed & set(axes) for axes in kept]
    onto_split = any(new and has for new, has in zip(scattered, run))
    if sharded.is_written_out(index) or onto_split:
        return True
    is_lookup = sharded.problem.graph.ops[index].opcode == "gather"
    if kept != run and (is_lookup or not any(scattered)):
        return True
    idle = sharded.idle_axes(index)
    return bool(idle & _axes(kept) or (idle and any(scattered)))


@dataclass(frozen=True, slots=True)
class _Spot:
    """A constraint site with the axes of the tensor there."""

    at: str
    axes: AxesPerDim


def _spot(
    dims: tuple[int, ...],
    change: _Transition,
    site: str | None,
    equations: Mapping[str, EquationShapes] | None,
    results: Mapping[str, Sequence[int]],
) -> _Spot | None:
    """Where to impose a transition; None if its tensor is no operand or result of its equation.

    An equation may reshape its operand by dimensions of one (a broadcast does) before the op reads it, and
    may be several ops, each with one of its results (a split is slices).
    """
    if site is None or equations is None:
        return _Spot(f"{site}:{change.place}", change.axes) if site else None
    if site not in equations:
        return None
    side = change.place.rstrip("0123456789")
    number = int(change.place.removeprefix(side))
    shapes = equations[site].operands if side == "in" else equations[site].results
    made = results.get(site, ())
    if side != "in" and len(shapes) == len(made) > 1 and change.value in made:
        number = made.index(change.value)
    if number < len(shapes) and shapes[number] == dims:
        return _Spot(f"{site}:{side}{number}", change.axes)
    long = [axes for axes, size in zip(change.axes, dims) if size > 1]
    same = [n for n, shape in enumerate(shapes) if _long(shape) == _long(dims)]
    if len(same) != 1:
        return None
    rest = iter(long)
    axes = tuple(next(rest) if size > 1 else () for size in shapes[same[0]])
    return _Spot(f"{site}:{side}{same[0]}", axes)


def _results_of_sites(
    graph: Graph, site_of: Callable[[Op], str | None]
) -> Mapping[str, Sequence[int]]:
    """For each site, the values that its ops make and do not read themselves, in order."""
    made: dict[str, dict[int, None]] = {}
    for op in graph.ops:
        site = site_of(op)
        if site is not None:
            values = made.setdefault(site, {})
            for value in op.inputs:
                values.pop(value, None)
            values.update(dict.fromkeys(op.outputs))
    return {site: tuple(values) for site, values in made.items()}


def _long(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size > 1)


def _describe(problem: Problem, op: Op, value: int, place: str) -> str:
    array = problem.graph.values[value]
    shape = ",".join(map(str, array.dims))
    side = "operand" if place.startswith("in") else "result"
    return f"{side} of {op.opcode} {array.dtype}[{shape}]"
