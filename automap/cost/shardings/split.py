"""Which dimension, and which factor, each mesh axis splits: a point applied to rows.

For axis a with the ordered classes c_0, c_1, ...:   rank_a(c_i) = i,  rank_a(other) = infinity
    dim_of_axis[r, a]     argmin over dimensions d of rank_a(value_rows[r, d]), -1 if infinite
    factor_of_axis[r, a]  argmin over factors f of rank_a(op_rows[r, f]),       -1 if infinite

Ties go to the first dimension or factor, or to the last for a class in
`SplitClasses.last_dim_classes`; for products that are only transposed the other way round
(`automap.cost.shardings.rows`). Where classes of one axis meet in an operation,
`automap.cost.shardings.factor_choices` says which factor it splits. The small part of class c
stands in the rows as n_classes + 1 + c: it has the rank of c, or infinity if c is in
`SplitClasses.small_whole_classes`. Rows that the user's code decides have ranks of their own
(`automap.cost.shardings.imposed`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.shardings.imposed import impose
from automap.cost.shardings.rows import Rows
from automap.space.point import SplitClasses


# Infinity, among ranks that are integers.
_NEVER = 1 << 30


@dataclass(frozen=True)
class Shardings:
    """Per row: the split dimension or factor of each axis, -1 for none, `dim_of_axis` [value rows,
    axes] and `factor_of_axis` [op rows, axes], and the number of parts.

    `sizes` are those of the mesh axes. `is_late_axis` [value rows, axes]: whether an axis splits a
    gradient or its optimizer's state alone, as ZeRO-1 does, and not the parameter.
    """

    sizes: tuple[int, ...]
    dim_of_axis: np.ndarray
    factor_of_axis: np.ndarray
    parts_of_value: np.ndarray
    parts_of_op: np.ndarray
    is_late_axis: np.ndarray

    def apart(self, n: int) -> Iterator["Shardings"]:
        """Those of each of n points, of which these are all (`joint_shardings`)."""
        columns = (
            self.dim_of_axis,
            self.factor_of_axis,
            self.parts_of_value,
            self.parts_of_op,
            self.is_late_axis,
        )
        apart = [column.reshape(n, -1, *column.shape[1:]) for column in columns]
        for number in range(n):
            yield Shardings(self.sizes, *(column[number] for column in apart))


def shardings(rows: Rows, n_classes: int, split_classes: SplitClasses) -> Shardings:
    """Shardings of all rows under one point."""
    return joint_shardings(rows, n_classes, [split_classes])


def joint_shardings(rows: Rows, n_classes: int, each: Sequence[SplitClasses]) -> Shardings:
    """Shardings of all rows of the first point, then all of the next; they are of one mesh."""
    mesh = each[0].mesh
    sizes = np.array(mesh.sizes, np.int64)
    dims, factors, late = [], [], []
    for axis, (name, size) in enumerate(mesh.axes):
        rank, goes_last = _class_ranks(n_classes, each, axis)
        # A dimension has up to three classes (compute, storage, regional): the first listed counts.
        dim_ranks = _smallest(rank[:, rows.value_rows])
        impose(dim_ranks, rows.imposed.values, name, _NEVER)
        dims.append(_first(dim_ranks, goes_last, rows.transposed_values))
        late.append(_is_late(rows, rank, dims[-1]))
        class_ranks = rank[:, rows.op_rows]
        factor_ranks = _smallest(class_ranks)
        impose(factor_ranks, rows.imposed.ops, name, _NEVER)
        factors.append(_first(factor_ranks, goes_last, rows.transposed_ops))
        # Decisions about weights are of compute and regional classes: storage is no compute.
        weight_ranks = np.minimum(class_ranks[..., 0], class_ranks[..., 2])
        rows.factor_choices.choose(factors[-1], factor_ranks, weight_ranks, dims[-1], size)
    # [points, rows, axes] -> [points * rows, axes]: rows of point p begin at p * (number of rows).
    dim_of_axis = np.stack(dims, axis=-1).reshape(-1, len(sizes))
    factor_of_axis = np.stack(factors, axis=-1).reshape(-1, len(sizes))
    return Shardings(
        sizes=mesh.sizes,
        dim_of_axis=dim_of_axis,
        factor_of_axis=factor_of_axis,
        parts_of_value=n_parts(dim_of_axis >= 0, mesh.sizes),
        parts_of_op=n_parts(factor_of_axis >= 0, mesh.sizes),
        is_late_axis=np.stack(late, axis=-1).reshape(-1, len(sizes)),
    )


def _is_late(rows: Rows, rank: np.ndarray, dim: np.ndarray) -> np.ndarray:
    """`Shardings.is_late_axis` of one axis with such ranks, which splits `dim` [points, rows]."""
    gradients, is_late = rows.gradients, np.zeros(dim.shape, bool)
    own = dim[:, gradients.row]
    lasting = gradients.lasting[np.arange(len(gradients.row)), own]
    is_lasting = (np.take_along_axis(rank[:, None], lasting, axis=2) < _NEVER).any(axis=2)
    is_late[:, gradients.row] = (own >= 0) & ~is_lasting
    return is_late


def n_parts(is_split: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """In how many parts the axes of `sizes` divide what they split, [...]; `is_split` [..., axes].

    Axis by axis: there are few, and numpy's own product over few is slow.
    """
    product = np.ones(is_split.shape[:-1], np.int64)
    for axis, size in enumerate(sizes):
        product *= np.where(is_split[..., axis], size, 1)
    return product


def _class_ranks(
    n_classes: int, each: Sequence[SplitClasses], axis: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks on an axis, [points, classes and their small parts], and whether a rank is in
    `SplitClasses.last_dim_classes`, [points, ranks + 1].
    """
    most = max(len(split_classes.classes[axis]) for split_classes in each)
    # Index n_classes is the padding of rows: it keeps rank infinity.
    rank = np.full((len(each), 2, n_classes + 1), _NEVER, np.int32)
    goes_last = np.zeros((len(each), most + 1), bool)
    for ranks, is_last, split_classes in zip(rank, goes_last, each, strict=True):
        classes = split_classes.classes[axis]
        ranks[:, list(classes)] = np.arange(len(classes))
        ranks[1, list(split_classes.small_whole_classes)] = _NEVER
        is_last[: len(classes)] = [c in split_classes.last_dim_classes for c in classes]
    return rank.reshape(len(each), -1), goes_last


def _smallest(ranks: np.ndarray) -> np.ndarray:
    """Minimum over the last dimension: it is short, where numpy's own reduction is slow."""
    smallest = ranks[..., 0]
    for k in range(1, ranks.shape[-1]):
        smallest = np.minimum(smallest, ranks[..., k])
    return smallest


def _first(ranks: np.ndarray, goes_last: np.ndarray, is_transposed: np.ndarray) -> np.ndarray:
    """The position of each row's smallest rank, -1 if it has none, [points, rows]; of equal ones
    the first or the last.

    Rows that are `is_transposed` take the other of equal ones.
    """
    best = ranks.argmin(axis=2)
    smallest = np.take_along_axis(ranks, np.expand_dims(best, 2), axis=2)[..., 0]
    if goes_last.any() or is_transposed.any():
        # Column `none` of `goes_last` is always False: it stands for rows without a rank.
        none = goes_last.shape[1] - 1
        at = np.where(smallest < _NEVER, smallest, none)
        is_last = np.take_along_axis(goes_last, at, axis=1)
        # The few rows alone that are counted from their end.
        turned = is_last ^ is_transposed
        best[turned] = ranks.shape[2] - 1 - ranks[turned][:, ::-1].argmin(axis=1)
    return np.where(smallest < _NEVER, best, -1)
