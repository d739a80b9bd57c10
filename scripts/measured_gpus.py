"""Make the measured tables of GPUs, and hold what is read from them against what was left out.

    python -m scripts.measured_gpus split COLLECTIVES.csv MATMULS.csv
    python -m scripts.measured_gpus judge -o docs/reports/gpu_measurements.md

`split` reads the tables that XLA ships, as text:

    device,collective,devices_per_group,groups,shape_bytes,bytes_per_s
    device,dtypes,batch,m,n,k,flop_per_s

and writes every second row of each series of sizes to `automap/topology/measured`, the others to
`tests/automap/topology/measured`. XLA's bytes are those of an instruction's shape (for a
reduce-scatter that is one part) and its bytes per second are those of the full buffer, as its
estimates of compiled programs show. A permute's rows do not say their pattern, and come in up to
three for a size; the compiler is asked for them (extra `gpu-compiler`, and `JAX_PLATFORMS=cpu`
where there is no GPU): two that swap, and a ring.

`judge` prints, for each kind, the errors of interpolation on the half that was not used.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
import csv
from dataclasses import astuple, dataclass, fields
import math
from pathlib import Path

import click
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.jax_compat import compiled_proto
from automap.topology import get_topology
from automap.topology.measured.collectives import measured_collectives
from automap.topology.measured.products import measured_products
from automap.verify.compilers import machine_for
from automap.verify.worker import compiler_devices
from hlo_tools.compiled.estimates import ESTIMATES, read_estimates
from scripts.tables import made_by, markdown, replace_table


ROOT = Path(__file__).resolve().parents[1]
USED = ROOT / "automap" / "topology" / "measured"
LEFT_OUT = ROOT / "tests" / "automap" / "topology" / "measured"
COMMAND = "python -m scripts.measured_gpus judge -o docs/reports/gpu_measurements.md"
PERMUTE = "collective-permute"
FEWEST_BYTES = 1 << 16
# The machine whose sizes are no powers of two.
ODD_MACHINE = 72
# The series of XLA's that stand for the types by which products are looked up.
DTYPES = {
    "bf16": "bf16xbf16->bf16",
    "f32": "f32xf32->f32",
    "f8": "f8e4m3fnxf8e4m3fn->bf16",
}
# The GPUs of one domain of links, of each machine that was measured.
MACHINES = {"h100": (8,), "b200": (8,), "gb200": (64, 72), "gb300": (64, 72)}


@dataclass(frozen=True, order=True)
class Collective:
    """One measurement; `bytes` are the full buffer on one device."""

    device: str
    collective: str
    ranks: int
    bytes: int
    seconds: float


@dataclass(frozen=True, order=True)
class Product:
    """One measurement of [batch, m, k] x [batch, k, n]."""

    device: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int
    seconds: float


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def collectives(path: Path) -> Iterator[list[Collective]]:
    """The series of XLA's table, each by rising bytes."""
    series: dict[tuple[str, ...], list[Collective]] = defaultdict(list)
    permutes: dict[str, list[Collective]] = defaultdict(list)
    for row in _rows(path):
        kind, shape = row["collective"], int(row["shape_bytes"])
        ranks = int(row["devices_per_group"] or 0)
        full = shape * (ranks if kind == "reduce-scatter" else 1)
        seconds = full / float(row["bytes_per_s"])
        measured = Collective(row["device"], kind, ranks, full, seconds)
        if kind == PERMUTE:
            permutes[row["device"]].append(measured)
        else:
            series[row["device"], kind, row["devices_per_group"], row["groups"]].append(measured)
    yield from (sorted(rows) for rows in series.values())
    for device, rows in permutes.items():
        yield from _permutes(device, rows)


def _permutes(device: str, rows: Sequence[Collective]) -> Iterator[list[Collective]]:
    """Two ranks that swap, the fewest ranks of a ring, and the most of each machine.

    Where each size has one row it stands for any pattern. Sizes that are no powers of two are from
    a machine of 72 GPUs.
    """
    by_size = {row.bytes: row.seconds for row in rows}
    is_patterned = len(by_size) < len(rows)
    for ranks in (2, 3, *MACHINES[device]):
        yield [
            Collective(
                device,
                PERMUTE,
                ranks,
                size,
                _compilers_seconds(device, ranks, size) if is_patterned else seconds,
            )
            for size, seconds in sorted(by_size.items())
            if _is_power_of_two(size) == (ranks != ODD_MACHINE)
        ]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _compilers_seconds(device: str, ranks: int, n_bytes: int) -> float:
    """What XLA says of a permute among the GPUs of one host: two that swap, or a ring of all."""
    topology = get_topology(f"{max(MACHINES[device])}x{device}")
    mesh = Mesh(np.array(compiler_devices(machine_for("gpu", topology))), ("gpu",))
    count = topology.device_count
    pairs = [(i, i ^ 1 if ranks == 2 else (i + 1) % count) for i in range(count)]
    permute = jax.shard_map(
        lambda part: jax.lax.ppermute(part, "gpu", pairs),
        mesh=mesh,
        in_specs=PartitionSpec("gpu"),
        out_specs=PartitionSpec("gpu"),
    )
    sharding = NamedSharding(mesh, PartitionSpec("gpu"))
    parts = jax.ShapeDtypeStruct((n_bytes // 4 * count,), np.float32, sharding=sharding)
    compiled = jax.jit(permute).lower(parts).compile(compiler_options=dict(ESTIMATES))
    program = compiled_proto(compiled)
    assert program is not None  # noqa: S101 - this JAX gives it for GPUs
    estimates = read_estimates(program)
    return next(e.seconds["sol"] for name, e in estimates.items() if name.startswith(PERMUTE))


def products(path: Path) -> Iterator[Product]:
    """The rows of XLA's table whose types stand for those that are looked up."""
    names = {name: dtype for dtype, name in DTYPES.items()}
    for row in _rows(path):
        if row["dtypes"] in names:
            batch, m, n, k = (int(row[size]) for size in ("batch", "m", "n", "k"))
            seconds = 2 * batch * m * n * k / float(row["flop_per_s"])
            yield Product(row["device"], names[row["dtypes"]], batch, m, n, k, seconds)


def _is_used(product: Product) -> bool:
    """Whether a product is a white field of the grid's chessboard; its sizes are powers of two."""
    sizes = (product.batch, product.m, product.n, product.k)
    return sum(int(math.log2(size)) for size in sizes) % 2 == 0


def _write(path: Path, rows: Sequence[Collective] | Sequence[Product]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(rows[0]))
        for row in sorted(rows):
            *sizes, seconds = astuple(row)
            writer.writerow([*sizes, f"{seconds:.6g}"])


@click.group(help=__doc__)
def main() -> None:
    """Make or judge the measured tables."""


@main.command()
@click.argument("collectives_csv", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("matmuls_csv", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def split(collectives_csv: Path, matmuls_csv: Path) -> None:
    """Write every second row to the catalogue, the others to the tests."""
    series = list(collectives(collectives_csv))
    measured = list(products(matmuls_csv))
    for folder, parity in ((USED, 0), (LEFT_OUT, 1)):
        _write(folder / "collectives.csv", [row for rows in series for row in rows[parity::2]])
        _write(folder / "products.csv", [row for row in measured if _is_used(row) == (not parity)])


def read_collectives(path: Path) -> list[Collective]:
    """The rows that `split` wrote."""
    return [
        Collective(
            row["device"],
            row["collective"],
            int(row["ranks"]),
            int(row["bytes"]),
            float(row["seconds"]),
        )
        for row in _rows(path)
    ]


def read_products(path: Path) -> list[Product]:
    """The rows that `split` wrote."""
    return [
        Product(
            row["device"],
            row["dtype"],
            *(int(row[size]) for size in ("batch", "m", "n", "k")),
            float(row["seconds"]),
        )
        for row in _rows(path)
    ]


def collective_errors() -> Mapping[tuple[str, str], list[float]]:
    """Relative errors on the half that was left out, by device and kind, between the least and the
    most bytes that were used.
    """
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read_collectives(LEFT_OUT / "collectives.csv"):
        table = measured_collectives(row.device)
        if FEWEST_BYTES <= row.bytes <= table.most_bytes(row.collective, row.ranks):
            predicted = table.seconds(row.collective, row.ranks, np.array(float(row.bytes)))
            errors[row.device, row.collective].append(float(predicted) / row.seconds - 1)
    return errors


def product_errors() -> Mapping[tuple[str, str], list[float]]:
    """Relative errors on the half that was left out, by device and element type."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read_products(LEFT_OUT / "products.csv"):
        table = measured_products(row.device, row.dtype)
        sizes = np.array([[row.batch, row.m, row.n, row.k]])
        errors[row.device, row.dtype].append(float(table.predict(sizes)[0]) / row.seconds - 1)
    return errors


def _table(what: str, errors: Mapping[tuple[str, str], list[float]]) -> str:
    header = ["GPU", what, "measurements", "median error", "95 % are within", "worst"]
    rows = []
    for (device, name), values in [*sorted(errors.items()), (("all", ""), _joined(errors))]:
        sizes = np.abs(values)
        quantiles = [np.median(sizes), np.quantile(sizes, 0.95), sizes.max()]
        cells = [f"{100 * quantile:.1f} %" for quantile in quantiles]
        rows.append([device, name, str(len(values)), *cells])
    return markdown(header, rows)


def _joined(errors: Mapping[tuple[str, str], list[float]]) -> list[float]:
    return [error for values in errors.values() for error in values]


@main.command()
@click.option("-o", "--output", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def judge(output: Path | None) -> None:
    """Print the errors on the half that was not used, or replace the table of a file."""
    table = (
        made_by(COMMAND, "any machine: nothing is timed")
        + _table("collective, from 64 KiB", collective_errors())
        + "\n"
        + _table("product of", product_errors())
    )
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table)


if __name__ == "__main__":
    main()
