"""What checks of operands share: dimension numbers, parts, windows, results, and their texts."""

from collections.abc import Iterable, Sequence

from hlo_tools.module import Instruction, Shape, WindowDim


Dims = tuple[int, ...]


def same_structure(a: Shape, b: Shape) -> bool:
    """Whether two shapes have the same dimensions, or are tuples of such."""
    if a is b:
        return True
    if (a.dtype == "tuple") != (b.dtype == "tuple") or a.dims != b.dims:
        return False
    return len(a.elements) == len(b.elements) and all(map(same_structure, a.elements, b.elements))


def results(instruction: Instruction, count: int, dims: Dims) -> str | None:
    """The result is `count` arrays of these dimensions, in a tuple if they are several."""
    shape = instruction.shape
    results = shape.elements if shape.dtype == "tuple" else (shape,)
    if len(results) != count:
        return f"{len(results)} results of {count} arrays"
    return first(unlike(r.dims, dims) for r in results if r.dtype == "tuple" or r.dims != dims)


def arrays_and_initials(operands: Sequence[Shape]) -> str | None:
    """n arrays of one shape, then n scalars."""
    count = len(operands) // 2
    if len(operands) != 2 * count:
        return f"{len(operands)} operands; allowed: arrays and as many initial values"
    if any(operand.dims != operands[0].dims for operand in operands[:count]):
        return "arrays of several shapes"
    return "initial values that are no scalars" if any(o.dims for o in operands[count:]) else None


def windowed(windows: Sequence[WindowDim], source: Dims) -> Dims | str:
    """What a window makes of an array's dimensions, or what is wrong with it."""
    if len(windows) != len(source):
        return f"a window of {len(windows)} dimensions for {len(source)}"
    made = []
    for size, w in zip(source, windows, strict=True):
        if min(w.size, w.stride, w.window_dilation, w.base_dilation) < 1:
            dilations = f"{w.window_dilation}, {w.base_dilation}"
            return f"a window of size {w.size}, stride {w.stride} and dilations {dilations}"
        # Between n elements lie n - 1 gaps; an empty dimension has none.
        dilated = (size - 1) * w.base_dilation + 1 if size else 0
        room = dilated + w.padding_low + w.padding_high
        covered = (w.size - 1) * w.window_dilation + 1
        made.append((room - covered) // w.stride + 1 if room >= covered else 0)
    return tuple(made)


def bad_index_vector(dim: int, count: int, indices: Dims) -> str | None:
    """What is wrong with the dimension of the indices that lists dimensions."""
    if not 0 <= dim <= len(indices):
        return f"index_vector_dim {dim} of {len(indices)} dimensions"
    length = indices[dim] if dim < len(indices) else 1
    return None if length == count else f"indices of {length} numbers for {count} dimensions"


def interleaved(window: Dims, batch: Dims, at: Dims, whole: Dims) -> str | None:
    """Whether `whole` has the window's sizes at `at`, and the batch's in between."""
    if len(window) != len(at) or len(window) + len(batch) != len(whole):
        return f"{len(window)} window and {len(batch)} batch dimensions make {list(whole)}"
    sizes = iter(batch)
    places = dict(zip(at, window, strict=True))
    made = tuple(places[d] if d in places else next(sizes) for d in range(len(whole)))
    return None if made == whole else unlike(made, whole)


def bad_numbers(name: str, numbers: Iterable[int], dims: Dims) -> str | None:
    """Dimension numbers that are not of an array with these dimensions, or there twice."""
    listed = list(numbers)
    if all(0 <= n < len(dims) for n in listed) and len(set(listed)) == len(listed):
        return None
    return f"{name} {listed[:8]} of an array with {len(dims)}: allowed: each at most once"


def within(part: Dims, whole: Dims) -> str | None:
    """What is wrong with sizes that must be at most those of `whole`."""
    fits = len(part) == len(whole) and all(0 <= a <= b for a, b in zip(part, whole, strict=True))
    return None if fits else f"{list(part)[:8]} is no part of {list(whole)[:8]}"


def without(dims: Dims, dim: int) -> Dims:
    """The dimensions but one."""
    return dims[:dim] + dims[dim + 1 :]


def unlike(got: Dims, other: Dims) -> str:
    """That two lists of dimensions do not fit."""
    return f"shapes {list(got)[:8]} and {list(other)[:8]} do not fit together"


def first(texts: Iterable[str]) -> str | None:
    """The first text, None if there is none."""
    return next(iter(texts), None)
