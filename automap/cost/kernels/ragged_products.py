"""Ragged products: rows times the matrix of the group that they belong to (`jax.lax.ragged_dot`).

A TPU's compiler multiplies each row by the matrix of its group alone. Those of GPUs and processors
multiply all rows by the matrices of all G groups, with zeros in the place of other groups' rows:

    flops = G * those of the rows' own groups                     -> in: `executed_flops`
    bytes: each operand whose rows belong to groups is written G times, and read so by the product
                                                                  -> in: `with_all_groups`

What is written so is memory too (`automap.backends.xla_gpu`). Read from programs of jax 0.10.2 for
H100, and from the operations that XLA counts of one for a processor, 2026-11. Whether groups are
split over devices is not regarded: then fewer are there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from automap.backends import Backend
from automap.cost.profile.shapes import KernelShape
from hlo_tools.analyses.accesses import Access, Kernel
from hlo_tools.analyses.flops import flops, ragged_groups, ragged_operands
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import RAGGED_DOT
from hlo_tools.rules import Rule


def executed_flops(graph: Graph, op: Op, rule: Rule, backend: Backend) -> int:
    """Those of an op that are done on one device with whole tensors."""
    useful = flops(graph, op, rule)
    is_over_all = op.opcode == RAGGED_DOT and backend.ragged_products == "all groups"
    return useful * ragged_groups(graph, op) if is_over_all else useful


def executed_shape(shape: KernelShape, op: Op, rule: Rule, backend: Backend) -> KernelShape:
    """That of the product that is done, whose sizes have all groups among what is summed over."""
    if op.opcode != RAGGED_DOT or backend.ragged_products == "all groups":
        return shape
    groups = {factor for dim in rule.operands[2] for factor in dim}
    sizes = (1 if factor in groups else size for factor, size in enumerate(shape.sizes))
    return replace(shape, sizes=tuple(sizes))


def with_all_groups(graph: Graph, kernels: Sequence[Kernel], backend: Backend) -> Iterator[Kernel]:
    """The kernels, ragged products with what they write and read for all groups."""
    for kernel in kernels:
        op = graph.ops[kernel.op]
        if op.opcode == RAGGED_DOT and backend.ragged_products == "all groups":
            times, grouped = ragged_groups(graph, op), ragged_operands(op)
            more = (Access(v, 2 * times * graph.values[v].n_bytes) for v in grouped)
            kernel = replace(kernel, reads=(*kernel.reads, *more))
        yield kernel
