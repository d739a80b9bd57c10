"""Module -> Graph: inline calls, take tuples apart, visit each loop body once.

A handler says what becomes of an instruction that is no op of its own: of calls, loops, branches,
tuples and custom calls. It takes the flattener, the instruction and its operands, and gives the
instruction's result                                                      -> in: `HANDLERS`
What has none is an op.

Loops are in `hlo_tools.graph.loops`. What XLA has fused is inlined too, unless fusions are kept as
the ops that run (`hlo_tools.compiled.estimates`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from hlo_tools.collector import collector_paused
from hlo_tools.errors import HloError
from hlo_tools.graph.flattener import Flattener, Handler, Tree, flat_leaves, leaves
from hlo_tools.graph.graph import Graph
from hlo_tools.graph.loops import while_loop
from hlo_tools.module import Attributes, Instruction, Module, Shape
from hlo_tools.opcodes import (
    BARRIERS,
    BRANCH_ENTER,
    BRANCH_EXIT,
    CONSTRAINT,
    CONSTRAINT_TARGET,
    CUSTOM_CALL,
    DOT,
    DYNAMIC_SLICE,
    DYNAMIC_UPDATE_SLICE,
    IDENTITIES,
    MANUAL_ENTER,
    MANUAL_EXIT,
    OUTER_PRODUCT,
)
from hlo_tools.rules.notation import Notation


# Custom calls that hand their operand on: sharding annotations of either partitioner, and what says
# in which order dimensions lie in memory.
_IDENTITY_TARGETS = frozenset(
    {
        "LayoutConstraint",
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.FuncResultSharding",
    }
)
# The two ends of what runs on parts of arrays (`shard_map`).
_MANUAL_TARGETS: Mapping[str, str] = {
    "xla.sdy.GlobalToLocalShape": MANUAL_ENTER,
    "xla.sdy.LocalToGlobalShape": MANUAL_EXIT,
}
# The operand that such an op hands on if it is as large as the result.
_WHOLE_OPERAND: Mapping[str, int] = {DYNAMIC_SLICE: 0, DYNAMIC_UPDATE_SLICE: 1}


def _sliced(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    """A slice or an update of all there is, as of a stack in a loop of one trip, is no op: offsets
    are clamped to 0.
    """
    whole = operands[_WHOLE_OPERAND[instruction.opcode]]
    if _has_shape(flat, whole, instruction.shape):
        return whole
    return flat.emit(instruction.opcode, flat_leaves(operands), instruction)


def _constant(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    result = flat.emit("constant", (), instruction)
    if instruction.literal is not None and isinstance(result, int):
        flat.constants[result] = instruction.literal
    return result


def _copy(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    """A copy that takes time; loops begin with copies of constants."""
    result, source = flat.emit(instruction.opcode, flat_leaves(operands), instruction), operands[0]
    if isinstance(result, int) and source in flat.constants:
        flat.constants[result] = flat.constants[source]
    return result


def _dot(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    numbers = instruction.attributes.dot
    sums = numbers is None or bool(numbers.lhs_contracting)
    return flat.emit(DOT if sums else OUTER_PRODUCT, flat_leaves(operands), instruction)


def _tuple(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    return tuple(operands)


def _element(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    whole = operands[0]
    if isinstance(whole, int):
        raise HloError(f"{instruction.name}: get-tuple-element of something that is not a tuple")
    return whole[instruction.tuple_index]


def _identity(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    return operands[0] if len(operands) == 1 else tuple(operands)


def _barrier(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    flat.held.update(flat_leaves(operands))
    return _identity(flat, instruction, operands)


def _call(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    name = flat.ruled_name(instruction, operands)
    if name is not None:
        inputs = flat_leaves(operands)
        # To all analyses the function is now a custom call of this name; its body is never read.
        as_call = replace(
            instruction, opcode=CUSTOM_CALL, attributes=Attributes(custom_call_target=name)
        )
        return flat.emit(CUSTOM_CALL, inputs, as_call)
    return flat.inline(instruction, instruction.called[0], operands)


def _custom_call(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    target = instruction.attributes.custom_call_target
    if target in _MANUAL_TARGETS:
        return flat.emit(_MANUAL_TARGETS[target], flat_leaves(operands), instruction)
    is_identity = target in _IDENTITY_TARGETS
    # At the edge of a `shard_map` they change the shape, from the whole to a part: that is an op.
    if is_identity and operands and _has_shape(flat, operands[0], instruction.shape):
        return operands[0]
    opcode = CONSTRAINT if target.startswith(CONSTRAINT_TARGET) else CUSTOM_CALL
    return flat.emit(opcode, flat_leaves(operands), instruction)


def _has_shape(flat: Flattener, tree: Tree, shape: Shape) -> bool:
    """Whether a tree's values have these dimensions; a shard_map's parts are smaller than the
    whole.
    """
    if isinstance(tree, int):
        return flat.values[tree].dims == shape.dims
    return all(_has_shape(flat, part, e) for part, e in zip(tree, shape.elements, strict=True))


def _conditional(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    inputs = flat_leaves(operands)
    # Operand 0 says which branch runs; branch n takes operand n + 1.
    flat.emit_with(BRANCH_ENTER, inputs, (), instruction)
    roots = [
        flat.inline(instruction, branch, [argument])
        for branch, argument in zip(instruction.called, operands[1:], strict=True)
    ]
    result = flat.fresh(instruction.shape, len(flat.ops))
    inside = tuple(leaf for root in roots for leaf in leaves(root))
    flat.emit_with(BRANCH_EXIT, inside, result, instruction)
    # Whichever branch has run, its result and the conditional's are one tensor.
    for root in roots:
        flat.ties.extend(zip(leaves(root), leaves(result), strict=True))
    return result


def _async_start(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    """What it calls; if its operands come with an update (gathers of SparseCores), nothing yet."""
    called = instruction.called[0]
    parameters = flat.module.computations[called].instructions
    if not operands and any(i.opcode == "parameter" for i in parameters):
        flat.awaited[instruction.id] = called
        # The (operands, results) that XLA gives a start; both come with the update.
        return ((), ())
    return (tuple(operands), flat.inline(instruction, called, operands))


def _async_update(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    started, *own = operands
    if not own:
        return started
    return (tuple(own), flat.inline(instruction, flat.awaited[instruction.operands[0]], own))


def _async_done(flat: Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    started = operands[0]
    return started if isinstance(started, int) else started[1]


HANDLERS: Mapping[str, Handler] = {
    "call": _call,
    "async-start": _async_start,
    "async-update": _async_update,
    "async-done": _async_done,
    "fusion": _call,
    "constant": _constant,
    "conditional": _conditional,
    CUSTOM_CALL: _custom_call,
    DOT: _dot,
    "get-tuple-element": _element,
    "tuple": _tuple,
    "while": while_loop,
    **dict.fromkeys(_WHOLE_OPERAND, _sliced),
    **dict.fromkeys(IDENTITIES, _identity),
    **dict.fromkeys(BARRIERS, _barrier),
}
_RUN_AS_OPS = frozenset({"fusion", *_WHOLE_OPERAND})
# Of a compiled program fusions, copies and slices are what runs and takes time.
KEEPING_FUSIONS = {
    **{name: handler for name, handler in HANDLERS.items() if name not in _RUN_AS_OPS},
    "copy": _copy,
}


Fusions = Literal["inlined", "kept"]


@collector_paused()
def flatten(
    module: Module,
    user_rules: Mapping[str, Notation] | None = None,
    *,
    fusions: Fusions = "inlined",
) -> Graph:
    """Inline `module` to one flat graph.

    A function that has a rule for its shapes in `user_rules` becomes one custom call of its name.

    Raises `HloError` where an instruction refers to a tuple element that is not there, or when
    inlining grows past two million ops.
    """
    handlers = HANDLERS if fusions == "inlined" else KEEPING_FUSIONS
    try:
        return Flattener(module, user_rules or {}, handlers).graph()
    except HloError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise HloError(
            f"module {module.name!r} is not well formed ({type(error).__name__}: {error}); "
            "dump it again with XLA, or pass the StableHLO it came from"
        ) from error
