"""Products of matrices and vectors, where a compiler multiplies them element by element and sums.

A dot is one of vectors if one of its operands has no dimension of its own, beside those of the
batch and those that are summed over, or only such of one element. XLA's algebraic simplifier makes
a multiplication and a reduction of it (`DotStrengthReduction`) where its backend lets it:

    sum_k  w[b, k] m[b, k, n]         no matrix unit, and float32 is rounded to nothing narrower

Such a dot has the opcode `matrix-vector` from then on   -> in: `with_vectors_summed`
It sums the larger of its operands, as a reduction sums its first one        -> in: `summed_value`

Read of programs of libtpu 0.0.51 for v5e (2026-12-01). Steps of one row, states of matrices in
loops, and caches that are looked through for one query are computed so. The compiler leaves dots
with a batch as products where matrix and vector are what the step is given or what a loop does not
change, which is rare in a step and told apart nowhere here.
"""

from dataclasses import replace
from math import prod

from hlo_tools.graph import PART_TYPES, Graph, Op
from hlo_tools.opcodes import DOT, MATRIX_VECTOR


def with_vectors_summed(graph: Graph) -> Graph:
    """The graph with products of vectors told apart; itself where there are none."""
    places = [index for index, op in enumerate(graph.ops) if _is_of_vector(graph, op)]
    if not places:
        return graph
    ops = list(graph.ops)
    for index in places:
        ops[index] = replace(ops[index], opcode=MATRIX_VECTOR)
    return replace(graph, ops=ops)


def summed_value(graph: Graph, op: Op) -> int:
    """What a reduction sums, or a product of a matrix and a vector."""
    if op.opcode != MATRIX_VECTOR:
        return op.inputs[0]
    return max(op.inputs, key=lambda value: prod(graph.values[value].dims))


def _is_of_vector(graph: Graph, op: Op) -> bool:
    """Whether a dot of real numbers has an operand without a dimension of its own."""
    numbers = op.instruction.attributes.dot
    if op.opcode != DOT or numbers is None or graph.values[op.inputs[0]].dtype in PART_TYPES:
        return False
    shared = (
        {*numbers.lhs_batch, *numbers.lhs_contracting},
        {*numbers.rhs_batch, *numbers.rhs_contracting},
    )
    return any(
        all(size == 1 or dim in known for dim, size in enumerate(graph.values[value].dims))
        for value, known in zip(op.inputs, shared, strict=True)
    )
