"""Checks of gather and scatter."""

from collections.abc import Sequence

from hlo_tools.module import Instruction, Shape
from hlo_tools.read.operand_checks.dims import (
    bad_index_vector,
    bad_numbers,
    interleaved,
    results,
    within,
    without,
)


def gather(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result has the indices' dimensions and the window's."""
    numbers, sizes = instruction.attributes.gather, instruction.attributes.gather_slice_sizes
    if numbers is None:
        return "no dimension numbers"
    table, indices, result = operands[0].dims, operands[1].dims, instruction.shape.dims
    # Of size 1 in the window, so that the result has no dimension for them.
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    wrong = (
        bad_numbers("dropped dimensions", dropped, table)
        or bad_numbers("start_index_map", numbers.start_index_map, table)
        or bad_numbers("offset_dims", numbers.offset_dims, result)
        or bad_numbers("batching dimensions", numbers.start_indices_batching_dims, indices)
        or bad_index_vector(numbers.index_vector_dim, len(numbers.start_index_map), indices)
        or within(sizes, table)
    )
    if wrong:
        return wrong
    if len(numbers.operand_batching_dims) != len(numbers.start_indices_batching_dims):
        return "batching dimensions that are not pairs"
    window = tuple(size for dim, size in enumerate(sizes) if dim not in dropped)
    batch = without(indices, numbers.index_vector_dim)
    return interleaved(window, batch, numbers.offset_dims, result)


def scatter(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Updates have the indices' dimensions and the window's."""
    # n tables, one tensor of indices, n updates.
    numbers, count = instruction.attributes.scatter, len(operands) // 2
    if numbers is None:
        return "no dimension numbers"
    if len(operands) != 2 * count + 1:
        return f"{len(operands)} operands; allowed: tables, indices and as many updates"
    tables, indices, updates = operands[:count], operands[count].dims, operands[count + 1 :]
    table, update = tables[0].dims, updates[0].dims
    if any(t.dims != table for t in tables) or any(u.dims != update for u in updates):
        return "tables or updates of several shapes"
    dropped = (*numbers.inserted_window_dims, *numbers.input_batching_dims)
    wrong = (
        bad_numbers("dropped dimensions", dropped, table)
        or bad_numbers("update_window_dims", numbers.update_window_dims, update)
        or bad_numbers("index dimensions", numbers.scatter_dims_to_operand_dims, table)
        or bad_numbers("batching dimensions", numbers.scatter_indices_batching_dims, indices)
        or bad_index_vector(
            numbers.index_vector_dim, len(numbers.scatter_dims_to_operand_dims), indices
        )
    )
    if wrong:
        return wrong
    if len(numbers.input_batching_dims) != len(numbers.scatter_indices_batching_dims):
        return "batching dimensions that are not pairs"
    window = [size for dim, size in enumerate(table) if dim not in dropped]
    if len(numbers.update_window_dims) != len(window):
        return f"{len(numbers.update_window_dims)} window dimensions for a window of {len(window)}"
    covered = tuple(update[d] for d in numbers.update_window_dims)
    return (
        within(covered, tuple(window))
        or interleaved(
            covered,
            without(indices, numbers.index_vector_dim),
            numbers.update_window_dims,
            update,
        )
        or results(instruction, count, table)
    )
