"""Groups laid on a mesh: in which ways the choices of a scope can split the rows of its cells."""

from dataclasses import dataclass

import numpy as np

from automap.search.factored.codes import (
    Group,
    distinct_rows,
    joint_codes,
    numbered,
    splits_of_codes,
)
from automap.search.factored.pricing import Ways
from automap.search.factored.stored import Stored
from automap.search.factored.variables import Variables


@dataclass(frozen=True)
class LaidCell:
    """A cell's ways, and which of them each way of its group is, `number` [ways of the group]."""

    ways: Ways
    number: np.ndarray

    @property
    def is_priced(self) -> bool:
        """Whether it has an edge or kernels: what the evaluator prices."""
        cell = self.ways.cell
        return bool(cell.operands or cell.results or cell.kernels)


@dataclass(frozen=True)
class Laid:
    """A group on a mesh; `way` [choices of each variable of the scope...] numbers the ways of the
    whole group.
    """

    group: Group
    way: np.ndarray
    cells: tuple[LaidCell, ...]


def lay(group: Group, variables: Variables, stored: Stored) -> Laid:
    """All ways of a group and of its cells."""
    axes = variables.mesh.axes
    code_of_axis, of_axis = [], []
    for axis in range(len(axes)):
        codes, number = numbered(group.axis_codes(variables, stored, axis))
        code_of_axis.append(codes)
        of_axis.append(number)
    # [ways, axes]: which code each axis has.
    joint, way = joint_codes(of_axis)
    splits = [
        splits_of_codes(group, codes, axis) for codes, axis in zip(code_of_axis, axes, strict=True)
    ]
    cells = []
    for cell in group.cells:
        values = np.searchsorted(group.value_rows, cell.value_rows)
        ops = np.searchsorted(group.op_rows, cell.op_rows)
        rows = [np.concatenate([dims[:, values], fs[:, ops]], axis=1) for dims, fs in splits]
        distinct = [distinct_rows(of) for of in rows]
        numbers = [which[joint[:, a]] for a, (_, which) in enumerate(distinct)]
        ways, number = joint_codes(numbers)
        split = np.stack([of[ways[:, a]] for a, (of, _) in enumerate(distinct)], axis=-1)
        n = len(values)
        cells.append(LaidCell(Ways(cell, split[:, :n], split[:, n:]), number))
    return Laid(group, way, tuple(cells))
