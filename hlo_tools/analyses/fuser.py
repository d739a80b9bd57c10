"""What a backend's fusion passes do, as `hlo_tools.analyses.kernels` asks it."""

from dataclasses import dataclass
from typing import Literal

from hlo_tools.graph import Op
from hlo_tools.opcodes import GATHER, OWN_KERNEL


@dataclass(frozen=True, slots=True)
class Fuser:
    """A backend's fusion passes: operands of the opcodes in `loads` must be in memory.

    `results` says whether kernels that read the same are made one, `products` whether elementwise
    ops that alone use a contraction's result are part of it, or sums only, with what a loop carries
    for nothing else (beta of a matrix library's C = A B + beta C), `tables` whether an input that
    rows are looked up in is converted whole before, or only those rows, `slices` whether a product
    loads a part whose offset is known at run time from the array that it is cut of, or from a copy,
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

    def runs_apart(self, op: Op) -> bool:
        """Whether an op is a kernel of its own whatever uses it."""
        return op.opcode in OWN_KERNEL and not (op.opcode == GATHER and self.lookups == "fused")
