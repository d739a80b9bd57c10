"""What is measured: on every machine shapes of dots, sizes of streams and of collectives, as
tables; for a user's step its kernels.

Dots are all products of the listed b, m, n and k; `automap.cost.profile.measured` reads other
shapes from them. A step's kernels are those at the local shapes of its presets on every mesh of a
topology. Kernels bound by memory are measured at the powers of two around their bytes: their times
are read from a curve                                                  -> in: `target_signatures`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

import numpy as np

from automap.backends import backend_for
from automap.calibrate.timing import Effort
from automap.cost.collectives import CollectiveKind
from automap.cost.evaluate import Evaluator
from automap.cost.profile import Transfer
from automap.cost.profile.measured import factor_parts
from automap.cost.profile.signatures import (
    DotSignature,
    ElementClass,
    Family,
    Signature,
    StreamSignature,
)
from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.planner.sharding import candidate_meshes
from automap.program.trace import Workload
from automap.space.point import SplitClasses
from automap.space.presets import PRESETS
from automap.space.space import Space
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
# Elements of the largest operand or result of a dot of the grid: 4 GiB in float32.
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
    """Small shapes first, and what a hardware file needs: float32 streams, dots, other streams."""
    yield from _streams(grid, _STREAMS[:1])
    sides = grid.sides
    for dtype, b, m, n, k in product(grid.dtypes, grid.batches, sides, sides, sides):
        if b * max(m * n, n * k, m * k) <= _MOST_ELEMENTS:
            # Small ones tell the rate, by which too long ones are known before they are run.
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
            # An axis over a part of a switch has fewer ranks on the same ports.
            halved = (*sizes[:axis], 2, level.size // 2, *sizes[axis + 1 :])
            yield index, halved, axis
            yield index, halved, axis + 1


def target_signatures(workload: Workload, topology: Topology) -> tuple[Signature, ...]:
    """Distinct signatures, those of the first presets first."""
    space = Space(workload.problem, backend_for(topology.platform).stored_multiple)
    tables = build_tables(workload.problem, topology.platform)
    evaluator = Evaluator(tables, workload.problem.n_classes, topology)
    signatures: dict[Signature, None] = {}  # a set in the order of insertion
    for mesh in candidate_meshes(topology, None):
        for preset in PRESETS.values():
            for point in preset.points(space, mesh):
                if space.is_valid(point):
                    signatures |= dict.fromkeys(_signatures(evaluator, space.split_classes(point)))
    return tuple(signatures)


def _signatures(evaluator: Evaluator, split_classes: SplitClasses) -> Iterator[Signature]:
    table = evaluator.tables.kernels
    sharding = shardings(evaluator.tables, evaluator.n_classes, split_classes)
    split = sharding.factor_of_axis[table.op_row].tolist()
    moved = table.moved_bytes(sharding.parts_of_value)
    # The power of two above each kernel's bytes; the one below it is yielded beside it.
    octave = 2 ** np.ceil(np.log2(np.maximum(moved, 1))).astype(np.int64)
    for shape, factors, n_bytes in zip(table.shape, split, octave.tolist(), strict=True):
        # A shape with a kind is measured as it is, any other by its bytes.
        parts = factor_parts(shape, factors, split_classes.mesh.sizes) if shape.kind else ()
        yield shape.local(parts, n_bytes)
        if not shape.kind:
            yield shape.local((), max(n_bytes // 2, 1))
