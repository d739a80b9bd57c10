"""Graphs for tests: of a step, or of HLO that is written by hand."""

import jax

from hlo_tools.graph import Graph, flatten
from hlo_tools.jax_compat import text_to_proto
from hlo_tools.read.proto import decode_module


def step_graph(step, *shapes, dtype="float32") -> Graph:
    """The graph of a step on arrays of these shapes."""
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    lowered = jax.jit(step, keep_unused=True).lower(*args)
    return flatten(decode_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))


def text_graph(text: str, user_rules=None) -> Graph:
    """The graph of HLO text without its first line."""
    return flatten(decode_module(text_to_proto(f"HloModule test\n{text}")), user_rules)
