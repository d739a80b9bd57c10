"""What is measured on every machine: shapes of dots, sizes of streams and of collectives, as
tables.

Dots are all products of the listed b, m, n and k; `automap.cost.profile.interpolate` reads other shapes
from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from automap.calibrate.timing import Effort
from automap.cost.collectives import CollectiveKind
from automap.cost.profile import Transfer
from automap.cost.profile.signatures import (
    DotSignature,
    ElementClass,
    Family,
    Signature,
    StreamSignature,
)
from automap.topology.model import Platform, Topology


Depth = Literal["quick", "full"]

EFFORTS: Final[dict[Depth, Effort]] = {
    "quick": Effort(least_seconds=0.01, samples=5, longest_seconds=0.4),
    "full": Effort(least_seconds=0.05, samples=9, longest_seconds=4.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Sizes to measure on one platform."""

    dtypes: tuple[str, ...]
    batches: tuple[int, ...]
    sides: tuple[int, ...]
    stream_bytes: tuple[int, ...]
    transfer_bytes: tuple[int, ...]


_ACCELERATOR_TYPES: Final = ("f32", "bf16", "f16")
_CPU_TYPES: Final = ("f32", "bf16")
_HOST_BYTES: Final = tuple(2**e for e in range(10, 27, 4))
_ALL_HOST_BYTES: Final = tuple(2**e for e in range(10, 29, 2))
_DEVICE_BYTES: Final = tuple(2**e for e in range(10, 31, 4))
_ALL_DEVICE_BYTES: Final = tuple(2**e for e in range(10, 32, 2))

_GRIDS: Final[dict[tuple[bool, Depth], Grid]] = {
    (True, "quick"): Grid(
        dtypes=("f32",), batches=(1, 16), sides=(16, 128, 1024), stream_bytes=_HOST_BYTES,
        transfer_bytes=(2**12, 2**17, 2**22),
    ),
    (True, "full"): Grid(
        dtypes=_CPU_TYPES, batches=(1, 16, 256), sides=(16, 64, 256, 1024, 4096),
        stream_bytes=_ALL_HOST_BYTES, transfer_bytes=(2**10, 2**14, 2**18, 2**22, 2**25),
    ),
    (False, "quick"): Grid(
        dtypes=_ACCELERATOR_TYPES, batches=(1, 64), sides=(128, 1024, 8192),
        stream_bytes=_DEVICE_BYTES, transfer_bytes=(2**14, 2**21, 2**28),
    ),
    (False, "full"): Grid(
        dtypes=_ACCELERATOR_TYPES, batches=(1, 16, 256), sides=(64, 256, 1024, 4096, 16384),
        stream_bytes=_ALL_DEVICE_BYTES, transfer_bytes=(2**10, 2**14, 2**18, 2**22, 2**26, 2**30),
    ),
}  # fmt: skip
# Elements of the largest operand or result of a dot of the grid.
_MOST_ELEMENTS: Final = 2**30
_Kinds = tuple[tuple[Family, ElementClass], ...]
_STREAMS: Final[_Kinds] = (
    ("elementwise", "wide float"),
    ("elementwise", "narrow float"),
    ("elementwise", "integer"),
    ("reduce", "wide float"),
    ("reduce", "narrow float"),
    ("gather", "wide float"),
    ("scatter", "wide float"),
    ("window", "wide float"),
    ("select-and-scatter", "wide float"),
    ("sort", "wide float"),
)


def measurement_grid(platform: Platform, depth: Depth) -> Grid:
    """The sizes measured on a platform."""
    return _GRIDS[platform == "cpu", depth]


def grid_kernels(grid: Grid) -> Iterator[Signature]:
    """What a hardware file needs first, small shapes first: float32 streams, dots, other streams."""
    yield from _streams(grid, _STREAMS[:1])
    sides = grid.sides
    for dtype, b, m, n, k in product(grid.dtypes, grid.batches, sides, sides, sides):
        if b * max(m * n, n * k, m * k) <= _MOST_ELEMENTS:
            yield DotSignature(dtype=dtype, batch=b, m=m, n=n, k=k)
    yield from _streams(grid, _STREAMS[1:])


def _streams(grid: Grid, kinds: _Kinds) -> Iterator[Signature]:
    for (family, elements), n_bytes in product(kinds, grid.stream_bytes):
        yield StreamSignature(family=family, elements=elements, n_bytes=n_bytes)


def grid_transfers(grid: Grid, topology: Topology) -> Iterator[Transfer]:
    """Collectives of every kind and size over each level, and over parts of a switch.

    A part of a switch is an axis of the mesh that has the level in two axes.
    """
    for _, sizes, axis in _axes(topology):
        for kind, n_bytes in product(CollectiveKind, grid.transfer_bytes):
            yield Transfer(kind=kind, sizes=sizes, axis=axis, n_bytes=n_bytes)


def level_by_axis(topology: Topology) -> dict[tuple[tuple[int, ...], int], int]:
    """The level of each measured (mesh sizes, axis)."""
    return {(sizes, axis): level for level, sizes, axis in _axes(topology)}


def _axes(topology: Topology) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """(level, mesh sizes, axis) of the groups to measure; meshes are major to minor."""
    sizes = tuple(level.size for level in reversed(topology.levels))
    for index, level in enumerate(topology.levels):
        axis = len(sizes) - 1 - index
        yield index, sizes, axis
        if level.kind == "switch" and level.size % 2 == 0 and level.size > 2:
            halved = (*sizes[:axis], 2, level.size // 2, *sizes[axis + 1 :])
            yield index, halved, axis
            yield index, halved, axis + 1
