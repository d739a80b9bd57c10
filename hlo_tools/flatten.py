"""Module -> Graph: inline calls, take tuples apart, visit each loop body once.

`_Flattener.run(computation, arguments)` walks a computation in order; an environment maps instruction ids
to a value id, or to a nested tuple of them.  The trip count of a loop is read from its counter
(`hlo_tools.trips`); a loop whose count cannot be read is counted once and named in
`Graph.assumptions`.

What XLA has fused is inlined too, unless fusions are kept as the ops that run (`hlo_tools.scheduled`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
import re
from typing import Literal

from hlo_tools.collector import collector_paused
from hlo_tools.errors import HloError
from hlo_tools.graph import (
    BRANCH_ENTER,
    BRANCH_EXIT,
    CONSTRAINT,
    CONSTRAINT_TARGET,
    LOOP_ENTER,
    LOOP_EXIT,
    Graph,
    Op,
    Value,
)
from hlo_tools.module import Attributes, Computation, Instruction, Module, Shape
from hlo_tools.rules.notation import Notation
from hlo_tools.trips import trip_count


Fusions = Literal["inlined", "kept"]
Leaf = int
Tree = Leaf | tuple["Tree", ...]

# Custom calls that hand their operand on: sharding annotations of either partitioner.
_IDENTITY_TARGETS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.FuncResultSharding"}
)
_IDENTITY_OPCODES = frozenset(
    {"copy", "opt-barrier", "optimization-barrier", "copy-start", "copy-done"}
)
_MAX_FLAT_OPS = 2_000_000


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
    try:
        return _Flattener(module, user_rules or {}, fusions).graph()
    except HloError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise HloError(
            f"module {module.name!r} is not well formed ({type(error).__name__}: {error}); "
            "dump it again with XLA, or pass the StableHLO it came from"
        ) from error


class _Flattener:
    def __init__(self, module: Module, user_rules: Mapping[str, Notation], fusions: Fusions):
        self.module = module
        self.user_rules = user_rules
        self.handlers = _HANDLERS if fusions == "inlined" else _KEEPING_FUSIONS
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.ties: list[tuple[int, int]] = []
        self.constants: dict[int, int | float | bool] = {}
        self.assumptions: list[str] = []
        self.trip_count = 1
        self.prefix = ""

    def graph(self) -> Graph:
        entry = self.module.computations[self.module.entry_id]
        parameters = sorted(
            (i for i in entry.instructions if i.opcode == "parameter"),
            key=lambda i: i.parameter_number,
        )
        arguments = [self.fresh(p.shape, -1) for p in parameters]
        root = self.run(entry, arguments)
        inputs = tuple(leaf for tree in arguments for leaf in _leaves(tree))
        names = tuple(
            p.op_name or p.name for p, tree in zip(parameters, arguments) for _ in _leaves(tree)
        )
        return Graph(
            name=self.module.name, values=self.values, ops=self.ops, inputs=inputs, input_names=names,
            outputs=tuple(_leaves(root)), ties=self.ties, donated=self.module.donated,
            aliases=self.module.aliases, assumptions=tuple(dict.fromkeys(self.assumptions)),
        )  # fmt: skip

    def fresh(self, shape: Shape, producer: int) -> Tree:
        """New value ids for the leaves of `shape`, in its nesting."""
        if shape.dtype == "tuple":
            return tuple(self.fresh(element, producer) for element in shape.elements)
        self.values.append(Value(shape.dtype, shape.dims, producer))
        return len(self.values) - 1

    def emit(self, opcode: str, inputs: tuple[int, ...], instruction: Instruction) -> Tree:
        """Append an op with the instruction's result shape; returns its result values."""
        result = self.fresh(instruction.shape, len(self.ops))
        return self.emit_with(opcode, inputs, result, instruction)

    def emit_with(
        self, opcode: str, inputs: tuple[int, ...], result: Tree, instruction: Instruction
    ) -> Tree:
        if len(self.ops) >= _MAX_FLAT_OPS:
            raise HloError(f"module {self.module.name!r} inlines to over {_MAX_FLAT_OPS} ops")
        name = _joined(self.prefix, instruction.op_name) if self.prefix else instruction.op_name
        outputs = (result,) if isinstance(result, int) else tuple(_leaves(result))
        self.ops.append(Op(opcode, inputs, outputs, instruction, name, self.trip_count))
        return result

    def run(self, computation: Computation, arguments: list[Tree]) -> Tree:
        """Flatten one computation called with `arguments`; returns its root."""
        environment: dict[int, Tree] = {}
        for instruction in computation.instructions:
            operands = [environment[i] for i in instruction.operands]
            handler = self.handlers.get(instruction.opcode)
            if instruction.opcode == "parameter":
                result = arguments[instruction.parameter_number]
            elif handler is not None:
                result = handler(self, instruction, operands)
            else:
                result = self.emit(instruction.opcode, _flat(operands), instruction)
            environment[instruction.id] = result
        return environment[computation.root_id]

    def ruled_name(self, instruction: Instruction, operands: list[Tree]) -> str | None:
        """The called function's name, if the user has a rule that fits what it is called with."""
        called = self.module.computations[instruction.called[0]].name
        for name, notation in self.user_rules.items():
            if called.startswith(name) and _NUMBER.fullmatch(called, len(name)):
                inputs = [self.values[leaf].dims for tree in operands for leaf in _leaves(tree)]
                shape = instruction.shape
                results = [e.dims for e in shape.elements] if shape.elements else [shape.dims]
                if notation.fits(inputs, results):
                    return name
                self.assumptions.append(
                    f"rule {notation.text!r} does not fit the function {called}, {len(inputs)} arrays to "
                    f"{len(results)} (differentiation adds some): its ops are planned one by one"
                )
        return None

    def inline(self, instruction: Instruction, computation_id: int, arguments: list[Tree]) -> Tree:
        outer, self.prefix = self.prefix, _joined(self.prefix, instruction.op_name)
        result = self.run(self.module.computations[computation_id], arguments)
        self.prefix = outer
        return result


# What XLA appends to a function's name to tell its computations apart.
_NUMBER = re.compile(r"(_\d+)?(\.\d+)*")


def _joined(prefix: str, name: str) -> str:
    # Names inside a callee are relative in some JAX versions and whole in others.
    if not prefix or name.startswith(prefix):
        return name or prefix
    return f"{prefix}/{name}" if name else prefix


def _flat(trees: list[Tree]) -> tuple[int, ...]:
    if tuple not in map(type, trees):
        return tuple(trees)  # pyright: ignore[reportReturnType]
    return tuple(leaf for tree in trees for leaf in _leaves(tree))


def _leaves(tree: Tree) -> list[int]:
    if isinstance(tree, int):
        return [tree]
    return [leaf for part in tree for leaf in _leaves(part)]


def _constant(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    result = flat.emit("constant", (), instruction)
    if instruction.literal is not None and isinstance(result, int):
        flat.constants[result] = instruction.literal
    return result


def _copy(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    """A copy that takes time; loops begin with copies of constants."""
    result, source = flat.emit(instruction.opcode, _flat(operands), instruction), operands[0]
    if isinstance(result, int) and source in flat.constants:
        flat.constants[result] = flat.constants[source]
    return result


def _tuple(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    return tuple(operands)


def _element(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    whole = operands[0]
    if isinstance(whole, int):
        raise HloError(f"{instruction.name}: get-tuple-element of something that is not a tuple")
    return whole[instruction.tuple_index]


def _identity(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    return operands[0] if len(operands) == 1 else tuple(operands)


def _call(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    name = flat.ruled_name(instruction, operands)
    if name is not None:
        inputs = _flat(operands)
        as_call = replace(
            instruction, opcode="custom-call", attributes=Attributes(custom_call_target=name)
        )
        return flat.emit("custom-call", inputs, as_call)
    return flat.inline(instruction, instruction.called[0], operands)


def _custom_call(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    target = instruction.attributes.custom_call_target
    is_identity = target in _IDENTITY_TARGETS
    if is_identity and operands and _has_shape(flat, operands[0], instruction.shape):
        return operands[0]
    opcode = CONSTRAINT if target.startswith(CONSTRAINT_TARGET) else "custom-call"
    return flat.emit(opcode, _flat(operands), instruction)


def _has_shape(flat: _Flattener, tree: Tree, shape: Shape) -> bool:
    """Whether a tree's values have these dimensions; a shard_map's parts are smaller than the whole."""
    if isinstance(tree, int):
        return flat.values[tree].dims == shape.dims
    return all(_has_shape(flat, part, e) for part, e in zip(tree, shape.elements, strict=True))


def _while(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    body, condition = _body_and_condition(flat.module, instruction)
    initial = tuple(_leaves(operands[0]))
    carried = flat.fresh(instruction.shape, len(flat.ops))
    flat.emit_with(LOOP_ENTER, initial, carried, instruction)
    trips = instruction.attributes.trip_count
    if trips is None:
        trips = _read_trips(flat, instruction, condition, body, operands[0])
    outer, flat.trip_count = flat.trip_count, flat.trip_count * trips
    root = flat.inline(instruction, body.id, [carried])
    flat.trip_count = outer
    result = flat.fresh(instruction.shape, len(flat.ops))
    flat.emit_with(LOOP_EXIT, tuple(_leaves(root)), result, instruction)
    for group in (initial, _leaves(root), _leaves(result)):
        flat.ties.extend(zip(group, _leaves(carried), strict=True))
    return result


def _read_trips(
    flat: _Flattener, loop: Instruction, condition: Computation, body: Computation, carried: Tree
) -> int:
    def initial(element: int) -> int | None:
        leaf = carried[element] if isinstance(carried, tuple) else None
        value = flat.constants.get(leaf) if isinstance(leaf, int) else None
        return value if isinstance(value, int) else None

    trips = trip_count(flat.module, condition, body, initial)
    where = _joined(flat.prefix, loop.op_name) or loop.name
    if trips.count is None:
        flat.assumptions.append(f"loop {where}: trip count not known, counted once")
    elif not trips.is_step_known:
        flat.assumptions.append(f"loop {where}: its counter is taken to go by one")
    return 1 if trips.count is None else trips.count


def _body_and_condition(
    module: Module, instruction: Instruction
) -> tuple[Computation, Computation]:
    # The proto lists both callees; the condition is the one that returns a single pred.
    callees = [module.computations[i] for i in instruction.called]
    if len(callees) != 2:
        raise HloError(f"{instruction.name}: a while calls two computations, this {len(callees)}")
    roots = [_root(c).shape.dtype for c in callees]
    return (callees[0], callees[1]) if roots[1] == "pred" else (callees[1], callees[0])


def _root(computation: Computation) -> Instruction:
    return next(i for i in computation.instructions if i.id == computation.root_id)


def _conditional(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    inputs = _flat(operands)
    flat.emit_with(BRANCH_ENTER, inputs, (), instruction)
    roots = [
        flat.inline(instruction, branch, [argument])
        for branch, argument in zip(instruction.called, operands[1:], strict=True)
    ]
    result = flat.fresh(instruction.shape, len(flat.ops))
    leaves = tuple(leaf for root in roots for leaf in _leaves(root))
    flat.emit_with(BRANCH_EXIT, leaves, result, instruction)
    for root in roots:
        flat.ties.extend(zip(_leaves(root), _leaves(result), strict=True))
    return result


def _async_start(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    return (tuple(operands), flat.inline(instruction, instruction.called[0], operands))


def _async_done(flat: _Flattener, instruction: Instruction, operands: list[Tree]) -> Tree:
    started = operands[0]
    return started if isinstance(started, int) else started[1]


_Handler = Callable[[_Flattener, Instruction, list[Tree]], Tree]
_HANDLERS: Mapping[str, _Handler] = {
    "call": _call,
    "async-start": _async_start,
    "async-update": _identity,
    "async-done": _async_done,
    "fusion": _call,
    "constant": _constant,
    "conditional": _conditional,
    "custom-call": _custom_call,
    "get-tuple-element": _element,
    "tuple": _tuple,
    "while": _while,
    **dict.fromkeys(_IDENTITY_OPCODES, _identity),
}
_KEEPING_FUSIONS = {
    **{name: handler for name, handler in _HANDLERS.items() if name != "fusion"},
    "copy": _copy,
}
