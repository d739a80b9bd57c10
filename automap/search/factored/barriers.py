"""What is not allowed, as tables of 0 and infinity over the variables: broken pins, and dimensions
split in too many parts.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from automap.search.factored.laying import Laid
from automap.search.factored.table import Table
from automap.search.factored.variables import Variables, parts_of
from automap.space.pins import Pin


def pin_barriers(laid: Laid, variables: Variables, of_row: dict[int, list[Pin]]) -> Iterator[Table]:
    """Barriers of pins whose input's value row has a cell here; `of_row` are the pins of each value
    row.
    """
    for cell in laid.cells:
        for pin in () if cell.is_priced else of_row.get(cell.ways.cell.value_rows[0], ()):
            wanted = [pin.dim(name) for name in variables.mesh.names]
            is_kept = (cell.ways.dims[:, 0] == wanted).all(axis=1)
            barrier = np.where(is_kept, 0.0, np.inf)[cell.number]
            yield Table(laid.group.scope, barrier[laid.way])


def pins_of_rows(pins: Iterable[Pin], row_of_input: np.ndarray) -> dict[int, list[Pin]]:
    """The pins of each value row."""
    found: dict[int, list[Pin]] = {}
    for pin in pins:
        found.setdefault(int(row_of_input[pin.position]), []).append(pin)
    return found


def barriers_of_both(variables: Variables) -> Iterator[Table]:
    """Barriers of dimensions that two classes split in more parts than divide them."""
    space, sizes = variables.space, variables.mesh.sizes
    for pair, size in space.shared_sizes.items():
        if set(pair) <= set(space.candidates):
            scope = tuple(sorted(space.candidates.index(c) for c in pair))
            first, second = ([parts_of(m, sizes) for m in variables.masks[v]] for v in scope)
            divides = size % np.multiply.outer(first, second) == 0
            if not divides.all():
                yield Table(scope, np.where(divides, 0.0, np.inf))
