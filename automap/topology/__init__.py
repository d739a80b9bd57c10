"""Devices, links and the meshes that can be laid on them; the hardware catalogue as data.

`automap.topology.cpu`           fake CPU devices, `cpu:N`: the platform of tests and
                                 demonstrations, with nominal numbers
`automap.topology.device_order`  which device stands at which place of a mesh
`automap.topology.dtypes`        which arithmetic an HLO element type runs on when a device has none
                                 of its own
`automap.topology.gpu_devices`   the GPUs of the catalogue: dense peaks from NVIDIA's documents,
                                 efficiencies assumed
`automap.topology.link_loads`    which links a permutation of devices uses, and how many messages
                                 the busiest of them carries
`automap.topology.local`         the topology "local": what `jax.devices()` shows on this machine,
                                 looked up in the catalogue
`automap.topology.machines`      the machines of the papers by name: regular ones as hosts of GPUs,
                                 ColocRL's as graphs
`automap.topology.measured`      what was measured on GPUs: seconds of collectives inside a host,
                                 and of products
`automap.topology.mesh`          a logical mesh: named axes with their sizes, laid row-major on the
                                 devices of a topology
`automap.topology.model`         what a machine is: devices of one kind, and the nested levels of
                                 links between them
`automap.topology.parts`         parts of a machine: neighbouring devices that are a smaller machine
                                 of the same levels
`automap.topology.rings`         the rings that a mesh axis makes of the devices of its groups, in
                                 a given order of the devices
`automap.topology.spans`         where the ranks of a collective lie: a group of mesh axes as spans
                                 of topology levels
`automap.topology.tpu`           TPU slices by name: `GENERATION:AxB` or `GENERATION:AxBxC`, the
                                 names that JAX's ahead-of-time topologies use (`v5e:4x4`,
                                 `v5p:4x4x4`)
"""

from automap.topology.catalogue import (
    CatalogueEntry as CatalogueEntry,
    catalogue_entries as catalogue_entries,
    catalogue_machines as catalogue_machines,
    get_graph as get_graph,
    get_machine as get_machine,
    get_topology as get_topology,
    regular as regular,
)
from automap.topology.graph import (
    Graph as Graph,
    Link as Link,
    Node as Node,
    topology_graph as topology_graph,
)
from automap.topology.local import topology_from_devices as topology_from_devices
from automap.topology.meshes import (
    axis_orders as axis_orders,
    distinct_meshes as distinct_meshes,
    lies_on as lies_on,
    mesh_shapes as mesh_shapes,
    named_shapes as named_shapes,
    nearest_shapes as nearest_shapes,
)
from automap.topology.model import (
    Device as Device,
    Level as Level,
    Source as Source,
    Topology as Topology,
)
from automap.topology.routes import Routes as Routes, shortest_routes as shortest_routes
from automap.topology.toml_file import parse_machine as parse_machine
