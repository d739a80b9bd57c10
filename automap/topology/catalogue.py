"""From what a user writes to a topology, and the list of what can be written."""

from dataclasses import dataclass
import os
import re
from typing import Final

from automap.errors import TopologyError
from automap.topology.checks import check_text
from automap.topology.cpu import cpu_devices
from automap.topology.devices import DEVICES
from automap.topology.gpu import HOSTS, gpu_hosts
from automap.topology.local import local_topology
from automap.topology.model import Device, Level, Source, Topology
from automap.topology.toml_file import read_topology
from automap.topology.tpu import GENERATIONS, tpu_slice


_TPU_NAME: Final = re.compile(r"(?P<generation>[a-z0-9]+):(?P<dims>.*)")
_CPU_NAME: Final = re.compile(r"cpu:(?P<count>[0-9]{1,6})")
_GPU_NAME: Final = re.compile(
    r"(?:(?P<hosts>[0-9]{1,6})x)?(?P<gpus>[0-9]{1,6})x(?P<gpu>[a-z][a-z0-9-]*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One family of names: its pattern, an example, and what the example is made of."""

    pattern: str
    example: str
    device: Device
    levels: tuple[Level, ...]
    sources: tuple[Source, ...]


def get_topology(name_or_path: str) -> Topology:
    """The topology of a name, of this machine ("local"), or of a TOML file.

    Names: `v5e:4x4`, `v5p:4x4x4`, `8xh100`, `2x8xv100`, `cpu:8`, `local`; what ends in `.toml` or
    holds a path separator is a file. Raises `TopologyError` that lists what is allowed.
    """
    check_text("topology", name_or_path)
    if name_or_path.endswith(".toml") or os.sep in name_or_path:
        return read_topology(name_or_path)
    name = name_or_path.strip().lower()
    if name == "local":
        return local_topology()
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


def catalogue() -> tuple[CatalogueEntry, ...]:
    """Every family of names with an example, for `automap topologies`."""
    families = [
        *((f"{g.name}:{'x'.join('ABC'[: g.dimensions])}", g.example) for g in GENERATIONS.values()),
        *((f"[HOSTSx]GPUSx{gpu}", f"2x8x{gpu}") for gpu in HOSTS),
        ("cpu:N", "cpu:8"),
    ]
    return tuple(_entry(pattern, get_topology(example)) for pattern, example in families)


def _entry(pattern: str, topology: Topology) -> CatalogueEntry:
    device = DEVICES[topology.device.name]
    return CatalogueEntry(
        pattern=pattern,
        example=topology.name,
        device=device,
        levels=topology.levels,
        sources=device.source + tuple(s for level in topology.levels for s in level.source),
    )


def _patterns() -> str:
    tpus = ", ".join(f"{g.name}:{'x'.join('ABC'[: g.dimensions])}" for g in GENERATIONS.values())
    return (
        f"{tpus} (as v5e:4x4), [HOSTSx]GPUSxGPU with GPU one of {', '.join(HOSTS)} (as 8xh100 or "
        "2x8xv100), cpu:N, local, or the path of a .toml file"
    )
