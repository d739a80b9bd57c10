"""What a ring has to write before it begins (`automap.cost.kernels.rings`): its operands in the
type that the matrix unit multiplies, whole.

A product alone makes its operands from what is in memory while it feeds the matrix unit.  The
kernels of a ring multiply parts of them again and again, so what is not there as bfloat16 is
written first, once for all such products of it in a phase.  Bytes that this moves, for each element
                                                          -> in: `Operands.product_operands`

    ring_rounded_bytes    of what is in memory as float32: its producer writes it rounded as well
    ring_made_bytes       of what is made on the way: written, and read
    ring_sliced_bytes     of slices of what a loop has stacked: the same, at half of the speed

The ring cuts slices of the operand that holds the dimension along which the product is scattered.
Where that is the operand's last one, which lies side by side in memory, the operand is copied into
another order of dimensions first, once for all products that cut it. That takes as long as of
float32, `ring_transposed_bytes` for each element, and less of what may stay on the chip, where each
trip of the ring reads it. What these numbers were fitted on stands in the backend's data file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
import math
from typing import TypeAlias

from automap.backends import TileNumbers
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import EACH_ELEMENT, SAME_PLACES, SLICES
from hlo_tools.rules import FactorKind, Rule
from hlo_tools.rules.rule import DimFactors


# A value, the phase, and whether products of it sum over its innermost dimension: kernels'
# gradients, which do not, are rings under other plans than what is made of activations and kernels.
_Use: TypeAlias = tuple[int, Phase, bool]


@dataclass(frozen=True, slots=True)
class Operand:
    """Bytes that are moved to write an operand, in all; `factors` of the op that it is split by, as
    a bit mask.

    `transposed_bytes` are moved to transpose it if the product is scattered along one of the
    result's dimensions `cut_dims`, a bit mask.
    """

    factors: int = 0
    moved_bytes: int = 0
    transposed_bytes: int = 0
    cut_dims: int = 0


@dataclass(frozen=True)
class Operands:
    """Those of a program's products in its order; `n_bytes` are those of each value where it is in
    memory.
    """

    graph: Graph
    n_bytes: Sequence[int]
    numbers: TileNumbers
    # What products before have written or transposed already: done once for all of a phase.
    written: set[_Use] = field(default_factory=set)
    transposed: set[_Use] = field(default_factory=set)

    def product_operands(
        self, op: Op, rule: Rule, kernel: Kernel, phase: Phase
    ) -> tuple[Operand, Operand]:
        """What a contraction reads on each side."""
        # Values that the kernel reads from memory whole, not made or sliced on the way.
        whole = {a.value for a in kernel.reads if a.n_bytes >= self.n_bytes[a.value]}
        left, right = (
            Operand(
                sum(1 << f for f in {f for dim in dims for f in dim}),
                self._moved(use, whole),
                self._transposed(use),
                self._cut_dims(value, dims, rule),
            )
            for value, dims in zip(op.inputs[:2], rule.operands[:2], strict=True)
            for use in [(self._source(value), phase, self._sums_innermost(value, dims, rule))]
        )
        return left, right

    def _moved(self, use: _Use, whole: set[int]) -> int:
        if use in self.written:
            return 0
        self.written.add(use)
        value, *_ = use
        n_elements = math.prod(self.graph.values[value].dims)
        if value in whole:
            # More than two bytes for each element: float32, which is rounded.
            return (
                self.numbers.ring_rounded_bytes * n_elements
                if self.n_bytes[value] > 2 * n_elements
                else 0
            )
        producer = self.graph.values[value].producer
        is_slice = producer >= 0 and self.graph.ops[producer].opcode in SLICES
        numbers = self.numbers
        return (numbers.ring_sliced_bytes if is_slice else numbers.ring_made_bytes) * n_elements

    def _transposed(self, use: _Use) -> int:
        if use in self.transposed:
            return 0
        self.transposed.add(use)
        value, *_ = use
        return self.numbers.ring_transposed_bytes * math.prod(self.graph.values[value].dims)

    def _source(self, value: int) -> int:
        # Through what computes element by element, along its first operand: one value is written
        # for all that is made of it so.
        while (producer := self.graph.values[value].producer) >= 0:
            op = self.graph.ops[producer]
            if op.opcode not in EACH_ELEMENT:
                break
            value = op.inputs[0]
        return value

    def _cut_dims(self, value: int, dims: DimFactors, rule: Rule) -> int:
        """The dimensions of a product that run over an operand's innermost dimension."""
        inner = set(dims[self._innermost(value)]) if dims else set()
        return sum(1 << d for d, factors in enumerate(rule.results[0]) if inner & set(factors[:1]))

    def _sums_innermost(self, value: int, dims: DimFactors, rule: Rule) -> bool:
        inner = dims[self._innermost(value)] if dims else ()
        return any(rule.factors[f].kind is FactorKind.REDUCTION for f in inner)

    def _innermost(self, value: int) -> int:
        """The dimension of a value that is the last one in memory."""
        array = self.graph.values[value]
        if array.producer >= 0:
            op = self.graph.ops[array.producer]
            if op.opcode == "transpose":
                return op.instruction.dimensions.index(self._innermost(op.inputs[0]))
            if op.opcode in SAME_PLACES:
                return self._innermost(op.inputs[0])
        return len(array.dims) - 1
