"""How the decisions of a scope split rows, axis by axis.

Along one axis a row sees only which of its classes are on that axis, so the decisions of a scope
act on a group of rows through one *code* per axis, bits for: a candidate is on the axis; it splits
the last dimension; its small part is whole; a leaf is stored there along a dimension, on its
optimizer's or its own side                                           -> in: `axis_codes`

Few codes differ, and what each does to the rows is asked of the cost model itself, all codes at
once: copies of the rows, one for each code, with the classes of each copy numbered apart
                                                                      -> in: `splits_by_code`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np

from automap.cost.shardings import shardings
from automap.cost.shardings.factor_choices import FactorChoices
from automap.cost.shardings.imposed import ImposedRow, ImposedRows
from automap.cost.shardings.rows import NO_GRADIENTS
from automap.search.factored.cells import Cell, Rows
from automap.search.factored.stored import LeafStorage
from automap.search.factored.variables import Variables
from automap.space.point import SplitClasses
from automap.topology.mesh import Mesh


SlotKind = Literal["axes", "side", "part", "optimizer", "parameter"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One bit of a code: that a class is on the axis, or what is said of a candidate that is.

    `variables` are those whose choices set the bit; a stored leaf's are those of
    `Rows.leaf_axes` and its level.
    """

    kind: SlotKind
    group_class: int
    variables: tuple[int, ...]
    leaf: int = -1
    dim: int = -1


@dataclass(frozen=True)
class Group:
    """The cells of one scope."""

    rows: Rows
    scope: tuple[int, ...]
    cells: tuple[Cell, ...]

    @cached_property
    def value_rows(self) -> np.ndarray:
        """All value rows of the cells, sorted."""
        return np.array(sorted({r for cell in self.cells for r in cell.value_rows}), np.int64)

    @cached_property
    def op_rows(self) -> np.ndarray:
        """All op rows of the cells, sorted."""
        return np.array(sorted({r for cell in self.cells for r in cell.op_rows}), np.int64)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The bits of a code, classes in order of precedence."""
        return (*self._candidate_slots(), *self._storage_slots())

    def _candidate_slots(self) -> Iterator[Slot]:
        number = self.rows.numbering
        for group_class, variable in number.axes.items():
            if variable in self.scope and group_class in self._classes:
                yield Slot("axes", group_class, (variable,))
                # Only of a class that is on the axis, so the bit depends on both variables.
                if number.side.get(group_class, -1) in self.scope:
                    yield Slot("side", group_class, (variable, number.side[group_class]))
                if number.part.get(group_class, -1) in self.scope:
                    yield Slot("part", group_class, (variable, number.part[group_class]))

    def _storage_slots(self) -> Iterator[Slot]:
        first = self.rows.numbering.first_leaf
        for number, leaf in enumerate(self.rows.space.leaves):
            if first + number in self.scope:
                variables = (*self.rows.leaf_axes[number], first + number)
                for dim, group_class in enumerate(leaf.optimizer_side):
                    if group_class in self._classes:
                        yield Slot("optimizer", group_class, variables, number, dim)
                for dim, group_class in enumerate(leaf.parameter_side):
                    if group_class in self._classes:
                        yield Slot("parameter", group_class, variables, number, dim)

    @cached_property
    def _classes(self) -> frozenset[int]:
        """All classes that stand in the rows, whether of small parts or not."""
        tables, none = self.rows.evaluator.tables, self.rows.space.problem.n_classes
        # Small parts are numbered behind the classes, one apart for the number that means none.
        classes = set(tables.value_rows[self.value_rows].ravel().tolist())
        classes |= set(tables.op_rows[self.op_rows].ravel().tolist())
        return frozenset(c - none - 1 if c > none else c for c in classes if c != none)

    def axis_codes(self, variables: Variables, stored: LeafStorage, axis: int) -> np.ndarray:
        """The code of every joint choice on an axis, int64 [choices of each of the scope's
        variables].
        """
        # Which dimension of the result each variable is.
        place = {v: i for i, v in enumerate(self.scope)}
        codes = np.zeros([1] * len(self.scope), np.int64)
        # Of growing shape, so that few sums are as large as the whole.
        for variables_of_slot, slots in self._slots_by_variables:
            order = np.argsort([place[v] for v in variables_of_slot])
            shape = [1] * len(self.scope)
            for v in variables_of_slot:
                shape[place[v]] = variables.sizes[v]
            # Each slot has its own bit of an int64, so adding is setting it.
            slot_bits = sum(
                _is_set(slot, variables, stored, axis).astype(np.int64) << bit
                for bit, slot in slots
            )
            codes = codes + np.transpose(slot_bits, order).reshape(shape)
        return np.broadcast_to(codes, [variables.sizes[v] for v in self.scope])

    @cached_property
    def _slots_by_variables(self) -> list[tuple[tuple[int, ...], list[tuple[int, Slot]]]]:
        """Bits and slots by what they depend on, single variables first."""
        slots: dict[tuple[int, ...], list[tuple[int, Slot]]] = {}
        for bit, slot in enumerate(self.slots):
            slots.setdefault(slot.variables, []).append((bit, slot))
        return sorted(slots.items(), key=lambda item: len(item[0]))


def _is_set(slot: Slot, variables: Variables, stored: LeafStorage, axis: int) -> np.ndarray:
    """Whether the choices of a slot's variables set its bit, one dimension for each."""
    # A leaf's slot is for one dimension: it is set where the leaf is stored along that one.
    if slot.leaf >= 0:
        dims, is_full = stored.leaf_dims(slot.leaf)
        here = dims[..., axis] == slot.dim
        return here & is_full[..., axis] if slot.kind == "parameter" else here
    is_on = np.array([mask >> axis & 1 for mask in variables.masks[slot.variables[0]]], bool)
    if slot.kind == "axes":
        return is_on
    return is_on[:, None] & np.array(variables.bits[slot.variables[1] - len(variables.masks)])


def splits_by_code(
    group: Group, codes: np.ndarray, axis: tuple[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """What an axis (name, size) splits under each code: (dims [codes, value rows], factors [codes,
    op rows]).
    """
    rows, tables = group.rows, group.rows.evaluator.tables
    # Classes are numbered anew, 0 .. n - 1 in a copy, n .. 2n - 1 in the next, and so on: no copy
    # sees what another one splits.
    local = sorted({slot.group_class for slot in group.slots})
    n_local, n_copies = len(local), len(codes)
    known = np.full(2 * rows.space.problem.n_classes + 2, -1)
    none = rows.space.problem.n_classes
    known[local] = np.arange(n_local)
    total = n_local * n_copies
    # Broadcast over [copies, rows, dimensions or factors, classes].
    first = (np.arange(n_copies) * n_local)[:, None, None, None]

    def copied(rows: np.ndarray) -> np.ndarray:
        is_small = rows > none
        number = known[np.where(is_small, rows - none - 1, rows)]
        # A class that no slot is about is split by nothing: it becomes none.
        apart = np.where(number < 0, total, number + first + np.where(is_small, total + 1, 0))
        return apart.reshape(-1, *rows.shape[1:])

    copies = replace(
        tables,
        value_rows=copied(tables.value_rows[group.value_rows]),
        transposed_values=np.tile(tables.transposed_values[group.value_rows], n_copies),
        transposed_ops=np.tile(tables.transposed_ops[group.op_rows], n_copies),
        op_rows=copied(tables.op_rows[group.op_rows]),
        factor_choices=_copied_contests(group, n_copies),
        # What lasts is not asked for here.
        gradients=NO_GRADIENTS,
        imposed=ImposedRows(
            _copied_imposed(tables.imposed.values, group.value_rows, n_copies),
            _copied_imposed(tables.imposed.ops, group.op_rows, n_copies),
        ),
    )
    split_classes = _split_classes(group, codes, {c: i for i, c in enumerate(local)}, axis)
    split = shardings(copies, total, split_classes)
    return (
        split.dim_of_axis.reshape(n_copies, len(group.value_rows)),
        split.factor_of_axis.reshape(n_copies, len(group.op_rows)),
    )


def _split_classes(
    group: Group, codes: np.ndarray, local: dict[int, int], axis: tuple[str, int]
) -> SplitClasses:
    """The classes of all copies on one axis, those of each copy in their order."""
    classes, last, whole = list[int](), list[int](), list[int]()
    lists: dict[SlotKind, list[int]] = {"side": last, "part": whole}
    slots = [(1 << bit, slot) for bit, slot in enumerate(group.slots)]
    # The order of classes is their precedence, in each copy that of the slots.
    for copy, code in enumerate(codes.tolist()):
        for bit, slot in slots:
            if code & bit:
                lists.get(slot.kind, classes).append(copy * len(local) + local[slot.group_class])
    return SplitClasses(
        Mesh((axis[0],), (axis[1],)),
        (tuple(dict.fromkeys(classes)),),
        frozenset(last),
        frozenset(whole),
    )


def _copied_imposed(
    imposed: Sequence[ImposedRow], rows: np.ndarray, n_copies: int
) -> tuple[ImposedRow, ...]:
    """What the user's code decides about `rows`, for each copy of them."""
    place_of_row = {row: place for place, row in enumerate(rows.tolist())}
    return tuple(
        ImposedRow(copy * len(rows) + place_of_row[row.row], row.places)
        for copy in range(n_copies)
        for row in imposed
        if row.row in place_of_row
    )


def _copied_contests(group: Group, n_copies: int) -> FactorChoices:
    """The contests of a group's op rows, for each copy of the rows."""
    contests = group.rows.evaluator.tables.factor_choices
    is_open = np.isin(contests.op_row, group.op_rows) & np.isin(
        contests.op_row, list(group.rows.contested)
    )
    open_choices = np.flatnonzero(is_open)
    number = np.cumsum(is_open) - 1
    tensors = np.flatnonzero(is_open[contests.choice])

    def each(column: np.ndarray, step: int) -> np.ndarray:
        return (np.arange(n_copies)[:, None] * step + column).ravel()

    def repeated(column: np.ndarray) -> np.ndarray:
        return np.concatenate([column] * n_copies)

    op_row = np.searchsorted(group.op_rows, contests.op_row[open_choices])
    value_row = np.searchsorted(group.value_rows, contests.value_row[tensors])
    return FactorChoices(
        op_row=each(op_row, len(group.op_rows)),
        follows_weight=repeated(contests.follows_weight[open_choices]),
        is_reduced=repeated(contests.is_reduced[open_choices]),
        choice=each(number[contests.choice[tensors]], len(open_choices)),
        value_row=each(value_row, len(group.value_rows)),
        factor_of_dim=repeated(contests.factor_of_dim[tensors]),
        holds=repeated(contests.holds[tensors]),
        n_bytes=repeated(contests.n_bytes[tensors]),
        is_result=repeated(contests.is_result[tensors]),
    )


def numbered(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers of an array, sorted, and which of them each is, int32 of its shape."""
    if codes.max(initial=0) < _DENSE:
        is_there = np.zeros(int(codes.max(initial=0)) + 1, bool)
        is_there[codes] = True
        return np.flatnonzero(is_there), (np.cumsum(is_there, dtype=np.int32) - 1)[codes]
    distinct, index = np.unique(codes, return_inverse=True)
    return distinct, index.reshape(codes.shape).astype(np.int32)


# Numbers below it are found by marking, greater ones by sorting.
_DENSE = 1 << 22


# Products of counts below it are numbers of int64.
_NUMBERS = 1 << 62


def distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows, sorted, of an array of whole numbers from -1, and which each row is."""
    counts = (rows.max(axis=0, initial=-1) + 2).tolist()
    if prod(counts) < _NUMBERS:
        distinct, which = joint_codes([column + 1 for column in rows.T])
        return distinct - 1, which
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    return distinct, which.reshape(-1)


def joint_codes(by_axis: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct tuples of numbers, one array per axis: (the tuples [distinct, axes], which of them
    each is).
    """
    joint, counts = np.zeros_like(by_axis[0], np.int64), list[int]()
    for numbers in by_axis:
        counts.append(int(numbers.max(initial=0)) + 1)
        # Digits of one number, so that tuples are told apart by comparing numbers.
        joint = joint * counts[-1] + numbers
    distinct, index = numbered(joint)
    return np.stack(np.unravel_index(distinct, counts), axis=-1), index
