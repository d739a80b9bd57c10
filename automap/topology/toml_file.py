"""A user's own machine as a TOML file. A regular one has levels, the fields of `Topology`; an
example:

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
    reach = "network"                # host | network; host when left out
    latency_seconds = 10e-6

A level may also have `measured = "nvswitch-3"`, and a device `measured = "h100"`: links and
products are then those that were measured on such a machine (`automap.topology.measured`). With
`host_bytes_per_s`, of the link to its host in one direction, state may be kept in host memory.

One with devices of several kinds, or links of no regular form, is a graph, the fields of `Graph`:

  | name = "desk"
  | platform = "cuda"                # tpu | cuda | cpu
  | hubs = ["root"]                  # pass messages on, do not compute: PCIe switches and the like
  |
  | [[devices]]
  | name = "cpu"
  | device = "haswell"               # of the catalogue, or of a table [kinds.haswell] as [device]
  | host = 0                         # 0 when left out
  |
  | [[devices]]
  | name = "gpu"
  | device = "2080ti"
  |
  | [[links]]
  | name = "memory bus"
  | ends = ["cpu", "root"]           # two devices or hubs
  | bytes_per_s = 60e9               # each direction
  | latency_seconds = 1e-6
  |
  | [[links]]
  | name = "slot"
  | ends = ["gpu", "root"]
  | bytes_per_s = 12e9
  | latency_seconds = 5e-6
  | # medium = "..."                 # links of one medium share its bytes per second

`source` is optional on a device, a level and a link: a list of {field, document, note}.
"""

from pathlib import Path
import tomllib
from typing import Any

from automap.errors import TopologyError
from automap.topology.checks import check_keys, within
from automap.topology.devices import DEVICES
from automap.topology.graph import Graph
from automap.topology.model import Topology, device_to_dict
from hlo_tools.errors import FileError
from hlo_tools.files import read_file


# Far more than people write; a larger file is something else.
_MOST_BYTES = 2**20
_REMEDY = "allowed: a readable TOML file, or a name as v5e:4x4 (`automap topologies` lists them)"


def read_machine(path: str | Path) -> Topology | Graph:
    """Read a machine's file; raises `TopologyError` with the file and the field's path."""
    shown = repr(str(path)[:200])
    try:
        content = read_file(path, _MOST_BYTES)
    except FileError as error:
        raise TopologyError(f"topology file {shown}: {error}; {_REMEDY}") from error
    with within(f"topology file {shown}: "):
        # A byte that is no UTF-8 becomes a replacement character, which TOML takes in strings.
        return parse_machine(content.decode("utf-8", errors="replace"))


def parse_machine(text: str) -> Topology | Graph:
    """What a TOML text describes; raises `TopologyError` with the field's path.

    A text with `links` or `devices` is a graph, any other a regular topology.
    """
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise TopologyError("no valid TOML: tables and lists are nested too deeply") from None
    except ValueError as error:  # TOML's own errors, and integers of more digits than Python reads
        raise TopologyError(f"no valid TOML: {error}") from error
    if "links" in data or "devices" in data:
        return Graph.from_dict({"kinds": {}} | _with_kinds(data))
    table = dict(check_keys(data, required=("name", "platform", "device", "levels")))
    if isinstance(table["device"], str):
        table["device"] = _device_by_name(table["device"])
    return Topology.from_dict(table)


def _with_kinds(data: dict[str, Any]) -> dict[str, Any]:
    """The table with the kinds of the catalogue that devices name and the file does not define."""
    kinds, rows = data.get("kinds", {}), data.get("devices")
    # What is of another form is left to `Graph.from_dict`, which refuses it.
    if not isinstance(kinds, dict) or not isinstance(rows, list):
        return data
    named = [row.get("device") for row in rows if isinstance(row, dict)]
    catalogued = {
        name: device_to_dict(DEVICES[name])
        for name in named
        if isinstance(name, str) and name in DEVICES
    }
    # A kind of the file is the user's own, even with a name of the catalogue.
    return data | {"kinds": catalogued | kinds}


def _device_by_name(name: str) -> dict[str, Any]:
    if name not in DEVICES:
        raise TopologyError(
            f"device: got {name!r}; allowed: a table, or one of {', '.join(DEVICES)}"
        )
    return device_to_dict(DEVICES[name])
