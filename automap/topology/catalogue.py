"""From what a user writes to a machine, and the list of what can be written."""

from collections.abc import Iterator
from dataclasses import dataclass
import os
import re
from typing import Final

from automap.errors import TopologyError
from automap.topology.checks import check_text
from automap.topology.cpu import cpu_devices
from automap.topology.gpu import gpu_hosts
from automap.topology.gpu_links import HOSTS
from automap.topology.graph import Graph, topology_graph
from automap.topology.local import local_topology
from automap.topology.machines import MACHINES
from automap.topology.model import Source, Topology
from automap.topology.toml_file import read_machine
from automap.topology.tpu import GENERATIONS, slice_names, tpu_slice


_TPU_NAME: Final = re.compile(r"(?P<generation>[a-z0-9]+):(?P<dims>.*)")
# Digits are bounded: Python refuses to read numbers of thousands of them.
_CPU_NAME: Final = re.compile(r"cpu:(?P<count>[0-9]{1,6})")
_GPU_NAME: Final = re.compile(
    r"(?:(?P<hosts>[0-9]{1,6})x)?(?P<gpus>[0-9]{1,6})x(?P<gpu>[a-z0-9][a-z0-9-]*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A family of names: its pattern, an example, what that is, and whose machine it is."""

    pattern: str
    example: str
    machine: Topology | Graph
    source: tuple[Source, ...] = ()


def get_machine(name_or_path: str) -> Topology | Graph:
    """The machine of a name, this machine ("local"), or that of a TOML file.

    Names: `v5e:4x4`, `v5p:4x4x4`, `8xh100`, `2x8xv100`, `flexflow-k80`, `cpu:8`, `local`; what ends
    in `.toml` or holds a path separator is a file. Raises `TopologyError` that lists what is
    allowed.
    """
    check_text("topology", name_or_path)
    if name_or_path.endswith(".toml") or os.sep in name_or_path:
        return read_machine(name_or_path)
    # From here on upper case and blanks around a name are taken as typing, in a path they are not.
    name = name_or_path.strip().lower()
    if name == "local":
        return local_topology()
    if name in MACHINES:
        return MACHINES[name].build()
    if match := _CPU_NAME.fullmatch(name):
        return cpu_devices(int(match["count"]))
    if (match := _TPU_NAME.fullmatch(name)) and match["generation"] in GENERATIONS:
        return tpu_slice(match["generation"], match["dims"])
    if match := _GPU_NAME.fullmatch(name):
        return gpu_hosts(int(match["hosts"] or 1), int(match["gpus"]), match["gpu"])
    raise TopologyError(
        f"topology: got {name_or_path[:80]!r}; allowed: {_patterns()}. "
        "`automap topologies` lists them with examples."
    )


def get_topology(name_or_path: str) -> Topology:
    """The machine of a name of the catalogue (`v5e:4x4`), this machine ("local"), or that of a TOML
    file: devices of one kind, on which a mesh lies.

    Raises `TopologyError` for a name that is not known, a file that cannot be used, and a machine
    whose devices or links are unlike (a graph), as `haswell-4xk80`.
    """
    return regular(get_machine(name_or_path))


def regular(machine: Topology | Graph) -> Topology:
    """A machine that a mesh lies on. Raises `TopologyError` for one that is a graph of its own."""
    if isinstance(machine, Graph):
        kinds = ", ".join(kind.name for kind in machine.kinds)
        raise TopologyError(
            f"topology: got {machine.name!r}, a graph of {machine.device_count} devices ({kinds}) "
            "that no mesh lies on; allowed: a machine of equal devices and nested levels, as 4xk80 "
            "or v5e:4x4; a graph serves --space placement, where every device has its own "
            "programs"
        )
    return machine


def get_graph(name_or_path: str) -> Graph:
    """`get_machine` as a graph, whatever its form; raises `TopologyError`."""
    machine = get_machine(name_or_path)
    return machine if isinstance(machine, Graph) else topology_graph(machine)


def catalogue_entries() -> tuple[CatalogueEntry, ...]:
    """Every family of names with an example, for `automap topologies`."""
    families = [
        *((f"{g.name}:{'x'.join('ABC'[: g.dimensions])}", g.example) for g in GENERATIONS.values()),
        *((f"[HOSTSx]GPUSx{gpu}", f"2x{kind.max_gpus}x{gpu}") for gpu, kind in HOSTS.items()),
        ("cpu:N", "cpu:8"),
    ]
    return (
        *(
            CatalogueEntry(pattern=pattern, example=example, machine=get_machine(example))
            for pattern, example in families
        ),
        *(
            CatalogueEntry(
                pattern=name, example=name, machine=machine.build(), source=(machine.source,)
            )
            for name, machine in MACHINES.items()
        ),
    )


def catalogue_machines(most_devices: int) -> dict[str, str]:
    """The names of machines of at most so many devices, each with that of its GPU or TPU: every TPU
    slice, and every GPU in 1, 2, 4, ... of a host and in 2, 4, 8, ... full hosts.
    """
    kinds = {
        name: kind.name for kind in GENERATIONS.values() for name in slice_names(kind, most_devices)
    }
    for gpu, host in HOSTS.items():
        inside = [n for n in (*_powers(host.max_gpus), host.max_gpus) if n <= most_devices]
        hosts = [n for n in _powers(most_devices // host.max_gpus) if n > 1]
        names = (*(f"{n}x{gpu}" for n in inside), *(f"{n}x{host.max_gpus}x{gpu}" for n in hosts))
        kinds |= dict.fromkeys(names, gpu)
    return kinds


def _powers(most: int) -> Iterator[int]:
    return (1 << k for k in range(most.bit_length()))


def _patterns() -> str:
    tpus = ", ".join(f"{g.name}:{'x'.join('ABC'[: g.dimensions])}" for g in GENERATIONS.values())
    return (
        f"{tpus} (as v5e:4x4), [HOSTSx]GPUSxGPU with GPU one of {', '.join(HOSTS)} (as 8xh100 or "
        f"2x8xv100), {', '.join(MACHINES)}, cpu:N, local, or the path of a .toml file"
    )
