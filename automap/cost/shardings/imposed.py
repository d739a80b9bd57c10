"""Rows whose sharding the user's code decides (`automap.program.imposed`), and what that does to
ranks.

    rank_a(d)   -1         if the spec has axis a on place d: it comes first
                infinity   if the spec has anything else there
                as it is   if the spec leaves d free
where a place is a dimension of a value, or a factor of an operation that is a constraint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.edges import majors
from automap.program.problem import Problem
from automap.step.specs import ImposedSpec


@dataclass(frozen=True, slots=True)
class Places:
    """Places that are not free, and the (axis, place) pairs among them."""

    fixed: tuple[int, ...]
    axis_places: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ImposedRow:
    """A row with its places."""

    row: int
    places: Places


@dataclass(frozen=True)
class ImposedRows:
    """Rows of values and of operations."""

    values: tuple[ImposedRow, ...] = ()
    ops: tuple[ImposedRow, ...] = ()


def value_places(problem: Problem) -> Mapping[int, Places]:
    """Places of each value that a spec is imposed on."""
    return {
        value: _places(spec, range(len(spec)))
        for value, spec in problem.imposed.specs_by_value.items()
    }


def op_places(problem: Problem) -> Mapping[int, Places]:
    """Places of each constraint, and of each operation on a stack of what is constrained."""
    rules, imposed = problem.linkage.rules, problem.imposed
    return {
        # A constraint has one operand: its dimensions say which factor each entry of the spec is.
        op: _places(spec, majors(rules[op].operands[0]))
        for op, spec in {**imposed.specs_by_op, **imposed.specs_by_stack_op}.items()
    }


def _places(spec: ImposedSpec, place_of_dim: Sequence[int]) -> Places:
    held = [(place, axes) for place, axes in zip(place_of_dim, spec) if place >= 0]
    # An entry of None leaves its place free; an empty one says that no axis may split it.
    return Places(
        fixed=tuple(place for place, axes in held if axes is not None),
        axis_places=tuple((axis, place) for place, axes in held for axis in axes or ()),
    )


def place_numbers(places: Mapping[int, Places], count: int) -> np.ndarray:
    """For each of `count` values or operations a number, equal for equal places; 0 for those that
    are free.
    """
    known: dict[Places, int] = {}
    numbers = np.zeros(count, np.int64)
    for index, own in places.items():
        numbers[index] = 1 + known.setdefault(own, len(known))
    return numbers


def imposed_rows(places: Mapping[int, Places], row_by_index: np.ndarray) -> tuple[ImposedRow, ...]:
    """The distinct rows that places stand in; `row_by_index` is the row of each value or operation.

    A row has one set of places, as `place_numbers` told rows apart by them.
    """
    # A dict for its order: sets would list the rows differently in each run.
    return tuple({ImposedRow(int(row_by_index[index]), own): None for index, own in places.items()})


def impose(ranks: np.ndarray, rows: Sequence[ImposedRow], axis: str, never: int) -> None:
    """Change `ranks` [..., rows, places] along one mesh axis."""
    for imposed in rows:
        ranks[..., imposed.row, list(imposed.places.fixed)] = never
        for name, place in imposed.places.axis_places:
            if name == axis:
                # Before every class of the axis, whose ranks begin at 0.
                ranks[..., imposed.row, place] = -1
