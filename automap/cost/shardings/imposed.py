"""Rows whose sharding the user's code decides (`automap.program.imposed`), and what that does to
ranks.

    rank_a(d)   -1         if the spec has axis a on place d: it comes first
                infinity   if the spec has anything else there
                as it is   if the spec leaves d free
where a place is a dimension of a value, or a factor of an op that is a constraint.
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
    of_axis: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ImposedRow:
    """A row with its places."""

    row: int
    places: Places


@dataclass(frozen=True)
class ImposedRows:
    """Rows of values and of ops."""

    values: tuple[ImposedRow, ...] = ()
    ops: tuple[ImposedRow, ...] = ()


def places_of_values(problem: Problem) -> Mapping[int, Places]:
    """Places of each value that a spec is imposed on."""
    return {
        value: _places(spec, range(len(spec)))
        for value, spec in problem.imposed.specs_by_value.items()
    }


def places_of_ops(problem: Problem) -> Mapping[int, Places]:
    """Places of each constraint, and of each op on a stack of what is constrained."""
    rules, imposed = problem.linkage.rules, problem.imposed
    return {
        op: _places(spec, majors(rules[op].operands[0]))
        for op, spec in {**imposed.specs_by_op, **imposed.specs_by_stack_op}.items()
    }


def _places(spec: ImposedSpec, place_of_dim: Sequence[int]) -> Places:
    held = [(place, axes) for place, axes in zip(place_of_dim, spec) if place >= 0]
    return Places(
        fixed=tuple(place for place, axes in held if axes is not None),
        of_axis=tuple((axis, place) for place, axes in held for axis in axes or ()),
    )


def numbers(places: Mapping[int, Places], count: int) -> np.ndarray:
    """For each of `count` values or ops a number, equal for equal places; 0 for those that are
    free.
    """
    known: dict[Places, int] = {}
    found = np.zeros(count, np.int64)
    for index, own in places.items():
        found[index] = 1 + known.setdefault(own, len(known))
    return found


def imposed_rows(places: Mapping[int, Places], row_of: np.ndarray) -> tuple[ImposedRow, ...]:
    """The distinct rows that places stand in."""
    return tuple({ImposedRow(int(row_of[index]), own): None for index, own in places.items()})


def impose(ranks: np.ndarray, rows: Sequence[ImposedRow], axis: str, never: int) -> None:
    """Change `ranks` [..., rows, places] along one mesh axis."""
    for imposed in rows:
        ranks[..., imposed.row, list(imposed.places.fixed)] = never
        for name, place in imposed.places.of_axis:
            if name == axis:
                ranks[..., imposed.row, place] = -1
