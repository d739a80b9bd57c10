"""How wide each value is kept in memory.

A TPU rounds float32 operands of a product to bfloat16 unless told otherwise, and its compiler
rounds a value where it is made if nothing but such products reads it: half the bytes in memory, and
in the stacks of a loop's residuals. A value is *narrow* if all its uses are:

    an operand of a dot or convolution of default precision
    a rearrangement, a slice, an update of a slice      if what they make is narrow
    handed on by a loop or branch                       if it is narrow there too
    handed unchanged into a loop                        in any case: the loop gets a rounded copy

the largest such set, without what custom calls make: what comes from the host is as wide
as it was put there                                                        -> in: `narrow_values`
"""

from collections.abc import Sequence
from itertools import chain

from hlo_tools.analyses.invariants import passed_on
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONTRACTIONS, CUSTOM_CALL, KEEPS_NUMBERS, LOOP_ENTER, STRUCTURAL


def stored_bytes(graph: Graph, narrow: Sequence[bool]) -> list[int]:
    """Bytes of each (unsharded) value in memory."""
    return [
        value.n_bytes // (2 if is_narrow else 1) for value, is_narrow in zip(graph.values, narrow)
    ]


def narrow_values(graph: Graph) -> list[bool]:
    """For each value whether it is kept as bfloat16 though it is float32."""
    # Inputs and results are as the caller has them, and what a call makes is as it makes it.
    wide = [value.dtype != "f32" or value.producer < 0 for value in graph.values]
    calls = (op.outputs for op in graph.ops if op.opcode == CUSTOM_CALL)
    for value in (*graph.outputs, *chain.from_iterable(calls)):
        wide[value] = True
    if not any(_rounds(op) for op in graph.ops):
        return [False] * len(wide)
    invariant = _loop_invariant(graph)
    # Zeros that several stacks start from are made for each.
    ties = [(a, b) for a, b in graph.ties if graph.varies[a]]
    changed = True
    while changed:
        before = sum(wide)
        # From users to what they read; the carry of a loop may need another round.
        for index in range(len(graph.ops) - 1, -1, -1):
            _widen(graph, graph.ops[index], wide)
        for outside, carried in ties:
            if wide[carried] or (wide[outside] and carried not in invariant):
                wide[outside] = wide[carried] = True
        changed = sum(wide) != before
    return [not w for w in wide]


def _widen(graph: Graph, op: Op, wide: list[bool]) -> None:
    """Mark operands that an op reads as they are; for loops and branches their ties say it."""
    if op.opcode in STRUCTURAL:
        operands = ()
    elif _rounds(op):
        # A product rounds its two operands; the sizes of a ragged one's groups it reads as they
        # are.
        operands = op.inputs[2:]
    elif op.opcode in KEEPS_NUMBERS:
        is_read = any(wide[v] and graph.values[v].dtype == "f32" for v in op.outputs)
        operands = op.inputs if is_read or not _keeps_bits(graph, op) else ()
    else:
        operands = op.inputs
    for value in operands:
        wide[value] = True


def _rounds(op: Op) -> bool:
    return op.opcode in CONTRACTIONS and op.instruction.attributes.precision == 0


def _keeps_bits(graph: Graph, op: Op) -> bool:
    """Whether a rearrangement makes float32, or the bfloat16 that its operand is rounded to
    anyway.
    """
    return all(graph.values[v].dtype in ("f32", "bf16") for v in op.outputs)


def _loop_invariant(graph: Graph) -> frozenset[int]:
    """Values that a loop carries along unchanged: inside they may be narrow though they are wide
    outside.
    """
    enters = (i for i, op in enumerate(graph.ops) if op.opcode == LOOP_ENTER)
    return frozenset(value for i in enters for value in passed_on(graph, i))
