"""What is not allowed, as tables of 0 and infinity over the variables: broken pins, and dimensions
split in too many parts, or inside of what is not split.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from automap.search.factored.eliminate import Table
from automap.search.factored.pricing import MeshGroup
from automap.search.factored.variables import Variables, part_count
from automap.space.pins import Pin


def pin_barriers(
    mesh_group: MeshGroup, variables: Variables, pins_by_row: dict[int, list[Pin]]
) -> Iterator[Table]:
    """Barriers of pins whose input's value row has a cell here; `pins_by_row` are the pins of each
    value row.
    """
    for cell in mesh_group.cells:
        for pin in () if cell.is_priced else pins_by_row.get(cell.ways.cell.value_rows[0], ()):
            # Kept exactly: an axis that the pin does not name splits nothing of the input.
            wanted = [pin.dim(name) for name in variables.mesh.names]
            is_kept = (cell.ways.dims[:, 0] == wanted).all(axis=1)
            barrier = np.where(is_kept, 0.0, np.inf)[cell.number]
            yield Table(mesh_group.group.scope, barrier[mesh_group.way])


def pins_by_value_row(pins: Iterable[Pin], row_of_input: np.ndarray) -> dict[int, list[Pin]]:
    """The pins of each value row."""
    pins_by_row: dict[int, list[Pin]] = {}
    for pin in pins:
        pins_by_row.setdefault(int(row_of_input[pin.position]), []).append(pin)
    return pins_by_row


def validity_barriers(variables: Variables) -> Iterator[Table]:
    """Barriers of points that are not valid (`automap.space.space.Space.is_valid`)."""
    yield from _shared_size_barriers(variables)
    yield from _outer_barriers(variables)


def _shared_size_barriers(variables: Variables) -> Iterator[Table]:
    """Barriers of dimensions that two classes split in more parts than divide them."""
    space, sizes = variables.space, variables.mesh.sizes
    for pair, size in space.shared_sizes.items():
        # A class that is no candidate is on no axis, and leaves all of the dimension to the other.
        if set(pair) <= set(space.candidates):
            scope = tuple(sorted(space.candidates.index(c) for c in pair))
            first, second = ([part_count(m, sizes) for m in variables.masks[v]] for v in scope)
            divides = size % np.multiply.outer(first, second) == 0
            if not divides.all():
                yield Table(scope, np.where(divides, 0.0, np.inf))


def _outer_barriers(variables: Variables) -> Iterator[Table]:
    """Barriers of classes inside of one that is not wholly split, or that is on the same axis."""
    candidates, sizes = variables.space.candidates, variables.mesh.sizes
    for inside, (outside, n) in variables.space.problem.outer_parts.items():
        if inside not in candidates:
            continue
        number = candidates.index(inside)
        masks = np.array(variables.masks[number])
        if outside not in candidates:
            yield Table((number,), np.where(masks == 0, 0.0, np.inf))
            continue
        other = candidates.index(outside)
        outer = np.array(variables.masks[other])
        is_whole = np.array([part_count(m, sizes) == n for m in outer.tolist()])
        allowed = (masks == 0)[:, None] | is_whole & (masks[:, None] & outer == 0)
        barrier = np.where(allowed, 0.0, np.inf)
        scope = tuple(sorted((number, other)))
        yield Table(scope, barrier if scope == (number, other) else barrier.T)
