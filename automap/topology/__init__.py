"""Devices, links and the meshes that can be laid on them; the hardware catalogue as data."""

from automap.topology.catalogue import (
    CatalogueEntry as CatalogueEntry,
    catalogue as catalogue,
    get_topology as get_topology,
)
from automap.topology.local import topology_of as topology_of
from automap.topology.meshes import mesh_shapes as mesh_shapes
from automap.topology.model import (
    Device as Device,
    Level as Level,
    Source as Source,
    Topology as Topology,
)
from automap.topology.toml_file import (
    parse_topology as parse_topology,
    read_topology as read_topology,
)
