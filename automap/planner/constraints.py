"""Constraints: the places where a plan's shardings are not what propagation from the inputs gives.

Where every op can run on the shardings its operands have, and leaves its result as the plan has it,
the partitioner derives the plan by itself from the inputs. The other places are *transitions*
(`automap.planner.transitions`):

    an op needs an operand gathered or moved
        -> `<site>:in<j>` with the sharding the op runs on
    a result is scattered, sliced, gathered or moved
        -> `<site>:out<j>` with the sharding the plan keeps, and `<site>:in<j>` with that the op
           runs on, or the partitioner would move the change to the operands
    what is gathered has just been cast to a type of fewer bytes
        -> `<site>:out<j>` of the cast, or the partitioner may gather what is cast
    what a loop hands on, or slices of what it scans, is used otherwise (a layer's parameters by
    other dimensions: else the whole stack is moved in each trip), or is stacked by the loop
    otherwise than its body makes it
        -> `<site>:from<j>` where it is used first
    what a loop stacks is gathered for that, as the scales of norms are
        -> `<site>:out<j>` where the body makes it, or the partitioner would stack its parts, and
           gather them in each trip of the loop that reads the stack
    a scalar is spread over tensors split differently
        -> `<site>:spread<j>` (`automap.jaxpr.spread`)
    a result the op leaves whole is sliced
        -> `<site>:made<j>` too, with the sharding the op leaves, or the partitioner would split the
           op itself

A site is an equation of the step's jaxpr (`automap.jaxpr.reemit`), read from the op's name. For a
program that came without its jaxpr the site is the HLO instruction's name. A transition inside one
equation cannot be constrained and is returned as a warning.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from automap.jaxpr.spread import spread_number
from automap.planner.sharded_graph import AxesPerDim, ShardedGraph
from automap.planner.transitions import Transition, moved_values, transitions
from automap.program.problem import Problem
from hlo_tools.graph import Graph, Op, sources_by_output
from hlo_tools.opcodes import (
    BROADCAST,
    DYNAMIC_UPDATE_SLICE,
    LOOP_ENTER,
    LOOP_EXIT,
    RESHAPE,
    STRUCTURAL,
)


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


def derive_constraints(
    sharded: ShardedGraph,
    find_site: Callable[[Op], str | None],
    equations: Mapping[str, EquationShapes] | None,
) -> tuple[tuple[Constraint, ...], tuple[str, ...]]:
    """(constraints, warnings) of a plan.

    `find_site` names the site of an op, None for one that has none; `equations` are the shapes at
    each site, None for a program that came without a jaxpr to check sites against.
    """
    # By place: of several changes at one place the first in program order is kept.
    constraints: dict[str, Constraint] = {}
    missed: dict[str, int] = {}
    # Values that a loop hands to its body, pinned where they are used first and nowhere else.
    entered = set[int]()
    # Values that cannot be pinned where they are made, as a loop's own equation makes them for its
    # body or hands them on, with the axes that they are to have.
    unpinned: dict[int, AxesPerDim] = {}
    graph = sharded.problem.graph
    moved = moved_values(sharded)
    places = _Places(graph, find_site, equations, _results_by_site(graph, find_site))
    # The sites of the loops around an op, the innermost last.
    loops: list[str | None] = []
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            loops.append(find_site(op))
        elif op.opcode == LOOP_EXIT:
            loops.pop()
        if op.opcode in STRUCTURAL:
            unpinned |= _handed_on(sharded, op, unpinned)
            continue
        changes = (*_unpinned_operands(op, unpinned), *transitions(sharded, index, moved))
        is_change = any(change.is_change for change in changes)
        site = find_site(op) if changes else None
        if site in loops and not unpinned.keys().isdisjoint(op.inputs):
            unpinned |= {v: sharded.value_axes(v) for v in op.outputs}
        for change in changes:
            # Ops of a loop's equation inside of its body, as the slice of what it scans: there is
            # no place in the jaxpr between them.
            is_inner = site in loops and not _is_at_end(graph, change)
            spot = places.stacked_spot(op, change, loops) if is_inner else places.spot(change, site)
            if change.place.startswith("from"):
                if spot is None or change.value in entered:
                    continue
                entered.add(change.value)
            # What is made here cannot be pinned here, so it is pinned where it is first read. An
            # operand that is not as the plan has it the partitioner carries into the result.
            if is_inner and change.place.startswith("out"):
                unpinned[change.value] = change.axes
            elif is_inner and change.is_change:
                unpinned |= {v: sharded.value_axes(v) for v in op.outputs}
            if spot is None:
                # Of pins that change nothing none is missed: they only keep the partitioner from
                # other ideas.
                missed[op.opcode] = missed.get(op.opcode, 0) + is_change
            elif spot.at not in constraints:
                what = _describe(sharded.problem, op, change.value, change.place)
                constraints[spot.at] = Constraint(spot.at, what, spot.axes)
    for constraint in _scalar_constraints(sharded, find_site, equations):
        constraints.setdefault(constraint.at, constraint)
    warnings = tuple(
        f"sharding changes around {opcode!r} inside one equation: {n}; the partitioner decides them"
        for opcode, n in missed.items()
        if n
    )
    return tuple(constraints.values()), warnings


def _unpinned_operands(op: Op, unpinned: Mapping[int, AxesPerDim]) -> Iterator[Transition]:
    """What an op reads that cannot be pinned where it is made, as slices of what a loop scans."""
    for number, value in enumerate(op.inputs):
        if value in unpinned:
            yield Transition(f"from{number}", value, unpinned[value], is_change=False)


def _handed_on(
    sharded: ShardedGraph, op: Op, unpinned: Mapping[int, AxesPerDim]
) -> Mapping[int, AxesPerDim]:
    """What a loop, a branch or a call hands on of `unpinned`, with the axes it is to have."""
    return {
        output: sharded.value_axes(output)
        for output, sources in sources_by_output(op)
        if not unpinned.keys().isdisjoint(sources)
    }


def _scalar_constraints(
    sharded: ShardedGraph,
    find_site: Callable[[Op], str | None],
    equations: Mapping[str, EquationShapes] | None,
) -> Iterator[Constraint]:
    """Spread scalars, whole; of an equation that only spreads one its result."""
    graph = sharded.problem.graph
    for index, value in _scalars_spread_differently(sharded):
        op, dims = graph.ops[index], graph.values[value].dims
        site, place = find_site(op), "out0"
        if site is None or (equations is not None and site not in equations):
            continue
        # The equation does more than spread the scalar (x * 2): the scalar is its operand, and is
        # spread by its own broadcast.
        if equations is not None and len(operands := equations[site].operands) > 1:
            number = spread_number(operands, dims)
            # Which of the operands the scalar is cannot be told from their shapes.
            if number is None:
                continue
            place = f"spread{number}"
        what = _describe(sharded.problem, op, value, place)
        yield Constraint(f"{site}:{place}", what, ((),) * len(dims))


def _scalars_spread_differently(sharded: ShardedGraph) -> Iterator[tuple[int, int]]:
    """(op, value made by it) of broadcasts of one scalar to one shape that are used with several
    shardings.
    """
    graph = sharded.problem.graph
    spread: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for index, op in enumerate(graph.ops):
        if op.opcode == BROADCAST and graph.varies[op.inputs[0]]:
            (scalar,), (value,) = op.inputs, op.outputs
            dims = graph.values[value].dims
            # An exchange of vectors is too small to matter.
            if len(dims) > 1 and not graph.values[scalar].dims:
                spread.setdefault((scalar, dims), []).append((index, value))
    for made in spread.values():
        if len({axes for _, value in made for axes in _as_used(sharded, value)}) > 1:
            yield from made


def _as_used(sharded: ShardedGraph, value: int) -> Iterator[AxesPerDim]:
    graph, rules = sharded.problem.graph, sharded.problem.linkage.rules
    for user in graph.users[value]:
        for operand, dims in zip(graph.ops[user].inputs, rules[user].operands):
            if operand == value:
                yield sharded.axes_in_op(user, value, dims)


def _is_at_end(graph: Graph, change: Transition) -> bool:
    """Whether a tensor that a loop's equation reads or makes in its body is an operand or a result
    of it.

    A slice of what it scans may have the shape of what it carries, and is not that.
    """
    if change.place.startswith(("in", "from")):
        producer = graph.values[change.value].producer
        return producer >= 0 and graph.ops[producer].opcode == LOOP_ENTER
    return any(graph.ops[user].opcode == LOOP_EXIT for user in graph.users[change.value])


@dataclass(frozen=True, slots=True)
class _Spot:
    """A constraint site with the axes of the tensor there."""

    at: str
    axes: AxesPerDim


@dataclass(frozen=True, slots=True)
class _Places:
    """Where in the step's jaxpr the tensors of a graph are: at which equations, with which shapes
    there, and the values that the ops of each site make (`_results_by_site`).
    """

    graph: Graph
    find_site: Callable[[Op], str | None]
    equations: Mapping[str, EquationShapes] | None
    results: Mapping[str, Sequence[int]]

    def spot(self, change: Transition, site: str | None) -> _Spot | None:
        """Where to impose a transition; None if its tensor is no operand or result of its equation.

        An equation may reshape its operand by dimensions of one (a broadcast does) before the op
        reads it, and may be several ops, each with one of its results (a split is slices).
        """
        if site is None or self.equations is None:
            return _Spot(f"{site}:{change.place}", change.axes) if site else None
        if site not in self.equations:
            return None
        dims, equation = self.graph.values[change.value].dims, self.equations[site]
        side = change.place.rstrip("0123456789")
        number = int(change.place.removeprefix(side))
        is_operand = side in ("in", "from")
        shapes = equation.operands if is_operand else equation.results
        made = self.results.get(site, ())
        # An equation of several results that is several ops, each with a result 0 of its own.
        if not is_operand and len(shapes) == len(made) > 1 and change.value in made:
            number = made.index(change.value)
        if number < len(shapes) and shapes[number] == dims:
            return _Spot(f"{site}:{side}{number}", change.axes)
        # The op sees the equation's array with other dimensions of one. These hold no axes, so the
        # axes of the others are handed out again in order.
        same = [n for n, shape in enumerate(shapes) if _long(shape) == _long(dims)]
        # No array of the equation is this one, or several could be.
        if len(same) != 1:
            return None
        axes = _axes_as(shapes[same[0]], dims, change.axes)
        return _Spot(f"{site}:{side}{same[0]}", axes)

    def stacked_spot(
        self, op: Op, change: Transition, loops: Collection[str | None]
    ) -> _Spot | None:
        """Where to impose a transition of what a loop's equation stacks: at the equation of the
        body that makes it. None if that is no equation's result.
        """
        # The second operand is what is written.
        if op.opcode != DYNAMIC_UPDATE_SLICE or change.place != "in1":
            return None
        graph, value = self.graph, change.value
        # The loop itself gives it the stack's dimension, of one.
        while (producer := graph.values[value].producer) >= 0 and (
            (maker := graph.ops[producer]).opcode == RESHAPE and self.find_site(maker) in loops
        ):
            (value,) = maker.inputs
        dims = graph.values[value].dims
        is_same = _long(dims) == _long(graph.values[change.value].dims)
        site = self.find_site(graph.ops[producer]) if producer >= 0 else None
        if site in loops or not is_same:
            return None
        place = f"out{graph.ops[producer].outputs.index(value)}"
        axes = _axes_as(dims, graph.values[change.value].dims, change.axes)
        return self.spot(Transition(place, value, axes, is_change=True), site)


def _axes_as(shape: tuple[int, ...], dims: tuple[int, ...], axes: AxesPerDim) -> AxesPerDim:
    """The axes of an array of `dims` where it has a `shape` with other dimensions of one."""
    rest = iter([own for own, size in zip(axes, dims, strict=True) if size > 1])
    return tuple(next(rest) if size > 1 else () for size in shape)


def _results_by_site(
    graph: Graph, find_site: Callable[[Op], str | None]
) -> Mapping[str, Sequence[int]]:
    """For each site, the values that its ops make and do not read themselves, in order."""
    made: dict[str, dict[int, None]] = {}
    for op in graph.ops:
        site = find_site(op)
        if site is not None:
            values = made.setdefault(site, {})
            for value in op.inputs:
                # Read by another op of the same equation, so it is no result of the equation.
                values.pop(value, None)
            values.update(dict.fromkeys(op.outputs))
    return {site: tuple(values) for site, values in made.items()}


def _long(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size > 1)


def _describe(problem: Problem, op: Op, value: int, place: str) -> str:
    array = problem.graph.values[value]
    shape = ",".join(map(str, array.dims))
    side = "operand" if place.startswith(("in", "from")) else "result"
    return f"{side} of {op.opcode} {array.dtype}[{shape}]"
