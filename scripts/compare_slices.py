"""What the TPU compiler makes of collectives over parts of a slice, beside what they are priced as.

    python -m scripts.compare_slices -o docs/reports/collectives_tpu.md

Needs the extra `tpu`, and no TPU. Each case is a program of one collective, or of one product
whose result is scattered, compiled ahead of time for a slice:

    all-reduce      the sum of an array over its first dimension, which is split over the group
    all-gather      an array that is split over the group, doubled
    reduce-scatter  a product whose summed dimension and whose result's rows are split over the
                    group, with so few sums that it goes round no ring
    ring            such a product with so many flops for each byte of a shard

What the compiler made is read from its program: the opcode, and the algorithm that stands in the
instruction's configuration.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
import os
from pathlib import Path
import re
from typing import Final, Literal

import click
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.progress import track

from automap.backends import backend_for
from automap.cost.collectives import CollectiveKind, collective_cost
from automap.runtime.meshes import mesh_on, slice_devices
from automap.topology import get_topology
from automap.topology.model import Topology
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_slices -o docs/reports/collectives_tpu.md"
_WIDTH: Final = 1024
_BYTES: Final = 4
_MEBIBYTE: Final = 2**20
# Far less than any ring needs.
_SHORT_SUM: Final = 64
_ALGORITHMS: Final = re.compile(r'"strategy":"(\w+)"|"emitter":"(\d\w*AllGather\w*)')
_COLORS: Final = re.compile(r"colors:(\d+)")
_OPCODES: Final = re.compile(r" (all-gather|all-reduce|reduce-scatter)(?:-start)?\(")

Program = tuple[Callable[..., jax.Array], tuple[jax.ShapeDtypeStruct, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """A collective of `mebibytes` over mesh `axes` of a slice."""

    slice_name: str
    mesh: tuple[int, ...]
    axes: tuple[int, ...]
    kind: Literal["all-reduce", "all-gather", "reduce-scatter"]
    mebibytes: int = 64


@dataclass(frozen=True, slots=True)
class RingCase:
    """A product over all devices of a slice, of `share` of the flops from which rings are made."""

    slice_name: str
    share: float


_GROUPS: Final = (
    ("v5e:2x4", (8,), (0,)),
    ("v5e:2x4", (2, 2, 2), (0, 1)),
    ("v5e:4x4", (16,), (0,)),
    ("v5e:4x8", (32,), (0,)),
    ("v5e:8x8", (64,), (0,)),
    ("v5e:8x8", (8, 8), (0,)),
    ("v5e:8x8", (4, 16), (1,)),
    ("v5e:16x16", (256,), (0,)),
    ("v5e:16x16", (16, 16), (1,)),
    ("v5e:16x16", (4, 64), (1,)),
    ("v5p:2x2x2", (8,), (0,)),
    ("v5p:2x2x4", (16,), (0,)),
    ("v5p:4x4x4", (64,), (0,)),
    ("v5p:4x4x4", (4, 16), (1,)),
    ("v5p:4x4x4", (4, 4, 4), (0, 2)),
    ("v5p:4x4x4", (2, 32), (1,)),
    ("v5p:4x4x8", (128,), (0,)),
    ("v6e:8x8", (64,), (0,)),
)
CASES: Final = tuple(
    Case(name, mesh, axes, kind)
    for name, mesh, axes in _GROUPS
    for kind in ("all-reduce", "all-gather", "reduce-scatter")
) + (Case("v5e:8x8", (64,), (0,), "all-gather", mebibytes=16),)
_SHARES: Final = (0.95, 1.05)
RINGS: Final = tuple(
    RingCase(name, share)
    for name, shares in (
        ("v4:2x2x2", _SHARES),
        ("v5e:2x4", _SHARES),
        ("v5p:2x2x2", _SHARES),
        ("v6e:2x4", _SHARES),
        ("v5e:4x8", _SHARES),
        ("v5e:8x8", (4.0,)),
        ("v5p:2x4x4", _SHARES),
        ("v5p:4x4x4", (4.0,)),
        ("v6e:4x8", _SHARES),
        ("v6e:8x8", (4.0,)),
    )
    for share in shares
)


def collective_row(case: Case) -> list[str]:
    """What is compiled and what is priced of a case."""
    topology = get_topology(case.slice_name)
    rows = case.mebibytes * _MEBIBYTE // (_WIDTH * _BYTES)
    step, args = _collective(_Laid(topology, case.mesh, case.axes), case.kind, rows)
    text = _program_text(step, args)
    seconds = {
        kind: float(
            collective_cost(kind, topology, case.mesh, case.axes).seconds(
                case.mebibytes * _MEBIBYTE
            )
        )
        for kind in (CollectiveKind(case.kind), CollectiveKind.ALL_REDUCE)
    }
    own = seconds[CollectiveKind(case.kind)]
    return [
        case.slice_name,
        "x".join(map(str, case.mesh)),
        "all" if len(case.mesh) == len(case.axes) else ", ".join(map(str, case.axes)),
        case.kind,
        str(case.mebibytes),
        compiled_kind(text),
        compiled_algorithm(text),
        f"{own * 1e3:.3f}",
        f"{own / seconds[CollectiveKind.ALL_REDUCE]:.2f}",
    ]


def ring_row(case: RingCase) -> list[str]:
    """Whether a ring is compiled and is predicted."""
    topology = get_topology(case.slice_name)
    numbers, count = backend_for("tpu").tile_numbers, topology.device_count
    flops_per_byte = case.share * numbers.least_ring_flops_per_byte(topology.device.name)
    # 2 K m n / N flops on a device, for 4 m n / N bytes of a shard.
    summed = round(flops_per_byte * _BYTES / 2 / count) * count
    laid = _Laid(topology, (count,), (0,))
    step, args = _product(laid, summed, 512 * count)
    text = _program_text(step, args)
    is_many = numbers.ring_fewest_devices <= count <= numbers.ring_most_devices
    return [
        case.slice_name,
        str(count),
        f"{summed * 2 / _BYTES:,.0f}",
        "ring" if is_many and case.share >= 1 else "none",
        "none" if _OPCODES.search(text) else "ring",
    ]


def _program_text(step: Callable[..., jax.Array], args: Sequence[jax.ShapeDtypeStruct]) -> str:
    return jax.jit(step).lower(*args).compile().as_text() or ""


@dataclass(frozen=True, slots=True)
class _Laid:
    """A group of mesh axes on the devices of a slice that is not there."""

    topology: Topology
    mesh: tuple[int, ...]
    axes: tuple[int, ...]

    def specs(self) -> Callable[..., NamedSharding]:
        """A function of an array's dimensions, each "group", "others" or None, for its sharding."""
        mesh = _mesh(self.topology, self.mesh)
        inside = tuple(mesh.axis_names[axis] for axis in self.axes)
        others = tuple(name for name in mesh.axis_names if name not in inside) or None
        by_word = {"group": inside, "others": others, None: None}
        return lambda *dims: NamedSharding(mesh, PartitionSpec(*(by_word[dim] for dim in dims)))

    def array(self, shape: tuple[int, ...], *dims: str | None) -> jax.ShapeDtypeStruct:
        """An array of float32 of that shape whose dimensions are split so."""
        return jax.ShapeDtypeStruct(shape, "float32", sharding=self.specs()(*dims))

    @property
    def ranks(self) -> int:
        """The devices of a group."""
        return prod(self.mesh[axis] for axis in self.axes)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.topology.device_count // self.ranks


# JAX takes the devices of two descriptions of one slice for different ones.
@cache
def _mesh(topology: Topology, sizes: tuple[int, ...]) -> Mesh:
    devices = slice_devices(topology.name, topology.device_count)
    return mesh_on(devices, [(f"axis{number}", size) for number, size in enumerate(sizes)])


def _collective(laid: _Laid, kind: str, rows: int) -> Program:
    split, array = laid.specs(), laid.array
    # Each group has columns of its own, as the other axes of a real mesh split something too.
    columns = _WIDTH * laid.groups
    if kind == "all-reduce":
        summed = array((laid.ranks, rows, columns), "group", None, "others")
        return _placed(lambda x: x.sum(axis=0), split(None, "others")), (summed,)
    if kind == "all-gather":
        whole, parts = split(None, "others"), array((rows, columns), "group", "others")
        return lambda x: 2 * jax.lax.with_sharding_constraint(x, whole), (parts,)
    return _product(laid, _SHORT_SUM * laid.ranks, rows)


def _product(laid: _Laid, summed: int, rows: int) -> Program:
    left = laid.array((summed, rows), "group", None)
    right = laid.array((summed, _WIDTH * laid.groups), "group", "others")
    return _placed(lambda a, b: a.T @ b, laid.specs()("group", "others")), (left, right)


def _placed(step: Callable[..., jax.Array], sharding: NamedSharding) -> Callable[..., jax.Array]:
    return lambda *args: jax.lax.with_sharding_constraint(step(*args), sharding)


def compiled_kind(text: str) -> str:
    """What a program has in place of its collective."""
    # A fused one is an all-reduce with a slice in one computation.
    if "all-reduce-scatter" in text:
        return "reduce-scatter"
    return ", ".join(sorted(set(_OPCODES.findall(text)))) or "permutes"


def compiled_algorithm(text: str) -> str:
    """How the collective of a program goes, as its configuration says."""
    names = {strategy or emitter for strategy, emitter in _ALGORITHMS.findall(text)}
    colors = set(_COLORS.findall(text))
    return ", ".join(sorted(names)) + (f" ({', '.join(sorted(colors))} colors)" if colors else "")


def _tables() -> Iterator[str]:
    header = ["slice", "mesh", "over axes", "of", "MiB", "compiled", "algorithm"]
    header += ["predicted ms", "share"]
    yield markdown(header, [collective_row(case) for case in track(CASES, "collectives")])
    yield "\n"
    header = ["slice", "devices", "flops for a byte", "predicted", "compiled"]
    yield markdown(header, [ring_row(case) for case in track(RINGS, "rings")])


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(output: Path | None) -> None:
    """Compile all cases."""
    # Else libtpu asks a metadata server of a cloud machine, and JAX looks for a TPU here.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    jax.config.update("jax_platforms", "cpu")
    tables = "".join(_tables())
    if output is None:
        click.echo(tables)
        return
    machine = f"jax {jax.__version__}, compiled ahead of time by libtpu on a CPU host"
    replace_table(output, made_by(COMMAND, machine) + tables, "slices")


if __name__ == "__main__":
    main()
