"""Checks of ops that compute, move, combine or order elements, and that make or take tuples."""

from collections.abc import Sequence
import math

from hlo_tools.module import Instruction, Shape
from hlo_tools.read.operand_checks.dims import (
    arrays_and_initials,
    bad_numbers,
    first,
    results,
    same_structure,
    unlike,
    windowed,
    within,
    without,
)


def anything(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """No demands."""
    return None


def like_result(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Elementwise: arrays of the result's dimensions, or scalars."""
    dims = instruction.shape.dims
    if instruction.shape.dtype == "tuple":
        return "the result is a tuple, and not an array"
    for operand in operands:
        if operand.dims and operand.dims != dims:
            return unlike(operand.dims, dims)
    return None


def handed_on(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result is the operand, or all of them."""
    whole = operands[0] if len(operands) == 1 else Shape("tuple", (), tuple(operands))
    return None if same_structure(whole, instruction.shape) else "the result is not the operand"


def tuple_(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result is the operands."""
    made = Shape("tuple", (), tuple(operands))
    return None if same_structure(made, instruction.shape) else "the result is not its operands"


def element(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The element is there, and of the result's shape."""
    elements, index = operands[0].elements, instruction.tuple_index
    if not 0 <= index < len(elements):
        return f"element {index} of {len(elements)}"
    return None if same_structure(elements[index], instruction.shape) else "not the element's shape"


def bitcast_convert(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The dimensions are kept, but for the bytes of an element."""
    # From 32 bits to 8 the result has one more dimension, of size 4; likewise the other way.
    a, b = operands[0].dims, instruction.shape.dims
    n = min(len(a), len(b))
    return None if a[:n] == b[:n] and abs(len(a) - len(b)) <= 1 else unlike(a, b)


def broadcast(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Each dimension of the operand is one of the result."""
    source, result = operands[0].dims, instruction.shape.dims
    if len(instruction.dimensions) != len(source):
        return f"{len(instruction.dimensions)} dimensions for an operand of {len(source)}"
    return bad_numbers("dimensions", instruction.dimensions, result) or first(
        unlike(source, result)
        for size, out in zip(source, instruction.dimensions, strict=True)
        if size not in (1, result[out])
    )


def transpose(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result has the operand's dimensions in another order."""
    source, result = operands[0].dims, instruction.shape.dims
    wrong = bad_numbers("dimensions", instruction.dimensions, source)
    if wrong or len(instruction.dimensions) != len(source):
        return wrong or f"{len(instruction.dimensions)} dimensions for an operand of {len(source)}"
    moved = tuple(source[d] for d in instruction.dimensions)
    return None if moved == result else unlike(moved, result)


def reshape(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """As many elements before as after."""
    source, result = operands[0].dims, instruction.shape.dims
    return None if math.prod(source) == math.prod(result) else unlike(source, result)


def reverse(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result is as the operand."""
    return like_result(instruction, operands) or bad_numbers(
        "dimensions", instruction.dimensions, operands[0].dims
    )


def iota(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """It counts along one dimension."""
    if len(instruction.dimensions) != 1:
        return f"{len(instruction.dimensions)} dimensions, allowed: one"
    return bad_numbers("dimensions", instruction.dimensions, instruction.shape.dims)


def slice_(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Every slice is inside its dimension."""
    source, slices = operands[0].dims, instruction.attributes.slices
    if len(slices) != len(source):
        return f"{len(slices)} slices for an operand of {len(source)} dimensions"
    for size, cut in zip(source, slices, strict=True):
        if not 0 <= cut.start <= cut.limit <= size or cut.stride < 1:
            return f"slice [{cut.start}:{cut.limit}:{cut.stride}] of {size} elements"
    made = tuple(-(-(cut.limit - cut.start) // cut.stride) for cut in slices)
    return None if made == instruction.shape.dims else unlike(made, instruction.shape.dims)


def pad(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result has the operand's dimensions and the padding."""
    source, paddings = operands[0].dims, instruction.attributes.padding
    if len(paddings) != len(source):
        return f"{len(paddings)} paddings for an operand of {len(source)} dimensions"
    # Negative padding cuts elements off, at most all that there are.
    made = tuple(
        max(size + p.low + p.high + p.interior * max(size - 1, 0), 0)
        for size, p in zip(source, paddings, strict=True)
    )
    if any(p.interior < 0 for p in paddings):
        return "a negative padding between elements"
    return None if made == instruction.shape.dims else unlike(made, instruction.shape.dims)


def concatenate(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Operands differ in one dimension, whose sizes add up."""
    result = instruction.shape.dims
    if len(instruction.dimensions) != 1:
        return f"{len(instruction.dimensions)} dimensions, allowed: one"
    wrong = bad_numbers("dimensions", instruction.dimensions, result)
    if wrong:
        return wrong
    along = instruction.dimensions[0]
    for operand in operands:
        if len(operand.dims) != len(result) or without(operand.dims, along) != without(
            result, along
        ):
            return unlike(operand.dims, result)
    total = sum(operand.dims[along] for operand in operands)
    return None if total == result[along] else f"{total} elements make {result[along]}"


def dynamic_slice(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result is a part of the operand."""
    return within(instruction.shape.dims, operands[0].dims)


def dynamic_update_slice(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The update is a part of the operand."""
    if operands[0].dims != instruction.shape.dims:
        return unlike(operands[0].dims, instruction.shape.dims)
    return within(operands[1].dims, operands[0].dims)


def reduce(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result has the dimensions that are not combined."""
    wrong = arrays_and_initials(operands) or bad_numbers(
        "dimensions", instruction.dimensions, operands[0].dims
    )
    if wrong:
        return wrong
    reduced = set(instruction.dimensions)
    kept = tuple(size for dim, size in enumerate(operands[0].dims) if dim not in reduced)
    return results(instruction, len(operands) // 2, kept)


def reduce_window(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The result has a position for each place of the window."""
    wrong = arrays_and_initials(operands)
    made = wrong or windowed(instruction.attributes.window, operands[0].dims)
    return made if isinstance(made, str) else results(instruction, len(operands) // 2, made)


def select_and_scatter(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The gradient has a position for each place of the window."""
    source, gradient, _ = (operand.dims for operand in operands)
    made = windowed(instruction.attributes.window, source)
    if isinstance(made, str):
        return made
    if made != gradient:
        return unlike(made, gradient)
    return None if source == instruction.shape.dims else unlike(source, instruction.shape.dims)


def sort(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Operands of one shape, which the results have."""
    dims = operands[0].dims
    if any(operand.dims != dims for operand in operands):
        return "operands of several shapes"
    wrong = bad_numbers("dimensions", instruction.dimensions, dims)
    if wrong or len(instruction.dimensions) > 1:
        return wrong or f"{len(instruction.dimensions)} dimensions, allowed: one"
    return results(instruction, len(operands), dims)


def top_k(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Results have the operand's rank."""
    rank = len(operands[0].dims)
    results = instruction.shape.elements or (instruction.shape,)
    if rank == 0 or any(len(result.dims) != rank for result in results):
        return f"results that have not the {rank} dimensions of the operand"
    return None


def fft(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """The dimensions before the transformed ones are kept."""
    source, result = operands[0].dims, instruction.shape.dims
    kept = len(source) - len(instruction.attributes.fft_length)
    if kept < 0 or len(source) != len(result) or source[:kept] != result[:kept]:
        return unlike(source, result)
    return None


def matrices(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """Batches of matrices."""
    # Of a triangular solve the last operand is the right side, which the solution is like.
    dims = operands[-1].dims
    if len(dims) < 2 or any(len(operand.dims) != len(dims) for operand in operands):
        return "operands that are not matrices, as many of each"
    return None if instruction.shape.dims == dims else unlike(dims, instruction.shape.dims)
