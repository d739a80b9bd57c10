"""Devices, links and the meshes that can be laid on them; the hardware catalogue as data."""

from automap.topology.catalogue import (
    CatalogueEntry as CatalogueEntry,
    catalogue as catalogue,
    get_graph as get_graph,
    get_machine as get_machine,
    get_topology as get_topology,
)
from automap.topology.graph import Graph as Graph, Link as Link, Node as Node
from automap.topology.graph_levels import graph_of as graph_of
from automap.topology.local import topology_of as topology_of
from automap.topology.meshes import (
    lies_on as lies_on,
    mesh_shapes as mesh_shapes,
    nearest_shapes as nearest_shapes,
)
from automap.topology.model import (
    Device as Device,
    Level as Level,
    Source as Source,
    Topology as Topology,
)
from automap.topology.routes import Routes as Routes, routes as routes
from automap.topology.toml_file import parse_machine as parse_machine
