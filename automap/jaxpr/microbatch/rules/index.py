"""Operations that pick or write elements by index.

Let the operand be x, the indices j, and, in a scatter, the updates u; the samples may be

    in a window        x[.., b, ..] read whole: the same indices for each sample
    a batching one     x[b, j[b]]: each sample indexes itself (the operation's batching dimensions)
    indexed            x[b', j[b]] where the column of j that indexes the samples is known to hold b
                       itself: it is the position in the whole batch, and made one in the microbatch
                       (`local_columns`)
    in j alone         x[j[b]]: a table is read; writing, x += u[b] at j[b], is a sum over samples
                       if x is zero
"""

from dataclasses import dataclass

from automap.jaxpr.microbatch.dependence import (
    Batched,
    Dependence,
    Known,
    KnownElements,
    Partial,
    Refusal,
    common_outer,
)
from automap.jaxpr.microbatch.rules.rule import Operation, Rule, RuleResult


@dataclass(frozen=True, slots=True)
class _Side:
    """How indices address an array x, in words that gather and scatter share.

    `window`: dimensions of x that are read or written in slices; `collapsed`: those of which one
    element is; `batching` and `index_batching`: corresponding dimensions of x and j; `columns[k]`:
    the dimension of x that column k of j indexes; `slices[p]` and `positions[d]`: dimension of the
    slices that belongs to window dimension p, and to dimension d of j.
    """

    window: tuple[int, ...]
    collapsed: tuple[int, ...]
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    columns: tuple[int, ...]
    slices: tuple[int, ...]
    positions: tuple[int, ...]

    def batching_position(self, array: Batched, index: Dependence) -> int | None:
        """The dimension of the slices that holds the samples if they are a batching dimension."""
        if array.dim not in self.batching or not isinstance(index, Batched):
            return None
        paired = self.index_batching[self.batching.index(array.dim)]
        return self.positions[paired] if index.dim == paired else None

    def own_column(
        self, operation: Operation, array: Batched, index: Dependence, *others: Dependence
    ) -> int | None:
        """The column of the indices that says of each sample where it is itself, None if none
        does.
        """
        if not isinstance(index, Batched) or array.dim not in self.columns:
            return None
        column = self.columns.index(array.dim)
        # Only a position that is known to be the sample's own makes the samples independent.
        is_own = index.elements is KnownElements.INDEX or column in index.columns
        common_outer([s for s in (array, index, *others) if isinstance(s, Batched)])
        sizes = operation.full_shape(0)[array.dim], operation.full_shape(1)[index.dim]
        fits = sizes[0] == sizes[1] and array.dim in self.collapsed
        return column if is_own and fits else None


def _gather(operation: Operation) -> RuleResult:
    numbers = operation.params["dimension_numbers"]
    ndim = len(operation.shape(0))
    batching = tuple(numbers.operand_batching_dims)
    collapsed = tuple(numbers.collapsed_slice_dims)
    side = _Side(
        window=tuple(d for d in range(ndim) if d not in collapsed and d not in batching),
        collapsed=collapsed,
        batching=batching,
        index_batching=tuple(numbers.start_indices_batching_dims),
        columns=tuple(numbers.start_index_map),
        slices=tuple(numbers.offset_dims),
        positions=tuple(d for d in range(len(operation.out_shape)) if d not in numbers.offset_dims),
    )
    array, index = operation.operands
    _check_slice_sizes(operation, array)
    if not isinstance(array, Batched):
        if not isinstance(index, Batched) or index.dim >= len(operation.shape(1)) - 1:
            raise Refusal("an index of one sample is used for all")
        return operation.all_results(Batched(side.positions[index.dim], index.outer))
    if not isinstance(index, Batched):
        if array.dim in side.window and array.dim not in side.columns:
            place = side.slices[side.window.index(array.dim)]
            return operation.all_results(Batched(place, array.outer))
        raise Refusal("it picks samples by an index")
    place = side.batching_position(array, index)
    if place is not None:
        return operation.all_results(Batched(place, common_outer((array, index))))
    column = side.own_column(operation, array, index)
    if column is None:
        raise Refusal("it picks samples by an index that may be another sample's")
    result = Batched(side.positions[index.dim], operation.outer(1))
    return RuleResult((result,), frozenset({column}))


def _check_slice_sizes(operation: Operation, array: Dependence) -> None:
    full, micro = (e.params["slice_sizes"] for e in (operation.full, operation.micro))
    for dim, sizes in enumerate(zip(full, micro)):
        shapes = operation.full_shape(0)[dim], operation.shape(0)[dim]
        # Along the samples it may read all of them, or one for each index; the rule decides which.
        is_batch = isinstance(array, Batched) and dim == array.dim
        if sizes[0] != sizes[1] and not (is_batch and sizes == shapes):
            raise Refusal("what it reads depends on the size of the batch")
        if is_batch and sizes != shapes and sizes != (1, 1):
            raise Refusal("it picks some of the samples")


def _scatter(operation: Operation) -> RuleResult:
    numbers = operation.params["dimension_numbers"]
    array, index, updates = operation.operands
    if not isinstance(updates, Batched):
        raise Refusal("it writes one value for all samples")
    inserted, batching = tuple(numbers.inserted_window_dims), tuple(numbers.operand_batching_dims)
    side = _Side(
        window=tuple(
            d for d in range(len(operation.shape(0))) if d not in inserted and d not in batching
        ),
        collapsed=inserted,
        batching=batching,
        index_batching=tuple(numbers.scatter_indices_batching_dims),
        columns=tuple(numbers.scatter_dims_to_operand_dims),
        slices=tuple(numbers.update_window_dims),
        positions=tuple(
            d for d in range(len(operation.shape(2))) if d not in numbers.update_window_dims
        ),
    )
    if isinstance(array, Batched):
        return _scatter_to_samples(operation, side, array, index, updates)
    # Other scatters overwrite, so that the order of the samples would matter.
    is_sum = operation.name in ("scatter-add", "scatter_add")
    if not is_sum or not isinstance(array, Known) or array.elements is not KnownElements.ZERO:
        raise Refusal("the samples write into one value that is not zero before")
    if not isinstance(index, Batched) or index.dim >= len(operation.shape(1)) - 1:
        raise Refusal("an index of one sample is used for all")
    # Sample b of the indices has to write sample b of the updates.
    if updates.dim != side.positions[index.dim]:
        raise Refusal("indices and values hold the samples in different dimensions")
    common_outer((index, updates))
    return operation.all_results(Partial("add"))


def _scatter_to_samples(
    operation: Operation, side: _Side, array: Batched, index: Dependence, updates: Batched
) -> RuleResult:
    place = side.batching_position(array, index)
    if place is not None and place == updates.dim and isinstance(index, Batched):
        return operation.all_results(Batched(array.dim, common_outer((array, index, updates))))
    if not isinstance(index, Batched):
        in_window = array.dim in side.window and array.dim not in side.columns
        if in_window and side.slices[side.window.index(array.dim)] == updates.dim:
            if operation.full_shape(0)[array.dim] == operation.full_shape(2)[updates.dim]:
                return operation.all_results(Batched(array.dim, common_outer((array, updates))))
        raise Refusal("it writes to samples by an index")
    column = side.own_column(operation, array, index, updates)
    if column is None or side.positions[index.dim] != updates.dim:
        raise Refusal("it writes to samples by an index that may be another sample's")
    return RuleResult((Batched(array.dim, operation.outer(1)),), frozenset({column}))


def _dynamic_slice(operation: Operation) -> RuleResult:
    value = operation.first_batched()
    full, micro = (e.params["slice_sizes"] for e in (operation.full, operation.micro))
    for dim, sizes in enumerate(zip(full, micro)):
        shapes = operation.full_shape(0)[dim], operation.shape(0)[dim]
        if dim == value.dim and sizes != shapes:
            raise Refusal("it picks some of the samples")
        if dim != value.dim and sizes[0] != sizes[1]:
            raise Refusal("what it reads depends on the size of the batch")
    return operation.all_results(Batched(value.dim, value.outer))


def _dynamic_update_slice(operation: Operation) -> RuleResult:
    value, update = operation.operands[:2]
    if not isinstance(value, Batched) or not isinstance(update, Batched):
        raise Refusal("it writes one value for all samples, or a sample's into one")
    sizes = operation.full_shape(0)[value.dim], operation.full_shape(1)[update.dim]
    if update.dim != value.dim or sizes[0] != sizes[1]:
        raise Refusal("it writes to some of the samples")
    return operation.all_results(Batched(value.dim, common_outer((value, update))))


_SCATTERS = ("scatter", "scatter-add", "scatter_add", "scatter_max", "scatter_min", "scatter_mul")
RULES = {
    "gather": Rule(_gather, frozenset({"slice_sizes"})),
    # What a scatter does with two values is in its name; the function is made anew in every trace.
    **{name: Rule(_scatter, frozenset({"update_jaxpr"})) for name in _SCATTERS},
    "dynamic_slice": Rule(_dynamic_slice, frozenset({"slice_sizes"})),
    "dynamic_update_slice": Rule(_dynamic_update_slice),
}
