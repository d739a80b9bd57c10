"""Machines for tests."""

from dataclasses import replace

from automap.topology import Topology, get_topology


def by_formulas(name: str) -> Topology:
    """A machine of the catalogue whose links are priced by formulas, not by measurements."""
    topology = get_topology(name)
    return replace(topology, levels=tuple(replace(x, measured="") for x in topology.levels))
