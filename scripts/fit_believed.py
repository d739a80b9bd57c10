"""What XLA:GPU's scheduler believes of collectives, asked of the compiler itself.

    python -m scripts.fit_believed -o automap/backends/xla_gpu/believed.toml

A program of one collective after the other, of one kind and of every power of two of bytes, is
compiled ahead of time for groups of GPUs on one, two, four and eight hosts of eight, as many of
each host; the compiler writes on each what it takes it to be. It has a table for Hopper and one for
Blackwell, formulas for groups on several hosts, and neither for older GPUs. Needs the extra
`gpu-compiler` and no GPU; takes a minute or two.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import click
import jax
import jax.numpy as jnp
import numpy as np

from automap.jax_compat import compiled_proto
from automap.topology import get_topology
from automap.verify.compilers import compile_options, machine_for
from automap.verify.gpu_calls import shape_bytes
from automap.verify.worker import compiler_devices
from hlo_tools.compiled.estimates import read_estimates
from hlo_tools.read.proto import decode_module


# The device that is compiled for, and those that have its table (by compute capability).
_TABLES: Final = {"h100": ("h100", "h200"), "b200": ("b200",)}
# Groups that are compiled: of so many devices on so many hosts of eight.
_GROUPS: Final = tuple(
    (hosts * per_host, hosts)
    for hosts in (1, 2, 4, 8)
    for per_host in (1, 2, 4, 8)
    if hosts * per_host > 1
)
_HEAD: Final = """\
# What XLA:GPU's scheduler takes a collective to last, in microseconds, by powers of two of bytes;
# the rows of a kind are groups of so many devices on so many hosts. How it is read: ../believed.py
# Made by `python -m scripts.fit_believed` on {date}, jax {version}.
"""
_POWERS: Final = range(10, 29)
_ITEM_BYTES: Final = 2
_AXES: Final = ("hosts", "per_host")
_KINDS: Final[Mapping[str, Callable[[Any, int], Any]]] = {
    "all-reduce": lambda x, n: jax.lax.psum(x, _AXES),
    "reduce-scatter": lambda x, n: jax.lax.psum_scatter(x, _AXES, tiled=True),
    "all-gather": lambda x, n: jax.lax.all_gather(x[: len(x) // n], _AXES, tiled=True),
    "all-to-all": lambda x, n: jax.lax.all_to_all(x, _AXES, 0, 0, tiled=True),
    "collective-permute": lambda x, n: jax.lax.ppermute(
        x, _AXES, [(i, (i + 1) % n) for i in range(n)]
    ),
}


def believed_microseconds(device: str) -> Iterator[tuple[str, list[list[float]]]]:
    """Each kind with its rows, a group each, of powers of two of bytes."""
    compiled_for = {n: _compiled_for(device, n) for n in {hosts for _, hosts in _GROUPS}}
    for kind in _KINDS:
        yield kind, [_row(kind, size, hosts, *compiled_for[hosts]) for size, hosts in _GROUPS]


def _compiled_for(device: str, hosts: int) -> tuple[np.ndarray, Mapping[str, bool | str]]:
    """The devices of so many hosts of eight, and the options of their compiler."""
    topology = get_topology(f"{hosts}x8x{device}" if hosts > 1 else f"8x{device}")
    machine = machine_for("gpu", topology)
    return np.array(compiler_devices(machine)), compile_options(machine)


def _row(
    kind: str, size: int, hosts: int, devices: np.ndarray, options: Mapping[str, bool | str]
) -> list[float]:
    each = devices.reshape(hosts, -1, size // hosts)
    mesh = jax.sharding.Mesh(each, (_AXES[0], "others", _AXES[1]))

    def chain(*arrays: jax.Array) -> list[jax.Array]:
        made, last = list[jax.Array](), jnp.zeros((), jnp.bfloat16)
        for array in arrays:
            # Each waits for the one before, so that none are merged.
            made.append(_KINDS[kind](array + last, size))
            last = made[-1][0] / 2
        return made

    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    arrays = [
        jax.ShapeDtypeStruct((2**power // _ITEM_BYTES,), jnp.bfloat16, sharding=whole)
        for power in _POWERS
    ]
    mapped = jax.shard_map(
        chain, mesh=mesh, in_specs=whole.spec, out_specs=whole.spec, check_vma=False
    )
    proto = compiled_proto(jax.jit(mapped).lower(*arrays).compile(compiler_options=dict(options)))
    if proto is None:
        raise click.ClickException("the compiler did not give its program")
    return _microseconds(proto, kind, size)


def _microseconds(proto: bytes, kind: str, size: int) -> list[float]:
    estimates, seconds = read_estimates(proto), dict[int, float]()
    for computation in decode_module(proto).computations.values():
        for instruction in computation.instructions:
            said = estimates.get(instruction.name)
            if instruction.opcode not in (kind, f"{kind}-start") or said is None:
                continue
            arrays = instruction.shape.elements or (instruction.shape,)
            n_bytes = max(shape_bytes(array) for array in arrays)
            # What is scattered is written by what comes out, and counted by what goes in.
            whole = n_bytes * (size if kind == "reduce-scatter" else 1)
            if "sol" in said.seconds:
                seconds[whole] = said.seconds["sol"]
    return [round(seconds[2**power] * 1e6, 2) for power in _POWERS]


def _lines(device: str, devices: Sequence[str]) -> Iterator[str]:
    yield from ("", "[[table]]", f"devices = {list(devices)}".replace("'", '"'))
    yield f"devices_on_hosts = {[list(group) for group in _GROUPS]}"
    yield f"least_power_of_two = {_POWERS[0]}"
    yield ""
    yield "[table.microseconds]"
    for kind, rows in believed_microseconds(device):
        yield f"{kind} = ["
        yield from (f"  {row}," for row in rows)
        yield "]"


@click.command(help=__doc__)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(output: Path) -> None:
    """Write the tables."""
    jax.config.update("jax_platforms", "cpu")
    head = _HEAD.format(date=date.today(), version=jax.__version__)
    lines = [line for device, devices in _TABLES.items() for line in _lines(device, devices)]
    output.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
