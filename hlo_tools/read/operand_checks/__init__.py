"""What each opcode asks of its operands, attributes and result: one table.

A row is the least and the greatest number of operands and a check of how the shapes fit, which
returns what is wrong, or None. It asks for what rules and analyses rely on; XLA's own verifier asks
for more. An opcode without a row is unknown, and may have any operands.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hlo_tools.module import Instruction, Shape
from hlo_tools.opcodes import BARRIERS, COLLECTIVES, ELEMENTWISE, elementwise
from hlo_tools.read.operand_checks import contract, index, shape
from hlo_tools.read.operand_checks.dims import same_structure as same_structure


Check = Callable[[Instruction, Sequence[Shape]], str | None]
_ANY: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Row:
    """What an opcode asks for: `least` to `most` operands, and `check` of their shapes."""

    least: int
    most: int
    check: Check


def why_wrong(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
    """What is wrong with an instruction whose operands have these shapes, None if nothing is."""
    row = ROWS.get(instruction.opcode)
    if row is None:
        return None
    if not row.least <= len(operands) <= row.most:
        allowed = f"{row.least}" if row.least == row.most else f"at least {row.least}"
        return f"{instruction.opcode} takes {allowed} operands, got {len(operands)}"
    return row.check(instruction, operands)


def _arrays(check: Check) -> Check:
    """A check of ops on arrays: no operand is a tuple."""

    def checked(instruction: Instruction, operands: Sequence[Shape]) -> str | None:
        if any(operand.dtype == "tuple" for operand in operands):
            return "an operand is a tuple, and not an array"
        return check(instruction, operands)

    return checked


ROWS: Final[Mapping[str, Row]] = {
    # Sets of opcodes first: the row of a single opcode below takes the place of its set's.
    **dict.fromkeys(ELEMENTWISE, Row(1, _ANY, _arrays(shape.like_result))),
    **{
        opcode: Row(n_operands, n_operands, _arrays(shape.like_result))
        for n_operands in (1, 2, 3)
        for opcode in elementwise(n_operands)
    },
    **dict.fromkeys(COLLECTIVES, Row(1, _ANY, shape.anything)),
    **dict.fromkeys(("partition-id", "replica-id", "parameter"), Row(0, 0, shape.anything)),
    **dict.fromkeys(BARRIERS, Row(1, _ANY, shape.handed_on)),
    "bitcast": Row(1, 1, _arrays(shape.anything)),
    "bitcast-convert": Row(1, 1, _arrays(shape.bitcast_convert)),
    "broadcast": Row(1, 1, _arrays(shape.broadcast)),
    "cholesky": Row(1, 1, _arrays(shape.matrices)),
    "concatenate": Row(1, _ANY, _arrays(shape.concatenate)),
    "constant": Row(0, 0, shape.anything),
    "convolution": Row(2, 2, _arrays(contract.convolution)),
    "copy": Row(1, 1, shape.handed_on),
    "dot": Row(2, 2, _arrays(contract.dot)),
    "dynamic-reshape": Row(1, _ANY, _arrays(shape.reshape)),
    "dynamic-slice": Row(1, _ANY, _arrays(shape.dynamic_slice)),
    "dynamic-update-slice": Row(2, _ANY, _arrays(shape.dynamic_update_slice)),
    "fft": Row(1, 1, _arrays(shape.fft)),
    "gather": Row(2, 2, _arrays(index.gather)),
    "get-dimension-size": Row(1, 1, shape.anything),
    "get-tuple-element": Row(1, 1, shape.element),
    "iota": Row(0, 0, shape.iota),
    "pad": Row(2, 2, _arrays(shape.pad)),
    "ragged-dot": Row(3, 3, _arrays(contract.ragged_dot)),
    "reduce": Row(2, _ANY, _arrays(shape.reduce)),
    "reduce-window": Row(2, _ANY, _arrays(shape.reduce_window)),
    "reshape": Row(1, 1, _arrays(shape.reshape)),
    "reverse": Row(1, 1, _arrays(shape.reverse)),
    "rng-bit-generator": Row(1, 1, shape.anything),
    "scatter": Row(3, _ANY, _arrays(index.scatter)),
    "select-and-scatter": Row(3, 3, _arrays(shape.select_and_scatter)),
    "set-dimension-size": Row(2, 2, shape.anything),
    "slice": Row(1, 1, _arrays(shape.slice_)),
    "sort": Row(1, _ANY, _arrays(shape.sort)),
    "topk": Row(1, 1, _arrays(shape.top_k)),
    "transpose": Row(1, 1, _arrays(shape.transpose)),
    "triangular-solve": Row(2, 2, _arrays(shape.matrices)),
    "tuple": Row(0, _ANY, shape.tuple_),
}
