"""XLA's text of a sharding -> the mesh axes that split each dimension.

    {devices=[t_1,..,t_n,r]<=[g_1,..]T(p) last_tile_dim_replicate}

places the devices 0 .. N-1, laid out as g, transposed by p and read row-major, in a grid of
t_1 x .. x t_n parts with r copies of each. Dimension k is split by mesh axes a_1 .. a_j, major
first, if for every device its number of the part is c_1, .., c_j read as digits, where c are its
coordinates on those axes                                       -> in: `_axes_that_number`
"""

from collections.abc import Sequence
from itertools import permutations
from math import prod
import re
from typing import Any, Final

import numpy as np

from automap.errors import PlanError
from automap.plan.checks import Spec


_TILES: Final = re.compile(
    r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))"
    r"( last_tile_dim_replicate)?\}"
)


def read_spec(text: str, rank: int, axes: Sequence[tuple[str, int]]) -> Spec | None:
    """The mesh axes, (name, size), that split each of `rank` dimensions by XLA's text of a
    sharding.

    None if no axes do: give the mesh axes of prime sizes. Raises `PlanError` for a text that cannot
    be read.
    """
    if text == "{replicated}":
        return (None,) * rank
    match = _TILES.fullmatch(text)
    if match is None:
        raise PlanError(
            f"sharding {text[:200]!r}: allowed: {{replicated}} or {{devices=[...]<=[...]}}"
        )
    tiles, devices = _tiles(match)
    # More tiles than dimensions: the rest are copies.
    if devices.size != prod(size for _, size in axes) or len(tiles) < rank:
        raise PlanError(f"sharding {text[:200]!r}: does not suit {rank} dimensions on {list(axes)}")
    # The inverse of the list: where in the grid each device stands.
    place = np.empty(devices.size, dtype=int)
    place[devices.ravel()] = np.arange(devices.size)
    tile_numbers = np.unravel_index(place, tiles)
    coordinates = np.unravel_index(np.arange(devices.size), [size for _, size in axes])
    entries = [_axes_that_number(tile_numbers[d], tiles[d], axes, coordinates) for d in range(rank)]
    return None if any(e is None for e in entries) else tuple(e or None for e in entries)


def _tiles(match: re.Match[str]) -> tuple[tuple[int, ...], np.ndarray]:
    """(number of parts of each dimension, devices in the order of the parts)."""
    tiles = tuple(int(t) for t in match[1].split(","))
    # The older form lists the devices one by one.
    if match[4] is not None:
        return tiles, np.array([int(d) for d in match[4].split(",")]).reshape(tiles)
    grid = [int(n) for n in match[2].split(",")]
    order = range(len(grid)) if match[3] is None else [int(n) for n in match[3].split(",")]
    return tiles, np.arange(prod(grid)).reshape(grid).transpose(list(order)).reshape(tiles)


def _axes_that_number(
    tile_numbers: np.ndarray,
    parts: int,
    axes: Sequence[tuple[str, int]],
    coordinates: Sequence[Any],
) -> tuple[str, ...] | None:
    """The axes, major first, whose coordinates give each device's part; None if none do."""
    # With axes of prime sizes one choice at most has the right product and digits.
    for count in range(len(axes) + 1):
        for chosen in permutations(range(len(axes)), count):
            sizes = [axes[a][1] for a in chosen]
            if prod(sizes) != parts or 1 in sizes:
                continue
            number = np.zeros_like(tile_numbers)
            for a, size in zip(chosen, sizes, strict=True):
                number = number * size + coordinates[a]
            if (number == tile_numbers).all():
                return tuple(axes[a][0] for a in chosen)
    return None
