"""Copies of things, numbered through: for each cell and each way to split its rows one of every
thing of the cell.

Copies are numbered by cell, in a cell by way, in a way by thing, so that number(cell, way, thing) =
    start(cell) + way * (things of the cell) + place of the thing in the cell
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Copies:
    """`thing`, `cell` and `way` are of each copy; `start` and `count` of each cell; `place` [cells,
    things], -1: not there.
    """

    thing: np.ndarray
    cell: np.ndarray
    way: np.ndarray
    start: np.ndarray
    count: np.ndarray
    place: np.ndarray

    @property
    def is_first(self) -> np.ndarray:
        """Whether each copy is of the first thing of its cell."""
        return self.place[self.cell, self.thing] == 0

    def number(self, cell: np.ndarray, way: np.ndarray, thing: np.ndarray) -> np.ndarray:
        """The copies of `thing` in each cell and way."""
        return self.start[cell] + way * self.count[cell] + self.place[cell, thing]

    def of_cell(self, cell: int, n_ways: int) -> np.ndarray:
        """The copies of one cell, [ways, things]."""
        count = int(self.count[cell])
        return int(self.start[cell]) + np.arange(n_ways * count).reshape(n_ways, count)


def copies_of(
    things: Sequence[Sequence[int] | np.ndarray], n_ways: np.ndarray, n_things: int
) -> Copies:
    """Copies of the `things` of each cell, of which there are `n_things` in all cells together."""
    count = np.array([len(of) for of in things], np.int64)
    cells = np.arange(len(things))
    place = np.full((len(things), n_things), -1, np.int32)
    for cell, of in enumerate(things):
        place[cell, np.array(of, np.int64)] = np.arange(len(of))
    none = np.zeros(0, np.int64)
    return Copies(
        thing=np.concatenate(
            [none, *(np.tile(np.array(of, np.int64), n) for of, n in zip(things, n_ways))]
        ),
        cell=np.repeat(cells, count * n_ways),
        way=np.concatenate([none, *(np.repeat(np.arange(n), k) for n, k in zip(n_ways, count))]),
        start=np.concatenate([[0], np.cumsum(count * n_ways)[:-1]]).astype(np.int64),
        count=count,
        place=place,
    )
