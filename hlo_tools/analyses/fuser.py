"""What a backend's fusion passes do, as `hlo_tools.analyses.kernels` asks it."""

from dataclasses import dataclass
from math import prod
from typing import Literal

from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import GATHER, OWN_KERNEL, SCATTER


@dataclass(frozen=True, slots=True)
class Fuser:
    """A backend's fusion passes: operands of the opcodes in `loads` must be in memory.

    `results` says whether kernels that read the same are made one, `products` whether elementwise
    ops that alone use a contraction's result are part of it, or sums only, with what a loop carries
    for nothing else (beta of a matrix library's C = A B + beta C), `tables` whether an input that
    rows are looked up in is converted whole before, or only those rows, `slices` whether a product
    loads a part whose offset is known at run time from the array that it is cut of, or from a copy,
    `stacks` whether a part that is written into an array is read of it before, and whether by a
    kernel of its own that shares nothing, as XLA:GPU makes no kernel with several results of one
    that works in place (gpu_fusible.cc),
    `sums` whether what waits for a sum always reads its arrays once more, or has rows at hand that
    are worked on in tiles,
    `columns` what a sum over rows is one kernel with: others of its pass, or what reads the same
    array wherever it stands (`hlo_tools.analyses.column_kernels`),
    `lookups` whether looking up by index is a kernel, or a part of those that use what it makes,
    `updates` whether a scatter of one number into each row of zeros is a kernel, or a comparison of
    the index with each position in those that use what it makes,
    `casts` whether a contraction converts all operands as it loads them, or only to wider types,
    `cuts` whether what one kernel reads through several slices is read once where these overlap, or
    once for each slice,
    `joins` whether concatenations and pads are made again by each op that uses them, or written if
    several do that are no products, as are slices of one shape, of one array, that they join, and
    what else is brought to other places (`hlo_tools.analyses.rearranged`).

    `remade` says what several ops use and each of them makes again: of a value of V bytes that is
    made of S bytes, where S is up to 1.5 V ("cheap"), or where all n users together move no more
    bytes so than if it is written once ("if all read less"):

        n S <= S + V + n V
    """

    loads: frozenset[str]
    results: Literal["one", "several"]
    products: Literal["bare", "summed", "fused"]
    tables: Literal["whole", "rows"]
    slices: Literal["loaded", "copied"] = "loaded"
    remade: Literal["cheap", "if all read less"] = "cheap"
    lookups: Literal["apart", "fused"] = "apart"
    updates: Literal["scattered", "compared"] = "scattered"
    casts: Literal["all", "widening"] = "all"
    sums: Literal["end a pass", "end a pass but in tiles"] = "end a pass"
    stacks: Literal["written apart", "read and written"] = "read and written"
    columns: Literal["in their pass", "beside what reads the same"] = "in their pass"
    cuts: Literal["overlap", "read one by one"] = "overlap"
    joins: Literal["made again", "written"] = "made again"

    def runs_apart(self, graph: Graph, op: Op) -> bool:
        """Whether an op is a kernel of its own whatever uses it."""
        if op.opcode == SCATTER and self.updates == "compared" and _is_one_a_row(graph, op):
            return False
        return op.opcode in OWN_KERNEL and not (op.opcode == GATHER and self.lookups == "fused")


def _is_one_a_row(graph: Graph, op: Op) -> bool:
    """Whether a scatter puts one number into each row of zeros, as the gradient of
    `take_along_axis` does.
    """
    dims = op.instruction.attributes.scatter
    (*rows, _) = graph.values[op.outputs[0]].dims or (0,)
    return (
        dims is not None
        and not graph.varies[op.inputs[0]]
        and not dims.update_window_dims
        and len(dims.scatter_dims_to_operand_dims) == 1
        and len(dims.input_batching_dims) == len(rows)
        and prod(graph.values[op.inputs[-1]].dims) == prod(rows)
    )
