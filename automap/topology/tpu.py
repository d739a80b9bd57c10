"""TPU slices by name: `GENERATION:AxB` or `GENERATION:AxBxC`, the names that JAX's ahead-of-time
topologies use (`v5e:4x4`, `v5p:4x4x4`).

A slice is a grid of chips. Each dimension greater than 1 becomes a level, the last dimension of the
name innermost. A chip has two links per dimension, so a dimension's bytes per second are

    2 * (one link, one direction) = (bidirectional ICI bandwidth of the chip) / (dimensions).

The dimension is a ring where the hardware closes it and a line elsewhere (`_wraps`): a v5e or v6e
dimension closes at 16, the side of the whole pod; v4, v5p and tpu7x build slices from optically
joined cubes of 4x4x4, so a slice made of whole cubes is a torus in every dimension and a smaller
one is a mesh. Twisted tori are not modelled.

On tpu7x the two dies of a chip are two JAX devices: they form the innermost level, "die", and share
the chip's links. v4 and v5p show one device per chip.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import prod
from typing import Final, Literal

from automap.errors import TopologyError
from automap.topology.devices import DEVICES
from automap.topology.model import Level, Source, Topology


_HOP: Final = Source(
    field="latency_seconds",
    document="https://jax-ml.github.io/scaling-book/sharding",
    note="about 1 us per ICI hop",
)
_FLAT_WRAP: Final = Source(
    field="kind",
    document="https://jax-ml.github.io/scaling-book/tpus",
    note="a v5e or v6e dimension wraps around only at 16",
)
_CUBE_WRAP: Final = Source(
    field="kind",
    document="https://cloud.google.com/tpu/docs/v5p",
    note="4x4x4 and larger slices (whole cubes) are full 3-D tori; smaller ones are meshes",
)
_FLAT_SHAPES: Final = (
    (1, 1),
    (2, 2),
    (2, 4),
    (4, 4),
    (4, 8),
    (8, 8),
    (8, 16),
    (16, 16),
)
_SMALL_SHAPES: Final = ((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 4), (2, 4, 4))
# Chips along each side of the cubes from which optical switches make slices.
_CUBE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One TPU generation: how its chips are joined.

    `chip_bytes_per_s` is a chip's ICI bandwidth in one direction over all its links, `max_chips`
    the largest slice, `dies` the JAX devices of a chip, `cores` the TensorCores of one (as
    libtpu 0.0.51 says, of v4 with megacore); `kinds` is what JAX calls its devices (`device_kind`).
    """

    name: str
    kinds: tuple[str, ...]
    grid: Literal["flat", "cubes"]
    chip_bytes_per_s: float
    max_chips: int
    example: str
    note: str
    dies: int = 1
    cores: int = 1
    die_bytes_per_s: float = 0.0  # one direction; 0 where a chip is one device

    @property
    def dimensions(self) -> int:
        """The number of dimensions of the grid."""
        return 2 if self.grid == "flat" else 3

    def shape_rule(self) -> str:
        """The slices that exist, in words for an error message."""
        if self.grid == "flat":
            return ", ".join("x".join(map(str, shape)) for shape in _FLAT_SHAPES)
        small = ", ".join("x".join(map(str, shape)) for shape in _SMALL_SHAPES)
        return f"{small}, or three multiples of {_CUBE} with at most {self.max_chips} chips"


GENERATIONS: Final[dict[str, Generation]] = {
    generation.name: generation
    for generation in (
        Generation(
            name="v4",
            kinds=("TPU v4",),
            grid="cubes",
            chip_bytes_per_s=300e9,
            max_chips=4096,
            example="v4:2x2x4",
            note="six links of 50 GB/s a chip (Jouppi et al., TPU v4, ISCA 2023)",
            cores=2,
        ),
        Generation(
            name="v5e",
            kinds=("TPU v5 lite", "TPU v5e"),
            grid="flat",
            chip_bytes_per_s=200e9,
            max_chips=256,
            example="v5e:4x4",
            note="400 GB/s bidirectional a chip over 4 ports",
        ),
        Generation(
            name="v5p",
            kinds=("TPU v5", "TPU v5p"),
            grid="cubes",
            chip_bytes_per_s=600e9,
            max_chips=6144,
            example="v5p:4x4x4",
            note="1200 GB/s bidirectional a chip; slices of 4x4x4 and larger are 3-D tori",
            cores=2,
        ),
        Generation(
            name="v6e",
            kinds=("TPU v6 lite", "TPU v6e"),
            grid="flat",
            chip_bytes_per_s=400e9,
            max_chips=256,
            example="v6e:4x4",
            note="800 GB/s bidirectional a chip over 4 ports",
        ),
        Generation(
            name="tpu7x",
            kinds=("TPU7x",),
            grid="cubes",
            chip_bytes_per_s=600e9,
            max_chips=9216,
            example="tpu7x:2x2x1",
            note="1200 GB/s bidirectional a chip",
            dies=2,
            die_bytes_per_s=600e9,
        ),
    )
}
TPU_KINDS: Final[dict[str, str]] = {
    kind: generation.name for generation in GENERATIONS.values() for kind in generation.kinds
}
"""JAX's device_kind -> TPU generation."""


def tpu_slice(name: str, dims_text: str) -> Topology:
    """The topology of `GENERATION:DIMS`, refused with the shapes that exist.

    `name` is a key of `GENERATIONS`, `dims_text` as "4x4".
    """
    generation = GENERATIONS[name]
    parts = dims_text.split("x")
    # `int` would take signs and underscores as well.
    dims = tuple(int(part) for part in parts if part.isdecimal() and len(part) <= 5)
    if len(dims) != len(parts) or not _exists(generation, dims):
        raise TopologyError(
            f"topology: got {name}:{dims_text[:40]!s}; allowed slices of {name}: "
            f"{generation.shape_rule()}; for example {generation.example}"
        )
    return grid_topology(generation, dims, name=f"{name}:{'x'.join(map(str, dims))}")


def slice_names(generation: Generation, most_devices: int) -> Iterator[str]:
    """The names of all slices of a generation with at most so many devices, the fewest first; those
    that are turned are one.
    """
    most = min(generation.max_chips, most_devices // generation.dies)
    shapes = _FLAT_SHAPES
    if generation.grid == "cubes":
        sides = range(_CUBE, most // _CUBE**2 + 1, _CUBE)
        shapes = (*_SMALL_SHAPES, *combinations_with_replacement(sides, 3))
    for dims in sorted(shapes, key=lambda dims: (prod(dims), dims)):
        if prod(dims) <= most:
            yield f"{generation.name}:{'x'.join(map(str, dims))}"


def grid_topology(generation: Generation, dims: tuple[int, ...], *, name: str) -> Topology:
    """A grid of chips as levels; the shape is taken as it is, for slices that a machine reports."""
    device = DEVICES[generation.name]
    source = Source(
        field="bytes_per_s",
        document=f"https://cloud.google.com/tpu/docs/{generation.name}",
        note=f"{generation.note}; one direction, the two links of this dimension",
    )
    wrap = _FLAT_WRAP if generation.grid == "flat" else _CUBE_WRAP
    axes = [
        Level(
            name=f"ici-{letter}",
            size=size,
            kind="ring" if _wraps(generation, dims, size) else "line",
            bytes_per_s=generation.chip_bytes_per_s / generation.dimensions,
            latency_seconds=1e-6,
            # The program is the same on both dies, so they use the chip's links at once.
            shared_by=generation.dies,
            source=(source, wrap, _HOP),
        )
        for letter, size in zip("xyz", dims, strict=False)
        if size > 1
    ]
    # The last dimension of the name is the innermost level: it varies fastest.
    levels = (*_die_level(generation), *reversed(axes))
    return Topology(name=name, platform="tpu", device=device, levels=levels)


def _die_level(generation: Generation) -> tuple[Level, ...]:
    if generation.dies == 1:
        return ()
    source = Source(
        field="bytes_per_s, latency_seconds",
        document="assumption",
        note="the tpu7x page calls die-to-die six times faster than an ICI link: 6 x 100 GB/s"
        " in one direction; latency as one ICI hop",
    )
    return (
        Level(
            name="die",
            size=generation.dies,
            kind="switch",
            bytes_per_s=generation.die_bytes_per_s,
            latency_seconds=1e-6,
            source=(source,),
        ),
    )


def _exists(generation: Generation, dims: tuple[int, ...]) -> bool:
    # A slice may be turned: 4x2 has the chips and links of 2x4.
    ordered = tuple(sorted(dims))
    if generation.grid == "flat":
        return ordered in _FLAT_SHAPES
    if ordered in _SMALL_SHAPES:
        return True
    return len(dims) == 3 and _is_cubes(dims) and prod(dims) <= generation.max_chips


def _wraps(generation: Generation, dims: tuple[int, ...], size: int) -> bool:
    """Whether the hardware closes this dimension (`_FLAT_WRAP`, `_CUBE_WRAP`)."""
    return size == 16 if generation.grid == "flat" else _is_cubes(dims)


def _is_cubes(dims: tuple[int, ...]) -> bool:
    return all(size >= _CUBE and size % _CUBE == 0 for size in dims)
