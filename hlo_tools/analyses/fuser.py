"""What a backend's fusion passes do, as `hlo_tools.analyses.kernels` asks it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    CONTRACTIONS,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    GATHER,
    OWN_KERNEL,
    REDUCTIONS,
    RESHAPE,
    STRUCTURAL,
    VIEWS,
)


@dataclass(frozen=True, slots=True)
class Fuser:
    """A backend's fusion passes: operands of the opcodes in `loads` must be in memory.

    `results` says whether kernels that read the same are made one, `products` whether elementwise
    ops that alone use a contraction's result are part of it, or sums only, with what a loop carries
    for nothing else (beta of a matrix library's C = A B + beta C), `tables` whether an input that
    rows are looked up in is converted whole before, or only those rows, `slices` whether a product
    loads a part whose offset is known at run time from the array that it is cut of, or from a copy,
    `stacks` whether a part that is written into an array is read of it before,
    `sums` whether what waits for a sum reads its arrays once more, but for sums of rows that are
    worked on in tiles, or has what the sum has read,
    `lookups` whether looking up by index is a kernel, or a part of those that use what it makes,
    `casts` whether a contraction converts all operands as it loads them, or only to wider types.

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
    casts: Literal["all", "widening"] = "all"
    sums: Literal["end a pass", "hand on"] = "hand on"
    stacks: Literal["written", "read and written"] = "read and written"

    def runs_apart(self, op: Op) -> bool:
        """Whether an op is a kernel of its own whatever uses it."""
        return op.opcode in OWN_KERNEL and not (op.opcode == GATHER and self.lookups == "fused")


def stacks_in_products(graph: Graph, fuser: Fuser) -> frozenset[int]:
    """The numbers of ops that put into a stack what a product's kernel makes, as part of it."""
    made = made_in_products(graph, fuser)
    return frozenset(
        index
        for index, op in enumerate(graph.ops)
        if op.opcode == DYNAMIC_UPDATE_SLICE and made[op.inputs[1]]
    )


_THERE, _BY_PRODUCT, _APART = range(3)


def made_in_products(graph: Graph, fuser: Fuser) -> list[bool]:
    """Whether each value is a result that a product's kernel has at hand: what the product makes,
    or what is computed of it element by element, of other operands only what is there before:
    inputs, what loops carry, and parts and broadcasts of these.

    Not what a sum goes into, as in a normalization, nor what lies in another order of dimensions:
    these need all of the product's result first. Nor what is summed itself, which the kernel of the
    product does instead. None where kernels have one result, or products are fused with nothing.
    """
    if fuser.products != "fused" or fuser.results != "several":
        return [False] * len(graph.values)
    made = [_THERE] * len(graph.values)
    for op in graph.ops:
        if op.opcode in STRUCTURAL:
            continue
        latest = max((made[v] for v in op.inputs), default=_THERE)
        if op.opcode in CONTRACTIONS:
            latest = _BY_PRODUCT
        elif op.opcode not in ELEMENTWISE and not _keeps_dims(graph, op):
            is_view = op.opcode in VIEWS or op.opcode == RESHAPE
            latest = _THERE if is_view and latest == _THERE else _APART
        for value in op.outputs:
            made[value] = latest if graph.varies[value] else _THERE
    summed = _summed(graph, made)
    return [kind == _BY_PRODUCT and value not in summed for value, kind in enumerate(made)]


def _summed(graph: Graph, made: Sequence[int]) -> set[int]:
    """Of what products make, what a reduction takes, and all that is computed of that element by
    element, before the reduction or beside it.
    """
    summed: set[int] = set()
    by_element = [op for op in graph.ops if op.opcode not in CONTRACTIONS]
    for op in reversed(by_element):
        if op.opcode in REDUCTIONS or any(v in summed for v in op.outputs):
            summed.update(v for v in op.inputs if made[v] == _BY_PRODUCT)
    for op in by_element:
        if any(v in summed for v in op.inputs):
            summed.update(v for v in op.outputs if made[v] == _BY_PRODUCT)
    return summed


def _keeps_dims(graph: Graph, op: Op) -> bool:
    """Whether a reshape only adds or drops dimensions of one element."""
    if op.opcode != RESHAPE:
        return False
    before, after = (
        [d for d in graph.values[v].dims if d > 1] for v in (op.inputs[0], op.outputs[0])
    )
    return before == after
