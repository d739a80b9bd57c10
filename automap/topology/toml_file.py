"""A user's own machine as a TOML file. The fields are those of `Topology`; an example:

    name = "two quiet boxes"
    platform = "cuda"                # tpu | cuda | cpu
    device = "h100"                  # a device of the catalogue, or a table:

    # [device]
    # name = "my-gpu"
    # memory_bytes = 48_000_000_000
    # hbm_bytes_per_s = 864e9
    # matmul_efficiency = 0.7        # fraction of the peak that a large matmul reaches
    # memory_efficiency = 0.85
    # launch_seconds = 4e-6
    # flops_per_s = {f32 = 91e12, bf16 = 181e12}

    [[levels]]                       # innermost first
    name = "pcie"
    size = 4                         # devices a host
    kind = "switch"                  # ring | line | switch
    bytes_per_s = 25e9               # one direction, out of one device
    latency_seconds = 5e-6

    [[levels]]
    name = "network"
    size = 2                         # hosts
    kind = "switch"
    bytes_per_s = 12.5e9             # out of one host ...
    shared_by = 4                    # ... by its four devices; 1 when left out
    latency_seconds = 10e-6

`source` is optional on a device and a level: a list of {field, document, note}.
"""

import dataclasses
from pathlib import Path
import tomllib
from typing import Any

from automap.errors import TopologyError
from automap.topology.checks import check_keys, within
from automap.topology.devices import DEVICES
from automap.topology.model import Topology


_MAX_FILE_BYTES = 2**20


def read_topology(path: str | Path) -> Topology:
    """Read a topology file; raises `TopologyError` with the file and the field's path."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TopologyError(
            f"topology file {str(path)!r}: {reason}; allowed: a readable TOML file, or a name as "
            "v5e:4x4 (`automap topologies` lists them)"
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        raise TopologyError(f"topology file {str(path)!r}: over {_MAX_FILE_BYTES} bytes")
    with within(f"topology file {str(path)!r}: "):
        return parse_topology(content.decode("utf-8", errors="replace"))


def parse_topology(text: str) -> Topology:
    """The topology a TOML text describes; raises `TopologyError` with the field's path."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TopologyError(f"no valid TOML: {error}") from error
    table = dict(check_keys(data, required=("name", "platform", "device", "levels")))
    if isinstance(table["device"], str):
        table["device"] = _device_by_name(table["device"])
    return Topology.from_dict(table)


def _device_by_name(name: str) -> dict[str, Any]:
    if name not in DEVICES:
        raise TopologyError(
            f"device: got {name!r}; allowed: a table, or one of {', '.join(DEVICES)}"
        )
    device = dataclasses.asdict(DEVICES[name])
    return device | {"flops_per_s": dict(device["flops_per_s"])}
