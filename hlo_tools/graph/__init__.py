"""The flat graph of a step: a module's computations as one list of values and one list of ops."""

from hlo_tools.graph.flattening import flatten
from hlo_tools.graph.graph import (
    DTYPE_BITS,
    PART_TYPES,
    Graph,
    HandOver,
    Op,
    Value,
    sources_by_output,
)


__all__ = [
    "DTYPE_BITS",
    "PART_TYPES",
    "Graph",
    "HandOver",
    "Op",
    "Value",
    "flatten",
    "sources_by_output",
]
