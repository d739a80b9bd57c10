"""The rule table: opcode -> how a dimension of one tensor follows from those of the others.

Three states per opcode: it has a rule (`RULES`), it needs none (`NO_RULE_NEEDED`), or it is unknown,
in which case `rule_of` returns a rule that lets nothing pass: every operand is gathered, the result is
whole on every device, and the caller must say so.
"""

from collections.abc import Callable, Mapping

from hlo_tools.graph import STRUCTURAL
from hlo_tools.module import Instruction
from hlo_tools.rules import contract, elementwise, index, reduce, shape
from hlo_tools.rules.rule import Factor, FactorKind, Rule, RuleBuilder


RuleFunction = Callable[[Instruction, list[tuple[int, ...]], list[tuple[int, ...]]], Rule]

RULES: Mapping[str, RuleFunction] = {
    **dict.fromkeys(elementwise.ELEMENTWISE, elementwise.elementwise),
    **dict.fromkeys(elementwise.FREE_PRODUCERS, elementwise.producer),
    "bitcast": shape.reshape,
    "broadcast": shape.broadcast,
    "concatenate": shape.concatenate,
    "convolution": contract.convolution,
    "dot": contract.dot,
    "dynamic-reshape": shape.reshape,
    "dynamic-slice": shape.dynamic_slice,
    "dynamic-update-slice": shape.dynamic_update_slice,
    "gather": index.gather,
    "pad": shape.same_or_blocked,
    "reduce": reduce.reduce,
    "reduce-window": reduce.reduce_window,
    "reshape": shape.reshape,
    "reverse": shape.same_or_blocked,
    "rng": elementwise.producer,
    "rng-bit-generator": elementwise.producer,
    "scatter": index.scatter,
    "select-and-scatter": reduce.select_and_scatter,
    "slice": shape.same_or_blocked,
    "sort": reduce.along_dimension,
    "topk": reduce.along_dimension,
    "transpose": shape.transpose,
}
# Loop and branch brackets move values by identity ties; tokens carry no data.
NO_RULE_NEEDED: frozenset[str] = STRUCTURAL | {"after-all", "add-dependency"}


def has_rule(opcode: str) -> bool:
    """Whether `opcode` is known: it has a rule or needs none."""
    return opcode in RULES or opcode in NO_RULE_NEEDED


def rule_of(
    instruction: Instruction,
    opcode: str,
    operands: list[tuple[int, ...]],
    results: list[tuple[int, ...]],
) -> Rule:
    """The rule of one op with these operand and result shapes; nothing passes where none is known."""
    function = RULES.get(opcode)
    if function is None:
        return RuleBuilder(operands, results).build()
    return function(instruction, operands, results)


__all__ = [
    "NO_RULE_NEEDED",
    "RULES",
    "Factor",
    "FactorKind",
    "Rule",
    "RuleBuilder",
    "has_rule",
    "rule_of",
]
