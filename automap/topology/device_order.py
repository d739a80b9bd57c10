"""Which device stands at which place of a mesh: axes along tours of neighbours.

A mesh is laid row-major on the numbers of the devices, so that every axis lies on spans of levels
(`automap.topology.spans`). An axis over several dimensions of a torus then is a poor ring: from the
end of one row to the begin of the next a message goes back through the whole row. So the places
*along each axis* are put in another order: with s_j the stride of axis j and pi_j a permutation of
its places,

    device of place (i_1, ..., i_m) = sum over j of  s_j pi_j(i_j)          -> in: `device_order`

The devices of the groups of each set of axes stay the same, whatever the pi_j: what a collective
over a group costs does not change, only who is next to whom in it.

pi_j, of the spans of axis j, innermost first:

    one span            as numbered: the ring or the line of the dimension itself
    only switches       as numbered: a ring enters and leaves each host once, and an axis across
                        hosts joins devices of one number in their hosts, which are on one rail
    rings and lines     a tour of neighbours of their grid              -> in: `neighbour_tour`
    these and switches  (dies of a chip, slices on a network) what is inside is gone through to and
                        fro, once at each place of what is outside          -> in: `_places`

An order is taken if messages to the next and to the previous place of the axis, all at once, pass
the busiest link sooner than row-major, or on shorter ways with equal links -> in: `_is_better`

A tour comes to every place of a grid with sides n_1, n_2, ... once and back to where it began; a
side may close: its last place is next to its first. All steps can be to neighbours (a Hamiltonian
cycle)

    of one side         if it closes, or has at most two places
    of several          exactly if one of them is even or closes            -> in: `is_round`

since in a grid of odd open sides the places of one colour of a chessboard are one more than those
of the other. There one step of the tour is of two links, which is the least. All sides but one, of
m places, are gone through as one path of n places (a snake, whose steps are to neighbours), so that
what is left is m rows of n columns                                         -> in: `_snake`

    m even              rows from 1 on of columns 1 .. n - 1 to and fro; column 0 leads back
                                                                            -> in: `_even_rows`
    m odd and closed    the ring of column 0; then each column takes the place of one step of the
                        column before, and goes its own ring the long way instead (as cycles times
                        trees: Batagelj, Pisanski, Discrete Mathematics 38, 1982)
                                                                            -> in: `_closed_rows`
    all odd and open    columns 1 .. n - 1 of all rows but two to and fro, those two up and down;
                        column 0 leads back                                 -> in: `_odd_rows`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from math import prod
from operator import mul

import numpy as np

from automap.topology.link_loads import Permutation
from automap.topology.meshes import lies_on
from automap.topology.model import Topology
from automap.topology.rings import ring_step
from automap.topology.spans import Span, spans


@dataclass(frozen=True, slots=True)
class Side:
    """`size` places in a row; `closes` says whether the last is next to the first."""

    size: int
    closes: bool = False


_Place = tuple[int, int]
"""(row, column)"""


def device_order(topology: Topology, mesh_shape: Sequence[int]) -> tuple[int, ...]:
    """The number of the device at each place of a mesh, places row-major.

    As the devices are numbered where no axis gains by another order, and for a mesh that does not
    lie on the topology's levels.
    """
    return _device_order(topology, tuple(mesh_shape))


@lru_cache(maxsize=1024)
def _device_order(topology: Topology, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    numbered = tuple(range(topology.device_count))
    if not lies_on(topology, mesh_shape):
        return numbered
    strides = [*accumulate(reversed(mesh_shape), mul, initial=1)][-2::-1]
    devices = np.zeros(mesh_shape, np.int64)
    for axis, size in enumerate(mesh_shape):
        places = _places(spans(topology, mesh_shape, (axis,)), size)
        if places != list(range(size)) and not _is_better(topology, mesh_shape, axis, places):
            places = list(range(size))
        along = [size if other == axis else 1 for other in range(len(mesh_shape))]
        devices += strides[axis] * np.reshape(places, along)
    return tuple(devices.ravel().tolist())


def _places(group: Sequence[Span], size: int) -> list[int]:
    """pi_j: the places of an axis over `group` in the order of a tour."""
    is_grid = [span.kind != "switch" for span in group]
    if len(group) < 2 or not any(is_grid):
        return list(range(size))
    places = [0]
    for is_run_grid, run in groupby(group, lambda span: span.kind != "switch"):
        outer = _run_tour(list(run)) if is_run_grid else range(prod(span.ranks for span in run))
        inside = len(places)
        inner = to_and_fro(places, len(outer))
        places = [outer[turn // inside] * inside + places[at] for turn, at in enumerate(inner)]
    return places


def _run_tour(run: Sequence[Span]) -> Sequence[int]:
    # A ring of two joins the same two places twice.
    return neighbour_tour([Side(s.ranks, s.kind == "ring" and s.ranks > 2) for s in run])


def _is_better(
    topology: Topology, mesh_shape: tuple[int, ...], axis: int, places: Sequence[int]
) -> bool:
    numbered = np.arange(topology.device_count).reshape(mesh_shape)
    along = np.take(numbered, places, axis=axis)
    tour, plain = (
        ring_step(topology, order.ravel().tolist(), mesh_shape, (axis,))
        for order in (along, numbered)
    )
    return _price(tour) < _price(plain)


def _price(step: Permutation) -> tuple[float, float]:
    return step.seconds_per_byte, step.latency_seconds


def is_round(sides: Sequence[Side]) -> bool:
    """Whether a closed tour of neighbours comes to every place of the grid."""
    long = [side for side in sides if side.size > 1]
    if len(long) <= 1:
        return all(side.closes or side.size <= 2 for side in long)
    return any(side.closes or side.size % 2 == 0 for side in long)


def neighbour_tour(sides: Sequence[Side]) -> tuple[int, ...]:
    """The places of a grid in the order of a tour, numbered with the first side varying fastest.

    Every step is to a neighbour, of several sides also that from the last place to the first, where
    `is_round`; else that one is two links long. Of one side the places stay in their order.
    """
    long = [at for at, side in enumerate(sides) if side.size > 1]
    if len(long) <= 1:
        return tuple(range(prod(side.size for side in sides)))
    # An even side first: its tour needs no side that closes.
    rows_at = min(long, key=lambda at: (sides[at].size % 2, not sides[at].closes))
    others = [at for at in long if at != rows_at]
    columns = _snake([sides[at].size for at in others])
    n_rows, n_columns = sides[rows_at].size, len(columns)
    if n_rows % 2 == 0:
        places = _even_rows(n_rows, n_columns)
    elif sides[rows_at].closes:
        places = _closed_rows(n_rows, n_columns)
    else:
        places = _odd_rows(n_rows, n_columns)
    strides = [prod(side.size for side in sides[:at]) for at in range(len(sides))]
    return tuple(
        row * strides[rows_at]
        + sum(x * strides[at] for x, at in zip(columns[column], others, strict=True))
        for row, column in places
    )


def to_and_fro(inner: Sequence[object], turns: int) -> list[int]:
    """Indices of `inner`, forwards and backwards in turn, `turns` times in all."""
    there = list(range(len(inner)))
    return [at for turn in range(turns) for at in (there if turn % 2 == 0 else there[::-1])]


def _snake(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """All places of a grid as one path of neighbours."""
    path: list[tuple[int, ...]] = [()]
    for size in sizes:
        inner = to_and_fro(path, size)
        path = [(*path[at], turn // len(path)) for turn, at in enumerate(inner)]
    return path


def _even_rows(n_rows: int, n_columns: int) -> list[_Place]:
    columns = range(1, n_columns)
    order = to_and_fro(columns, n_rows)
    there = [(turn // len(columns), columns[at]) for turn, at in enumerate(order)]
    back = [(row, 0) for row in range(n_rows - 1, -1, -1)]
    # Column 0 is last, so that the tour begins beside where it ends.
    return [back[-1], *there, *back[:-1]]


def _closed_rows(n_rows: int, n_columns: int) -> list[_Place]:
    tour = [(row, 0) for row in range(n_rows)]
    for column in range(1, n_columns):
        # Of the column before, the tour has every step of its ring but the one that was replaced:
        # row 0 to 1 in one column, row 1 to 2 in the next.
        row = (column - 1) % 2
        at = tour.index((row, column - 1))
        is_forward = tour[(at + 1) % len(tour)] == (row + 1, column - 1)
        around = [((row - step) % n_rows, column) for step in range(n_rows)]
        if is_forward:
            tour[at + 1 : at + 1] = around
        else:
            tour[at:at] = around[::-1]
    return tour


def _odd_rows(n_rows: int, n_columns: int) -> list[_Place]:
    columns, plain = range(1, n_columns), n_rows - 2
    order = to_and_fro(columns, plain)
    there = [(turn // len(columns), columns[at]) for turn, at in enumerate(order)]
    rows = to_and_fro((0, 1), len(columns))
    last = [
        (plain + rows[2 * turn + step], column)
        for turn, column in enumerate(reversed(columns))
        for step in (0, 1)
    ]
    # From the last of them to the foot of column 0 is the one step of two links.
    back = [(row, 0) for row in range(n_rows - 1, -1, -1)]
    return [*back, *there, *last]
