"""The rule table: opcode -> how a dimension of one tensor follows from those of the others.

Three states per op: it has a rule, it needs none (`NO_RULE_NEEDED`), or it is unknown, in which
case nothing passes: every operand is gathered, the result is whole on every device, and the caller
must say so.

A rule comes from `RULES` by opcode, for a custom call from `CUSTOM_CALLS` by its target, and before
both from the user, by target or function name (`hlo_tools.rules.notation`)    -> in: `find_rule`

`hlo_tools.rules.convolution`  convolutions, with feature and batch groups, strides and
                               dilations
`hlo_tools.rules.notation`     rules as text: what `str(rule)` prints and what users write for
                               their own ops
`hlo_tools.rules.rule`         what a sharding rule is: the indices of an op's iteration space
                               and where each one appears
`hlo_tools.rules.window`       windows: which elements of its neighbours a device needs, and
                               the ops that slide a window
"""

from collections.abc import Callable, Mapping

from hlo_tools.errors import HloError
from hlo_tools.module import Instruction
from hlo_tools.opcodes import (
    COLLECTIVES,
    CONSTRAINT,
    CUSTOM_CALL,
    ELEMENTWISE,
    MATRIX_VECTOR,
    NO_RULE_NEEDED,
    OUTER_PRODUCT,
    PRODUCERS,
    RANDOM,
)
from hlo_tools.rules import (
    by_dimension,
    contract,
    convolution,
    index,
    shape,
    window,
)
from hlo_tools.rules.custom_call import CUSTOM_CALLS, custom_call_rule
from hlo_tools.rules.notation import Notation, parse_notation, shapes_text
from hlo_tools.rules.rule import Factor, FactorKind, Halo, Rule, RuleBuilder, Work
from hlo_tools.rules.shape import equal_blocks


RuleFunction = Callable[[Instruction, list[tuple[int, ...]], list[tuple[int, ...]]], Rule]
# Rules of custom calls by target: as text for any shapes, or made for the one call of that name.
CallRules = Mapping[str, Notation | Rule]

RULES: Mapping[str, RuleFunction] = {
    **dict.fromkeys(ELEMENTWISE, by_dimension.elementwise),
    **dict.fromkeys(PRODUCERS, by_dimension.producer),
    **dict.fromkeys(COLLECTIVES, by_dimension.collective),
    **dict.fromkeys(RANDOM, by_dimension.producer),
    CONSTRAINT: by_dimension.elementwise,
    "bitcast": shape.reshape,
    "broadcast": shape.broadcast,
    "cholesky": by_dimension.batched_matrices,
    "concatenate": shape.concatenate,
    "convolution": convolution.convolution,
    "dot": contract.dot,
    "dynamic-reshape": shape.reshape,
    "dynamic-slice": shape.dynamic_slice,
    "dynamic-update-slice": shape.dynamic_update_slice,
    "fft": by_dimension.fft,
    "gather": index.gather,
    MATRIX_VECTOR: contract.dot,
    OUTER_PRODUCT: contract.dot,
    "pad": shape.pad,
    "ragged-dot": contract.ragged_dot,
    "reduce": by_dimension.reduce,
    "reduce-window": window.reduce_window,
    "reshape": shape.reshape,
    "reverse": shape.reverse,
    "scatter": index.scatter,
    "select-and-scatter": window.select_and_scatter,
    "slice": shape.slice_,
    "sort": by_dimension.along_dimension,
    "topk": by_dimension.along_dimension,
    "transpose": shape.transpose,
    "triangular-solve": by_dimension.batched_matrices,
}


def find_rule(instruction: Instruction, opcode: str, user_rules: CallRules) -> RuleFunction | None:
    """How to make the rule of one op, None if it is unknown. Only ops that need a rule may be asked
    for.
    """
    name = instruction.attributes.custom_call_target
    if opcode == CUSTOM_CALL:
        given = user_rules.get(name)
        if given is None:
            return custom_call_rule(name)
        if isinstance(given, Rule):
            return lambda *_: given
        return lambda _, operands, results: given.rule(name, operands, results)
    return RULES.get(opcode)


def make_rule(
    instruction: Instruction,
    opcode: str,
    operands: list[tuple[int, ...]],
    results: list[tuple[int, ...]],
    user_rules: CallRules,
) -> Rule:
    """The rule of one op with these operand and result shapes; nothing passes where none is known.

    An op that needs no rule has one without factors. Raises `HloError` for attributes that do not
    fit the shapes.
    """
    if opcode in NO_RULE_NEEDED:
        # A loop has hundreds of carries; factors for them would make every table as wide.
        operand_dims, result_dims = (tuple(((),) * len(t) for t in s) for s in (operands, results))
        return Rule((), operand_dims, result_dims)
    function = find_rule(instruction, opcode, user_rules)
    if function is None:
        return RuleBuilder(operands, results).build()
    try:
        return function(instruction, operands, results)
    except HloError:
        raise
    except (IndexError, ValueError, ZeroDivisionError) as error:
        shapes = f"{operands} -> {results}"
        raise HloError(
            f"{instruction.name}: the attributes of this {opcode} do not fit its shapes {shapes}"
        ) from error


__all__ = [
    "CUSTOM_CALLS",
    "RULES",
    "CallRules",
    "Factor",
    "FactorKind",
    "Halo",
    "Notation",
    "Rule",
    "RuleBuilder",
    "Work",
    "equal_blocks",
    "find_rule",
    "parse_notation",
    "make_rule",
    "shapes_text",
]
