"""Constraints: the places where a plan's shardings are not what propagation from the inputs gives.

Where every op can run on the shardings its operands have, and leaves its result as the plan has it, the
partitioner derives the plan by itself from the inputs.  The other places are *transitions*:

    an op needs an operand gathered or moved       -> `<site>:in<j>`   with the sharding the op runs on
    a result is scattered, sliced, gathered, moved -> `<site>:out<j>`  with the sharding the plan keeps,
                                                      and `<site>:in<j>` with that the op runs on, or the
                                                      partitioner would move the change to the operands

A site is an equation of the step's jaxpr (`automap.apply.reemit`), read from the op's name.  For a program
that came without its jaxpr the site is the HLO instruction's name.  A transition inside one equation
cannot be constrained and is returned as a warning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.edges import majors
from automap.cost.shardings import Shardings
from automap.cost.tables import Tables
from automap.space.point import Lanes
from automap.space.problem import Problem
from hlo_tools.graph import STRUCTURAL, Op


# Per dimension, the axes that split it, major first.
AxesPerDim = tuple[tuple[str, ...], ...]


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
    """`in3` or `out0` of an op, with the axes to impose there."""

    place: str
    value: int
    axes: AxesPerDim
    is_change: bool


@dataclass(frozen=True)
class ShardedGraph:
    """Shardings of single values and ops under one plan.

    `parameter_side` maps the storage class of a gradient's dimension to that of the parameter's.
    """

    problem: Problem
    tables: Tables
    lanes: Lanes
    sharding: Shardings
    parameter_side: Mapping[int, int]

    def of_value(self, value: int) -> AxesPerDim:
        """Axes of each dimension of a value, compute axes before storage axes."""
        row = int(self.tables.row_of_value[value])
        axis_dims = self.sharding.dim_of_axis[row].tolist()
        classes = self.tables.value_rows[row]
        rank = len(self.problem.graph.values[value].dims)
        return tuple(
            self._ordered([a for a, d in enumerate(axis_dims) if d == dim], classes[dim])
            for dim in range(rank)
        )

    def _ordered(self, axes: list[int], classes: np.ndarray) -> tuple[str, ...]:
        """The axes of one dimension, those that are gathered first last (minor).

        Gathering a minor axis leaves the parts of the others in place; a major one moves them all.
        """
        compute, stored = classes.tolist()
        parameter = self.parameter_side.get(stored, stored)

        def lifetime(axis: int) -> int:
            kept = self.lanes.classes[axis]
            return 2 if compute in kept else 1 if parameter in kept else 0

        names = self.lanes.mesh.names
        return tuple(names[a] for a in sorted(axes, key=lambda a: (-lifetime(a), a)))

    def as_run(self, op: int, value: int, majors: tuple[int, ...]) -> AxesPerDim:
        """Axes of each dimension of an operand or result as the op itself has it."""
        factors = self.sharding.factor_of_axis[int(self.tables.row_of_op[op])].tolist()
        classes = self.tables.value_rows[int(self.tables.row_of_value[value])]
        return tuple(
            self._ordered([a for a, f in enumerate(factors) if f == major >= 0], classes[dim])
            for dim, major in enumerate(majors)
        )


def derive_constraints(
    sharded: ShardedGraph,
    site_of: Callable[[Op], str | None],
    equations: Mapping[str, EquationShapes] | None,
) -> tuple[tuple[Constraint, ...], tuple[str, ...]]:
    """(constraints, warnings). `equations` is None when there is no jaxpr to check sites against."""
    found: dict[str, Constraint] = {}
    missed: dict[str, int] = {}
    graph = sharded.problem.graph
    for index, op in enumerate(graph.ops):
        if op.opcode in STRUCTURAL:
            continue
        for change in _transitions(sharded, index):
            dims = graph.values[change.value].dims
            spot = _spot(dims, change, op, site_of, equations)
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


def _transitions(sharded: ShardedGraph, index: int) -> Sequence[_Transition]:
    """Where an op's own view of a tensor is not the plan's."""
    graph, rule = sharded.problem.graph, sharded.problem.linkage.rules[index]
    op, varies = graph.ops[index], graph.varies
    results = []
    for number, (value, dims) in enumerate(zip(op.outputs, rule.results)):
        if varies[value] and dims:
            kept, run = sharded.of_value(value), sharded.as_run(index, value, majors(dims))
            if kept != run:
                results.append(_Transition(f"out{number}", value, kept, is_change=True))
    operands = []
    for number, (value, dims) in enumerate(zip(op.inputs, rule.operands)):
        if varies[value] and dims:
            kept, run = sharded.of_value(value), sharded.as_run(index, value, majors(dims))
            # Axes the op splits and the tensor does not are slices, which need no help.
            is_change = any(set(a) - set(b) for a, b in zip(kept, run))
            if is_change or results:
                operands.append(_Transition(f"in{number}", value, run, is_change=is_change))
    return (*operands, *results)


@dataclass(frozen=True, slots=True)
class _Spot:
    """A constraint site with the axes of the tensor there."""

    at: str
    axes: AxesPerDim


def _spot(
    dims: tuple[int, ...],
    change: _Transition,
    op: Op,
    site_of: Callable[[Op], str | None],
    equations: Mapping[str, EquationShapes] | None,
) -> _Spot | None:
    """Where to impose a transition; None if its tensor is no operand or result of its equation.

    An equation may reshape its operand by dimensions of one (a broadcast does) before the op reads it.
    """
    site = site_of(op)
    if site is None or equations is None:
        return _Spot(f"{site}:{change.place}", change.axes) if site else None
    if site not in equations:
        return None
    side = "in" if change.place.startswith("in") else "out"
    number = int(change.place.removeprefix(side))
    shapes = equations[site].operands if side == "in" else equations[site].results
    if number < len(shapes) and shapes[number] == dims:
        return _Spot(f"{site}:{change.place}", change.axes)
    long = [axes for axes, size in zip(change.axes, dims) if size > 1]
    same = [n for n, shape in enumerate(shapes) if _long(shape) == _long(dims)]
    if len(same) != 1:
        return None
    rest = iter(long)
    axes = tuple(next(rest) if size > 1 else () for size in shapes[same[0]])
    return _Spot(f"{site}:{side}{same[0]}", axes)


def _long(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size > 1)


def _describe(problem: Problem, op: Op, value: int, place: str) -> str:
    array = problem.graph.values[value]
    shape = ",".join(map(str, array.dims))
    side = "operand" if place.startswith("in") else "result"
    return f"{side} of {op.opcode} {array.dtype}[{shape}]"
